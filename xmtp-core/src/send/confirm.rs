//! What ordered processing says of an own attempt: the only source of confirmation (STR-113).
//!
//! | state | echo applied | echo rejected as stale | echo rejected otherwise | group left |
//! | --- | --- | --- | --- | --- |
//! | in flight | Committed, or Processed when nothing is owed | ToPublish, attempt forgotten | Rejected | Rejected |
//! | ToPublish | - | - | - | Rejected |
//! | Committed | unchanged | unchanged | unchanged | unchanged |
//! | finished | unchanged | unchanged | unchanged | unchanged |
//!
//! The group processor itself discards staged state when its own commit is rejected or a
//! competing commit applies: only it knows what it staged.

use xmtp_proto::GroupId;
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::storage::v1::IntentState;

use super::{attempt, store};
use crate::processor::{Effects, PendingItem, Rejected};
use crate::storage::{StorageError, WriteTxn};

/// Confirms an intent whose echo was applied. Owed Welcomes are kept as exact bytes.
pub(crate) fn applied(
    txn: &mut WriteTxn<'_>,
    intent: &stored::Intent,
    item: &PendingItem,
    effects: &Effects,
) -> Result<(), StorageError> {
    let Some((group, mut intent)) = current(txn, intent)? else {
        return Ok(());
    };
    if let Some(owed) = &effects.welcomes {
        intent.welcomes.clone_from(&owed.0);
    }
    if let Some(attempt) = &mut intent.attempt {
        attempt.receipt_sequence_id = item.sequence_id.get();
        attempt.receipt_server_ns = item.server_ns;
        // Bytes that are stored at the backend need not be sent again.
        attempt.envelopes.clear();
        attempt.staged.clear();
    }
    let state = if intent.welcomes.is_empty() {
        IntentState::Processed
    } else {
        IntentState::Committed
    };
    intent.set_state(state);
    store::put(txn, &group, &intent)
}

/// Settles an intent whose echo was rejected: a commit that lost its race is prepared again, any
/// other attempt has failed.
pub(crate) fn rejected(
    txn: &mut WriteTxn<'_>,
    intent: &stored::Intent,
    reason: Rejected,
) -> Result<(), StorageError> {
    let Some((group, mut intent)) = current(txn, intent)? else {
        return Ok(());
    };
    if reason == Rejected::CommitStale {
        intent.attempt = None;
        intent.set_state(IntentState::ToPublish);
        return store::put(txn, &group, &intent);
    }
    attempt::end(
        txn,
        &group,
        &mut intent,
        IntentState::Rejected,
        reason.code(),
    )
}

/// Ends every intent of a group that this installation left, but for those already committed.
pub(crate) fn group_left(txn: &mut WriteTxn<'_>, group: &GroupId) -> Result<(), StorageError> {
    for mut intent in store::unfinished(txn, group)? {
        if intent.state() != IntentState::Committed {
            attempt::end(txn, group, &mut intent, IntentState::Rejected, "inactive")?;
        }
    }
    Ok(())
}

/// Reads an intent again, if its attempt is still in flight.
fn current(
    txn: &WriteTxn<'_>,
    intent: &stored::Intent,
) -> Result<Option<(GroupId, stored::Intent)>, StorageError> {
    let Some(fresh) = store::intent(txn, intent.intent_id)? else {
        return Ok(None);
    };
    let group = GroupId::try_from(&fresh.group_id[..]).map_err(|_| StorageError::Corrupt {
        table: "intent",
        what: "group id",
    })?;
    Ok(store::is_in_flight(&fresh).then_some((group, fresh)))
}
