//! What processors and core say to each other.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;
use xmtp_proto::backend::v1::ClientEnvelope;
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{GroupId, InboxId, SequenceId, Topic};

/// A received envelope at the head of its topic, checked and decoded once.
#[derive(Clone)]
pub struct PendingItem {
    /// The topic it was received on.
    pub topic: Topic,
    /// Its sequence id.
    pub sequence_id: SequenceId,
    /// The backend's time, in nanoseconds since the Unix epoch.
    pub server_ns: u64,
    /// The decoded envelope.
    pub envelope: ClientEnvelope,
    /// The intent whose current attempt has this payload identity, for an own echo.
    pub own: Option<stored::Intent>,
}

// An envelope does not reach a log.
impl fmt::Debug for PendingItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingItem")
            .field("topic", &self.topic)
            .field("sequence_id", &self.sequence_id)
            .finish_non_exhaustive()
    }
}

impl PendingItem {
    /// Answers SHA-256 of the inner opaque bytes: the payload identity (STR-110).
    pub fn payload_hash(&self) -> [u8; 32] {
        let inner = xmtp_proto::envelope::inner_payload(&self.envelope);
        inner
            .map(|inner| xmtp_proto::envelope::payload_hash(inner))
            .unwrap_or_default()
    }

    /// Answers the inner opaque bytes of a group message.
    pub fn group_bytes(&self) -> Option<&Bytes> {
        xmtp_proto::envelope::inner_payload(&self.envelope)
    }
}

/// What becomes of one envelope.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Valid: its effects are part of the transaction.
    Applied(Box<Effects>),
    /// Definitively invalid with the prefix complete; recorded, and P moves past it.
    Rejected(Rejected),
    /// A local or passing failure; P stays, and it is tried again after the pause.
    Retry(RetryCause),
    /// Needs something from outside first; P stays.
    Waits(Vec<Dependency>),
    /// Valid or unsupported work that this build cannot do; P stays.
    Blocked(Blocked),
}

/// The typed reason of a terminal rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Rejected {
    Malformed,
    Unauthenticated,
    WrongGroup,
    SecretGone,
    EpochTooOld,
    BeforeJoin,
    CommitStale,
    EpochFuture,
    ProposalAbsent,
    OwnUnmatched,
    AlreadyApplied,
    IdentityReferenceInvalid,
    IdentityReferenceMissing,
    InvalidCommit,
    PolicyDenied,
    UnsupportedProposal,
    WelcomeDowngrade,
    WelcomeUndecryptable,
    WelcomeMalformed,
    WelcomeAnchor,
    WelcomeMembership,
    WelcomeStale,
    WelcomeConflicting,
    WelcomeSuperseded,
    WelcomeExpired,
    PointeeInvalid,
}

impl Rejected {
    /// Every reason, for tables and tests.
    pub const ALL: &'static [Self] = &[
        Self::Malformed,
        Self::Unauthenticated,
        Self::WrongGroup,
        Self::SecretGone,
        Self::EpochTooOld,
        Self::BeforeJoin,
        Self::CommitStale,
        Self::EpochFuture,
        Self::ProposalAbsent,
        Self::OwnUnmatched,
        Self::AlreadyApplied,
        Self::IdentityReferenceInvalid,
        Self::IdentityReferenceMissing,
        Self::InvalidCommit,
        Self::PolicyDenied,
        Self::UnsupportedProposal,
        Self::WelcomeDowngrade,
        Self::WelcomeUndecryptable,
        Self::WelcomeMalformed,
        Self::WelcomeAnchor,
        Self::WelcomeMembership,
        Self::WelcomeStale,
        Self::WelcomeConflicting,
        Self::WelcomeSuperseded,
        Self::WelcomeExpired,
        Self::PointeeInvalid,
    ];

    /// Answers the stable code that is recorded.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Unauthenticated => "unauthenticated",
            Self::WrongGroup => "wrong_group",
            Self::SecretGone => "secret_gone",
            Self::EpochTooOld => "epoch_too_old",
            Self::BeforeJoin => "before_join",
            Self::CommitStale => "commit_stale",
            Self::EpochFuture => "epoch_future",
            Self::ProposalAbsent => "proposal_absent",
            Self::OwnUnmatched => "own_unmatched",
            Self::AlreadyApplied => "already_applied",
            Self::IdentityReferenceInvalid => "identity_ref_invalid",
            Self::IdentityReferenceMissing => "identity_ref_missing",
            Self::InvalidCommit => "invalid_commit",
            Self::PolicyDenied => "policy_denied",
            Self::UnsupportedProposal => "unsupported_proposal",
            Self::WelcomeDowngrade => "welcome_downgrade",
            Self::WelcomeUndecryptable => "welcome_undecryptable",
            Self::WelcomeMalformed => "welcome_malformed",
            Self::WelcomeAnchor => "welcome_anchor",
            Self::WelcomeMembership => "welcome_membership",
            Self::WelcomeStale => "welcome_stale",
            Self::WelcomeConflicting => "welcome_conflicting",
            Self::WelcomeSuperseded => "welcome_superseded",
            Self::WelcomeExpired => "welcome_expired",
            Self::PointeeInvalid => "pointee_invalid",
        }
    }
}

/// Why an envelope is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryCause {
    /// A local failure: a key that did not load, a library fault, an interruption.
    Local {
        /// What failed.
        what: &'static str,
    },
    /// A verifier has no route at the moment (CFG-097).
    Verifier,
}

impl RetryCause {
    /// Answers the stable code.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Local { .. } => "local",
            Self::Verifier => "dependency",
        }
    }
}

/// Why an envelope cannot be handled by this build or in this state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// An unsupported MLS or group version, or proposal kind.
    Unsupported,
    /// State that was applied is no longer there.
    StorageMissing,
    /// The identity history behind it is invalid.
    IdentityInvalid,
    /// A key package in the commit has expired by the wall clock (trust 14.1).
    Lifetime,
    /// The group demands a newer version.
    VersionFloor,
    /// The processor panicked on it.
    Panic,
}

impl Blocked {
    /// Answers the stable code.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Unsupported => "unsupported",
            Self::StorageMissing => "storage_missing",
            Self::IdentityInvalid => "identity_invalid",
            Self::Lifetime => "lifetime",
            Self::VersionFloor => "version_floor",
            Self::Panic => "panic",
        }
    }
}

/// Something from outside that an envelope needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dependency {
    /// The verified state of an inbox at exactly this sequence id (STR-076).
    Identity {
        /// The inbox.
        inbox: InboxId,
        /// The exact sequence id.
        sequence: SequenceId,
    },
    /// The prefix of a group's topic through an anchor (STR-082).
    GroupPrefix {
        /// The group.
        group: GroupId,
        /// The last sequence id of the prefix.
        through: SequenceId,
    },
    /// The Welcome that a pointer leads to (STR-081).
    Pointee {
        /// The Welcome topic that holds it.
        destination: Topic,
    },
}

/// The answer to one dependency (STR-075).
#[derive(Clone, Debug, PartialEq)]
pub enum Resolution {
    /// It is there now.
    Ready,
    /// It is not there yet; ask again after the pause.
    Retry(Duration),
    /// It will never be there.
    Permanent(Rejected),
}

/// What an applied envelope changed, for core to write.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effects {
    /// Messages that are deliverable once this transaction commits (STR-103), in order.
    pub messages: Vec<NewMessage>,
    /// What changed about the group.
    pub group: Option<GroupChange>,
    /// Proposal references that this envelope put on the ledger, with their epoch.
    pub proposals: Vec<(u64, Vec<u8>)>,
    /// Welcomes that the own commit owes, as exact envelope bytes in publishing order.
    pub welcomes: Option<OwedWelcomes>,
}

/// Welcomes owed after an own commit, each the exact bytes of a `ClientEnvelope`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwedWelcomes(pub Vec<Bytes>);

/// What changed about a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupChange {
    /// The epoch after the envelope.
    pub epoch: u64,
    /// The epoch authenticator after the envelope.
    pub epoch_authenticator: Vec<u8>,
    /// The group's name, if it has one.
    pub name: Option<String>,
    /// Whether this installation was removed (STR-086).
    pub removed: bool,
}

/// A message that becomes deliverable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMessage {
    /// The message, complete but for its delivery number.
    pub message: stored::StoredMessage,
}

/// What core needs to decide on a Welcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinAnchor {
    /// The group.
    pub group: GroupId,
    /// The epoch that the Welcome installs.
    pub epoch: u64,
    /// The sequence id of the commit that added this installation; 0 only at epoch 0.
    pub anchor: SequenceId,
}

/// What an installed Welcome or a local creation produced.
#[derive(Clone, Debug, PartialEq)]
pub struct Joined {
    /// The group's record; core sets positions and discovery.
    pub record: stored::GroupRecord,
    /// The join transcript, if one is shown.
    pub messages: Vec<NewMessage>,
}

/// An attempt prepared from an intent.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    /// The attempt, exact bytes included.
    pub attempt: stored::Attempt,
}

/// Why an intent cannot be prepared.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PrepareError {
    /// The group is not active.
    #[error("the group is not active on this installation; wait for a new Welcome")]
    Inactive,
    /// The intent asks for what is already so; nothing is published.
    #[error("the change is already in effect; nothing was sent")]
    Superseded,
    /// The intent cannot be sent.
    #[error("the intent cannot be sent: {reason}")]
    Unsendable {
        /// The stable reason code.
        reason: &'static str,
    },
    /// Something from outside is missing first.
    #[error("the intent needs identity or key package data that is not stored yet; it is fetched")]
    Waits(Vec<Dependency>),
    /// A local failure; tried again.
    #[error("preparing failed locally ({what}); it is tried again")]
    Local {
        /// What failed.
        what: &'static str,
    },
}
