#![no_main]

xmtp_fuzz::fuzz!("group_turn");
