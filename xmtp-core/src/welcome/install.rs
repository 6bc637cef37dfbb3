//! Writes a join: positions, group, transcript, discovery and completion in one transaction.

use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{GroupId, SequenceId, Topic};

use super::store;
use crate::delivery;
use crate::limits::{MAX_ADMISSION_BYTES, MAX_ADMISSION_ROWS};
use crate::processor::{JoinAnchor, Joined, PendingItem, Rejected};
use crate::receipt;
use crate::storage::{Durability, StorageError, WriteTxn};

/// Writes everything of a join that is core's, and completes the Welcome (STR-083, STR-084).
pub(super) fn install(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    item: &PendingItem,
    found: JoinAnchor,
    joined: Joined,
) -> Result<(), StorageError> {
    let mut record = joined.record;
    record.welcome_sequence = item.sequence_id.get();
    let pending =
        receipt::store::pending(txn, topic, item.sequence_id)?.ok_or(StorageError::Invariant {
            rule: "a Welcome is pending until it is completed",
        })?;
    start_group(txn, found.group, found.anchor, found.epoch, record)?;
    note_anchor(txn, found, pending.expiry_ns)?;
    for message in &joined.messages {
        delivery::store::insert_message(txn, message)?;
    }
    store::put_discovery(txn, item.sequence_id, &found.group)?;
    complete(txn, topic, item.sequence_id, &pending, None)
}

/// Notes how long the commit at the anchor is there to be seen: as long as the Welcome that named it,
/// which was stored right behind it.
fn note_anchor(
    txn: &mut WriteTxn<'_>,
    found: JoinAnchor,
    welcome_expiry_ns: u64,
) -> Result<(), StorageError> {
    let topic = Topic::group(&found.group);
    let mut positions = receipt::store::topic(txn, &topic)?;
    if positions.received != found.anchor.get() {
        return Ok(());
    }
    positions.received_hash.clear();
    positions.received_expiry_ns = match welcome_expiry_ns {
        0 => u64::MAX,
        expiry => expiry,
    };
    receipt::store::put_topic(txn, &topic, &positions)
}

/// Installs a group that this installation created itself, with nothing received yet.
///
/// The transaction is to be [`Durability::Flushed`]: what follows tells the outside of the group.
pub fn install_created(
    txn: &mut WriteTxn<'_>,
    group: GroupId,
    joined: Joined,
) -> Result<(), StorageError> {
    start_group(
        txn,
        group,
        SequenceId::ZERO,
        joined.record.epoch,
        joined.record,
    )?;
    for message in &joined.messages {
        delivery::store::insert_message(txn, message)?;
    }
    Ok(())
}

/// The durability of a transaction that installs a created group.
pub const CREATED_DURABILITY: Durability = Durability::Flushed;

fn start_group(
    txn: &mut WriteTxn<'_>,
    group: GroupId,
    anchor: SequenceId,
    epoch: u64,
    mut record: stored::GroupRecord,
) -> Result<(), StorageError> {
    let topic = Topic::group(&group);
    drop_pending(txn, &topic, anchor)?;
    let mut positions = receipt::store::topic(txn, &topic)?;
    if positions.processed > anchor.get() {
        return Err(StorageError::Invariant {
            rule: "a join never rewinds P",
        });
    }
    positions.processed = anchor.get();
    positions.anchor = anchor.get();
    positions.received = positions.received.max(anchor.get());
    receipt::store::put_topic(txn, &topic, &positions)?;
    crate::processing::store::clear_head(txn, &topic)?;
    record.group_id = group.as_bytes().to_vec().into();
    record.active = true;
    record.inactive_cause.clear();
    record.readd_commit_sequence = 0;
    record.readd_requested_ns = 0;
    record.anchor = anchor.get();
    record.epoch = epoch;
    store::put_group(txn, &group, &record)
}

/// Completes a Welcome: its row goes, and a rejection is recorded with its reason.
pub(super) fn complete(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    sequence: SequenceId,
    pending: &stored::PendingEnvelope,
    reason: Option<Rejected>,
) -> Result<(), StorageError> {
    if let Some(reason) = reason {
        tracing::debug!(reason = reason.code(), "a Welcome is rejected");
        crate::processing::store::put_rejection(txn, topic, sequence, reason.code())?;
    }
    receipt::store::delete_pending(txn, topic, sequence)?;
    let mut record = receipt::store::topic(txn, topic)?;
    let bytes = receipt::store::stored_bytes(pending);
    receipt::release(txn, topic.kind(), &mut record, 1, bytes)?;
    receipt::store::put_topic(txn, topic, &record)?;
    store::delete_retry(txn, sequence)
}

/// Reads the pointee of a pointer: the lowest envelope on its destination topic, and only that.
pub(super) fn pointee(
    txn: &WriteTxn<'_>,
    destination: &Topic,
) -> Result<Option<PendingItem>, StorageError> {
    let (rows, _) = receipt::store::pending_page(
        txn,
        destination,
        SequenceId::ZERO,
        1,
        MAX_ADMISSION_BYTES as u32,
    )?;
    let Some((sequence, pending)) = rows.first() else {
        return Ok(None);
    };
    crate::processing::pending_item(txn, destination, *sequence, pending)
}

/// Removes the pending envelopes of a topic at or below `through`, counters included.
pub(super) fn drop_pending(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    through: SequenceId,
) -> Result<(), StorageError> {
    let mut after = SequenceId::ZERO;
    loop {
        let (rows, more) = receipt::store::pending_page(
            txn,
            topic,
            after,
            MAX_ADMISSION_ROWS as u32,
            MAX_ADMISSION_BYTES as u32,
        )?;
        let mut record = receipt::store::topic(txn, topic)?;
        let (mut dropped, mut bytes) = (0, 0);
        for (sequence, envelope) in rows.iter().take_while(|(sequence, _)| *sequence <= through) {
            receipt::store::delete_pending(txn, topic, *sequence)?;
            dropped += 1;
            bytes += receipt::store::stored_bytes(envelope);
            after = *sequence;
        }
        if dropped > 0 {
            receipt::release(txn, topic.kind(), &mut record, dropped, bytes)?;
            receipt::store::put_topic(txn, topic, &record)?;
        }
        if !more || (dropped as usize) < rows.len() {
            return Ok(());
        }
    }
}
