//! `xmtp-backend schema`: prints the JSON schema of the configuration file.

use xmtp_backend::config::schema;

use super::say;

pub(super) fn run() -> Result<(), String> {
    // The alternate form of JSON is the indented one.
    say(&format!("{:#}", schema().as_value()))
}
