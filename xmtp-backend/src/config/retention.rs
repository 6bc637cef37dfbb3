//! The section `[retention]`.
//!
//! ```toml
//! [retention]
//! group_message_seconds = 7776000
//! welcome_seconds = 7776000
//! key_package_seconds = 7776000
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use xmtp_proto::backend::v1::RetentionConfiguration;
use xmtp_proto::limits::default_retention;

use super::{ConfigError, check_positive, refuse};

/// The greatest retention, in seconds: what a signed 64-bit count of nanoseconds holds.
const MAX_RETENTION_SECONDS: u64 = 9_223_372_036;

const NANOSECONDS: u64 = 1_000_000_000;

/// How long envelopes are kept. Commits, proposals, identity updates, commit-log entries and the
/// newest envelope of each topic are kept for ever.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "retention")]
pub(super) struct RetentionFile {
    /// Group messages that are no commit or proposal, in seconds.
    #[schemars(range(min = 1, max = 9_223_372_036_u64))]
    group_message_seconds: u64,
    /// Welcomes, in seconds.
    #[schemars(range(min = 1, max = 9_223_372_036_u64))]
    welcome_seconds: u64,
    /// Key packages, in seconds.
    #[schemars(range(min = 1, max = 9_223_372_036_u64))]
    key_package_seconds: u64,
}

impl Default for RetentionFile {
    fn default() -> Self {
        let retention = default_retention();
        Self {
            group_message_seconds: retention.group_message_seconds,
            welcome_seconds: retention.welcome_seconds,
            key_package_seconds: retention.key_package_seconds,
        }
    }
}

impl RetentionFile {
    pub(super) fn read(self) -> RetentionConfiguration {
        RetentionConfiguration {
            group_message_seconds: self.group_message_seconds,
            welcome_seconds: self.welcome_seconds,
            key_package_seconds: self.key_package_seconds,
        }
    }
}

pub(super) fn check(retention: &RetentionConfiguration, now_ns: u64) -> Result<(), ConfigError> {
    let values = [
        (
            "retention.group_message_seconds",
            retention.group_message_seconds,
        ),
        ("retention.welcome_seconds", retention.welcome_seconds),
        (
            "retention.key_package_seconds",
            retention.key_package_seconds,
        ),
    ];
    check_positive(values)?;
    for (field, seconds) in values {
        let expiry = seconds
            .checked_mul(NANOSECONDS)
            .and_then(|ns| ns.checked_add(now_ns));
        let in_range = expiry.is_some_and(|expiry| i64::try_from(expiry).is_ok());
        if seconds > MAX_RETENTION_SECONDS || !in_range {
            return refuse(field, "reaches beyond the range of time");
        }
    }
    Ok(())
}
