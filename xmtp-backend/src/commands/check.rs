//! `xmtp-backend check FILE`: reads a configuration file and says whether a server would take it.
//!
//! It opens no database and no connection, and it shows no value.

use std::path::Path;

use xmtp_backend::Config;

use super::say;

pub(super) fn run(path: &Path) -> Result<(), String> {
    Config::load(path).map_err(|error| error.to_string())?;
    say("ok")
}
