#![no_main]

xmtp_fuzz::fuzz!("inbox_ids");
