//! The canonical bytes of an envelope and the two hashes over its bytes.
//!
//! The two hashes are never interchangeable: the message hash covers the
//! envelope as the backend stores it and belongs to the backend; the payload
//! hash covers the inner MLS bytes and lets a client know its own echo.

use bytes::Bytes;
use prost::Message;
use sha2::{Digest, Sha256};

use crate::backend::v1::ClientEnvelope;
use crate::backend::v1::client_envelope::Payload;

/// Encodes an envelope the one way the backend stores it.
///
/// - Fields go in ascending number and defaults are left out.
/// - Integers take their shortest form, and unknown fields are gone.
/// - Inner `bytes` fields are unchanged.
pub fn canonical_bytes(envelope: &ClientEnvelope) -> Vec<u8> {
    envelope.encode_to_vec()
}

/// Hashes the canonical bytes of an envelope with SHA-256.
///
/// Only the backend computes this hash. A client keeps the one it was given,
/// unchanged, and never recomputes it (STR-060).
pub fn message_hash(canonical_bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(canonical_bytes).into()
}

/// Hashes the inner MLS bytes of a group message with SHA-256.
///
/// A client matches its own echo to the attempt that sent it by this hash.
pub fn payload_hash(mls_bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(mls_bytes).into()
}

/// Returns the inner MLS bytes of a group message, or nothing for another kind.
pub fn inner_payload(envelope: &ClientEnvelope) -> Option<&Bytes> {
    match envelope.payload.as_ref()? {
        Payload::GroupMessage(message) => Some(&message.data),
        Payload::WelcomeMessage(_)
        | Payload::KeyPackage(_)
        | Payload::IdentityUpdate(_)
        | Payload::CommitLogEntry(_) => None,
    }
}
