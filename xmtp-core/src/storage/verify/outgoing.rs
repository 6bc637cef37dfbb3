//! Rules of intents and attempts.

use xmtp_proto::GroupId;
use xmtp_proto::storage::v1::{Attempt, Intent, IntentState};

use super::{Faults, each};
use crate::storage::schema::{ATTEMPT, COUNTER, CounterName, INTENT, INTENT_BY_GROUP};
use crate::storage::{Key, Read, Snapshot, StorageError};

pub(super) fn check(snapshot: &dyn Snapshot, faults: &mut Faults) -> Result<(), StorageError> {
    let counter = snapshot.row(COUNTER, &(CounterName::Intent as u8))?;
    let next = counter.unwrap_or_default().next;
    each(snapshot, INTENT, |number, intent| {
        faults.expect(
            number < next && intent.intent_id == number,
            "intent number < next",
            format_args!("intent {number}, next {next}"),
        );
        indexed(snapshot, faults, number, &intent)
    })?;
    each(snapshot, INTENT_BY_GROUP, |(group, number), _| {
        let intent = snapshot.row(INTENT, &number)?;
        let holds = intent.is_some_and(|intent| {
            !is_finished(&intent) && intent.group_id[..] == group.as_bytes()[..]
        });
        faults.expect(
            holds,
            "group index has an unfinished intent",
            format_args!("intent {number}"),
        );
        Ok(())
    })?;
    each(snapshot, ATTEMPT, |payload, number| {
        let Ok(number) = u64::from_bytes(&number.0) else {
            faults.add("attempt has an intent", "the number is damaged");
            return Ok(());
        };
        let intent = snapshot.row(INTENT, &number)?;
        let attempt = intent.and_then(|intent| intent.attempt);
        faults.expect(
            attempt.is_some_and(|attempt| attempt.payload_hash[..] == payload),
            "attempt has an intent",
            format_args!("intent {number}"),
        );
        Ok(())
    })
}

fn indexed(
    snapshot: &dyn Snapshot,
    faults: &mut Faults,
    number: u64,
    intent: &Intent,
) -> Result<(), StorageError> {
    if is_finished(intent) {
        return Ok(());
    }
    let is_listed = match GroupId::try_from(intent.group_id.as_ref()) {
        Ok(group) => snapshot.row(INTENT_BY_GROUP, &(group, number))?.is_some(),
        Err(_) => false,
    };
    faults.expect(
        is_listed,
        "intent is in its group's index",
        format_args!("intent {number}"),
    );
    let Some(attempt) = awaited(intent) else {
        return Ok(());
    };
    let is_found = match <[u8; 32]>::try_from(attempt.payload_hash.as_ref()) {
        Ok(payload) => snapshot
            .row(ATTEMPT, &payload)?
            .is_some_and(|found| found.0 == number.to_bytes()),
        Err(_) => false,
    };
    faults.expect(
        is_found,
        "attempt is in the payload index",
        format_args!("intent {number}"),
    );
    Ok(())
}

fn is_finished(intent: &Intent) -> bool {
    matches!(
        intent.state(),
        IntentState::Processed | IntentState::Rejected | IntentState::Superseded
    )
}

/// The attempt whose echo is still to come.
fn awaited(intent: &Intent) -> Option<&Attempt> {
    match intent.state() {
        IntentState::Prepared | IntentState::SentUnknown | IntentState::Receipted => {
            intent.attempt.as_ref()
        }
        _ => None,
    }
}
