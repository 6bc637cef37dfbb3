#![no_main]

xmtp_fuzz::fuzz!("verify_wallets");
