//! The one receive path: admission, then a turn, in one write transaction where they fit.
//!
//! A row that is inserted as new and deleted again leaves no trace in the overlay, so envelopes
//! that are handled at once never reach the storage engine. A turn that fails rolls back to just
//! after admission, and F is committed alone.

use std::collections::HashSet;

use xmtp_proto::{SequenceId, Topic, TopicKind};

use super::context::Context;
use crate::processing::{self, Processors};
use crate::receipt::{self, AdmissionError, Admitted, Batch};
use crate::storage::{Durability, Priority, StorageError, WriteTxn};

/// What became of one batch.
pub type Received = Result<Admitted, AdmissionError>;

/// Admits batches and processes what can be processed at once, in one transaction.
///
/// # Behavior
/// - One batch that is refused does not keep the others out.
/// - A topic with older pending envelopes is only admitted: the scheduler gives it its turns.
/// - Cancelling it loses nothing: the transaction commits whole or not at all.
///
/// # Errors
/// When the database fails; then no batch is admitted.
pub async fn receive(
    context: &Context,
    batches: Vec<Batch>,
) -> Result<Vec<Received>, StorageError> {
    let processors = context.processors.clone();
    context
        .database
        .write_queued(Priority::Background, Durability::Ordered, move |txn| {
            receive_in(txn, &batches, &processors)
        })
        .await
}

/// Admits and processes batches within a transaction.
///
/// # Errors
/// When the database fails.
pub fn receive_in(
    txn: &mut WriteTxn<'_>,
    batches: &[Batch],
    processors: &Processors,
) -> Result<Vec<Received>, StorageError> {
    let mut idle = HashSet::new();
    for batch in batches {
        if receipt::store::topic(txn, &batch.topic)?.pending_rows == 0 {
            idle.insert(batch.topic);
        }
    }
    let mut outcomes = Vec::with_capacity(batches.len());
    for batch in batches {
        match txn.savepoint(|txn| receipt::admit(txn, batch)) {
            Err(AdmissionError::Storage(error)) => return Err(error),
            outcome => outcomes.push(outcome),
        }
    }
    for (batch, outcome) in batches.iter().zip(&outcomes) {
        let admitted = outcome.as_ref().is_ok_and(|admitted| admitted.new > 0);
        if admitted && idle.contains(&batch.topic) {
            combined_turn(txn, &batch.topic, processors)?;
        }
    }
    Ok(outcomes)
}

/// Runs a turn right after admission. Its failure undoes the turn alone.
fn combined_turn(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    processors: &Processors,
) -> Result<(), StorageError> {
    if !matches!(topic.kind(), TopicKind::Group | TopicKind::Identity) {
        return Ok(());
    }
    let turn = txn.savepoint(|txn| processing::turn(txn, topic, processors, false));
    if let Err(error) = turn {
        tracing::warn!(
            code = crate::error::Coded::code(&error),
            "a combined turn failed"
        );
    }
    Ok(())
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
