//! An envelope in the form in which it goes out.
//!
//! An envelope is encoded once, when it is first wanted, and every stream that sends it copies the
//! same bytes into its frames.

use std::fmt;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use xmtp_proto::id::{SequenceId, Topic};

use crate::limits::OVERHEAD_BYTES;
use crate::services::wire_meta;
use crate::store::Envelope;

/// The number of `Messages.envelopes`, in both kinds of stream.
const ENVELOPES: u32 = 1;
/// The number of `ServerEnvelope.meta`.
const META: u32 = 1;
/// The number of `ServerEnvelope.envelope`.
const ENVELOPE: u32 = 2;

/// Says who holds the bytes of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// Every stream that was told of the envelope.
    Shared,
    /// The one stream that fetched it.
    Alone,
}

/// An envelope, encoded.
#[derive(PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) topic: Topic,
    pub(crate) sequence_id: SequenceId,
    held: Held,
    payload_bytes: usize,
    /// One element of `Messages.envelopes`, with its tag and length.
    element: Bytes,
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Row");
        shown
            .field("topic", &self.topic)
            .field("sequence_id", &self.sequence_id)
            .field("payload_bytes", &self.payload_bytes)
            .finish_non_exhaustive()
    }
}

impl Row {
    /// Encodes an envelope. Its payload is an encoded `ClientEnvelope` already, and is copied.
    pub(crate) fn encode(envelope: &Envelope, held: Held) -> Arc<Self> {
        let meta = wire_meta(&envelope.meta);
        let (meta_bytes, payload) = (meta.encoded_len(), &envelope.payload);
        let server_bytes = field_bytes(META, meta_bytes) + field_bytes(ENVELOPE, payload.len());
        let mut element = BytesMut::with_capacity(field_bytes(ENVELOPES, server_bytes));
        begin_field(ENVELOPES, server_bytes, &mut element);
        begin_field(META, meta_bytes, &mut element);
        meta.encode_raw(&mut element);
        begin_field(ENVELOPE, payload.len(), &mut element);
        element.put_slice(payload);
        Arc::new(Self {
            topic: envelope.meta.key.topic,
            sequence_id: envelope.meta.sequence_id,
            held,
            payload_bytes: payload.len(),
            element: element.freeze(),
        })
    }

    /// Returns the element of `Messages.envelopes`, with its tag and length.
    pub(crate) fn element(&self) -> &[u8] {
        &self.element
    }

    /// Returns what the row counts against a budget, in bytes.
    pub(crate) fn counted(&self) -> usize {
        self.payload_bytes + OVERHEAD_BYTES
    }

    /// Returns what the row counts against the budget of what streams hold alone, in bytes.
    pub(super) fn counted_alone(&self) -> usize {
        match self.held {
            Held::Shared => 0,
            Held::Alone => self.counted(),
        }
    }
}

/// Returns what a field of `length` bytes takes with its tag and length.
fn field_bytes(number: u32, length: usize) -> usize {
    key_len(number) + encoded_len_varint(length as u64) + length
}

/// Writes the tag and the length of a field.
pub(crate) fn begin_field(number: u32, length: usize, out: &mut impl BufMut) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(length as u64, out);
}

#[cfg(test)]
mod tests {
    use xmtp_proto::backend::v1::subscribe_response::Messages;
    use xmtp_proto::backend::v1::{ClientEnvelope, GroupMessage, client_envelope::Payload};

    use super::*;
    use crate::services::server_envelope;
    use crate::session::fixture::{envelope, group};

    /// covers: STR-011, STR-031
    #[test]
    fn a_row_is_the_element_that_the_message_would_have() {
        for bytes in [0, 1, 100, 127, 128, 20_000, 1 << 20] {
            let message = GroupMessage {
                data: vec![7; bytes].into(),
                ..GroupMessage::default()
            };
            let client = ClientEnvelope {
                payload: Some(Payload::GroupMessage(message)),
            };
            let mut stored = envelope(group(1), 300, 0);
            stored.payload = client.encode_to_vec().into();
            stored.meta.expiry_ns = Some(i64::MAX as u64);
            stored.meta.server_ns = i64::MAX as u64;
            stored.meta.is_commit_or_proposal = true;
            stored.meta.sequence_id = SequenceId::MAX;
            let envelopes = vec![server_envelope(&stored).expect("it is read")];
            let row = Row::encode(&stored, Held::Alone);
            assert_eq!(row.element(), Messages { envelopes }.encode_to_vec());
            assert!(
                row.element().len() <= row.counted(),
                "the overhead is enough"
            );
        }
    }
}
