//! The backend's defaults, which are also the client's fallbacks, and the
//! bounds that no setting moves.
//!
//! A client without a fetched configuration works with these numbers, so both
//! sides must read the same ones (CFG-032). The names follow the configuration
//! keys; the types follow the wire.

use crate::backend::v1::{LimitsConfiguration, MlsConfiguration, RetentionConfiguration};

/// The fixed ceiling on any request or response, in bytes: 25 MiB.
pub const TRANSPORT_CEILING_BYTES: u64 = 25 * 1024 * 1024;

/// The largest encoded `GetConfigurationResponse`, in bytes: 64 KiB.
pub const MAX_CONFIGURATION_RESPONSE_BYTES: u64 = 64 * 1024;

/// The size that `Messages` frames aim for, in bytes: 2 MiB.
pub const MESSAGES_FRAME_BYTES: u64 = 2 * 1024 * 1024;

/// What a response adds around one envelope at most, in bytes.
pub const ENVELOPE_OVERHEAD_BYTES: u64 = 256;

/// The greatest integer a backend publishes: 2^53 - 1, exact in every language.
pub const MAX_PUBLISHED_INTEGER: u64 = (1 << 53) - 1;

/// The largest envelope, in bytes: 1 MiB.
pub const BACKEND_DEFAULT_MAX_ENVELOPE_BYTES: u64 = 1024 * 1024;

/// The largest request, in bytes.
pub const BACKEND_DEFAULT_MAX_REQUEST_BYTES: u64 = TRANSPORT_CEILING_BYTES;

/// The largest response, in bytes.
pub const BACKEND_DEFAULT_MAX_RESPONSE_BYTES: u64 = TRANSPORT_CEILING_BYTES;

/// The most distinct topics of one publish, in topics.
pub const BACKEND_DEFAULT_MAX_PUBLISH_TOPICS: u32 = 1_000;

/// The most topics of one query, in topics.
pub const BACKEND_DEFAULT_MAX_QUERY_TOPICS: u32 = 1_000;

/// The most envelopes of one query over all its topics, in envelopes.
pub const BACKEND_DEFAULT_MAX_QUERY_LIMIT: u32 = 1_000;

/// What a query without a limit returns at most (`default_query_limit`), in
/// envelopes.
pub const BACKEND_DEFAULT_QUERY_LIMIT: u32 = 100;

/// The most topics of one newest read without envelopes, in topics.
pub const BACKEND_DEFAULT_MAX_NEWEST_METADATA_TOPICS: u32 = 1_000;

/// The most topics of one newest read with envelopes, in topics.
pub const BACKEND_DEFAULT_MAX_NEWEST_FULL_TOPICS: u32 = 100;

/// The most topics that one stream update adds, in topics.
pub const BACKEND_DEFAULT_MAX_UPDATE_ADDS: u32 = 100_000;

/// The most topics that one stream update removes, in topics.
pub const BACKEND_DEFAULT_MAX_UPDATE_REMOVES: u32 = 100_000;

/// The most topics of one stream, in topics.
pub const BACKEND_DEFAULT_MAX_STREAM_TOPICS: u32 = 100_000;

/// The most topics of one static stream, in topics.
pub const BACKEND_DEFAULT_MAX_STATIC_TOPICS: u32 = 10_000;

/// The most identifiers of one lookup, in identifiers.
pub const BACKEND_DEFAULT_MAX_LOOKUP_IDENTIFIERS: u32 = 250;

/// The most contract signatures of one verification and of one identity
/// update, in signatures.
pub const BACKEND_DEFAULT_MAX_SCW_SIGNATURES: u32 = 100;

/// The most identity updates of one inbox, in updates.
pub const BACKEND_DEFAULT_MAX_IDENTITY_ENTRIES: u32 = 256;

/// The sustained rate of update frames of one stream, in frames per second.
pub const BACKEND_DEFAULT_MAX_UPDATE_FRAMES_PER_SECOND: u32 = 10;

/// The burst of update frames of one stream, in frames.
pub const BACKEND_DEFAULT_MAX_UPDATE_BURST: u32 = 100;

/// The sustained rate of ping frames of one stream, in frames per second.
pub const BACKEND_DEFAULT_MAX_PING_FRAMES_PER_SECOND: u32 = 10;

/// The burst of ping frames of one stream, in frames.
pub const BACKEND_DEFAULT_MAX_PING_BURST: u32 = 100;

/// The most requests and streams open on one connection, in HTTP/2 streams.
pub const BACKEND_DEFAULT_MAX_HTTP2_STREAMS: u32 = 100;

/// How long group messages that are no commit or proposal are kept, in
/// seconds: 90 days.
pub const BACKEND_DEFAULT_GROUP_MESSAGE_RETENTION_SECONDS: u64 = 7_776_000;

/// How long welcomes are kept, in seconds: 90 days.
pub const BACKEND_DEFAULT_WELCOME_RETENTION_SECONDS: u64 = 7_776_000;

/// How long key packages are kept, in seconds: 90 days.
pub const BACKEND_DEFAULT_KEY_PACKAGE_RETENTION_SECONDS: u64 = 7_776_000;

/// The most inboxes of one group, in inboxes.
pub const BACKEND_DEFAULT_MAX_GROUP_MEMBERS: u32 = 250;

/// The most installations of one inbox, in installations.
pub const BACKEND_DEFAULT_MAX_INSTALLATIONS_PER_INBOX: u32 = 10;

/// Whether clients keep commit logs.
pub const BACKEND_DEFAULT_COMMIT_LOG_ENABLED: bool = true;

/// The longest silence of a stream before a frame is due, in milliseconds.
pub const BACKEND_DEFAULT_KEEPALIVE_INTERVAL_MS: u32 = 30_000;

/// How long a stream waits for an answer to its ping, in milliseconds.
pub const BACKEND_DEFAULT_MAX_PONG_WAIT_MS: u32 = 90_000;

const _: () = {
    assert!(BACKEND_DEFAULT_MAX_REQUEST_BYTES <= TRANSPORT_CEILING_BYTES);
    assert!(BACKEND_DEFAULT_MAX_RESPONSE_BYTES <= TRANSPORT_CEILING_BYTES);
    assert!(MAX_CONFIGURATION_RESPONSE_BYTES <= BACKEND_DEFAULT_MAX_RESPONSE_BYTES);
    assert!(TRANSPORT_CEILING_BYTES <= MAX_PUBLISHED_INTEGER);
};

const _: () = {
    let framed = BACKEND_DEFAULT_MAX_ENVELOPE_BYTES + ENVELOPE_OVERHEAD_BYTES;
    assert!(framed <= MESSAGES_FRAME_BYTES);
    assert!(framed <= BACKEND_DEFAULT_MAX_RESPONSE_BYTES);
    assert!(framed <= BACKEND_DEFAULT_MAX_REQUEST_BYTES);
    assert!(MESSAGES_FRAME_BYTES <= BACKEND_DEFAULT_MAX_RESPONSE_BYTES);
};

const _: () = {
    assert!(0 < BACKEND_DEFAULT_QUERY_LIMIT);
    assert!(BACKEND_DEFAULT_QUERY_LIMIT <= BACKEND_DEFAULT_MAX_QUERY_LIMIT);
    assert!(BACKEND_DEFAULT_MAX_NEWEST_FULL_TOPICS <= BACKEND_DEFAULT_MAX_NEWEST_METADATA_TOPICS);
    assert!(BACKEND_DEFAULT_MAX_UPDATE_ADDS <= BACKEND_DEFAULT_MAX_STREAM_TOPICS);
    assert!(BACKEND_DEFAULT_MAX_UPDATE_FRAMES_PER_SECOND <= BACKEND_DEFAULT_MAX_UPDATE_BURST);
    assert!(BACKEND_DEFAULT_MAX_PING_FRAMES_PER_SECOND <= BACKEND_DEFAULT_MAX_PING_BURST);
    assert!(BACKEND_DEFAULT_KEEPALIVE_INTERVAL_MS < BACKEND_DEFAULT_MAX_PONG_WAIT_MS);
};

/// Returns the default bounds on requests and streams.
pub const fn default_limits() -> LimitsConfiguration {
    LimitsConfiguration {
        max_envelope_bytes: BACKEND_DEFAULT_MAX_ENVELOPE_BYTES,
        max_request_bytes: BACKEND_DEFAULT_MAX_REQUEST_BYTES,
        max_response_bytes: BACKEND_DEFAULT_MAX_RESPONSE_BYTES,
        max_publish_topics: BACKEND_DEFAULT_MAX_PUBLISH_TOPICS,
        max_query_topics: BACKEND_DEFAULT_MAX_QUERY_TOPICS,
        max_query_limit: BACKEND_DEFAULT_MAX_QUERY_LIMIT,
        default_query_limit: BACKEND_DEFAULT_QUERY_LIMIT,
        max_newest_metadata_topics: BACKEND_DEFAULT_MAX_NEWEST_METADATA_TOPICS,
        max_newest_full_topics: BACKEND_DEFAULT_MAX_NEWEST_FULL_TOPICS,
        max_update_adds: BACKEND_DEFAULT_MAX_UPDATE_ADDS,
        max_update_removes: BACKEND_DEFAULT_MAX_UPDATE_REMOVES,
        max_stream_topics: BACKEND_DEFAULT_MAX_STREAM_TOPICS,
        max_static_topics: BACKEND_DEFAULT_MAX_STATIC_TOPICS,
        max_lookup_identifiers: BACKEND_DEFAULT_MAX_LOOKUP_IDENTIFIERS,
        max_scw_signatures: BACKEND_DEFAULT_MAX_SCW_SIGNATURES,
        max_identity_entries: BACKEND_DEFAULT_MAX_IDENTITY_ENTRIES,
        max_update_frames_per_second: BACKEND_DEFAULT_MAX_UPDATE_FRAMES_PER_SECOND,
        max_update_burst: BACKEND_DEFAULT_MAX_UPDATE_BURST,
        max_ping_frames_per_second: BACKEND_DEFAULT_MAX_PING_FRAMES_PER_SECOND,
        max_ping_burst: BACKEND_DEFAULT_MAX_PING_BURST,
    }
}

/// Returns the default retention of each kind of envelope.
pub const fn default_retention() -> RetentionConfiguration {
    RetentionConfiguration {
        group_message_seconds: BACKEND_DEFAULT_GROUP_MESSAGE_RETENTION_SECONDS,
        welcome_seconds: BACKEND_DEFAULT_WELCOME_RETENTION_SECONDS,
        key_package_seconds: BACKEND_DEFAULT_KEY_PACKAGE_RETENTION_SECONDS,
    }
}

/// Returns the default bounds on groups.
pub const fn default_mls() -> MlsConfiguration {
    MlsConfiguration {
        max_group_members: BACKEND_DEFAULT_MAX_GROUP_MEMBERS,
        max_installations_per_inbox: BACKEND_DEFAULT_MAX_INSTALLATIONS_PER_INBOX,
        commit_log_enabled: Some(BACKEND_DEFAULT_COMMIT_LOG_ENABLED),
    }
}
