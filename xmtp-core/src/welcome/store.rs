//! Typed access to groups, discovery and the retry state of Welcomes.

use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{GroupId, SequenceId};

use crate::limits::MAX_LOCAL_READ_BYTES;
use crate::storage::schema::{All, DISCOVERY, GROUP, WELCOME};
use crate::storage::{Order, Page, Raw, Read, StorageError, WriteTxn};

/// Reads a group's record.
pub(crate) fn group(
    snapshot: &(impl Read + ?Sized),
    group: &GroupId,
) -> Result<Option<stored::GroupRecord>, StorageError> {
    snapshot.row(GROUP, group)
}

/// Writes a group's record.
pub(crate) fn put_group(
    txn: &mut WriteTxn<'_>,
    group: &GroupId,
    record: &stored::GroupRecord,
) -> Result<(), StorageError> {
    txn.put(GROUP, group, record)
}

/// Lists groups in id order after `after`.
pub(crate) fn groups(
    snapshot: &(impl Read + ?Sized),
    after: Option<&GroupId>,
    rows: u32,
) -> Result<(Vec<(GroupId, stored::GroupRecord)>, bool), StorageError> {
    let found = snapshot.page(GROUP, &All, after, page(rows))?;
    Ok((found.rows, found.more))
}

/// Reads a Welcome's retry state.
pub(crate) fn retry(
    snapshot: &(impl Read + ?Sized),
    sequence: SequenceId,
) -> Result<Option<stored::WelcomeRetry>, StorageError> {
    snapshot.row(WELCOME, &sequence)
}

/// Writes a Welcome's retry state.
pub(crate) fn put_retry(
    txn: &mut WriteTxn<'_>,
    sequence: SequenceId,
    retry: &stored::WelcomeRetry,
) -> Result<(), StorageError> {
    txn.put(WELCOME, &sequence, retry)
}

/// Forgets a Welcome's retry state.
pub(crate) fn delete_retry(
    txn: &mut WriteTxn<'_>,
    sequence: SequenceId,
) -> Result<(), StorageError> {
    txn.delete(WELCOME, &sequence)
}

/// Records durably which group a Welcome led to (STR-085).
pub(crate) fn put_discovery(
    txn: &mut WriteTxn<'_>,
    welcome: SequenceId,
    group: &GroupId,
) -> Result<(), StorageError> {
    txn.put(DISCOVERY, &welcome, &Raw(group.as_bytes().to_vec()))
}

/// Lists discovered groups by the Welcome's sequence id after `after`.
pub(crate) fn discoveries(
    snapshot: &(impl Read + ?Sized),
    after: SequenceId,
    rows: u32,
) -> Result<(Vec<(SequenceId, GroupId)>, bool), StorageError> {
    let found = snapshot.page(DISCOVERY, &All, Some(&after), page(rows))?;
    let mut discovered = Vec::with_capacity(found.rows.len());
    for (sequence, Raw(group)) in found.rows {
        let group = GroupId::try_from(&group[..]).map_err(|_| StorageError::Corrupt {
            table: DISCOVERY.info.name,
            what: "value",
        })?;
        discovered.push((sequence, group));
    }
    Ok((discovered, found.more))
}

fn page(rows: u32) -> Page {
    Page {
        rows,
        bytes: MAX_LOCAL_READ_BYTES,
        order: Order::Ascending,
    }
}
