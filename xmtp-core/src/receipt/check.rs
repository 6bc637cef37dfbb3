//! The one place where wire envelopes become domain rows (STR-060).

use prost::Message;
use xmtp_proto::backend::v1::{ServerEnvelope, message_hash::Hash};
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{SequenceId, Topic};

use super::{AdmissionError, Batch, Received};

/// Bytes of a SHA-256 message hash.
const HASH_BYTES: usize = 32;

/// Checks one topic's envelopes from an ordered source that started after `after`.
///
/// # Behavior
/// - Refuses the whole batch on a foreign topic, an id out of range, a time out of range, a hash
///   that is not 32 bytes, or ids that do not rise strictly from `after`.
/// - Keeps the backend's hash as given and never recomputes it.
pub fn check(
    topic: Topic,
    after: SequenceId,
    envelopes: Vec<ServerEnvelope>,
) -> Result<Batch, AdmissionError> {
    let mut last = after;
    let mut received = Vec::with_capacity(envelopes.len());
    for envelope in envelopes {
        let envelope = one(&topic, last, envelope)?;
        last = envelope.sequence_id;
        received.push(envelope);
    }
    Ok(Batch {
        topic,
        after,
        envelopes: received,
    })
}

fn one(
    topic: &Topic,
    last: SequenceId,
    envelope: ServerEnvelope,
) -> Result<Received, AdmissionError> {
    let shape = |rule| AdmissionError::Shape { rule };
    let meta = envelope.meta.ok_or(shape("an envelope without metadata"))?;
    let found = meta.topic.as_ref().map(|found| &found.topic[..]);
    if found != Some(topic.as_bytes()) {
        return Err(shape("an envelope of another topic"));
    }
    let id = meta.cursor.map_or(0, |cursor| cursor.sequence_id);
    let sequence_id = SequenceId::checked(id).map_err(|_| shape("a sequence id out of range"))?;
    if sequence_id <= last {
        return Err(shape("sequence ids that do not rise"));
    }
    if i64::try_from(meta.server_ns).is_err() {
        return Err(shape("a server time out of range"));
    }
    let hash = match meta.message_hash.and_then(|hash| hash.hash) {
        Some(Hash::Sha256(hash)) if hash.len() == HASH_BYTES => hash,
        _ => return Err(shape("a message hash of the wrong form")),
    };
    let payload = envelope
        .envelope
        .map(|envelope| envelope.encode_to_vec())
        .unwrap_or_default();
    Ok(Received {
        sequence_id,
        envelope: stored::PendingEnvelope {
            server_ns: meta.server_ns,
            expiry_ns: meta.expiry_ns,
            message_hash: hash,
            is_commit_or_proposal: meta.is_commit_or_proposal,
            payload: payload.into(),
        },
    })
}
