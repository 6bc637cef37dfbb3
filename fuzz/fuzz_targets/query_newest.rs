#![no_main]

xmtp_fuzz::fuzz!("query_newest");
