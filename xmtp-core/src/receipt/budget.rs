//! Bounds on what waits: per batch, per topic, and per kind (STR-063, STR-066).

use std::fmt;

use xmtp_proto::TopicKind;
use xmtp_proto::storage::v1 as stored;

use super::Received;
use super::store::stored_bytes;
use crate::limits::{
    MAX_ADMISSION_BYTES, MAX_ADMISSION_ROWS, MAX_PENDING_BYTES_PER_TOPIC,
    MAX_PENDING_ROWS_PER_TOPIC, max_pending_bytes, max_pending_rows,
};
use crate::storage::StorageError;

/// A bound that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Whose bound it is.
    pub scope: CapacityScope,
    /// The kind of topic.
    pub kind: TopicKind,
}

/// Whose bound was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapacityScope {
    /// One admission batch; the rest follows in the next.
    Batch,
    /// One topic; only its receipt pauses.
    Topic,
    /// All topics of the kind; those that hold the most pause first.
    Kind,
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            TopicKind::Group => "group",
            TopicKind::Welcome => "Welcome",
            TopicKind::Identity => "identity",
            TopicKind::KeyPackage => "key package",
            TopicKind::CommitLog => "commit log",
        };
        let scope = match self.scope {
            CapacityScope::Batch => "one batch of",
            CapacityScope::Topic => "one topic of kind",
            CapacityScope::Kind => "all topics of kind",
        };
        write!(f, "{scope} {kind}")
    }
}

/// Counts how many of `fresh` fit every bound, and which bound stopped the rest.
pub(super) fn fitting(
    kind: TopicKind,
    record: &stored::TopicRecord,
    budget: &stored::KindBudget,
    fresh: &[Received],
) -> (usize, Option<Capacity>) {
    let mut bytes = 0;
    for (index, envelope) in fresh.iter().enumerate() {
        let rows = index as u64 + 1;
        bytes += stored_bytes(&envelope.envelope);
        let over = |scope| Some(Capacity { scope, kind });
        if u64::from(record.pending_rows) + rows > MAX_PENDING_ROWS_PER_TOPIC
            || record.pending_bytes + bytes > MAX_PENDING_BYTES_PER_TOPIC
        {
            return (index, over(CapacityScope::Topic));
        }
        if budget.rows + rows > max_pending_rows(kind)
            || budget.bytes + bytes > max_pending_bytes(kind)
        {
            return (index, over(CapacityScope::Kind));
        }
        if rows > MAX_ADMISSION_ROWS as u64 || bytes > MAX_ADMISSION_BYTES {
            return (index, over(CapacityScope::Batch));
        }
    }
    (fresh.len(), None)
}

/// Counts one more pending envelope.
pub(super) fn add(
    record: &mut stored::TopicRecord,
    budget: &mut stored::KindBudget,
    envelope: &stored::PendingEnvelope,
) {
    let bytes = stored_bytes(envelope);
    record.pending_rows += 1;
    record.pending_bytes += bytes;
    budget.rows += 1;
    budget.bytes += bytes;
}

/// Counts handled envelopes out again.
pub(super) fn subtract(
    record: &mut stored::TopicRecord,
    budget: &mut stored::KindBudget,
    rows: u64,
    bytes: u64,
) -> Result<(), StorageError> {
    let broken = StorageError::Invariant {
        rule: "pending counters cover pending rows",
    };
    let topic_rows = u64::from(record.pending_rows)
        .checked_sub(rows)
        .ok_or_else(|| broken.clone())?;
    record.pending_rows = topic_rows as u32;
    record.pending_bytes = record
        .pending_bytes
        .checked_sub(bytes)
        .ok_or_else(|| broken.clone())?;
    budget.rows = budget
        .rows
        .checked_sub(rows)
        .ok_or_else(|| broken.clone())?;
    budget.bytes = budget.bytes.checked_sub(bytes).ok_or(broken)?;
    Ok(())
}
