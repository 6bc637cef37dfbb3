//! Prehashed Ed25519 signatures of installation keys.

use bytes::Bytes;
use ed25519_dalek::{Signature, VerifyingKey};
use sha2::{Digest, Sha512};
use xmtp_proto::id::InstallationId;

use super::{CheckedSignature, SignatureError, SignatureScheme};
use crate::identifier::Identifier;

/// The context under which an installation key signs identity updates.
pub(crate) const IDENTITY_CONTEXT: &[u8] = b"IDENTITY UPDATE SIGNATURE";

/// The context under which an installation key signs for an application.
pub const PUBLIC_CONTEXT: &[u8] = b"PUBLIC SIGNATURE CONTEXT";

pub(super) fn check(
    text: &str,
    signature: &Bytes,
    key: &Bytes,
) -> Result<CheckedSignature, SignatureError> {
    let scheme = SignatureScheme::InstallationKey;
    let signer = Identifier::installation_bytes(key).map_err(|_| SignatureError::Malformed {
        scheme,
        part: "public key",
    })?;
    if let Some(id) = signer.as_installation() {
        verify(text.as_bytes(), signature, id, IDENTITY_CONTEXT)?;
    }
    Ok(CheckedSignature::settled(scheme, signer, signature.clone()))
}

/// Checks what an installation key signed for an application.
pub fn verify_public_context(
    message: &[u8],
    signature: &[u8],
    installation: &InstallationId,
) -> Result<(), SignatureError> {
    verify(message, signature, installation, PUBLIC_CONTEXT)
}

fn verify(
    message: &[u8],
    signature: &[u8],
    key: &InstallationId,
    context: &[u8],
) -> Result<(), SignatureError> {
    let scheme = SignatureScheme::InstallationKey;
    let malformed = |part| SignatureError::Malformed { scheme, part };
    let key = VerifyingKey::from_bytes(key.as_bytes()).map_err(|_| malformed("public key"))?;
    let signature = Signature::from_slice(signature).map_err(|_| malformed("length"))?;
    key.verify_prehashed(Sha512::new_with_prefix(message), Some(context), &signature)
        .map_err(|_| SignatureError::Rejected { scheme })
}
