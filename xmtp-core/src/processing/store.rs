//! Typed access to what processing writes: head states, rejections, proposals, identity states.

use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{GroupId, InboxId, SequenceId, Topic};

use crate::storage::schema::{HEAD, IDENTITY_STATE, PROPOSAL, REJECTION};
use crate::storage::{All, Order, Page, Prefix2, Raw, Read, StorageError, WriteTxn};

/// Reads why the head of a topic is not handled yet.
pub(crate) fn head(
    snapshot: &(impl Read + ?Sized),
    topic: &Topic,
) -> Result<Option<stored::HeadState>, StorageError> {
    snapshot.row(HEAD, topic)
}

/// Writes why the head of a topic is not handled yet.
pub(crate) fn put_head(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    state: &stored::HeadState,
) -> Result<(), StorageError> {
    txn.put(HEAD, topic, state)
}

/// Forgets the head state of a topic, whose head is handled.
pub(crate) fn clear_head(txn: &mut WriteTxn<'_>, topic: &Topic) -> Result<(), StorageError> {
    txn.delete(HEAD, topic)
}

/// Lists head states in topic order after `after`.
pub(crate) fn heads(
    snapshot: &(impl Read + ?Sized),
    after: Option<&Topic>,
    rows: u32,
) -> Result<(Vec<(Topic, stored::HeadState)>, bool), StorageError> {
    let page = Page {
        rows,
        bytes: crate::limits::MAX_LOCAL_READ_BYTES,
        order: Order::Ascending,
    };
    let found = snapshot.page(HEAD, &All, after, page)?;
    Ok((found.rows, found.more))
}

/// Records a terminal rejection.
pub(crate) fn put_rejection(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    sequence: SequenceId,
    reason: &str,
) -> Result<(), StorageError> {
    let rejection = stored::Rejection {
        reason: reason.to_owned(),
        recorded_ns: txn.now_ns(),
    };
    txn.put(REJECTION, &(*topic, sequence), &rejection)
}

/// Reads the typed reason of a terminal rejection.
pub(crate) fn rejection(
    snapshot: &(impl Read + ?Sized),
    topic: &Topic,
    sequence: SequenceId,
) -> Result<Option<stored::Rejection>, StorageError> {
    snapshot.row(REJECTION, &(*topic, sequence))
}

/// Records that the prefix carried a proposal.
pub(crate) fn put_proposal(
    txn: &mut WriteTxn<'_>,
    group: &GroupId,
    epoch: u64,
    reference: &[u8],
) -> Result<(), StorageError> {
    let key = (*group, (epoch, reference.to_vec()));
    txn.put(PROPOSAL, &key, &Raw::default())
}

/// Counts the proposals that the prefix carried in an epoch, up to one local read's rows.
pub(crate) fn proposals_in_epoch(
    snapshot: &(impl Read + ?Sized),
    group: &GroupId,
    epoch: u64,
) -> Result<usize, StorageError> {
    let page = Page {
        rows: crate::limits::MAX_LOCAL_READ_ROWS,
        bytes: crate::limits::MAX_LOCAL_READ_BYTES,
        order: Order::Ascending,
    };
    let found = snapshot.page(PROPOSAL, &Prefix2(*group, epoch), None, page)?;
    Ok(found.rows.len())
}

/// Reads the verified state of an inbox at exactly one sequence id.
pub(crate) fn identity_state(
    snapshot: &(impl Read + ?Sized),
    inbox: &InboxId,
    sequence: SequenceId,
) -> Result<Option<Vec<u8>>, StorageError> {
    let state = snapshot.row(IDENTITY_STATE, &(*inbox, sequence))?;
    Ok(state.map(|Raw(bytes)| bytes))
}

/// Reads the newest verified state of an inbox, with its sequence id.
pub(crate) fn latest_identity_state(
    snapshot: &(impl Read + ?Sized),
    inbox: &InboxId,
) -> Result<Option<(SequenceId, Vec<u8>)>, StorageError> {
    let newest = Page {
        rows: 1,
        bytes: crate::limits::MAX_LOCAL_READ_BYTES,
        order: Order::Descending,
    };
    let found = snapshot.page(IDENTITY_STATE, inbox, None, newest)?;
    let row = found.rows.into_iter().next();
    Ok(row.map(|((_, sequence), Raw(bytes))| (sequence, bytes)))
}

/// Stores the verified state of an inbox at exactly one sequence id.
pub(crate) fn put_identity_state(
    txn: &mut WriteTxn<'_>,
    inbox: &InboxId,
    sequence: SequenceId,
    state: &[u8],
) -> Result<(), StorageError> {
    txn.put(IDENTITY_STATE, &(*inbox, sequence), &Raw(state.to_vec()))
}
