//! Envelopes, limits and frames for tests of sessions.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use xmtp_proto::backend::v1::subscribe_request::{Request, Update};
use xmtp_proto::backend::v1::{
    ClientEnvelope, Cursor, GroupMessage, Ping, Pong, SubscribeRequest, Topic as WireTopic,
    TopicQuery, client_envelope::Payload,
};
use xmtp_proto::id::{GroupId, SequenceId, Topic};

use super::{Held, Row, SessionLimits};
use crate::limits::{TURN_BYTES, TURN_QUANTUM_BYTES, TURN_ROWS};
use crate::store::{Envelope, EnvelopeKey, Hash, Meta, TurnBudget};

/// What payloads are made of.
static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

/// The turns that streams ask for.
pub(crate) const TURN: TurnBudget = TurnBudget {
    topic_rows: TURN_ROWS,
    topic_bytes: TURN_QUANTUM_BYTES,
    bytes: TURN_BYTES,
};

pub(crate) fn zeros(bytes: usize) -> Bytes {
    Bytes::from_static(&ZEROS[..bytes])
}

/// Makes an encoded envelope of `bytes` zeros.
pub(crate) fn row(topic: Topic, id: u32, bytes: usize) -> Arc<Row> {
    Row::encode(&envelope(topic, id, bytes), Held::Alone)
}

/// Makes an envelope that can be read back.
pub(crate) fn stored_text(topic: Topic, id: u32, text: &str) -> Envelope {
    let message = GroupMessage {
        data: text.to_owned().into(),
        ..GroupMessage::default()
    };
    let client = ClientEnvelope {
        payload: Some(Payload::GroupMessage(message)),
    };
    Envelope {
        payload: client.encode_to_vec().into(),
        ..envelope(topic, id, 0)
    }
}

/// Makes an envelope of `bytes` zeros.
pub(crate) fn envelope(topic: Topic, id: u32, bytes: usize) -> Envelope {
    let key = EnvelopeKey {
        topic,
        hash: Hash([0; 32]),
    };
    let meta = Meta {
        sequence_id: SequenceId::from(id),
        key,
        server_ns: 1,
        expiry_ns: None,
        is_commit_or_proposal: false,
    };
    Envelope {
        meta,
        payload: zeros(bytes),
    }
}

pub(crate) fn group(number: u8) -> Topic {
    Topic::group(&GroupId::from_bytes([number; 16]))
}

pub(crate) fn limits() -> SessionLimits {
    SessionLimits {
        keepalive_interval: Duration::from_secs(30),
        max_pong_wait: Duration::from_secs(90),
        max_update_adds: 100,
        max_update_removes: 100,
        max_stream_topics: 100,
        update_rate: 10,
        update_burst: 100,
        ping_rate: 10,
        ping_burst: 100,
        max_frame_bytes: 25 << 20,
        deviation: None,
    }
}

fn request(request: Request) -> SubscribeRequest {
    SubscribeRequest {
        request: Some(request),
    }
}

pub(crate) fn ping(nonce: u64) -> SubscribeRequest {
    request(Request::Ping(Ping { nonce }))
}

pub(crate) fn pong(nonce: u64) -> SubscribeRequest {
    request(Request::Pong(Pong { nonce }))
}

pub(crate) fn update(id: u64, adds: &[(Topic, u64)], removes: &[Topic]) -> SubscribeRequest {
    let topic = |topic: &Topic| WireTopic {
        topic: topic.as_bytes().to_vec().into(),
    };
    let add = |(added, after): &(Topic, u64)| TopicQuery {
        topic: Some(topic(added)),
        cursor: Some(Cursor {
            sequence_id: *after,
        }),
    };
    let (adds, removes) = (
        adds.iter().map(add).collect(),
        removes.iter().map(topic).collect(),
    );
    request(Request::Update(Update { id, adds, removes }))
}
