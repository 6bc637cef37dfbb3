//! Typed access to intents and attempts.

use xmtp_proto::GroupId;
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::storage::v1::IntentState;

use crate::limits::{MAX_LOCAL_READ_BYTES, MAX_LOCAL_READ_ROWS};
use crate::storage::schema::{ATTEMPT, CounterName, INTENT, INTENT_BY_GROUP};
use crate::storage::{Key, KeyRange, Order, Page, Raw, Read, Snapshot, StorageError, WriteTxn};

/// Newer intents after which a finished one is forgotten: those who send wait for their outcome,
/// and nobody asks for one that many sends later.
pub(crate) const KEPT_INTENTS: u64 = 4_096;

/// Reads an intent.
pub(crate) fn intent(
    snapshot: &(impl Read + ?Sized),
    number: u64,
) -> Result<Option<stored::Intent>, StorageError> {
    snapshot.row(INTENT, &number)
}

/// Reads intents, in the order of their numbers as given.
pub(crate) fn intents(
    snapshot: &(impl Read + ?Sized),
    numbers: &[u64],
) -> Result<Vec<Option<stored::Intent>>, StorageError> {
    snapshot.rows(INTENT, numbers)
}

/// Finds the intent whose current attempt has this payload identity (STR-113).
pub(crate) fn by_payload(
    snapshot: &(impl Read + ?Sized),
    payload_hash: &[u8; 32],
) -> Result<Option<stored::Intent>, StorageError> {
    let Some(Raw(number)) = snapshot.row(ATTEMPT, payload_hash)? else {
        return Ok(None);
    };
    snapshot.row(INTENT, &u64::from_bytes(&number)?)
}

/// Stores a new intent behind all others of its group and answers its number.
pub(crate) fn insert(
    txn: &mut WriteTxn<'_>,
    group: &GroupId,
    mut intent: stored::Intent,
) -> Result<u64, StorageError> {
    let number = txn.take_number(CounterName::Intent)?;
    intent.intent_id = number;
    txn.put_new(INTENT, &number, &intent)?;
    txn.put_new(INTENT_BY_GROUP, &(*group, number), &Raw::default())?;
    forget_finished(txn, number)?;
    Ok(number)
}

/// Drops finished intents that are older than [`KEPT_INTENTS`] newer ones.
///
/// Each number is looked at when twice as many newer ones are there as at the last look, so one
/// that finished late goes too, and each new intent costs a handful of reads.
fn forget_finished(txn: &mut WriteTxn<'_>, newest: u64) -> Result<(), StorageError> {
    let ages = std::iter::successors(Some(KEPT_INTENTS), |age| age.checked_mul(2));
    let numbers: Vec<u64> = ages.map_while(|age| newest.checked_sub(age)).collect();
    for intent in intents(txn, &numbers)?.into_iter().flatten() {
        if is_finished(&intent) {
            txn.delete(INTENT, &intent.intent_id)?;
        }
    }
    Ok(())
}

/// Writes an intent, keeping the indexes of its state: an attempt is found by its payload
/// identity while it is unresolved, an intent by its group while it is unfinished.
pub(crate) fn put(
    txn: &mut WriteTxn<'_>,
    group: &GroupId,
    intent: &stored::Intent,
) -> Result<(), StorageError> {
    let before = self::intent(txn, intent.intent_id)?;
    let old = before.as_ref().and_then(attempt_key);
    let new = attempt_key(intent);
    if old != new {
        if let Some(key) = old {
            txn.delete(ATTEMPT, &key)?;
        }
        if let Some(key) = new {
            txn.put_new(ATTEMPT, &key, &Raw(intent.intent_id.to_bytes()))?;
        }
    }
    if !is_finished(intent) {
        return txn.put(INTENT, &intent.intent_id, intent);
    }
    txn.delete(INTENT_BY_GROUP, &(*group, intent.intent_id))?;
    // What is left is what its outcome says; content is not kept twice.
    let mut outcome = intent.clone();
    outcome.body.clear();
    if let Some(attempt) = &mut outcome.attempt {
        attempt.envelopes.clear();
        attempt.staged.clear();
    }
    txn.put(INTENT, &outcome.intent_id, &outcome)
}

/// Tells whether an intent has reached its end.
pub(crate) fn is_finished(intent: &stored::Intent) -> bool {
    matches!(
        intent.state(),
        IntentState::Processed | IntentState::Rejected | IntentState::Superseded
    )
}

/// Tells whether an intent's attempt awaits its outcome.
pub(crate) fn is_in_flight(intent: &stored::Intent) -> bool {
    matches!(
        intent.state(),
        IntentState::Prepared | IntentState::SentUnknown | IntentState::Receipted
    )
}

fn attempt_key(intent: &stored::Intent) -> Option<[u8; 32]> {
    let attempt = intent.attempt.as_ref().filter(|_| is_in_flight(intent))?;
    attempt.payload_hash[..].try_into().ok()
}

/// Tells whether a group has an unfinished intent.
pub(crate) fn has_unfinished(
    snapshot: &(impl Read + ?Sized),
    group: &GroupId,
) -> Result<bool, StorageError> {
    let first = Page {
        rows: 1,
        bytes: MAX_LOCAL_READ_BYTES,
        order: Order::Ascending,
    };
    let found = snapshot.page(INTENT_BY_GROUP, group, None, first)?;
    Ok(!found.rows.is_empty())
}

/// Lists the unfinished intents of a group in order, up to one local read's rows.
pub(crate) fn unfinished(
    snapshot: &(impl Read + ?Sized),
    group: &GroupId,
) -> Result<Vec<stored::Intent>, StorageError> {
    let page = Page {
        rows: MAX_LOCAL_READ_ROWS,
        bytes: MAX_LOCAL_READ_BYTES,
        order: Order::Ascending,
    };
    let found = snapshot.page(INTENT_BY_GROUP, group, None, page)?;
    let numbers: Vec<u64> = found.rows.iter().map(|((_, number), _)| *number).collect();
    let intents = intents(snapshot, &numbers)?;
    Ok(intents.into_iter().flatten().collect())
}

/// Lists groups that have unfinished intents, in id order after `after`: one seek a group.
pub(crate) fn groups_with_work(
    snapshot: &dyn Snapshot,
    after: Option<GroupId>,
    most: usize,
) -> Result<Vec<GroupId>, StorageError> {
    const ONE_ROW: Page = Page {
        rows: 1,
        bytes: 1,
        order: Order::Ascending,
    };
    let past = |group: &GroupId| {
        let mut key = (*group, u64::MAX).to_bytes();
        key.push(0);
        key
    };
    let mut groups = Vec::new();
    let mut start = after.as_ref().map(past).unwrap_or_default();
    while groups.len() < most {
        let range = KeyRange {
            start: &start,
            end: None,
        };
        let rows = snapshot.scan(INTENT_BY_GROUP.info.id, range, ONE_ROW)?;
        let Some((key, _)) = rows.iter().next() else {
            break;
        };
        let (group, _) = <(GroupId, u64)>::from_bytes(key)?;
        start = past(&group);
        groups.push(group);
    }
    Ok(groups)
}
