//! The plaintext of an application message.

use bytes::Bytes;
use prost::Message;
use xmtp_proto::content::plaintext_envelope::{Content, V1};
use xmtp_proto::content::{EncodedContent, PlaintextEnvelope};
use xmtp_proto::id::{GroupId, MessageId};

/// What the plaintext of an application message is.
///
/// Nothing is refused: what this build cannot read is kept with its bytes, for one that can.
#[derive(Clone, PartialEq)]
#[allow(clippy::large_enum_variant)] // Held one at a time, and nearly always the large one.
pub enum Payload {
    /// An app message.
    Message {
        /// Its id.
        id: MessageId,
        /// Part of the id.
        idempotency_key: String,
        /// The content as carried.
        bytes: Bytes,
        /// The content, when it decodes.
        content: Option<EncodedContent>,
    },
    /// A message between the installations of one inbox; it makes no app message.
    Sync,
    /// Not an envelope this build knows.
    Unknown,
}

// A message's content does not reach a log.
impl std::fmt::Debug for Payload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Message { id, bytes, .. } => f
                .debug_struct("Message")
                .field("id", id)
                .field("bytes", &bytes.len())
                .finish_non_exhaustive(),
            Self::Sync => f.write_str("Sync"),
            Self::Unknown => f.write_str("Unknown"),
        }
    }
}

/// Answers the idempotency key of a message sent at a time, in nanoseconds.
pub fn idempotency_key(sent_ns: u64) -> String {
    sent_ns.to_string()
}

/// Encodes the plaintext of an app message and derives its id.
pub fn encode_payload(
    group: &GroupId,
    content: &EncodedContent,
    idempotency_key: &str,
) -> (MessageId, Vec<u8>) {
    let content = content.encode_to_vec();
    let id = MessageId::derive(group, idempotency_key, &content);
    let envelope = PlaintextEnvelope {
        content: Some(Content::V1(V1 {
            content: content.into(),
            idempotency_key: idempotency_key.to_owned(),
        })),
    };
    (id, envelope.encode_to_vec())
}

/// Reads the plaintext of an application message.
pub fn decode_payload(group: &GroupId, plaintext: &[u8]) -> Payload {
    let plaintext = Bytes::copy_from_slice(plaintext);
    match PlaintextEnvelope::decode(plaintext).map(|envelope| envelope.content) {
        Ok(Some(Content::V1(message))) => Payload::Message {
            id: MessageId::derive(group, &message.idempotency_key, &message.content),
            idempotency_key: message.idempotency_key,
            content: EncodedContent::decode(message.content.clone()).ok(),
            bytes: message.content,
        },
        Ok(Some(Content::V2(_))) => Payload::Sync,
        Ok(None) | Err(_) => Payload::Unknown,
    }
}

/// An app message whose content is carried and not looked into.
pub(crate) struct Carried {
    pub(crate) id: MessageId,
    pub(crate) idempotency_key: String,
    pub(crate) content: Bytes,
}

/// Reads the plaintext of an application message without copying or decoding its content; nothing
/// when it is no app message.
pub(crate) fn carried(group: &GroupId, plaintext: Bytes) -> Option<Carried> {
    match PlaintextEnvelope::decode(plaintext).ok()?.content? {
        Content::V1(message) => Some(Carried {
            id: MessageId::derive(group, &message.idempotency_key, &message.content),
            idempotency_key: message.idempotency_key,
            content: message.content,
        }),
        Content::V2(_) => None,
    }
}
