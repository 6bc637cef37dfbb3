//! Local keys that sign updates: a wallet and an installation key.
//!
//! Both hold their secret in memory that is wiped on drop, and neither shows it.

use std::fmt;

use bytes::Bytes;
use k256::ecdsa::SigningKey as WalletKey;
use sha2::{Digest, Sha256, Sha512};
use xmtp_proto::id::InstallationId;
use xmtp_proto::identity as proto;
use zeroize::Zeroizing;

use crate::identifier::Identifier;
use crate::signature::{
    IDENTITY_CONTEXT, PUBLIC_CONTEXT, SignatureError, SignatureScheme, address_of,
    personal_message_hash,
};
use crate::update::SignatureKind;

/// An Ethereum account whose secret is held in this process.
pub struct LocalWallet {
    key: WalletKey,
    identifier: Identifier,
}

/// Reports that 32 bytes are no secret key of a wallet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bytes are no secret key: zero, or not below the order of the curve")]
pub struct InvalidSecret;

impl LocalWallet {
    /// Takes a secret key, which must be neither zero nor beyond the order of the curve.
    pub fn from_secret(secret: &[u8; 32]) -> Result<Self, InvalidSecret> {
        let key = WalletKey::from_slice(secret).map_err(|_| InvalidSecret)?;
        let identifier = address_of(key.verifying_key());
        Ok(Self { key, identifier })
    }

    /// Derives a wallet from 32 random bytes, any of which will do.
    pub fn from_random(random: [u8; 32]) -> Self {
        let mut candidate = Zeroizing::new(random);
        loop {
            // Fails once in 2^127 inputs, so the loop ends.
            match Self::from_secret(&candidate) {
                Ok(wallet) => return wallet,
                Err(InvalidSecret) => *candidate = Sha256::digest(*candidate).into(),
            }
        }
    }

    /// Returns the account.
    pub fn identifier(&self) -> &Identifier {
        &self.identifier
    }

    /// Signs a text as an EIP-191 personal message.
    pub fn sign_text(&self, text: &str) -> Result<proto::Signature, SignatureError> {
        let scheme = SignatureScheme::Erc191;
        let (signature, recovery) = self
            .key
            .sign_prehash_recoverable(&personal_message_hash(text))
            .map_err(|_| SignatureError::Rejected { scheme })?;
        let bytes = [&signature.to_bytes()[..], &[27 + recovery.to_byte()]].concat();
        let message = proto::RecoverableEcdsaSignature {
            bytes: bytes.into(),
        };
        Ok(proto::Signature {
            signature: Some(SignatureKind::Erc191(message)),
        })
    }
}

/// The Ed25519 key of an installation.
pub struct InstallationKey {
    key: ed25519_dalek::SigningKey,
}

impl InstallationKey {
    /// Takes an Ed25519 seed.
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self {
            key: ed25519_dalek::SigningKey::from_bytes(seed),
        }
    }

    /// Returns the installation's id, its public key.
    pub fn id(&self) -> InstallationId {
        InstallationId::from_bytes(self.key.verifying_key().to_bytes())
    }

    /// Returns the installation as a member.
    pub fn identifier(&self) -> Identifier {
        Identifier::installation(self.id())
    }

    /// Signs the text of an update.
    pub fn sign_text(&self, text: &str) -> Result<proto::Signature, SignatureError> {
        let message = proto::RecoverableEd25519Signature {
            bytes: Bytes::copy_from_slice(&self.sign(text.as_bytes(), IDENTITY_CONTEXT)?),
            public_key: Bytes::copy_from_slice(self.id().as_bytes()),
        };
        Ok(proto::Signature {
            signature: Some(SignatureKind::InstallationKey(message)),
        })
    }

    /// Signs a message for an application, in a context of its own.
    pub fn sign_public(&self, message: &[u8]) -> Result<[u8; 64], SignatureError> {
        self.sign(message, PUBLIC_CONTEXT)
    }

    fn sign(&self, message: &[u8], context: &[u8]) -> Result<[u8; 64], SignatureError> {
        let scheme = SignatureScheme::InstallationKey;
        let signature = self
            .key
            .sign_prehashed(Sha512::new_with_prefix(message), Some(context))
            .map_err(|_| SignatureError::Rejected { scheme })?;
        Ok(signature.to_bytes())
    }
}

impl fmt::Debug for LocalWallet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalWallet")
            .field("identifier", &self.identifier)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for InstallationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InstallationKey")
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}
