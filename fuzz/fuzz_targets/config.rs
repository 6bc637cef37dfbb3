#![no_main]

xmtp_fuzz::fuzz!("config");
