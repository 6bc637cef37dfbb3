//! Checks of the four kinds of signature over a signature text.
//!
//! Everything that can be decided here is decided without a [`Verifier`]; only a smart contract
//! wallet leaves one question open, which the caller asks last. So no chain is asked about an
//! update that is refused anyway.

mod erc191;
mod erc6492;
mod installation;
mod passkey;

use std::fmt;

use bytes::Bytes;

use crate::identifier::Identifier;
use crate::update::SignatureKind;
use crate::verifier::{ScwRequest, Verifier, VerifierError};

pub(crate) use self::erc191::address_of;
pub use self::erc191::personal_message_hash;
pub use self::erc6492::{AccountId, AccountIdError};
pub(crate) use self::installation::IDENTITY_CONTEXT;
pub use self::installation::{PUBLIC_CONTEXT, verify_public_context};

/// Holds what a valid signature proves.
///
/// `Debug` leaves the replay key out.
#[derive(Clone, PartialEq, Eq)]
pub struct VerifiedSignature {
    /// How it was signed.
    pub scheme: SignatureScheme,
    /// Who signed.
    pub signer: Identifier,
    /// The chain that the signer's wallet lives on, for a smart contract wallet only.
    pub chain_id: Option<u64>,
    /// The key under which the signature counts as used.
    pub replay_key: Bytes,
}

/// Names a kind of signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SignatureScheme {
    /// A recoverable signature of an Ethereum account over the EIP-191 hash.
    Erc191,
    /// A signature that a smart contract wallet judges.
    Erc6492,
    /// A prehashed Ed25519 signature of an installation key.
    InstallationKey,
    /// A WebAuthn assertion of a passkey.
    Passkey,
}

/// Reports why a signature is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// A part of the signature can not be read.
    #[error("the {scheme:?} signature is malformed: {part}")]
    Malformed {
        /// The kind of signature.
        scheme: SignatureScheme,
        /// The part that can not be read, as fixed text.
        part: &'static str,
    },
    /// The smart contract wallet's account is not `eip155:<chain id>:<address>`.
    #[error("the smart contract wallet account is malformed")]
    AccountId(#[from] AccountIdError),
    /// The passkey answered another challenge than this text.
    #[error("the passkey signed another challenge")]
    Challenge,
    /// The signature is readable but does not hold for this text.
    #[error("the {scheme:?} signature does not hold")]
    Rejected {
        /// The kind of signature.
        scheme: SignatureScheme,
    },
    /// The verifier gave no verdict.
    #[error("the smart contract wallet was not judged")]
    Verifier(#[from] VerifierError),
}

impl SignatureError {
    /// Returns the stable code of this error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Malformed { .. } => "identity.signature.malformed",
            Self::AccountId(_) => "identity.signature.account_id",
            Self::Challenge => "identity.signature.challenge",
            Self::Rejected { .. } => "identity.signature.rejected",
            Self::Verifier(error) => error.code(),
        }
    }

    /// Tells whether the same signature may be judged later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Verifier(error) if error.is_retryable())
    }
}

/// Checks one signature over `text`.
pub fn verify_signature(
    text: &str,
    signature: &SignatureKind,
    verifier: &dyn Verifier,
) -> Result<VerifiedSignature, SignatureError> {
    let checked = check_locally(text, signature)?;
    if let Some(request) = &checked.pending {
        ask(request, verifier)?;
    }
    Ok(checked.signature)
}

/// Holds a signature that is valid if `pending`, where present, gets a positive verdict.
#[derive(Clone, Debug)]
pub(crate) struct CheckedSignature {
    pub(crate) signature: VerifiedSignature,
    pub(crate) pending: Option<ScwRequest>,
}

/// Checks all of a signature that needs no chain.
pub(crate) fn check_locally(
    text: &str,
    signature: &SignatureKind,
) -> Result<CheckedSignature, SignatureError> {
    match signature {
        SignatureKind::Erc191(message) => erc191::check(text, &message.bytes),
        SignatureKind::Erc6492(message) => erc6492::check(text, message),
        SignatureKind::InstallationKey(message) => {
            installation::check(text, &message.bytes, &message.public_key)
        }
        SignatureKind::Passkey(message) => passkey::check(text, message),
    }
}

/// Asks the verifier the one question that [`check_locally`] leaves open.
pub(crate) fn ask(request: &ScwRequest, verifier: &dyn Verifier) -> Result<(), SignatureError> {
    if verifier.verify_smart_contract_wallet(request)? {
        return Ok(());
    }
    Err(SignatureError::Rejected {
        scheme: SignatureScheme::Erc6492,
    })
}

impl CheckedSignature {
    /// Holds a signature that depends on no chain.
    fn settled(scheme: SignatureScheme, signer: Identifier, replay_key: Bytes) -> Self {
        let signature = VerifiedSignature {
            scheme,
            signer,
            chain_id: None,
            replay_key,
        };
        Self {
            signature,
            pending: None,
        }
    }
}

impl fmt::Debug for VerifiedSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerifiedSignature")
            .field("scheme", &self.scheme)
            .field("signer", &self.signer)
            .field("chain_id", &self.chain_id)
            .finish_non_exhaustive()
    }
}
