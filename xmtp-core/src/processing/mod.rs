//! P: applies a topic's pending envelopes in order, one bounded turn at a time.
//!
//! A turn is one attempt in one write transaction: state, messages, P and the end of pending rows
//! commit together or not at all (STR-020, STR-077). Two rules keep the ratchet honest. A storage
//! fault ends the attempt before any verdict counts. And before each envelope that is no
//! application message, held-back state is written and a savepoint set, so that what must wait
//! leaves no trace of having been looked at.

mod attempt;
pub mod dependency;
mod quarantine;
mod schedule;
mod settle;
pub(crate) mod store;
#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use xmtp_proto::storage::v1 as stored;
use xmtp_proto::storage::v1::HeadKind;
use xmtp_proto::{InboxId, SequenceId, Topic, TopicKind};

use crate::limits::{MAX_ADMISSION_BYTES, MAX_ADMISSION_ROWS, TURN_TARGET_TIME};
use crate::processor::{
    Blocked, GroupProcessor, IdentityProcessor, PendingItem, Rejected, Turn, Verdict,
    WelcomeProcessor,
};
use crate::receipt::Received;
use crate::storage::{Read, StorageError, WriteTxn};
use crate::{receipt, welcome};

pub(crate) use attempt::item as pending_item;
pub(crate) use quarantine::QUARANTINED;
pub(crate) use schedule::retry_pause;
pub use schedule::{MAX_READY_TOPICS, Schedule};

/// The processors of a client, as the engine holds them.
#[derive(Clone, Debug)]
pub struct Processors {
    /// Decides group envelopes and prepares attempts.
    pub group: Arc<dyn GroupProcessor>,
    /// Decides identity envelopes.
    pub identity: Arc<dyn IdentityProcessor>,
    /// Opens Welcomes.
    pub welcome: Arc<dyn WelcomeProcessor>,
}

/// What one turn did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnReport {
    /// Envelopes applied or rejected.
    pub handled: usize,
    /// P after the turn.
    pub processed: SequenceId,
    /// What is left.
    pub left: Left,
}

/// What is left of a topic after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Nothing that could be processed now.
    Nothing,
    /// More envelopes; the topic goes to the back of the ring.
    More,
    /// The head waits, is retried later, or is blocked.
    Stopped,
}

/// Runs one bounded turn of a group or identity topic.
///
/// # Behavior
/// - Re-reads head, state and P under the writer; what another process finished is not repeated
///   (STR-073).
/// - A head whose pause has not ended, that waits for a dependency, or is blocked is left alone
///   unless `force` says that something changed.
/// - An inactive or unknown group is left alone: its pending envelopes stay (STR-086).
/// - A group whose head can never be applied here is set aside in the same transaction, so that a
///   new Welcome may replace its state.
pub fn turn(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    processors: &Processors,
    force: bool,
) -> Result<TurnReport, StorageError> {
    let record = receipt::store::topic(txn, topic)?;
    if record.pending_rows == 0 || !is_processable(txn, topic)? {
        return Ok(report(&record, 0, Left::Nothing));
    }
    if !force && !is_due(txn, topic, txn.now_ns())? {
        return Ok(report(&record, 0, Left::Stopped));
    }
    let (rows, more) = receipt::store::pending_rows(
        txn,
        topic,
        SequenceId::saturating(record.processed),
        MAX_ADMISSION_ROWS as u32,
        MAX_ADMISSION_BYTES as u32,
    )?;
    let mut work = Work {
        rows: &rows,
        are_stored: true,
        has_more: more,
        until: turn_end(txn),
    };
    loop {
        match attempt(txn, topic, processors, &record, work)? {
            Attempted::Done(report) => return Ok(report),
            Attempted::Before(index) => work = work.up_to(index, txn),
        }
    }
}

/// Answers when a turn that begins now should end.
pub(crate) fn turn_end(txn: &WriteTxn<'_>) -> Duration {
    txn.runtime().monotonic().saturating_add(TURN_TARGET_TIME)
}

/// Runs one turn over envelopes that are new and have no row, for a topic of which nothing is
/// pending.
///
/// # Behavior
/// - F and P move over what is handled; the rows of the rest are the caller's.
/// - It ends near `until`, with at least one envelope handled, and says [`Left::More`] then.
pub(crate) fn turn_over(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    processors: &Processors,
    fresh: &[Received],
    until: Duration,
) -> Result<TurnReport, StorageError> {
    let record = receipt::store::topic(txn, topic)?;
    if !is_processable(txn, topic)? {
        return Ok(report(&record, 0, Left::Nothing));
    }
    let mut work = Work {
        rows: fresh,
        are_stored: false,
        has_more: false,
        until,
    };
    loop {
        match attempt(txn, topic, processors, &record, work)? {
            // What an earlier attempt stopped at is looked at again when it is the head.
            Attempted::Done(report) if work.has_more && report.handled == work.rows.len() => {
                let left = Left::Stopped;
                return Ok(TurnReport { left, ..report });
            }
            Attempted::Done(report) => return Ok(report),
            Attempted::Before(index) => work = work.up_to(index, txn),
        }
    }
}

/// The envelopes of one attempt, oldest first.
#[derive(Clone, Copy)]
struct Work<'r> {
    rows: &'r [Received],
    /// Whether they are pending rows of the database.
    are_stored: bool,
    /// Whether envelopes are behind them that this attempt does not reach.
    has_more: bool,
    /// When to leave the rest to another turn.
    until: Duration,
}

impl Work<'_> {
    /// The same up to the envelope at `index`, for an attempt that begins now.
    fn up_to(self, index: usize, txn: &WriteTxn<'_>) -> Self {
        Self {
            rows: &self.rows[..index],
            has_more: true,
            until: turn_end(txn),
            ..self
        }
    }
}

/// What came of an attempt.
enum Attempted {
    Done(TurnReport),
    /// All is undone; the envelope at this index ends the next attempt.
    Before(usize),
}

/// Makes one attempt in a savepoint.
///
/// An application message that cannot be settled has already moved the ratchet in memory, so the
/// attempt is undone whole, to be run once more up to just before it.
fn attempt(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    processors: &Processors,
    record: &stored::TopicRecord,
    work: Work<'_>,
) -> Result<Attempted, StorageError> {
    let _span = tracing::debug_span!("processing", topic = %topic.short()).entered();
    tracing::trace!(rows = work.rows.len(), "an attempt begins");
    let run = AssertUnwindSafe(|| {
        txn.savepoint(|txn| attempt::run(txn, topic, processors, record, work))
    });
    let stopped = match catch_unwind(run) {
        Ok(Ok(done)) => return Ok(Attempted::Done(done)),
        Ok(Err(attempt::Undo::Storage(error))) => return Err(error),
        Ok(Err(attempt::Undo::Before { index, verdict })) => {
            if index > 0 {
                return Ok(Attempted::Before(index));
            }
            verdict
        }
        // A panic outside of one envelope, in loading or writing held-back state.
        Err(_) => PANICKED,
    };
    if let Some(head) = work.rows.first() {
        stop(txn, topic, head.sequence_id, &stopped)?;
    }
    Ok(Attempted::Done(report(record, 0, Left::Stopped)))
}

/// Rejects the head of a topic whose dependency is settled as permanently absent, if it is still
/// the head and still waits.
pub(crate) fn reject_head(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    sequence: SequenceId,
    reason: Rejected,
) -> Result<bool, StorageError> {
    let Some(state) = store::head(txn, topic)? else {
        return Ok(false);
    };
    let mut record = receipt::store::topic(txn, topic)?;
    let pending = receipt::store::pending(txn, topic, sequence)?;
    let (Some(pending), true) = (pending, state.sequence_id == sequence.get()) else {
        return Ok(false);
    };
    let bytes = receipt::store::stored_bytes(&pending);
    let item = pending_item(txn, topic, sequence, &pending)?;
    settle::reject(txn, topic, sequence, reason, item.as_ref())?;
    receipt::store::delete_pending(txn, topic, sequence)?;
    settle::finish_stored(txn, topic, &mut record, sequence, 1, bytes)?;
    Ok(true)
}

/// Tells whether a topic with something pending can have a turn now.
pub(crate) fn is_ready(
    snapshot: &(impl Read + ?Sized),
    topic: &Topic,
    now_ns: u64,
) -> Result<bool, StorageError> {
    Ok(is_processable(snapshot, topic)? && is_due(snapshot, topic, now_ns)?)
}

/// Tells whether a topic may be processed and its head is blocked.
pub(crate) fn is_blocked(
    snapshot: &(impl Read + ?Sized),
    topic: &Topic,
) -> Result<bool, StorageError> {
    let head = store::head(snapshot, topic)?;
    let is_blocked = head.is_some_and(|head| head.kind() == HeadKind::Blocked);
    Ok(is_blocked && is_processable(snapshot, topic)?)
}

/// Tells whether a group or identity topic may be processed at all.
fn is_processable(snapshot: &(impl Read + ?Sized), topic: &Topic) -> Result<bool, StorageError> {
    match topic.kind() {
        TopicKind::Identity => Ok(true),
        TopicKind::Group => {
            let Some(group) = topic.group_id() else {
                return Ok(false);
            };
            let group = welcome::store::group(snapshot, &group)?;
            Ok(group.is_some_and(|group| group.active))
        }
        TopicKind::Welcome | TopicKind::KeyPackage | TopicKind::CommitLog => Ok(false),
    }
}

/// Tells whether the head may be tried now.
fn is_due(
    snapshot: &(impl Read + ?Sized),
    topic: &Topic,
    now_ns: u64,
) -> Result<bool, StorageError> {
    let Some(state) = store::head(snapshot, topic)? else {
        return Ok(true);
    };
    Ok(match state.kind() {
        HeadKind::Retry => state.not_before_ns <= now_ns,
        HeadKind::Waits | HeadKind::Blocked => false,
        HeadKind::Unspecified => true,
    })
}

/// Records why the head stays.
fn stop(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    sequence: SequenceId,
    verdict: &Verdict,
) -> Result<(), StorageError> {
    let earlier = store::head(txn, topic)?
        .filter(|state| state.sequence_id == sequence.get())
        .unwrap_or_default();
    let attempts = earlier.attempts.saturating_add(1);
    let mut state = stored::HeadState {
        sequence_id: sequence.get(),
        attempts,
        ..Default::default()
    };
    match verdict {
        Verdict::Retry(cause) => {
            state.set_kind(HeadKind::Retry);
            state.code = cause.code().to_owned();
            let pause = retry_pause(attempts);
            state.not_before_ns = txn.now_ns().saturating_add(pause.as_nanos() as u64);
        }
        Verdict::Waits(dependencies) => {
            state.set_kind(HeadKind::Waits);
            state.code = "dependency".to_owned();
            state.dependencies = dependencies.iter().map(dependency::to_stored).collect();
        }
        Verdict::Blocked(cause) => {
            state.set_kind(HeadKind::Blocked);
            state.code = cause.code().to_owned();
            if *cause == Blocked::Lifetime {
                quarantine::set_aside(txn, topic, sequence)?;
            }
        }
        Verdict::Applied(_) | Verdict::Rejected(_) => {
            return Err(StorageError::Invariant {
                rule: "a settled head is not stopped",
            });
        }
    }
    tracing::debug!(code = state.code, attempts, "a head stays");
    store::put_head(txn, topic, &state)
}

fn report(record: &stored::TopicRecord, handled: usize, left: Left) -> TurnReport {
    TurnReport {
        handled,
        processed: SequenceId::saturating(record.processed),
        left,
    }
}

/// An identity topic seen as a turn: no state is held back, and every envelope gets a savepoint.
struct IdentityTurn<'p> {
    processor: &'p dyn IdentityProcessor,
    inbox: InboxId,
}

impl Turn for IdentityTurn<'_> {
    fn apply(
        &mut self,
        txn: &mut WriteTxn<'_>,
        item: &PendingItem,
    ) -> Result<Verdict, StorageError> {
        let verdict = self.processor.apply(txn, &self.inbox, item)?;
        // A skipped update would become verified state without it: identity never skips.
        Ok(match verdict {
            Verdict::Rejected(_) => Verdict::Blocked(Blocked::IdentityInvalid),
            other => other,
        })
    }

    fn flush(&mut self, _txn: &mut WriteTxn<'_>) -> Result<(), StorageError> {
        Ok(())
    }

    fn is_application(&self, _item: &PendingItem) -> bool {
        false
    }
}

/// Loads what decides a topic's envelopes.
fn load<'p>(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    processors: &'p Processors,
) -> Result<Box<dyn Turn + 'p>, StorageError> {
    let foreign = StorageError::Invariant {
        rule: "only group and identity topics have turns",
    };
    match topic.kind() {
        TopicKind::Group => {
            let group = topic.group_id().ok_or(foreign)?;
            processors.group.turn(txn, &group)
        }
        TopicKind::Identity => {
            let inbox = InboxId::try_from(topic.identifier()).map_err(|_| foreign)?;
            Ok(Box::new(IdentityTurn {
                processor: &*processors.identity,
                inbox,
            }))
        }
        TopicKind::Welcome | TopicKind::KeyPackage | TopicKind::CommitLog => Err(foreign),
    }
}

/// The verdict of a processor that panicked: that topic alone is blocked.
const PANICKED: Verdict = Verdict::Blocked(Blocked::Panic);

/// The verdict of an envelope that does not decode.
const UNDECODABLE: Verdict = Verdict::Rejected(Rejected::Malformed);
