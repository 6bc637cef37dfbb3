//! WebAuthn assertions whose challenge is the signature text.
//!
//! Only what binds the key to the text is checked. The ceremony's type, flags, counter, origin
//! and relying party say nothing about the text and are left to whoever admits an update.

use bytes::Bytes;
use p256::ecdsa::signature::Verifier as _;
use p256::ecdsa::{Signature, VerifyingKey};
use sha2::{Digest, Sha256};
use xmtp_proto::identity as proto;

use super::{CheckedSignature, SignatureError, SignatureScheme};
use crate::identifier::Identifier;

pub(super) fn check(
    text: &str,
    message: &proto::RecoverablePasskeySignature,
) -> Result<CheckedSignature, SignatureError> {
    let scheme = SignatureScheme::Passkey;
    let malformed = |part| SignatureError::Malformed { scheme, part };
    let key =
        VerifyingKey::from_sec1_bytes(&message.public_key).map_err(|_| malformed("public key"))?;
    let signer = Identifier::passkey(message.public_key.clone(), None)
        .map_err(|_| malformed("public key"))?;
    let signature = Signature::from_der(&message.signature).map_err(|_| malformed("r or s"))?;
    check_challenge(text, &message.client_data_json)?;

    let client_data_hash = Sha256::digest(&message.client_data_json);
    let signed = [&message.authenticator_data[..], &client_data_hash[..]].concat();
    key.verify(&signed, &signature)
        .map_err(|_| SignatureError::Rejected { scheme })?;

    let low = signature.normalize_s().unwrap_or(signature);
    let replay_key = Bytes::copy_from_slice(&low.to_bytes());
    Ok(CheckedSignature::settled(scheme, signer, replay_key))
}

fn check_challenge(text: &str, client_data_json: &[u8]) -> Result<(), SignatureError> {
    let part = "client data";
    let malformed = SignatureError::Malformed {
        scheme: SignatureScheme::Passkey,
        part,
    };
    let client_data: serde_json::Value =
        serde_json::from_slice(client_data_json).map_err(|_| malformed)?;
    let challenge = client_data
        .get("challenge")
        .and_then(|value| value.as_str());
    if challenge.ok_or(malformed)? == base64url(text.as_bytes()) {
        return Ok(());
    }
    Err(SignatureError::Challenge)
}

/// Encodes as base64 in the URL alphabet, without padding.
pub(super) fn base64url(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut group = [0; 4];
        group[1..=chunk.len()].copy_from_slice(chunk);
        let group = u32::from_be_bytes(group);
        for digit in 0..=chunk.len() {
            let value = group >> (18 - 6 * digit) & 0x3f;
            text.push(char::from(ALPHABET[value as usize]));
        }
    }
    text
}
