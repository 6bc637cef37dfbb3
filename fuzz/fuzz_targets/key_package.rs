#![no_main]

xmtp_fuzz::fuzz!("key_package");
