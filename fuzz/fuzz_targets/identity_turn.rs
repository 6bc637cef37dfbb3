#![no_main]

xmtp_fuzz::fuzz!("identity_turn");
