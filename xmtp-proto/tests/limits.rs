//! The defaults against the table of the wire contract.

use xmtp_proto::backend::v1::{LimitsConfiguration, MlsConfiguration, RetentionConfiguration};
use xmtp_proto::limits;

/// covers: CFG-032
#[test]
fn defaults_are_the_published_ones() {
    assert_eq!(
        limits::default_limits(),
        LimitsConfiguration {
            max_envelope_bytes: 1_048_576,
            max_request_bytes: 26_214_400,
            max_response_bytes: 26_214_400,
            max_publish_topics: 1000,
            max_query_topics: 1000,
            max_query_limit: 1000,
            default_query_limit: 100,
            max_newest_metadata_topics: 1000,
            max_newest_full_topics: 100,
            max_update_adds: 100_000,
            max_update_removes: 100_000,
            max_stream_topics: 100_000,
            max_static_topics: 10_000,
            max_lookup_identifiers: 250,
            max_scw_signatures: 100,
            max_identity_entries: 256,
            max_update_frames_per_second: 10,
            max_update_burst: 100,
            max_ping_frames_per_second: 10,
            max_ping_burst: 100,
        }
    );
    assert_eq!(
        limits::default_retention(),
        RetentionConfiguration {
            group_message_seconds: 7_776_000,
            welcome_seconds: 7_776_000,
            key_package_seconds: 7_776_000,
        }
    );
    assert_eq!(
        limits::default_mls(),
        MlsConfiguration {
            max_group_members: 250,
            max_installations_per_inbox: 10,
            commit_log_enabled: Some(true),
        }
    );
    assert_eq!(limits::BACKEND_DEFAULT_KEEPALIVE_INTERVAL_MS, 30_000);
    assert_eq!(limits::BACKEND_DEFAULT_MAX_HTTP2_STREAMS, 100);
}

/// covers: CFG-032
#[test]
fn no_page_size_of_the_reader_is_left() {
    let source = include_str!("../src/limits.rs");
    assert!(!source.contains("MAX_PAGE_SIZE"));
}
