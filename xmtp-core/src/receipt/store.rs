//! Typed access to F and the pending envelopes.

use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{SequenceId, Topic, TopicKind};

use super::Received;
use crate::storage::schema::{KIND_BUDGET, PENDING, TOPIC};
use crate::storage::{Key, KeyRange, Order, Page, Read, Snapshot, StorageError, WriteTxn};

/// One pending envelope with its sequence id.
pub(crate) type PendingRow = (SequenceId, stored::PendingEnvelope);

/// Reads a topic's positions; all zero for a topic never seen.
pub(crate) fn topic(
    snapshot: &(impl Read + ?Sized),
    topic: &Topic,
) -> Result<stored::TopicRecord, StorageError> {
    Ok(snapshot.row(TOPIC, topic)?.unwrap_or_default())
}

/// Writes a topic's positions.
pub(crate) fn put_topic(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    record: &stored::TopicRecord,
) -> Result<(), StorageError> {
    txn.put(TOPIC, topic, record)
}

/// Reads what waits over all topics of a kind.
pub(crate) fn kind_budget(
    snapshot: &(impl Read + ?Sized),
    kind: TopicKind,
) -> Result<stored::KindBudget, StorageError> {
    Ok(snapshot.row(KIND_BUDGET, &kind.byte())?.unwrap_or_default())
}

/// Writes what waits over all topics of a kind; a budget that nothing uses has no row.
pub(crate) fn put_kind_budget(
    txn: &mut WriteTxn<'_>,
    kind: TopicKind,
    budget: &stored::KindBudget,
) -> Result<(), StorageError> {
    match *budget == stored::KindBudget::default() {
        true => txn.delete(KIND_BUDGET, &kind.byte()),
        false => txn.put(KIND_BUDGET, &kind.byte(), budget),
    }
}

/// Inserts a pending envelope that is absent.
pub(crate) fn insert_pending(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    sequence: SequenceId,
    envelope: &stored::PendingEnvelope,
) -> Result<(), StorageError> {
    txn.put_new(PENDING, &(*topic, sequence), envelope)
}

/// Deletes a handled envelope.
pub(crate) fn delete_pending(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    sequence: SequenceId,
) -> Result<(), StorageError> {
    txn.delete(PENDING, &(*topic, sequence))
}

/// Counts the stored bytes of a pending envelope, as budgets do.
pub(crate) fn stored_bytes(envelope: &stored::PendingEnvelope) -> u64 {
    prost::Message::encoded_len(envelope) as u64
}

/// Reads one pending envelope.
pub(crate) fn pending(
    snapshot: &(impl Read + ?Sized),
    topic: &Topic,
    sequence: SequenceId,
) -> Result<Option<stored::PendingEnvelope>, StorageError> {
    snapshot.row(PENDING, &(*topic, sequence))
}

/// Reads the pending envelopes of a topic above `after`, oldest first, as they were received.
pub(crate) fn pending_rows(
    snapshot: &(impl Read + ?Sized),
    topic: &Topic,
    after: SequenceId,
    rows: u32,
    bytes: u32,
) -> Result<(Vec<Received>, bool), StorageError> {
    let (rows, more) = pending_page(snapshot, topic, after, rows, bytes)?;
    let received = rows.into_iter().map(|(sequence_id, envelope)| Received {
        sequence_id,
        envelope,
    });
    Ok((received.collect(), more))
}

/// Reads the pending envelopes of a topic above `after`, oldest first.
pub(crate) fn pending_page(
    snapshot: &(impl Read + ?Sized),
    topic: &Topic,
    after: SequenceId,
    rows: u32,
    bytes: u32,
) -> Result<(Vec<PendingRow>, bool), StorageError> {
    let page = Page {
        rows,
        bytes,
        order: Order::Ascending,
    };
    let found = snapshot.page(PENDING, topic, Some(&(*topic, after)), page)?;
    let rows = found
        .rows
        .into_iter()
        .map(|((_, sequence), envelope)| (sequence, envelope))
        .collect();
    Ok((rows, found.more))
}

/// Lists topics that have something pending, in topic order after `after`: one seek a topic,
/// so idle topics cost nothing.
pub(crate) fn pending_topics(
    snapshot: &dyn Snapshot,
    after: Option<Topic>,
    most: usize,
) -> Result<Vec<Topic>, StorageError> {
    const ONE_ROW: Page = Page {
        rows: 1,
        bytes: 1,
        order: Order::Ascending,
    };
    let mut topics = Vec::new();
    let mut start = after.map(|topic| past(&topic)).unwrap_or_default();
    while topics.len() < most {
        let range = KeyRange {
            start: &start,
            end: None,
        };
        let rows = snapshot.scan(PENDING.info.id, range, ONE_ROW)?;
        let Some((key, _)) = rows.iter().next() else {
            break;
        };
        let (topic, _) = <(Topic, SequenceId)>::from_bytes(key)?;
        start = past(&topic);
        topics.push(topic);
    }
    Ok(topics)
}

/// The first key after every key of a topic.
fn past(topic: &Topic) -> Vec<u8> {
    let mut key = (*topic, SequenceId::MAX).to_bytes();
    key.push(0);
    key
}
