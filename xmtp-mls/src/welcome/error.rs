//! Why a Welcome cannot be read, one value per check.

use thiserror::Error;
use xmtp_core::error::{Class, Coded};

/// A check of a Welcome that failed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum WelcomeFault {
    /// Neither of the forms this build knows.
    #[error("the welcome has a form this build does not know; upgrade the software")]
    UnknownForm,
    /// Wrapped in a way this build does not know.
    #[error("the welcome is wrapped in a way this build does not know; upgrade the software")]
    UnknownAlgorithm,
    /// A newer version of MLS.
    #[error("the welcome is of an MLS version this build does not know; upgrade the software")]
    UnknownMlsVersion,
    /// Wrapped otherwise than the named key package asks for.
    #[error("the welcome is wrapped otherwise than its key package asks for")]
    Downgrade,
    /// No private key for the named public key.
    #[error("the welcome names a key that is not held")]
    NoKey,
    /// The wrapping does not open with the named key.
    #[error("the wrapping of the welcome does not open")]
    Decryption,
    /// The opened bytes are not an MLS Welcome.
    #[error("what is wrapped is not a welcome")]
    NotAWelcome,
    /// The Welcome needs pre-shared keys.
    #[error("the welcome needs pre-shared keys")]
    PreSharedKeys,
    /// The opened pointer is malformed.
    #[error("the welcome pointer is malformed")]
    MalformedPointer,
    /// The pointer's AEAD is not one this build knows.
    #[error("the welcome behind a pointer is sealed in a way this build does not know")]
    UnknownAead,
    /// What lies behind a pointer is another pointer.
    #[error("a welcome pointer leads to another pointer")]
    PointerToPointer,
    /// What lies behind a pointer is not addressed to its destination.
    #[error("the welcome behind a pointer is addressed elsewhere")]
    WrongDestination,
    /// What lies behind a pointer is not sealed with a symmetric key.
    #[error("the welcome behind a pointer is not sealed with its key")]
    NotSymmetric,
    /// The Welcome has no metadata, so no join anchor.
    #[error("the welcome has no join anchor")]
    NoMetadata,
    /// The metadata is malformed.
    #[error("the metadata of the welcome is malformed")]
    MalformedMetadata,
    /// The anchor is not before the Welcome itself.
    #[error("the join anchor is not before the welcome")]
    AnchorNotBefore,
    /// The anchor is 0 though the group has had commits.
    #[error("the join anchor is missing though the group has had commits")]
    AnchorMissing,
    /// The public key to wrap to is malformed.
    #[error("the key to wrap to is malformed; fetch another key package")]
    BadPublicKey,
}

/// What a fault means for a received Welcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WelcomeMeaning {
    /// Hold it for an upgrade; reject it one day after it was first read.
    Block,
    /// Refuse it for good.
    Reject,
}

impl WelcomeFault {
    /// Answers what the fault means for a received Welcome.
    pub fn meaning(self) -> WelcomeMeaning {
        match self {
            Self::UnknownForm | Self::UnknownAlgorithm | Self::UnknownMlsVersion => {
                WelcomeMeaning::Block
            }
            _ => WelcomeMeaning::Reject,
        }
    }
}

impl Coded for WelcomeFault {
    fn code(&self) -> &'static str {
        match self {
            Self::UnknownForm => "welcome.unknown_form",
            Self::UnknownAlgorithm => "welcome.unknown_algorithm",
            Self::UnknownMlsVersion => "welcome.unknown_mls_version",
            Self::Downgrade => "welcome.downgrade",
            Self::NoKey => "welcome.no_key",
            Self::Decryption => "welcome.decryption",
            Self::NotAWelcome => "welcome.not_a_welcome",
            Self::PreSharedKeys => "welcome.pre_shared_keys",
            Self::MalformedPointer => "welcome.malformed_pointer",
            Self::UnknownAead => "welcome.unknown_aead",
            Self::PointerToPointer => "welcome.pointer_to_pointer",
            Self::WrongDestination => "welcome.wrong_destination",
            Self::NotSymmetric => "welcome.not_symmetric",
            Self::NoMetadata => "welcome.no_metadata",
            Self::MalformedMetadata => "welcome.malformed_metadata",
            Self::AnchorNotBefore => "welcome.anchor_not_before",
            Self::AnchorMissing => "welcome.anchor_missing",
            Self::BadPublicKey => "welcome.bad_public_key",
        }
    }

    fn class(&self) -> Class {
        match self.meaning() {
            WelcomeMeaning::Block => Class::UserAction,
            WelcomeMeaning::Reject => Class::Permanent,
        }
    }
}
