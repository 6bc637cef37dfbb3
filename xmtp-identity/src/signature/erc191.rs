//! Signatures of Ethereum accounts over the EIP-191 personal message hash.

use bytes::Bytes;
use k256::ecdsa::{RecoveryId, Signature, VerifyingKey};
use sha3::{Digest, Keccak256};

use super::{CheckedSignature, SignatureError, SignatureScheme};
use crate::identifier::Identifier;

/// Returns the EIP-191 (version 0x45) hash of a text.
pub fn personal_message_hash(text: &str) -> [u8; 32] {
    let mut hash = Keccak256::new();
    hash.update(b"\x19Ethereum Signed Message:\n");
    hash.update(text.len().to_string().as_bytes());
    hash.update(text.as_bytes());
    hash.finalize().into()
}

/// Returns the account that a public key controls.
pub(crate) fn address_of(key: &VerifyingKey) -> Identifier {
    let point = key.to_encoded_point(false);
    // The first byte of an uncompressed point is a tag, not part of the key.
    let hash: [u8; 32] = Keccak256::digest(&point.as_bytes()[1..]).into();
    let mut address = [0; 20];
    address.copy_from_slice(&hash[12..]);
    Identifier::ethereum_bytes(address)
}

/// Recovers the signer of `text` from 65 bytes r, s and v.
pub(super) fn check(text: &str, bytes: &[u8]) -> Result<CheckedSignature, SignatureError> {
    let scheme = SignatureScheme::Erc191;
    let malformed = |part| SignatureError::Malformed { scheme, part };
    let bytes: &[u8; 65] = bytes.try_into().map_err(|_| malformed("length"))?;
    let v = match bytes[64] {
        v @ (0 | 1) => v,
        v @ (27 | 28) => v - 27,
        _ => return Err(malformed("recovery byte")),
    };
    let signature = Signature::from_slice(&bytes[..64]).map_err(|_| malformed("r or s"))?;
    // Both halves of s recover the same key if the parity is flipped along, so only the low half
    // counts as used.
    let (signature, v) = match signature.normalize_s() {
        Some(low) => (low, v ^ 1),
        None => (signature, v),
    };
    let recovery = RecoveryId::new(v == 1, false);
    let key =
        VerifyingKey::recover_from_prehash(&personal_message_hash(text), &signature, recovery)
            .map_err(|_| SignatureError::Rejected { scheme })?;
    let replay_key: Bytes = [&signature.to_bytes()[..], &[v]].concat().into();
    Ok(CheckedSignature::settled(
        scheme,
        address_of(&key),
        replay_key,
    ))
}
