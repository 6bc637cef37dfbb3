//! The one receive path: admission, then a turn, in one write transaction where they fit.
//!
//! A turn over envelopes that are new takes them from memory. What it handles moves F and P and
//! never becomes a row; what stays behind it, because the head waits or the turn failed, is
//! admitted as pending rows in the same transaction. What a turn had no time for is not admitted
//! yet: the next transaction begins with it.

use std::time::Duration;

use xmtp_proto::{SequenceId, Topic, TopicKind};

use super::context::Context;
use crate::error::Coded;
use crate::processing::{self, Left, Processors};
use crate::receipt::{self, AdmissionError, Admitted, Batch, CapacityScope};
use crate::storage::{Durability, Priority, StorageError, WriteTxn};

/// What became of one batch.
pub type Received = Result<Admitted, AdmissionError>;

/// Admits batches and processes what can be processed at once, in as many transactions as their
/// bounds ask for.
///
/// # Behavior
/// - One batch that is refused does not keep the others out.
/// - A topic with older pending envelopes is only admitted: the scheduler gives it its turns.
/// - Cancelling it loses nothing: each transaction commits whole or not at all, and F tells how
///   far they came.
///
/// # Errors
/// When the database fails; what earlier transactions committed stays.
pub async fn receive(
    context: &Context,
    mut batches: Vec<Batch>,
) -> Result<Vec<Received>, StorageError> {
    let mut outcomes: Vec<Option<Received>> = batches.iter().map(|_| None).collect();
    let mut places: Vec<usize> = (0..batches.len()).collect();
    while !batches.is_empty() {
        let (done, received) = receive_once(context, batches).await?;
        batches = Vec::new();
        let mut left = Vec::new();
        for ((place, batch), received) in places.into_iter().zip(done).zip(received) {
            if is_to_go_on(&received) {
                left.push(place);
                batches.push(batch);
            }
            let earlier = outcomes[place].take();
            outcomes[place] = Some(joined(earlier, received));
        }
        places = left;
    }
    Ok(outcomes.into_iter().flatten().collect())
}

/// Receives in one transaction; gives the batches back.
async fn receive_once(
    context: &Context,
    batches: Vec<Batch>,
) -> Result<(Vec<Batch>, Vec<Received>), StorageError> {
    let processors = context.processors.clone();
    context
        .database
        .write_queued(Priority::Background, Durability::Ordered, move |txn| {
            let received = receive_in(txn, &batches, &processors)?;
            Ok((batches, received))
        })
        .await
}

/// Tells whether the rest of a batch is for the next transaction.
pub fn is_to_go_on(received: &Received) -> bool {
    let left_out = received.as_ref().ok().and_then(|found| found.left_out);
    left_out.is_some_and(|capacity| capacity.scope == CapacityScope::Batch)
}

/// Adds what a later transaction did with the same batch.
fn joined(earlier: Option<Received>, later: Received) -> Received {
    let Some(Ok(earlier)) = earlier else {
        return later;
    };
    match later {
        Ok(later) => Ok(Admitted {
            new: earlier.new + later.new,
            overlap: earlier.overlap,
            ..later
        }),
        Err(AdmissionError::Capacity(capacity)) => Ok(Admitted {
            left_out: Some(capacity),
            ..earlier
        }),
        Err(error) => Err(error),
    }
}

/// Admits and processes batches within a transaction.
///
/// # Behavior
/// - All turns together aim at one turn's time. What they do not come to is left out, as the rest
///   of a batch is.
/// - The first turn runs however late it is, so that each transaction comes further.
///
/// # Errors
/// When the database fails.
pub fn receive_in(
    txn: &mut WriteTxn<'_>,
    batches: &[Batch],
    processors: &Processors,
) -> Result<Vec<Received>, StorageError> {
    let mut time = TurnTime {
        until: processing::turn_end(txn),
        is_used: false,
    };
    let mut outcomes = Vec::with_capacity(batches.len());
    for batch in batches {
        match one(txn, batch, processors, &mut time) {
            Err(AdmissionError::Storage(error)) => return Err(error),
            outcome => outcomes.push(outcome),
        }
    }
    Ok(outcomes)
}

/// The time that all turns of one transaction share.
struct TurnTime {
    until: Duration,
    /// Whether a turn has run.
    is_used: bool,
}

fn one(
    txn: &mut WriteTxn<'_>,
    batch: &Batch,
    processors: &Processors,
    time: &mut TurnTime,
) -> Received {
    let topic = &batch.topic;
    let is_for_turns = matches!(topic.kind(), TopicKind::Group | TopicKind::Identity);
    let record = receipt::store::topic(txn, topic)?;
    if !is_for_turns || record.pending_rows > 0 {
        return receipt::admit(txn, batch);
    }
    let fresh = receipt::look(txn, batch)?;
    if fresh.envelopes.is_empty() {
        return Ok(fresh.admitted());
    }
    if time.is_used && txn.runtime().monotonic() >= time.until {
        return Ok(fresh.admitted_in_part(0, topic.kind()));
    }
    time.is_used = true;
    let (new, until) = (fresh.envelopes, time.until);
    let turn = txn.savepoint(|txn| processing::turn_over(txn, topic, processors, new, until));
    let handled = match turn {
        Ok(report) if report.left == Left::More => {
            return Ok(fresh.admitted_in_part(report.handled, topic.kind()));
        }
        Ok(report) => report.handled,
        Err(error) => {
            tracing::warn!(code = error.code(), "a combined turn failed");
            0
        }
    };
    receipt::store_pending(txn, topic, &fresh.envelopes[handled..])?;
    Ok(fresh.admitted())
}

/// Answers F of topics.
///
/// # Errors
/// When the database fails.
pub async fn received(
    context: &Context,
    topics: Vec<Topic>,
) -> Result<Vec<SequenceId>, StorageError> {
    context
        .database
        .read_queued(move |snapshot| {
            topics
                .iter()
                .map(|topic| {
                    Ok(SequenceId::saturating(
                        receipt::store::topic(snapshot, topic)?.received,
                    ))
                })
                .collect()
        })
        .await
}
