//! The sections `[publishing]` and `[streams]`.
//!
//! ```toml
//! [publishing]
//! max_publish_duration_ms = 10000
//! max_barrier_wait_ms = 100
//!
//! [streams]
//! poll_interval_ms = 100
//! max_gap_ranges = 10000
//! keepalive_interval_ms = 30000
//! max_pong_wait_ms = 90000
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use xmtp_proto::limits;

use super::{ConfigError, DatabaseLimits, check_positive, refuse};

/// How long storing may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "publishing")]
pub struct Publishing {
    /// How long a publish may take, in milliseconds. Longer than
    /// `database.max_statement_timeout_ms`.
    #[schemars(range(min = 1))]
    pub max_publish_duration_ms: u32,
    /// How long proving that no lower id is still to come may hold publishers back, in
    /// milliseconds. PostgreSQL only, and shorter than `publishing.max_publish_duration_ms`.
    #[schemars(range(min = 1))]
    pub max_barrier_wait_ms: u32,
}

impl Default for Publishing {
    fn default() -> Self {
        Self {
            max_publish_duration_ms: 10_000,
            max_barrier_wait_ms: 100,
        }
    }
}

/// How subscriptions follow what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "streams")]
pub struct Streams {
    /// The pause between two looks at the database, in milliseconds. PostgreSQL only.
    #[schemars(range(min = 1))]
    pub poll_interval_ms: u32,
    /// The most ranges of ids that may be open at a time; beyond them streams start again.
    /// PostgreSQL only.
    #[schemars(range(min = 1))]
    pub max_gap_ranges: u32,
    /// The longest silence of a stream before a frame is due, in milliseconds.
    #[schemars(range(min = 1))]
    pub keepalive_interval_ms: u32,
    /// How long a ping may stay unanswered, in milliseconds. Longer than
    /// `streams.keepalive_interval_ms`.
    #[schemars(range(min = 1))]
    pub max_pong_wait_ms: u32,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            poll_interval_ms: 100,
            max_gap_ranges: 10_000,
            keepalive_interval_ms: limits::BACKEND_DEFAULT_KEEPALIVE_INTERVAL_MS,
            max_pong_wait_ms: limits::BACKEND_DEFAULT_MAX_PONG_WAIT_MS,
        }
    }
}

pub(super) fn check(
    publishing: &Publishing,
    streams: &Streams,
    database: &DatabaseLimits,
) -> Result<(), ConfigError> {
    check_positive([
        (
            "publishing.max_publish_duration_ms",
            publishing.max_publish_duration_ms.into(),
        ),
        (
            "publishing.max_barrier_wait_ms",
            publishing.max_barrier_wait_ms.into(),
        ),
        ("streams.poll_interval_ms", streams.poll_interval_ms.into()),
        ("streams.max_gap_ranges", streams.max_gap_ranges.into()),
        (
            "streams.keepalive_interval_ms",
            streams.keepalive_interval_ms.into(),
        ),
        ("streams.max_pong_wait_ms", streams.max_pong_wait_ms.into()),
    ])?;
    if publishing.max_publish_duration_ms <= database.max_statement_timeout_ms {
        let problem = "must exceed database.max_statement_timeout_ms";
        return refuse("publishing.max_publish_duration_ms", problem);
    }
    if publishing.max_barrier_wait_ms >= publishing.max_publish_duration_ms {
        let problem = "must be below publishing.max_publish_duration_ms";
        return refuse("publishing.max_barrier_wait_ms", problem);
    }
    if streams.max_pong_wait_ms <= streams.keepalive_interval_ms {
        let problem = "must exceed streams.keepalive_interval_ms";
        return refuse("streams.max_pong_wait_ms", problem);
    }
    Ok(())
}
