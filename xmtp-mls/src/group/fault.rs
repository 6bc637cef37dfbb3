//! What an openmls failure means for the envelope that caused it.
//!
//! openmls has many error types; a turn needs to know one thing of each: try again, wait for a
//! repair, or refuse for good. The mapping stands here and nowhere else.

use openmls::framing::errors::MessageDecryptionError;
use openmls::group::{
    CommitBuilderStageError, CreateCommitError, MergeCommitError, MergePendingCommitError,
    MlsGroupStateError, NewGroupError, ProcessMessageError, ProposalValidationError,
    StageCommitError, ValidationError,
};
use openmls::prelude::KeyPackageVerifyError;
use openmls::treesync::errors::{LeafNodeValidationError, LifetimeError};
use thiserror::Error;
use xmtp_core::error::{Class, Coded};
use xmtp_core::storage::StorageError;

/// Why openmls could not do what was asked of it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupFault {
    /// The storage failed; the attempt rolls back and is tried again.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// openmls met a state it holds impossible; never a verdict on an envelope.
    #[error("the MLS library failed; retry, and report it when it stays")]
    Library,
    /// A key that this installation should hold is not there; never a verdict on an envelope.
    #[error("a local key is missing; restore the database or join again")]
    KeyMissing,
    /// The group's state is not in the database.
    #[error("the group has no state here; wait for a welcome")]
    NoGroup,
    /// A commit cannot be applied because the key package of an Add is outside its lifetime by
    /// the system's clock; others apply it. Its sender is authenticated, nothing after the
    /// lifetime has been checked.
    #[error(
        "a commit adds a key package that is {0} by the system's clock; check the clock, or join again"
    )]
    Lifetime(LifetimeFault),
    /// The message is of another epoch than this group can read.
    #[error("the message is of an epoch that the group cannot read")]
    WrongEpoch,
    /// The key of the message was used, or is too far away to be derived.
    #[error("the key of the message is gone: it was used before, or is out of reach")]
    SecretConsumed,
    /// The bytes do not decrypt.
    #[error("the message does not decrypt")]
    Undecryptable,
    /// This installation is no longer a member.
    #[error("this installation is no longer a member of the group")]
    Inactive,
    /// Another commit of this installation is pending, or proposals are.
    #[error("a commit or proposal of this installation is pending; wait for its echo")]
    Pending,
    /// A commit refers to a proposal that is not held.
    #[error("a commit refers to a proposal that is not held")]
    ProposalMissing,
    /// A commit under the own leaf is not the pending one.
    #[error("a commit of this installation is not the one it has pending")]
    OwnCommitMismatch,
    /// A proposal is of a kind that some member does not list.
    #[error("a proposal is of a kind that some member does not support")]
    ProposalUnsupported,
    /// The bytes break a rule of MLS.
    #[error("the message breaks a rule of MLS: {0}")]
    Invalid(&'static str),
}

/// In which way a key package is outside its lifetime.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum LifetimeFault {
    /// It has ended.
    #[error("expired")]
    Expired,
    /// It has not begun.
    #[error("not yet valid")]
    NotYet {
        /// When it begins, in seconds since the Unix epoch.
        from: u64,
    },
}

/// What a fault means for an envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Local trouble: roll back and try again.
    Retry,
    /// Others accept it, this build or machine cannot: hold the topic until a repair.
    Block,
    /// Every client refuses it: record and go on.
    Reject,
}

impl GroupFault {
    /// Answers what the fault means for a received envelope.
    pub fn meaning(&self) -> Meaning {
        match self {
            Self::Storage(_) | Self::Library | Self::KeyMissing | Self::Pending => Meaning::Retry,
            Self::Lifetime(_) | Self::NoGroup => Meaning::Block,
            Self::WrongEpoch
            | Self::SecretConsumed
            | Self::Undecryptable
            | Self::Inactive
            | Self::ProposalMissing
            | Self::OwnCommitMismatch
            | Self::ProposalUnsupported
            | Self::Invalid(_) => Meaning::Reject,
        }
    }
}

impl Coded for GroupFault {
    fn code(&self) -> &'static str {
        match self {
            Self::Storage(error) => error.code(),
            Self::Library => "mls.library",
            Self::KeyMissing => "mls.key_missing",
            Self::NoGroup => "mls.no_group",
            Self::Lifetime(LifetimeFault::Expired) => "mls.lifetime_expired",
            Self::Lifetime(LifetimeFault::NotYet { .. }) => "mls.lifetime_not_yet",
            Self::WrongEpoch => "mls.wrong_epoch",
            Self::SecretConsumed => "mls.secret_consumed",
            Self::Undecryptable => "mls.undecryptable",
            Self::Inactive => "mls.inactive",
            Self::Pending => "mls.pending",
            Self::ProposalMissing => "mls.proposal_missing",
            Self::OwnCommitMismatch => "mls.own_commit_mismatch",
            Self::ProposalUnsupported => "mls.proposal_unsupported",
            Self::Invalid(_) => "mls.invalid",
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Storage(error) => error.class(),
            _ => match self.meaning() {
                Meaning::Retry => Class::Retry,
                Meaning::Block => Class::Wait,
                Meaning::Reject => Class::Permanent,
            },
        }
    }
}

impl From<LifetimeError> for GroupFault {
    fn from(error: LifetimeError) -> Self {
        match error {
            LifetimeError::Expired { .. } => Self::Lifetime(LifetimeFault::Expired),
            LifetimeError::NotValidYet { not_before, .. } => {
                Self::Lifetime(LifetimeFault::NotYet { from: not_before })
            }
            LifetimeError::SystemTimeBeforeUnixEpoch => Self::Library,
        }
    }
}

impl From<KeyPackageVerifyError> for GroupFault {
    fn from(error: KeyPackageVerifyError) -> Self {
        match error {
            KeyPackageVerifyError::LibraryError(_) => Self::Library,
            KeyPackageVerifyError::LifetimeError(error) => error.into(),
            _ => Self::Invalid("key package"),
        }
    }
}

impl From<LeafNodeValidationError> for GroupFault {
    fn from(error: LeafNodeValidationError) -> Self {
        match error {
            LeafNodeValidationError::Lifetime(error) => error.into(),
            _ => Self::Invalid("leaf"),
        }
    }
}

impl From<MessageDecryptionError> for GroupFault {
    fn from(error: MessageDecryptionError) -> Self {
        match error {
            MessageDecryptionError::LibraryError(_) => Self::Library,
            // openmls does not name the type of this error in public; every reason within it
            // says that the key cannot be had.
            MessageDecryptionError::SecretTreeError(_)
            | MessageDecryptionError::GenerationOutOfBound => Self::SecretConsumed,
            _ => Self::Undecryptable,
        }
    }
}

impl From<ValidationError> for GroupFault {
    fn from(error: ValidationError) -> Self {
        match error {
            ValidationError::LibraryError(_) => Self::Library,
            ValidationError::WrongEpoch | ValidationError::NoPastEpochData => Self::WrongEpoch,
            ValidationError::UnableToDecrypt(error) => error.into(),
            ValidationError::KeyPackageVerifyError(error) => error.into(),
            ValidationError::WrongGroupId => Self::Invalid("group id"),
            ValidationError::UnknownMember => Self::Invalid("sender"),
            ValidationError::InvalidSignature => Self::Invalid("signature"),
            _ => Self::Invalid("message"),
        }
    }
}

impl From<ProposalValidationError> for GroupFault {
    fn from(error: ProposalValidationError) -> Self {
        match error {
            ProposalValidationError::LibraryError(_) => Self::Library,
            ProposalValidationError::LeafNodeValidation(error) => error.into(),
            ProposalValidationError::UnsupportedProposalType => Self::ProposalUnsupported,
            _ => Self::Invalid("proposal"),
        }
    }
}

impl From<StageCommitError> for GroupFault {
    fn from(error: StageCommitError) -> Self {
        match error {
            StageCommitError::LibraryError(_) => Self::Library,
            StageCommitError::EpochMismatch => Self::WrongEpoch,
            StageCommitError::OwnCommitMismatch => Self::OwnCommitMismatch,
            StageCommitError::MissingProposal => Self::ProposalMissing,
            StageCommitError::MissingDecryptionKey | StageCommitError::OwnKeyNotFound => {
                Self::KeyMissing
            }
            StageCommitError::ProposalValidationError(error) => error.into(),
            StageCommitError::LeafNodeValidation(error) => error.into(),
            _ => Self::Invalid("commit"),
        }
    }
}

impl From<MlsGroupStateError> for GroupFault {
    fn from(error: MlsGroupStateError) -> Self {
        match error {
            MlsGroupStateError::LibraryError(_) | MlsGroupStateError::NoPendingCommit => {
                Self::Library
            }
            MlsGroupStateError::UseAfterEviction => Self::Inactive,
            MlsGroupStateError::PendingProposal | MlsGroupStateError::PendingCommit => {
                Self::Pending
            }
            MlsGroupStateError::PendingProposalNotFound => Self::ProposalMissing,
        }
    }
}

impl From<ProcessMessageError<StorageError>> for GroupFault {
    fn from(error: ProcessMessageError<StorageError>) -> Self {
        match error {
            ProcessMessageError::LibraryError(_) => Self::Library,
            ProcessMessageError::StorageError(error) => Self::Storage(error),
            ProcessMessageError::ValidationError(error) => error.into(),
            ProcessMessageError::GroupStateError(error) => error.into(),
            ProcessMessageError::InvalidCommit(error) => error.into(),
            ProcessMessageError::IncompatibleWireFormat => Self::Invalid("wire format"),
            ProcessMessageError::UnsupportedProposalType => Self::ProposalUnsupported,
            _ => Self::Invalid("sender"),
        }
    }
}

impl From<MergeCommitError<StorageError>> for GroupFault {
    fn from(error: MergeCommitError<StorageError>) -> Self {
        match error {
            MergeCommitError::StorageError(error) => Self::Storage(error),
            _ => Self::Library,
        }
    }
}

impl From<MergePendingCommitError<StorageError>> for GroupFault {
    fn from(error: MergePendingCommitError<StorageError>) -> Self {
        match error {
            MergePendingCommitError::MlsGroupStateError(error) => error.into(),
            MergePendingCommitError::MergeCommitError(error) => error.into(),
        }
    }
}

impl From<NewGroupError<StorageError>> for GroupFault {
    fn from(error: NewGroupError<StorageError>) -> Self {
        match error {
            NewGroupError::StorageError(error) => Self::Storage(error),
            NewGroupError::GroupAlreadyExists => Self::Invalid("group id in use"),
            NewGroupError::InvalidExtensions(_) => Self::Invalid("extensions"),
            _ => Self::Library,
        }
    }
}

impl From<CreateCommitError> for GroupFault {
    fn from(error: CreateCommitError) -> Self {
        match error {
            CreateCommitError::OwnKeyNotFound => Self::KeyMissing,
            CreateCommitError::MissingProposal => Self::ProposalMissing,
            CreateCommitError::ProposalValidationError(error) => error.into(),
            CreateCommitError::LeafNodeValidation(error) => error.into(),
            CreateCommitError::CannotRemoveSelf => Self::Invalid("removes itself"),
            CreateCommitError::LibraryError(_) | CreateCommitError::SignatureError(_) => {
                Self::Library
            }
            _ => Self::Invalid("commit"),
        }
    }
}

impl From<CommitBuilderStageError<StorageError>> for GroupFault {
    fn from(error: CommitBuilderStageError<StorageError>) -> Self {
        match error {
            CommitBuilderStageError::KeyStoreError(error) => Self::Storage(error),
            CommitBuilderStageError::LibraryError(_) => Self::Library,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What openmls cannot be brought to from outside keeps its meaning too.
    /// covers: EXT-008
    #[test]
    fn rare_failures_keep_their_meaning() {
        let told = |fault: GroupFault| (fault.code(), fault.meaning());
        let rows = [
            (
                StageCommitError::OwnCommitMismatch.into(),
                "mls.own_commit_mismatch",
                Meaning::Reject,
            ),
            (
                StageCommitError::OwnKeyNotFound.into(),
                "mls.key_missing",
                Meaning::Retry,
            ),
            (
                StageCommitError::MissingDecryptionKey.into(),
                "mls.key_missing",
                Meaning::Retry,
            ),
            (
                ProposalValidationError::UnsupportedProposalType.into(),
                "mls.proposal_unsupported",
                Meaning::Reject,
            ),
            (
                LifetimeError::SystemTimeBeforeUnixEpoch.into(),
                "mls.library",
                Meaning::Retry,
            ),
        ];
        for (fault, code, meaning) in rows {
            assert_eq!(told(fault), (code, meaning));
        }
    }
}
