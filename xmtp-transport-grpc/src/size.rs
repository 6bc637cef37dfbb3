//! The ceiling on messages, in both directions.
//!
//! What is read is measured by the library underneath. What is sent is measured here, before it is
//! sent: found out later, in the middle of a request, it is one more broken stream.

use xmtp_core::transport::TransportError;
use xmtp_proto::limits::TRANSPORT_CEILING_BYTES;
use xmtp_proto::prost::Message;

/// The largest message that is sent or read, in bytes, on every call and every stream.
pub(crate) const MAX_MESSAGE_BYTES: usize = TRANSPORT_CEILING_BYTES as usize;

/// Refuses a message over the ceiling.
pub(crate) fn within_ceiling<M: Message>(message: M) -> Result<M, TransportError> {
    match message.encoded_len() {
        0..=MAX_MESSAGE_BYTES => Ok(message),
        _ => Err(TransportError::OutOfRange),
    }
}
