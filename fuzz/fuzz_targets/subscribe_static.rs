#![no_main]

xmtp_fuzz::fuzz!("subscribe_static");
