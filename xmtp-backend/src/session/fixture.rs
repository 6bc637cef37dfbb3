//! Envelopes for tests of sessions.

use bytes::Bytes;
use xmtp_proto::id::{SequenceId, Topic};

use crate::store::{Envelope, EnvelopeKey, Hash, Meta};

/// Makes an envelope of `bytes` zeros.
pub(crate) fn row(topic: Topic, id: u32, bytes: usize) -> Envelope {
    let sequence_id = SequenceId::from(id);
    let key = EnvelopeKey {
        topic,
        hash: Hash([0; 32]),
    };
    let meta = Meta {
        sequence_id,
        key,
        server_ns: 1,
        expiry_ns: None,
        is_commit_or_proposal: false,
    };
    Envelope {
        meta,
        payload: Bytes::from(vec![0; bytes]),
    }
}
