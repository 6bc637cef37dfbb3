//! Groups that are set aside: their next commit can never be applied on this installation.
//!
//! Such a commit adds a key package that has expired by the clock since it was sent. Others applied
//! it in time, so to reject it would be a fork, and to wait for it would be for ever. The group
//! becomes inactive at its P with everything kept, it is noted that this installation asks to be
//! added again, and the next Welcome installs as it does after a removal (STR-082).

use xmtp_proto::{SequenceId, Topic};

use crate::storage::{StorageError, WriteTxn};
use crate::welcome;

/// The cause of a group that is set aside until it is added again.
pub(crate) const QUARANTINED: &str = "quarantined";

/// Sets a group aside before the commit at `at`, and notes the request to be added again.
pub(super) fn set_aside(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    at: SequenceId,
) -> Result<(), StorageError> {
    let Some(group) = topic.group_id() else {
        return Ok(());
    };
    let Some(mut record) = welcome::store::group(txn, &group)? else {
        return Err(StorageError::Invariant {
            rule: "a processed group has a record",
        });
    };
    tracing::warn!(topic = %topic.short(), "a group is set aside; it has to be added again");
    record.active = false;
    record.inactive_cause = QUARANTINED.to_owned();
    record.readd_commit_sequence = at.get();
    record.readd_requested_ns = txn.now_ns();
    welcome::store::put_group(txn, &group, &record)
}
