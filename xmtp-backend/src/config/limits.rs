//! The section `[limits]`.
//!
//! ```toml
//! [limits]
//! max_envelope_bytes = 1048576
//! max_request_bytes = 26214400
//! ```
//!
//! All of it but `max_http2_streams` is published to clients.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use xmtp_proto::backend::v1::LimitsConfiguration;
use xmtp_proto::limits::{
    BACKEND_DEFAULT_MAX_HTTP2_STREAMS, ENVELOPE_OVERHEAD_BYTES, MESSAGES_FRAME_BYTES,
    TRANSPORT_CEILING_BYTES, default_limits,
};

use super::{ConfigError, check_positive, refuse};
use crate::limits::{OUTBOUND_MESSAGES_BYTES, TURN_BYTES};

/// What one envelope takes in a publish request beside itself: a tag and a length, in bytes.
const PUBLISH_FRAMING_BYTES: u64 = 1 + 10;

/// Declares the section: the fields that are published, and beside them the one that is a detail
/// of the transport.
macro_rules! limits {
    ($($(#[$note:meta])* $field:ident: $kind:ty,)*) => {
        /// What callers may ask for at most.
        #[derive(Deserialize, Serialize, JsonSchema)]
        #[serde(default, deny_unknown_fields)]
        #[schemars(rename = "limits")]
        pub(super) struct LimitsFile {
            $($(#[$note])* $field: $kind,)*
            /// Requests and streams that are open on one connection, in HTTP/2 streams.
            #[schemars(range(min = 1))]
            max_http2_streams: u32,
        }

        impl Default for LimitsFile {
            fn default() -> Self {
                let limits = default_limits();
                Self {
                    $($field: limits.$field,)*
                    max_http2_streams: BACKEND_DEFAULT_MAX_HTTP2_STREAMS,
                }
            }
        }

        impl LimitsFile {
            pub(super) fn read(self) -> (LimitsConfiguration, u32) {
                let limits = LimitsConfiguration {
                    $($field: self.$field,)*
                };
                (limits, self.max_http2_streams)
            }
        }

        /// A client takes a published zero for "not provided", so the server has none.
        fn check_each(limits: &LimitsConfiguration) -> Result<(), ConfigError> {
            check_positive([
                $((concat!("limits.", stringify!($field)), u64::from(limits.$field)),)*
            ])
        }
    };
}

limits! {
    /// One envelope, in bytes.
    #[schemars(range(min = 1))]
    max_envelope_bytes: u64,
    /// One request, in bytes; at most 25 MiB.
    #[schemars(range(min = 1, max = 26_214_400))]
    max_request_bytes: u64,
    /// One response or frame, in bytes; at most 25 MiB.
    #[schemars(range(min = 1, max = 26_214_400))]
    max_response_bytes: u64,
    /// Distinct topics of one publish.
    #[schemars(range(min = 1))]
    max_publish_topics: u32,
    /// Topics of one query.
    #[schemars(range(min = 1))]
    max_query_topics: u32,
    /// Envelopes of one query over all its topics.
    #[schemars(range(min = 1))]
    max_query_limit: u32,
    /// Envelopes of a query that names no limit.
    #[schemars(range(min = 1))]
    default_query_limit: u32,
    /// Topics of one newest read without envelopes.
    #[schemars(range(min = 1))]
    max_newest_metadata_topics: u32,
    /// Topics of one newest read with envelopes.
    #[schemars(range(min = 1))]
    max_newest_full_topics: u32,
    /// Topics that one update of a stream adds.
    #[schemars(range(min = 1))]
    max_update_adds: u32,
    /// Topics that one update of a stream removes.
    #[schemars(range(min = 1))]
    max_update_removes: u32,
    /// Topics of one stream.
    #[schemars(range(min = 1))]
    max_stream_topics: u32,
    /// Topics of one static stream.
    #[schemars(range(min = 1))]
    max_static_topics: u32,
    /// Identifiers of one lookup.
    #[schemars(range(min = 1))]
    max_lookup_identifiers: u32,
    /// Contract wallet signatures of one verification and of one identity update.
    #[schemars(range(min = 1))]
    max_scw_signatures: u32,
    /// Identity updates of one inbox.
    #[schemars(range(min = 1))]
    max_identity_entries: u32,
    /// Updates of one stream, in frames per second.
    #[schemars(range(min = 1))]
    max_update_frames_per_second: u32,
    /// Updates of one stream at once, in frames.
    #[schemars(range(min = 1))]
    max_update_burst: u32,
    /// Pings of one stream, in frames per second.
    #[schemars(range(min = 1))]
    max_ping_frames_per_second: u32,
    /// Pings of one stream at once, in frames.
    #[schemars(range(min = 1))]
    max_ping_burst: u32,
}

pub(super) fn check(
    limits: &LimitsConfiguration,
    max_http2_streams: u32,
) -> Result<(), ConfigError> {
    check_each(limits)?;
    check_positive([("limits.max_http2_streams", max_http2_streams.into())])?;
    check_sizes(limits)?;
    if limits.max_query_limit < limits.default_query_limit {
        let problem = "must not exceed limits.max_query_limit";
        return refuse("limits.default_query_limit", problem);
    }
    if limits.max_update_adds > limits.max_stream_topics {
        let problem = "must not exceed limits.max_stream_topics";
        return refuse("limits.max_update_adds", problem);
    }
    Ok(())
}

fn check_sizes(limits: &LimitsConfiguration) -> Result<(), ConfigError> {
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
    let envelope = limits.max_envelope_bytes;
    let framed = envelope.saturating_add(ENVELOPE_OVERHEAD_BYTES);
    let room = [
        ("limits.max_response_bytes", limits.max_response_bytes),
        ("the size of a message frame", MESSAGES_FRAME_BYTES),
        ("the budget of a fetch", TURN_BYTES as u64),
        ("the outbound budget", OUTBOUND_MESSAGES_BYTES as u64),
    ];
    for (what, bytes) in room {
        if framed > bytes {
            let overhead = ENVELOPE_OVERHEAD_BYTES;
            let problem = format!("with {overhead} bytes of overhead must fit {what}");
            return refuse(field, problem);
        }
    }
    if envelope.saturating_add(PUBLISH_FRAMING_BYTES) > limits.max_request_bytes {
        return refuse(field, "with its framing must fit limits.max_request_bytes");
    }
    Ok(())
}
