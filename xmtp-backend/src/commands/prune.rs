//! `xmtp-backend prune --config FILE`: deletes what has expired, once.
//!
//! A server does it by itself; this is for a database that has none.

use std::path::Path;

use xmtp_backend::{Backend, Config};

use super::{block_on, say};

pub(super) fn run(path: &Path) -> Result<(), String> {
    let config = Config::load(path).map_err(|error| error.to_string())?;
    let deleted = block_on(Backend::prune(&config))?;
    let deleted = deleted.map_err(|error| error.to_string())?;
    say(&format!("pruned: {deleted} expired envelopes are gone"))
}
