//! Writes what a verdict means, in the transaction of the verdict.

use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{SequenceId, Topic};

use crate::delivery;
use crate::processor::{Effects, GroupChange, PendingItem, Rejected, Verdict};
use crate::receipt::{self, Received};
use crate::send;
use crate::storage::{StorageError, WriteTxn};
use crate::welcome;

/// Writes an applied or rejected envelope's outcome; its row, counters, F and P follow. Answers
/// whether this installation was removed from the group.
pub(super) fn settle(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    sequence: SequenceId,
    item: Option<&PendingItem>,
    verdict: &Verdict,
) -> Result<bool, StorageError> {
    match verdict {
        Verdict::Applied(effects) => apply_effects(txn, topic, item, effects),
        Verdict::Rejected(reason) => {
            reject(txn, topic, sequence, *reason, item)?;
            Ok(false)
        }
        Verdict::Retry(_) | Verdict::Waits(_) | Verdict::Blocked(_) => {
            Err(StorageError::Invariant {
                rule: "only settled envelopes are removed",
            })
        }
    }
}

/// Records a rejection.
pub(super) fn reject(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    sequence: SequenceId,
    reason: Rejected,
    item: Option<&PendingItem>,
) -> Result<(), StorageError> {
    tracing::debug!(reason = reason.code(), "rejected");
    super::store::put_rejection(txn, topic, sequence, reason.code())?;
    if let Some(intent) = item.and_then(|item| item.own.as_ref()) {
        send::confirm::rejected(txn, intent, reason)?;
    }
    Ok(())
}

/// Advances F and P over handled envelopes that never had a row.
pub(super) fn finish_fresh(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    record: &mut stored::TopicRecord,
    last: &Received,
) -> Result<(), StorageError> {
    receipt::move_f(record, last);
    record.processed = record.processed.max(last.sequence_id.get());
    receipt::store::put_topic(txn, topic, record)
}

/// Advances P over handled pending envelopes and counts them out of what waits.
pub(super) fn finish_stored(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    record: &mut stored::TopicRecord,
    last: SequenceId,
    rows: u64,
    bytes: u64,
) -> Result<(), StorageError> {
    receipt::release(txn, topic.kind(), record, rows, bytes)?;
    record.processed = record.processed.max(last.get());
    receipt::store::put_topic(txn, topic, record)?;
    let head = super::store::head(txn, topic)?;
    if head.is_some_and(|head| head.sequence_id <= last.get()) {
        super::store::clear_head(txn, topic)?;
    }
    Ok(())
}

fn apply_effects(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    item: Option<&PendingItem>,
    effects: &Effects,
) -> Result<bool, StorageError> {
    for message in &effects.messages {
        delivery::store::insert_message(txn, message)?;
    }
    let Some(group) = topic.group_id() else {
        return Ok(false);
    };
    for (epoch, reference) in &effects.proposals {
        super::store::put_proposal(txn, &group, *epoch, reference)?;
    }
    if let Some(item) = item
        && let Some(intent) = &item.own
    {
        send::confirm::applied(txn, intent, item, effects)?;
    }
    match &effects.group {
        Some(change) => change_group(txn, &group, change),
        None => Ok(false),
    }
}

fn change_group(
    txn: &mut WriteTxn<'_>,
    group: &xmtp_proto::GroupId,
    change: &GroupChange,
) -> Result<bool, StorageError> {
    let Some(mut record) = welcome::store::group(txn, group)? else {
        return Err(StorageError::Invariant {
            rule: "a processed group has a record",
        });
    };
    record.epoch = change.epoch;
    record
        .epoch_authenticator
        .clone_from(&change.epoch_authenticator.clone().into());
    if let Some(name) = &change.name {
        record.name.clone_from(name);
    }
    if change.removed {
        record.active = false;
        record.inactive_cause = "removed".to_owned();
        send::confirm::group_left(txn, group)?;
    }
    welcome::store::put_group(txn, group, &record)?;
    Ok(change.removed)
}
