//! The startup checks.

use std::fmt::Display;

use xmtp_proto::limits::{
    ENVELOPE_OVERHEAD_BYTES, MAX_PUBLISHED_INTEGER, MESSAGES_FRAME_BYTES, TRANSPORT_CEILING_BYTES,
};

use super::{Config, ConfigError, published};
use crate::chain::check_address;
use crate::limits::{OUTBOUND_MESSAGES_BYTES, TURN_BYTES};

/// The longest identifier, in bytes.
const MAX_IDENTIFIER_BYTES: usize = 256;

/// The greatest retention, in seconds: what a signed 64-bit count of nanoseconds holds.
const MAX_RETENTION_SECONDS: u64 = 9_223_372_036;

/// The greatest bound on groups and installations, in members.
const MAX_MLS_MEMBERS: u32 = 65_535;

/// What one envelope takes in a publish request beside itself: a tag and a length, in bytes.
const PUBLISH_FRAMING_BYTES: u64 = 1 + 10;

const NANOSECONDS: u64 = 1_000_000_000;

pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    check_server(config)?;
    check_positive(config)?;
    check_sizes(config)?;
    check_relations(config)?;
    check_retention(config)?;
    check_mls(config)?;
    check_chains(config)?;
    // Last, because it builds the response from the values above.
    published(config).map(|_| ())
}

fn refuse(field: &str, problem: impl Display) -> Result<(), ConfigError> {
    Err(ConfigError::new(field, problem.to_string()))
}

fn check_server(config: &Config) -> Result<(), ConfigError> {
    let identifier = &config.server.identifier;
    let field = "server.identifier";
    if identifier.is_empty() || identifier.len() > MAX_IDENTIFIER_BYTES {
        return refuse(
            field,
            format!("must have 1 to {MAX_IDENTIFIER_BYTES} bytes"),
        );
    }
    if identifier
        .chars()
        .any(|c| c.is_whitespace() || c.is_control())
    {
        return refuse(field, "must not contain whitespace or control characters");
    }
    let version = config.server.min_libxmtp_version.as_deref();
    if version.is_some_and(|version| semver::Version::parse(version).is_err()) {
        return refuse(
            "server.min_libxmtp_version",
            "must be a semantic version, such as 1.2.3",
        );
    }
    Ok(())
}

/// A client takes a published zero for "not provided", so the server has none.
fn check_positive(config: &Config) -> Result<(), ConfigError> {
    let limits = &config.limits;
    let retention = &config.retention;
    let values = [
        ("limits.max_envelope_bytes", limits.max_envelope_bytes),
        ("limits.max_request_bytes", limits.max_request_bytes),
        ("limits.max_response_bytes", limits.max_response_bytes),
        (
            "limits.max_publish_topics",
            limits.max_publish_topics.into(),
        ),
        ("limits.max_query_topics", limits.max_query_topics.into()),
        ("limits.max_query_limit", limits.max_query_limit.into()),
        (
            "limits.default_query_limit",
            limits.default_query_limit.into(),
        ),
        (
            "limits.max_newest_metadata_topics",
            limits.max_newest_metadata_topics.into(),
        ),
        (
            "limits.max_newest_full_topics",
            limits.max_newest_full_topics.into(),
        ),
        ("limits.max_update_adds", limits.max_update_adds.into()),
        (
            "limits.max_update_removes",
            limits.max_update_removes.into(),
        ),
        ("limits.max_stream_topics", limits.max_stream_topics.into()),
        ("limits.max_static_topics", limits.max_static_topics.into()),
        (
            "limits.max_lookup_identifiers",
            limits.max_lookup_identifiers.into(),
        ),
        (
            "limits.max_scw_signatures",
            limits.max_scw_signatures.into(),
        ),
        (
            "limits.max_identity_entries",
            limits.max_identity_entries.into(),
        ),
        (
            "limits.max_update_frames_per_second",
            limits.max_update_frames_per_second.into(),
        ),
        ("limits.max_update_burst", limits.max_update_burst.into()),
        (
            "limits.max_ping_frames_per_second",
            limits.max_ping_frames_per_second.into(),
        ),
        ("limits.max_ping_burst", limits.max_ping_burst.into()),
        ("limits.max_http2_streams", config.max_http2_streams.into()),
        (
            "retention.group_message_seconds",
            retention.group_message_seconds,
        ),
        ("retention.welcome_seconds", retention.welcome_seconds),
        (
            "retention.key_package_seconds",
            retention.key_package_seconds,
        ),
        (
            "streams.keepalive_interval_ms",
            config.streams.keepalive_interval_ms.into(),
        ),
        (
            "streams.max_pong_wait_ms",
            config.streams.max_pong_wait_ms.into(),
        ),
    ];
    for (field, value) in values {
        if value == 0 {
            return refuse(field, "must be at least 1");
        }
        if value > MAX_PUBLISHED_INTEGER {
            return refuse(field, format!("must be at most {MAX_PUBLISHED_INTEGER}"));
        }
    }
    Ok(())
}

fn check_sizes(config: &Config) -> Result<(), ConfigError> {
    let limits = &config.limits;
    let ceiling = [
        ("limits.max_request_bytes", limits.max_request_bytes),
        ("limits.max_response_bytes", limits.max_response_bytes),
    ];
    for (field, value) in ceiling {
        if value > TRANSPORT_CEILING_BYTES {
            return refuse(field, format!("must be at most {TRANSPORT_CEILING_BYTES}"));
        }
    }
    let field = "limits.max_envelope_bytes";
    let framed = limits
        .max_envelope_bytes
        .saturating_add(ENVELOPE_OVERHEAD_BYTES);
    let room = [
        ("limits.max_response_bytes", limits.max_response_bytes),
        ("the size of a message frame", MESSAGES_FRAME_BYTES),
        ("the budget of a fetch", TURN_BYTES as u64),
        ("the outbound budget", OUTBOUND_MESSAGES_BYTES as u64),
    ];
    for (what, bytes) in room {
        if framed > bytes {
            let overhead = ENVELOPE_OVERHEAD_BYTES;
            return refuse(
                field,
                format!("with {overhead} bytes of overhead must fit {what}"),
            );
        }
    }
    if limits
        .max_envelope_bytes
        .saturating_add(PUBLISH_FRAMING_BYTES)
        > limits.max_request_bytes
    {
        return refuse(field, "with its framing must fit limits.max_request_bytes");
    }
    Ok(())
}

fn check_relations(config: &Config) -> Result<(), ConfigError> {
    let (limits, streams) = (&config.limits, &config.streams);
    if limits.max_query_limit < limits.default_query_limit {
        return refuse(
            "limits.default_query_limit",
            "must not exceed limits.max_query_limit",
        );
    }
    if limits.max_update_adds > limits.max_stream_topics {
        return refuse(
            "limits.max_update_adds",
            "must not exceed limits.max_stream_topics",
        );
    }
    if streams.max_pong_wait_ms <= streams.keepalive_interval_ms {
        return refuse(
            "streams.max_pong_wait_ms",
            "must exceed streams.keepalive_interval_ms",
        );
    }
    Ok(())
}

fn check_retention(config: &Config) -> Result<(), ConfigError> {
    let retention = &config.retention;
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
    let now = config.clock.now_ns();
    for (field, seconds) in values {
        let expiry = seconds
            .checked_mul(NANOSECONDS)
            .and_then(|ns| ns.checked_add(now));
        let in_range = expiry.is_some_and(|expiry| i64::try_from(expiry).is_ok());
        if seconds > MAX_RETENTION_SECONDS || !in_range {
            return refuse(field, "reaches beyond the range of time");
        }
    }
    Ok(())
}

fn check_mls(config: &Config) -> Result<(), ConfigError> {
    let values = [
        ("mls.max_group_members", config.mls.max_group_members),
        (
            "mls.max_installations_per_inbox",
            config.mls.max_installations_per_inbox,
        ),
    ];
    for (field, value) in values {
        if !(1..=MAX_MLS_MEMBERS).contains(&value) {
            return refuse(field, format!("must be 1 to {MAX_MLS_MEMBERS}"));
        }
    }
    Ok(())
}

fn check_chains(config: &Config) -> Result<(), ConfigError> {
    for (chain, url) in &config.chains {
        let field = format!("chains.{chain}");
        let number = chain.strip_prefix("eip155:").unwrap_or("");
        let is_plain = !number.starts_with('0') && number.bytes().all(|b| b.is_ascii_digit());
        if !is_plain || number.parse::<u64>().is_err() {
            return refuse(&field, "must be named eip155: and the number of the chain");
        }
        if let Err(problem) = check_address(url.expose()) {
            return refuse(&field, problem);
        }
    }
    Ok(())
}
