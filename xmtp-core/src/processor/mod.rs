//! The processing seam: what one envelope means, decided inside one write transaction.
//!
//! A processor decides only from the ordered prefix, the installed state and verified proofs
//! (STR-074). It never waits: what it needs from outside it names as a [`Dependency`], which core
//! resolves outside any transaction (STR-073). It keeps no mutable state past a transaction
//! (STR-071).

mod types;

use std::fmt::Debug;

use async_trait::async_trait;
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{GroupId, InboxId, SequenceId};

use crate::storage::{StorageError, WriteTxn};

pub use types::{
    Blocked, Dependency, Effects, GroupChange, JoinAnchor, Joined, NewMessage, OwedWelcomes,
    PendingItem, PrepareError, Prepared, Rejected, Resolution, RetryCause, Verdict,
};

/// Decides group envelopes and prepares outgoing attempts.
///
/// # Behavior
/// - Every method runs inside the write transaction it is handed and waits for nothing.
/// - A storage fault is told as `Err`, never as a rejection: the attempt rolls back whole.
/// - The same prefix and installed state give the same verdicts on every client.
pub trait GroupProcessor: Debug + Send + Sync {
    /// Loads the group for one bounded turn.
    fn turn(
        &self,
        txn: &mut WriteTxn<'_>,
        group: &GroupId,
    ) -> Result<Box<dyn Turn + '_>, StorageError>;

    /// Prepares the exact envelopes of an intent from fresh state (STR-110).
    ///
    /// # Behavior
    /// - Ratchet advance and staged state are written in the same transaction as the attempt.
    /// - It is called only when no other attempt of the group is unresolved.
    fn prepare(
        &self,
        txn: &mut WriteTxn<'_>,
        intent: &stored::Intent,
    ) -> Result<Result<Prepared, PrepareError>, StorageError>;

    /// Discards the staged state of an attempt that can no longer apply (STR-112).
    fn discard(
        &self,
        txn: &mut WriteTxn<'_>,
        group: &GroupId,
        attempt: &stored::Attempt,
    ) -> Result<(), StorageError>;
}

/// One group, loaded for one bounded turn.
///
/// # Behavior
/// - [`Turn::apply`] may hold state back in memory; it marks the transaction so
///   ([`WriteTxn::hold_back`]) and [`Turn::flush`] writes it.
/// - A turn that answered anything but applied or rejected is dropped, never used again.
pub trait Turn {
    /// Applies one envelope.
    fn apply(
        &mut self,
        txn: &mut WriteTxn<'_>,
        item: &PendingItem,
    ) -> Result<Verdict, StorageError>;

    /// Writes what is held back in memory, so that a savepoint after it is a safe return.
    fn flush(&mut self, txn: &mut WriteTxn<'_>) -> Result<(), StorageError>;

    /// Tells from the frame alone, without decrypting, whether the envelope is an application
    /// message.
    fn is_application(&self, item: &PendingItem) -> bool;
}

/// Decides identity envelopes.
pub trait IdentityProcessor: Debug + Send + Sync {
    /// Applies one update on top of the state after everything before it.
    ///
    /// # Behavior
    /// - Applied means that the verified state at exactly this sequence id is stored.
    /// - An invalid history is [`Verdict::Blocked`], never rejected (STR-074).
    fn apply(
        &self,
        txn: &mut WriteTxn<'_>,
        inbox: &InboxId,
        item: &PendingItem,
    ) -> Result<Verdict, StorageError>;
}

/// Opens Welcomes. Core decides whether one is installed (STR-082) and writes positions,
/// messages, discovery and completion itself.
pub trait WelcomeProcessor: Debug + Send + Sync {
    /// Decrypts and validates a Welcome.
    ///
    /// `pointees` are the envelopes resolved for this Welcome's [`Dependency::Pointee`], if any.
    fn inspect(
        &self,
        txn: &mut WriteTxn<'_>,
        item: &PendingItem,
        pointee: Option<&PendingItem>,
    ) -> Result<Result<Box<dyn Candidate + '_>, Verdict>, StorageError>;
}

/// A validated Welcome that is not installed yet.
pub trait Candidate {
    /// Answers what core needs to decide.
    fn anchor(&self) -> JoinAnchor;

    /// Installs the joined state in place of what was there.
    fn install(self: Box<Self>, txn: &mut WriteTxn<'_>) -> Result<Joined, StorageError>;
}

/// Resolves dependencies that core itself has no means for, outside any transaction.
#[async_trait]
pub trait Resolver: Debug + Send + Sync {
    /// Verifies what needs a network route, such as smart contract wallet signatures.
    async fn resolve(&self, dependency: &Dependency) -> Resolution;
}

/// Answers whether a verified state of `inbox` at exactly `sequence` is stored (STR-076).
pub fn identity_state(
    snapshot: &(impl crate::storage::Read + ?Sized),
    inbox: &InboxId,
    sequence: SequenceId,
) -> Result<Option<Vec<u8>>, StorageError> {
    crate::processing::store::identity_state(snapshot, inbox, sequence)
}

/// Answers the newest verified state of `inbox`, with its sequence id: where the next update of
/// its prefix starts from. It proves nothing for any other sequence id (STR-076).
pub fn latest_identity_state(
    snapshot: &(impl crate::storage::Read + ?Sized),
    inbox: &InboxId,
) -> Result<Option<(SequenceId, Vec<u8>)>, StorageError> {
    crate::processing::store::latest_identity_state(snapshot, inbox)
}

/// Stores the verified state of `inbox` at exactly `sequence`.
pub fn put_identity_state(
    txn: &mut WriteTxn<'_>,
    inbox: &InboxId,
    sequence: SequenceId,
    state: &[u8],
) -> Result<(), StorageError> {
    crate::processing::store::put_identity_state(txn, inbox, sequence, state)
}

/// Counts the proposals that the prefix of a group carried in one epoch, up to one local read's
/// rows: more than are held means that some were lost here (STR-074).
pub fn proposals_in_epoch(
    snapshot: &(impl crate::storage::Read + ?Sized),
    group: &GroupId,
    epoch: u64,
) -> Result<usize, StorageError> {
    crate::processing::store::proposals_in_epoch(snapshot, group, epoch)
}
