//! What ordered processing says of an own attempt.

use xmtp_proto::GroupId;
use xmtp_proto::storage::v1 as stored;

use crate::processor::{Effects, PendingItem, Rejected};
use crate::storage::{StorageError, WriteTxn};

/// Confirms an intent whose echo was applied.
pub(crate) fn applied(
    _txn: &mut WriteTxn<'_>,
    _intent: &stored::Intent,
    _item: &PendingItem,
    _effects: &Effects,
) -> Result<(), StorageError> {
    Ok(())
}

/// Settles an intent whose echo was rejected.
pub(crate) fn rejected(
    _txn: &mut WriteTxn<'_>,
    _intent: &stored::Intent,
    _reason: Rejected,
) -> Result<(), StorageError> {
    Ok(())
}

/// Ends every unfinished intent of a group that this installation left.
pub(crate) fn group_left(_txn: &mut WriteTxn<'_>, _group: &GroupId) -> Result<(), StorageError> {
    Ok(())
}
