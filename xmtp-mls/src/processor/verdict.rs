//! What a failure means for the envelope that caused it: one table for each kind of failure.

use xmtp_core::processor::{Blocked, Rejected, RetryCause, Verdict};
use xmtp_core::storage::StorageError;

use crate::group::{FrameKind, GroupFault, JoinFault, LifetimeFault};
use crate::welcome::{WelcomeFault, WelcomeMeaning};

/// Why an envelope is not applied.
#[derive(Debug)]
pub(super) enum Failure {
    /// The database failed: no verdict counts.
    Storage(StorageError),
    /// The envelope has this verdict.
    Verdict(Verdict),
}

impl From<StorageError> for Failure {
    fn from(error: StorageError) -> Self {
        Self::Storage(error)
    }
}

impl From<Rejected> for Failure {
    fn from(reason: Rejected) -> Self {
        Self::Verdict(Verdict::Rejected(reason))
    }
}

impl From<Blocked> for Failure {
    fn from(cause: Blocked) -> Self {
        Self::Verdict(Verdict::Blocked(cause))
    }
}

impl Failure {
    /// Answers the verdict, or the storage fault that ends the attempt.
    pub(super) fn verdict(self) -> Result<Verdict, StorageError> {
        match self {
            Self::Storage(error) => Err(error),
            Self::Verdict(verdict) => Ok(verdict),
        }
    }
}

/// The meaning of an openmls failure for a group envelope.
///
/// | fault | application message | commit or proposal |
/// | --- | --- | --- |
/// | storage | attempt ends | attempt ends |
/// | library, own key missing, own commit pending | retry | retry |
/// | no group state | block | block |
/// | an added package has expired by now | - | block |
/// | an added package is not valid yet: the clock is behind | - | retry |
/// | another epoch | epoch_too_old | commit_stale |
/// | secret consumed or out of reach | secret_gone | secret_gone |
/// | does not decrypt, wrong sender or signature | unauthenticated | unauthenticated |
/// | proposal not held | - | decided by the ledger |
/// | own leaf, but not what is pending | - | own_unmatched |
/// | any other broken rule | malformed | invalid_commit |
pub(super) fn of_group(fault: GroupFault, kind: FrameKind) -> Failure {
    let local = |what| Failure::Verdict(Verdict::Retry(RetryCause::Local { what }));
    let is_application = kind == FrameKind::Application;
    match fault {
        GroupFault::Storage(error) => Failure::Storage(error),
        GroupFault::Library => local("mls library"),
        GroupFault::KeyMissing => local("own key"),
        GroupFault::Pending => local("pending commit"),
        GroupFault::NoGroup => Blocked::StorageMissing.into(),
        GroupFault::Lifetime(LifetimeFault::Expired) => Blocked::Lifetime.into(),
        GroupFault::Lifetime(LifetimeFault::NotYet) => local("clock"),
        GroupFault::WrongEpoch if is_application => Rejected::EpochTooOld.into(),
        GroupFault::WrongEpoch => Rejected::CommitStale.into(),
        GroupFault::SecretConsumed => Rejected::SecretGone.into(),
        GroupFault::Undecryptable => Rejected::Unauthenticated.into(),
        GroupFault::Invalid("sender" | "signature") => Rejected::Unauthenticated.into(),
        GroupFault::ProposalMissing => Rejected::ProposalAbsent.into(),
        GroupFault::ProposalUnsupported => Rejected::UnsupportedProposal.into(),
        GroupFault::OwnCommitMismatch => Rejected::OwnUnmatched.into(),
        GroupFault::Inactive => Rejected::InvalidCommit.into(),
        _ if is_application => Rejected::Malformed.into(),
        _ => Rejected::InvalidCommit.into(),
    }
}

/// The meaning of a failed check of a Welcome.
pub(super) fn of_welcome(fault: WelcomeFault) -> Failure {
    if fault.meaning() == WelcomeMeaning::Block {
        return Blocked::Unsupported.into();
    }
    match fault {
        WelcomeFault::Downgrade => Rejected::WelcomeDowngrade,
        WelcomeFault::NoKey | WelcomeFault::Decryption => Rejected::WelcomeUndecryptable,
        WelcomeFault::PointerToPointer
        | WelcomeFault::WrongDestination
        | WelcomeFault::NotSymmetric
        | WelcomeFault::UnknownAead
        | WelcomeFault::MalformedPointer => Rejected::PointeeInvalid,
        WelcomeFault::NoMetadata
        | WelcomeFault::MalformedMetadata
        | WelcomeFault::AnchorNotBefore
        | WelcomeFault::AnchorMissing => Rejected::WelcomeAnchor,
        _ => Rejected::WelcomeMalformed,
    }
    .into()
}

/// The meaning of a join that failed.
pub(super) fn of_join(fault: JoinFault) -> Failure {
    match fault {
        JoinFault::Group(GroupFault::Invalid(_)) => Rejected::WelcomeMalformed.into(),
        JoinFault::Group(fault) => of_group(fault, FrameKind::Commit),
        JoinFault::Welcome(fault) => of_welcome(fault),
        JoinFault::Context(_) | JoinFault::Leaf(_) | JoinFault::GroupId => {
            Rejected::WelcomeMalformed.into()
        }
        _ => Rejected::WelcomeMembership.into(),
    }
}
