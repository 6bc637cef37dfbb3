//! Attempts: exact bytes, durable before anything is published, one at a time for state changes.

use xmtp_proto::storage::v1 as stored;
use xmtp_proto::storage::v1::{IntentKind, IntentState};
use xmtp_proto::{GroupId, Topic};

use super::store;
use crate::processor::{Dependency, GroupProcessor, PrepareError};
use crate::storage::{StorageError, WriteTxn};
use crate::{receipt, welcome};

/// Most message attempts of one group whose outcome is open.
pub const MAX_IN_FLIGHT_MESSAGES: usize = 32;

/// The reason of an attempt whose receipt names a place in the order where it is not.
const UNMATCHED: &str = "receipt_unmatched";

/// What one preparation did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Preparation {
    /// Intents whose attempts were prepared now, in order.
    pub(super) prepared: Vec<u64>,
    /// What the next intent needs from outside first.
    pub(super) waits: Vec<Dependency>,
}

/// Prepares the next eligible intents of a group from fresh state (STR-110, STR-112).
///
/// # Behavior
/// - Intents are prepared in queue order. An unresolved state change, in this or another process,
///   keeps everything behind it; so do messages in flight keep a state change.
/// - What cannot be prepared ends with its reason, and the next is looked at.
pub(super) fn prepare(
    txn: &mut WriteTxn<'_>,
    processor: &dyn GroupProcessor,
    group: &GroupId,
) -> Result<Preparation, StorageError> {
    let mut done = Preparation::default();
    let active = welcome::store::group(txn, group)?.is_some_and(|group| group.active);
    let processed = receipt::store::topic(txn, &Topic::group(group))?.processed;
    let mut in_flight = 0;
    for mut intent in store::unfinished(txn, group)? {
        let changes_state = changes_state(&intent);
        if store::is_in_flight(&intent) {
            if is_unmatched(&intent, processed) {
                tracing::error!("a receipted attempt is not in the ordered prefix");
                if let Some(attempt) = &intent.attempt {
                    processor.discard(txn, group, attempt)?;
                }
                end(txn, group, &mut intent, IntentState::Rejected, UNMATCHED)?;
                continue;
            }
            in_flight += 1;
            if changes_state {
                break;
            }
            continue;
        }
        if intent.state() != IntentState::ToPublish {
            continue;
        }
        if !active {
            end(txn, group, &mut intent, IntentState::Rejected, "inactive")?;
            continue;
        }
        let full = in_flight >= MAX_IN_FLIGHT_MESSAGES;
        if full || (changes_state && in_flight > 0) {
            break;
        }
        match txn.savepoint(|txn| attempt(txn, processor, group, &mut intent)) {
            Ok(()) => {
                done.prepared.push(intent.intent_id);
                in_flight += 1;
                if changes_state {
                    break;
                }
            }
            Err(Stop::Storage(error)) => return Err(error),
            Err(Stop::Prepare(PrepareError::Waits(dependencies))) => {
                done.waits = dependencies;
                break;
            }
            Err(Stop::Prepare(PrepareError::Local { what })) => {
                tracing::warn!(what, "preparing failed; it is tried again");
                break;
            }
            Err(Stop::Prepare(PrepareError::Superseded)) => {
                end(
                    txn,
                    group,
                    &mut intent,
                    IntentState::Superseded,
                    "superseded",
                )?;
            }
            Err(Stop::Prepare(PrepareError::Inactive)) => {
                end(txn, group, &mut intent, IntentState::Rejected, "inactive")?;
            }
            Err(Stop::Prepare(PrepareError::Unsendable { reason })) => {
                end(txn, group, &mut intent, IntentState::Rejected, reason)?;
            }
        }
    }
    Ok(done)
}

/// Tells whether P passed the place that an attempt's receipt names without meeting the attempt:
/// the backend's word is broken, and waiting would keep the group's queue for ever.
fn is_unmatched(intent: &stored::Intent, processed: u64) -> bool {
    let receipt = intent
        .attempt
        .as_ref()
        .map(|attempt| attempt.receipt_sequence_id);
    intent.state() == IntentState::Receipted && receipt.is_some_and(|at| at <= processed)
}

/// Tells whether an intent changes the group's state rather than sending a message in it.
pub(super) fn changes_state(intent: &stored::Intent) -> bool {
    intent.kind() != IntentKind::SendMessage
}

/// Ends an intent; its attempt is no longer looked for.
pub(super) fn end(
    txn: &mut WriteTxn<'_>,
    group: &GroupId,
    intent: &mut stored::Intent,
    state: IntentState,
    reason: &str,
) -> Result<(), StorageError> {
    tracing::debug!(reason, "an intent ends");
    intent.set_state(state);
    intent.rejection = reason.to_owned();
    store::put(txn, group, intent)
}

enum Stop {
    Storage(StorageError),
    Prepare(PrepareError),
}

impl From<StorageError> for Stop {
    fn from(error: StorageError) -> Self {
        Self::Storage(error)
    }
}

fn attempt(
    txn: &mut WriteTxn<'_>,
    processor: &dyn GroupProcessor,
    group: &GroupId,
    intent: &mut stored::Intent,
) -> Result<(), Stop> {
    let prepared = processor.prepare(txn, intent)?.map_err(Stop::Prepare)?;
    if prepared.attempt.payload_hash.len() != 32 || prepared.attempt.envelopes.is_empty() {
        return Err(Stop::Storage(StorageError::Invariant {
            rule: "an attempt has bytes and a payload identity",
        }));
    }
    intent.attempt = Some(prepared.attempt);
    intent.set_state(IntentState::Prepared);
    store::put(txn, group, intent)?;
    Ok(())
}
