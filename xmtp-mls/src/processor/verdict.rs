//! What a failure means for the envelope that caused it: one table for each kind of failure.

use xmtp_core::processor::{Blocked, Rejected, RetryCause, Verdict};
use xmtp_core::storage::StorageError;

use crate::group::{ContextForm, FrameKind, GroupFault, JoinFault, LifetimeFault};
use crate::welcome::{WelcomeFault, WelcomeMeaning};

/// How far above the time of its envelope the lifetime of a package may begin, in seconds: one day.
/// Within it the clock here is behind and catches up; beyond it waiting is for years.
const CLOCK_SLACK_SECONDS: u64 = 24 * 60 * 60;
const NANOS: u64 = 1_000_000_000;

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
/// | an added package has expired by now, or its lifetime begins long after the envelope | - | block |
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
        GroupFault::Lifetime(LifetimeFault::NotYet { .. }) => local("clock"),
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

/// The meaning of a package outside its lifetime, in a group of this form and an envelope of this
/// time.
///
/// - The extension form has no standalone proposals, so there one is refused whatever it adds.
/// - A lifetime that begins more than [`CLOCK_SLACK_SECONDS`] after the envelope is no matter of a
///   clock that is behind: others apply such a commit, here it is blocked as one that has expired.
pub(super) fn of_lifetime(
    fault: LifetimeFault,
    kind: FrameKind,
    form: Option<ContextForm>,
    server_ns: u64,
) -> Failure {
    if kind == FrameKind::Proposal && form == Some(ContextForm::Extensions) {
        return Rejected::UnsupportedProposal.into();
    }
    match fault {
        LifetimeFault::NotYet { from } if from > server_ns / NANOS + CLOCK_SLACK_SECONDS => {
            Blocked::Lifetime.into()
        }
        fault => of_group(GroupFault::Lifetime(fault), kind),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A lifetime that begins within a day of its envelope waits for the clock; one that begins
    /// later would be waited for in vain, and is blocked as one that has ended. A standalone
    /// proposal is refused where the form has none, and never where it has them.
    ///
    /// covers: STR-074, STR-077
    #[test]
    fn no_lifetime_is_waited_for_in_vain() {
        const AT: u64 = 1_900_000_000;
        let clock = Verdict::Retry(RetryCause::Local { what: "clock" });
        let blocked = Verdict::Blocked(Blocked::Lifetime);
        let refused = Verdict::Rejected(Rejected::UnsupportedProposal);
        let near = LifetimeFault::NotYet {
            from: AT + CLOCK_SLACK_SECONDS,
        };
        let far = LifetimeFault::NotYet {
            from: AT + CLOCK_SLACK_SECONDS + 1,
        };
        let (extensions, dictionary) = (ContextForm::Extensions, ContextForm::Dictionary);
        for (fault, expected) in [
            (near, clock),
            (far, blocked.clone()),
            (LifetimeFault::Expired, blocked),
        ] {
            let verdict = |kind, form| {
                let failure = of_lifetime(fault, kind, form, AT * NANOS + NANOS - 1);
                failure.verdict().expect("a verdict")
            };
            for form in [None, Some(extensions), Some(dictionary)] {
                assert_eq!(verdict(FrameKind::Commit, form), expected, "{fault:?}");
            }
            let proposal = FrameKind::Proposal;
            assert_eq!(verdict(proposal, Some(extensions)), refused, "{fault:?}");
            assert_eq!(verdict(proposal, Some(dictionary)), expected, "{fault:?}");
        }
    }
}
