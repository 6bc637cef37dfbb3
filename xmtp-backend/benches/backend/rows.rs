//! Envelopes, and the rows that they become.

use xmtp_proto::backend::v1::ClientEnvelope;
use xmtp_proto::envelope::{canonical_bytes, message_hash};

use crate::common::{APPLICATION, group_message, private_message};

/// Bytes of ciphertext of each envelope.
const CIPHERTEXT_BYTES: usize = 1024;
/// A time after which a row may be deleted, in nanoseconds.
pub(crate) const EXPIRY_NS: i64 = 1 << 60;

/// One envelope and the row that it becomes.
pub(crate) struct Row {
    pub(crate) envelope: ClientEnvelope,
    pub(crate) topic: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    pub(crate) hash: [u8; 32],
}

/// Makes the row with a number; no two are alike.
pub(crate) fn row(number: usize, topics: usize) -> Row {
    let group = ((number % topics) as u128 + 1).to_be_bytes();
    let mut ciphertext = vec![0x5A; CIPHERTEXT_BYTES];
    ciphertext[..8].copy_from_slice(&(number as u64).to_be_bytes());
    let envelope = group_message(private_message(&group, APPLICATION, &ciphertext));
    let payload = canonical_bytes(&envelope);
    let mut topic = vec![0];
    topic.extend(group);
    Row {
        hash: message_hash(&payload),
        envelope,
        topic,
        payload,
    }
}
