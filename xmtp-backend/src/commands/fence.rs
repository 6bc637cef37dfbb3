//! `xmtp-backend fence --config FILE`: raises the ids of a restored database.

use std::path::Path;

use xmtp_backend::{Backend, Config};

use super::{block_on, say};

pub(super) fn run(path: &Path) -> Result<(), String> {
    let config = Config::load(path).map_err(|error| error.to_string())?;
    let fenced = block_on(Backend::fence(&config))?;
    let fenced = fenced.map_err(|error| error.to_string())?;
    say(&format!("fenced: the next id is above {}", fenced.to))
}
