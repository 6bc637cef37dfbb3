//! One attempt at a turn: the loop over pending envelopes inside one savepoint.

use std::panic::{AssertUnwindSafe, catch_unwind};

use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{SequenceId, Topic, TopicKind};

use super::{Left, PANICKED, Processors, TurnReport, UNDECODABLE, load, report, settle, turn_rows};
use crate::limits::{TURN_TARGET_BYTES, TURN_TARGET_TIME};
use crate::processor::{PendingItem, Turn, Verdict};
use crate::receipt;
use crate::send;
use crate::storage::{StorageError, WriteTxn};

/// Why an attempt is undone.
#[derive(Debug)]
pub(super) enum Undo {
    /// The database failed; no verdict counts.
    Storage(StorageError),
    /// The application message at `index` cannot be settled: run once more up to it.
    Before {
        index: usize,
        item: SequenceId,
        verdict: Verdict,
    },
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

/// Applies up to `limit` envelopes and writes P once at the end.
pub(super) fn run(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    processors: &Processors,
    limit: u32,
) -> Result<TurnReport, Undo> {
    let mut record = receipt::store::topic(txn, topic)?;
    let (rows, more) = turn_rows(txn, topic, &record, limit)?;
    let started = txn.runtime().monotonic();
    let mut turn = load(txn, topic, processors)?;
    let mut progress = Progress {
        handled: 0,
        bytes: 0,
        last: SequenceId::saturating(record.processed),
        removed: false,
    };
    let mut left = if more { Left::More } else { Left::Nothing };
    for (index, (sequence, envelope)) in rows.iter().enumerate() {
        let verdict = step(txn, topic, turn.as_mut(), *sequence, envelope)?;
        match verdict {
            Settled::Yes { removed } => {
                progress.handled += 1;
                progress.bytes += receipt::store::stored_bytes(envelope);
                progress.last = *sequence;
                progress.removed |= removed;
            }
            Settled::Stays(verdict) => {
                super::stop(txn, topic, *sequence, &verdict)?;
                left = Left::Stopped;
                break;
            }
            Settled::Undo(verdict) => {
                return Err(Undo::Before {
                    index,
                    item: *sequence,
                    verdict,
                });
            }
        }
        if progress.removed {
            left = Left::Nothing;
            break;
        }
        let over_time = txn.runtime().monotonic().saturating_sub(started) >= TURN_TARGET_TIME;
        if (over_time || progress.bytes >= TURN_TARGET_BYTES) && index + 1 < rows.len() {
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
    if handled > 0 {
        settle::finish(txn, topic, &mut record, last, handled as u64, bytes)?;
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
    sequence: SequenceId,
    envelope: &stored::PendingEnvelope,
) -> Result<Settled, StorageError> {
    let Some(item) = item(txn, topic, sequence, envelope)? else {
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

/// Decodes a pending row and finds the own attempt it echoes.
pub(crate) fn item(
    txn: &WriteTxn<'_>,
    topic: &Topic,
    sequence: SequenceId,
    envelope: &stored::PendingEnvelope,
) -> Result<Option<PendingItem>, StorageError> {
    let Some(decoded) = receipt::decode(envelope) else {
        return Ok(None);
    };
    let payload_hash = xmtp_proto::envelope::inner_payload(&decoded)
        .map(|inner| xmtp_proto::envelope::payload_hash(inner))
        .unwrap_or_default();
    let own = match topic.kind() {
        TopicKind::Group => send::store::by_payload(txn, &payload_hash)?,
        _ => None,
    };
    Ok(Some(PendingItem {
        topic: *topic,
        sequence_id: sequence,
        server_ns: envelope.server_ns,
        envelope: decoded,
        payload_hash,
        own,
    }))
}
