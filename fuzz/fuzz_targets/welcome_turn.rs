#![no_main]

xmtp_fuzz::fuzz!("welcome_turn");
