//! One attempt at a turn: the loop over pending envelopes inside one savepoint.

use std::panic::{AssertUnwindSafe, catch_unwind};

use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{SequenceId, Topic, TopicKind};

use super::{Left, PANICKED, Processors, TurnReport, UNDECODABLE, Work, load, report, settle};
use crate::limits::{TURN_LEAST_TIME, TURN_TARGET_BYTES};
use crate::processor::{PendingItem, Turn, Verdict};
use crate::receipt::{self, Received};
use crate::send;
use crate::storage::{StorageError, WriteTxn};

/// Why an attempt is undone.
#[derive(Debug)]
pub(super) enum Undo {
    /// The database failed; no verdict counts.
    Storage(StorageError),
    /// The application message at `index` cannot be settled: run once more up to it.
    Before { index: usize, verdict: Verdict },
}

impl From<StorageError> for Undo {
    fn from(error: StorageError) -> Self {
        Self::Storage(error)
    }
}

/// Why a savepoint around one envelope is undone.
enum Step {
    Storage(StorageError),
    Stays(Verdict),
}

impl From<StorageError> for Step {
    fn from(error: StorageError) -> Self {
        Self::Storage(error)
    }
}

/// The running counts of one attempt.
struct Progress {
    handled: usize,
    bytes: u64,
    last: SequenceId,
    removed: bool,
}

/// Applies envelopes and writes P once at the end.
pub(super) fn run(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    processors: &Processors,
    record: &stored::TopicRecord,
    work: Work<'_>,
) -> Result<TurnReport, Undo> {
    let mut record = record.clone();
    let echo = Echo::of(txn, topic)?;
    let mut turn = load(txn, topic, processors)?;
    let loaded = txn.runtime().monotonic();
    let until = work.until.max(loaded.saturating_add(TURN_LEAST_TIME));
    let mut progress = Progress {
        handled: 0,
        bytes: 0,
        last: SequenceId::saturating(record.processed),
        removed: false,
    };
    let mut left = match work.has_more {
        true => Left::More,
        false => Left::Nothing,
    };
    for (index, received) in work.rows.iter().enumerate() {
        match step(txn, topic, turn.as_mut(), received, echo)? {
            Settled::Yes { removed } => {
                progress.handled += 1;
                progress.bytes += receipt::store::stored_bytes(&received.envelope);
                progress.last = received.sequence_id;
                progress.removed |= removed;
                if work.are_stored {
                    receipt::store::delete_pending(txn, topic, received.sequence_id)?;
                }
            }
            Settled::Stays(verdict) => {
                super::stop(txn, topic, received.sequence_id, &verdict)?;
                left = Left::Stopped;
                break;
            }
            Settled::Undo(verdict) => return Err(Undo::Before { index, verdict }),
        }
        if progress.removed {
            left = Left::Nothing;
            break;
        }
        let is_over_time = txn.runtime().monotonic() >= until;
        if (is_over_time || progress.bytes >= TURN_TARGET_BYTES) && index + 1 < work.rows.len() {
            left = Left::More;
            break;
        }
    }
    if left != Left::Stopped {
        turn.flush(txn)?;
    }
    drop(turn);
    let Progress {
        handled,
        bytes,
        last,
        ..
    } = progress;
    match (handled, work.are_stored) {
        (0, _) => {}
        (_, true) => {
            settle::finish_stored(txn, topic, &mut record, last, handled as u64, bytes)?;
        }
        (_, false) => settle::finish_fresh(txn, topic, &mut record, &work.rows[handled - 1])?,
    }
    Ok(report(&record, handled, left))
}

/// What became of one envelope within an attempt.
enum Settled {
    Yes { removed: bool },
    Stays(Verdict),
    Undo(Verdict),
}

fn step(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    turn: &mut dyn Turn,
    received: &Received,
    echo: Echo,
) -> Result<Settled, StorageError> {
    let sequence = received.sequence_id;
    let Some(item) = decode(txn, topic, sequence, &received.envelope, echo)? else {
        settle::settle(txn, topic, sequence, None, &UNDECODABLE)?;
        return Ok(Settled::Yes { removed: false });
    };
    if turn.is_application(&item) {
        let verdict = apply(txn, turn, &item)?;
        return Ok(match &verdict {
            Verdict::Applied(_) | Verdict::Rejected(_) => Settled::Yes {
                removed: settle::settle(txn, topic, sequence, Some(&item), &verdict)?,
            },
            _ => Settled::Undo(verdict),
        });
    }
    turn.flush(txn)?;
    let result = txn.savepoint(|txn| {
        let verdict = apply(txn, turn, &item)?;
        match &verdict {
            Verdict::Applied(_) | Verdict::Rejected(_) => {
                let removed = settle::settle(txn, topic, sequence, Some(&item), &verdict)?;
                Ok(removed)
            }
            _ => Err(Step::Stays(verdict)),
        }
    });
    match result {
        Ok(removed) => Ok(Settled::Yes { removed }),
        Err(Step::Stays(verdict)) => Ok(Settled::Stays(verdict)),
        Err(Step::Storage(error)) => Err(error),
    }
}

fn apply(
    txn: &mut WriteTxn<'_>,
    turn: &mut dyn Turn,
    item: &PendingItem,
) -> Result<Verdict, StorageError> {
    catch_unwind(AssertUnwindSafe(|| turn.apply(txn, item))).unwrap_or(Ok(PANICKED))
}

/// Whether an envelope can be the echo of an own attempt. A group without unfinished intents has
/// none, and gets none while the transaction lasts, so its envelopes need no look each.
#[derive(Clone, Copy)]
pub(super) struct Echo(bool);

impl Echo {
    fn of(txn: &WriteTxn<'_>, topic: &Topic) -> Result<Self, StorageError> {
        match topic.group_id() {
            Some(group) => Ok(Self(send::store::has_unfinished(txn, &group)?)),
            None => Ok(Self(false)),
        }
    }
}

/// Decodes a pending row and finds the own attempt it echoes.
pub(crate) fn item(
    txn: &WriteTxn<'_>,
    topic: &Topic,
    sequence: SequenceId,
    envelope: &stored::PendingEnvelope,
) -> Result<Option<PendingItem>, StorageError> {
    let echo = Echo(topic.kind() == TopicKind::Group);
    decode(txn, topic, sequence, envelope, echo)
}

fn decode(
    txn: &WriteTxn<'_>,
    topic: &Topic,
    sequence: SequenceId,
    envelope: &stored::PendingEnvelope,
    echo: Echo,
) -> Result<Option<PendingItem>, StorageError> {
    let Some(decoded) = receipt::decode(envelope) else {
        return Ok(None);
    };
    let mut item = PendingItem {
        topic: *topic,
        sequence_id: sequence,
        server_ns: envelope.server_ns,
        envelope: decoded,
        own: None,
    };
    if echo.0 {
        item.own = send::store::by_payload(txn, &item.payload_hash())?;
    }
    Ok(Some(item))
}
