#![no_main]

xmtp_fuzz::fuzz!("content");
