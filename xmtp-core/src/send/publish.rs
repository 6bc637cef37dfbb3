//! Hands exact bytes to the transport until their outcome is known (STR-111).
//!
//! An attempt that this process prepared and has not sent yet is the only one whose first refusal
//! proves that nothing was stored. Any other attempt may have been sent before, so its refusal
//! settles nothing: the topic is read to its head, and only processing past that head without a
//! match ends it.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use xmtp_proto::backend::v1;
use xmtp_proto::backend::v1::message_hash::Hash;
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::storage::v1::IntentState;
use xmtp_proto::{GroupId, Topic};

use super::plan::{RequestBounds, Unit, plan};
use super::{attempt, store};
use crate::engine::context::Context;
use crate::engine::fetch::{FetchError, fetch_page};
use crate::limits::{PUBLISH_FIRST_PAUSE, PUBLISH_LONGEST_PAUSE};
use crate::receipt;
use crate::runtime::RuntimeExt;
use crate::storage::{Durability, Priority, StorageError, WriteTxn};
use crate::transport::TransportError;

/// Tries of one request before the caller's loop looks at the state again.
const MAX_PUBLISH_TRIES: u32 = 5;
/// Factor between pauses.
const PAUSE_FACTOR: u32 = 3;
/// Most random addition to a pause.
const PAUSE_JITTER_MS: u64 = 25;
/// Pages fetched to settle one refused attempt.
const MAX_SETTLE_PAGES: usize = 64;

/// Publishes the open attempts of a group in order. `first` are intents prepared by this process
/// whose bytes no one has sent yet.
pub(super) async fn publish(
    context: &Context,
    group: GroupId,
    first: &[u64],
) -> Result<(), FetchError> {
    let units = open_units(context, group, first.to_vec()).await?;
    for request in plan(units, RequestBounds::default()) {
        publish_request(context, group, &request, first).await?;
    }
    publish_welcomes(context, group).await
}

/// Reads attempts without a receipt, marking those that may have been sent before.
async fn open_units(
    context: &Context,
    group: GroupId,
    first: Vec<u64>,
) -> Result<Vec<Unit>, StorageError> {
    context
        .database
        .write_queued(Priority::Foreground, Durability::Ordered, move |txn| {
            let mut units = Vec::new();
            for mut intent in store::unfinished(txn, &group)? {
                let open = matches!(
                    intent.state(),
                    IntentState::Prepared | IntentState::SentUnknown
                );
                let Some(current) = intent.attempt.as_ref().filter(|_| open) else {
                    continue;
                };
                units.push(Unit {
                    intent: intent.intent_id,
                    envelopes: current.envelopes.clone(),
                });
                if intent.state() == IntentState::Prepared && !first.contains(&intent.intent_id) {
                    mark_ambiguous(txn, &group, &mut intent)?;
                }
            }
            Ok::<_, StorageError>(units)
        })
        .await
}

fn mark_ambiguous(
    txn: &mut WriteTxn<'_>,
    group: &GroupId,
    intent: &mut stored::Intent,
) -> Result<(), StorageError> {
    if let Some(attempt) = &mut intent.attempt {
        attempt.ambiguous = true;
    }
    intent.set_state(IntentState::SentUnknown);
    store::put(txn, group, intent)
}

async fn publish_request(
    context: &Context,
    group: GroupId,
    request: &[Unit],
    first: &[u64],
) -> Result<(), FetchError> {
    let envelopes: Vec<Bytes> = request
        .iter()
        .flat_map(|unit| unit.envelopes.iter().cloned())
        .collect();
    let decoded = decode(&envelopes)?;
    let mut is_first = request.iter().all(|unit| first.contains(&unit.intent));
    let mut pause = PUBLISH_FIRST_PAUSE;
    for _ in 0..MAX_PUBLISH_TRIES {
        let sent = v1::PublishRequest {
            envelopes: decoded.clone(),
        };
        match context.transport.publish(sent).await {
            Ok(response) => return receipts(context, group, request, response).await,
            Err(TransportError::InvalidArgument { index, .. }) => {
                return refused(context, group, request, index, is_first).await;
            }
            Err(TransportError::OutOfRange) => {
                return settle_by_reading(context, group, request).await;
            }
            Err(error) if error.is_retryable() => {
                if is_first && error.is_ambiguous() {
                    ambiguous(context, group, request).await?;
                    is_first = false;
                }
                context.runtime.sleep(jittered(context, pause)).await;
                pause = (pause * PAUSE_FACTOR).min(PUBLISH_LONGEST_PAUSE);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn decode(envelopes: &[Bytes]) -> Result<Vec<v1::ClientEnvelope>, StorageError> {
    envelopes
        .iter()
        .map(|bytes| {
            v1::ClientEnvelope::decode(bytes.clone()).map_err(|_| StorageError::Corrupt {
                table: "intent",
                what: "attempt",
            })
        })
        .collect()
}

fn jittered(context: &Context, pause: Duration) -> Duration {
    let [random] = context.runtime.random::<1>();
    pause + Duration::from_millis(u64::from(random) % (PAUSE_JITTER_MS + 1))
}

async fn ambiguous(
    context: &Context,
    group: GroupId,
    request: &[Unit],
) -> Result<(), StorageError> {
    change(context, group, request, move |txn, group, intent| {
        mark_ambiguous(txn, group, intent)
    })
    .await
}

/// Applies a change to each intent of a request whose attempt is still open.
async fn change(
    context: &Context,
    group: GroupId,
    request: &[Unit],
    mut apply: impl FnMut(&mut WriteTxn<'_>, &GroupId, &mut stored::Intent) -> Result<(), StorageError>
    + Send
    + 'static,
) -> Result<(), StorageError> {
    let request = request.to_vec();
    context
        .database
        .write_queued(Priority::Foreground, Durability::Ordered, move |txn| {
            for unit in &request {
                let Some(mut intent) = store::intent(txn, unit.intent)? else {
                    continue;
                };
                let current = intent.attempt.as_ref().map(|attempt| &attempt.envelopes);
                // A reply for bytes that are no longer current says nothing of the new ones.
                if store::is_in_flight(&intent) && current == Some(&unit.envelopes) {
                    apply(txn, &group, &mut intent)?;
                }
            }
            Ok(())
        })
        .await
}

/// Attaches receipts to the attempts they answer; the backend's hash is kept as given.
async fn receipts(
    context: &Context,
    group: GroupId,
    request: &[Unit],
    response: v1::PublishResponse,
) -> Result<(), FetchError> {
    let count: usize = request.iter().map(|unit| unit.envelopes.len()).sum();
    if response.envelope_metas.len() != count {
        return Err(FetchError::Transport(TransportError::Protocol {
            rule: "a publish answers one metadata for each envelope",
        }));
    }
    let mut metas = response.envelope_metas.into_iter();
    let mut by_intent = std::collections::BTreeMap::new();
    for unit in request {
        let last = metas.by_ref().take(unit.envelopes.len()).last();
        by_intent.insert(unit.intent, last.unwrap_or_default());
    }
    change(context, group, request, move |txn, group, intent| {
        let Some(meta) = by_intent.get(&intent.intent_id) else {
            return Ok(());
        };
        if let Some(attempt) = &mut intent.attempt {
            attempt.receipt_sequence_id = meta.cursor.map_or(0, |cursor| cursor.sequence_id);
            attempt.receipt_server_ns = meta.server_ns;
            if let Some(Hash::Sha256(hash)) = meta
                .message_hash
                .as_ref()
                .and_then(|hash| hash.hash.as_ref())
            {
                attempt.receipt_hash = hash.clone();
            }
        }
        intent.set_state(IntentState::Receipted);
        store::put(txn, group, intent)
    })
    .await?;
    Ok(())
}

/// Handles INVALID_ARGUMENT. On a first try it is definite for the named envelope, and the rest of
/// the request stays prepared.
async fn refused(
    context: &Context,
    group: GroupId,
    request: &[Unit],
    index: Option<u32>,
    is_first: bool,
) -> Result<(), FetchError> {
    if !is_first {
        return settle_by_reading(context, group, request).await;
    }
    let Some(unit) = index.and_then(|index| unit_at(request, index as usize)) else {
        if request.len() == 1 {
            return reject(context, group, &request[0], "refused").await;
        }
        // A bound of the whole request: each unit goes alone.
        for unit in request {
            let alone = std::slice::from_ref(unit);
            Box::pin(publish_request(context, group, alone, &[unit.intent])).await?;
        }
        return Ok(());
    };
    reject(context, group, unit, "refused").await
}

fn unit_at(request: &[Unit], index: usize) -> Option<&Unit> {
    let mut start = 0;
    request.iter().find(|unit| {
        start += unit.envelopes.len();
        index < start
    })
}

/// Ends an intent whose bytes are definitely not stored, unless another process may have sent
/// them meanwhile.
async fn reject(
    context: &Context,
    group: GroupId,
    unit: &Unit,
    reason: &'static str,
) -> Result<(), FetchError> {
    let processor = context.processors.group.clone();
    change(
        context,
        group,
        std::slice::from_ref(unit),
        move |txn, group, intent| {
            let ambiguous = intent
                .attempt
                .as_ref()
                .is_some_and(|attempt| attempt.ambiguous);
            if ambiguous {
                return Ok(());
            }
            if let Some(attempt) = &intent.attempt {
                processor.discard(txn, group, attempt)?;
            }
            attempt::end(txn, group, intent, IntentState::Rejected, reason)
        },
    )
    .await?;
    Ok(())
}

/// Settles attempts whose bytes must not be sent again but may be stored: reads the topic to its
/// head, and ends those that processing has passed without a match.
async fn settle_by_reading(
    context: &Context,
    group: GroupId,
    request: &[Unit],
) -> Result<(), FetchError> {
    let topic = Topic::group(&group);
    let mut is_read = false;
    for _ in 0..MAX_SETTLE_PAGES {
        let fetched = fetch_page(context, &[topic]).await?;
        if fetched.new == 0 && !fetched.more && fetched.paused.is_empty() {
            is_read = true;
            break;
        }
    }
    if !is_read {
        return Ok(());
    }
    let processor = context.processors.group.clone();
    change(context, group, request, move |txn, group, intent| {
        // Everything that was stored before the refusal is received now; what is processed
        // without a match was never stored.
        if receipt::store::topic(txn, &topic)?.pending_rows > 0 {
            return Ok(());
        }
        if let Some(attempt) = &intent.attempt {
            processor.discard(txn, group, attempt)?;
        }
        attempt::end(txn, group, intent, IntentState::Rejected, "refused")
    })
    .await?;
    Ok(())
}

/// Publishes the Welcomes that applied commits owe, as the exact bytes that are stored.
async fn publish_welcomes(context: &Context, group: GroupId) -> Result<(), FetchError> {
    let owing: Vec<stored::Intent> = context
        .database
        .read_queued(move |snapshot| {
            let unfinished = store::unfinished(snapshot, &group)?;
            Ok::<_, StorageError>(
                unfinished
                    .into_iter()
                    .filter(|intent| intent.state() == IntentState::Committed)
                    .collect(),
            )
        })
        .await?;
    for intent in owing {
        let units = intent.welcomes.iter().map(|welcome| Unit {
            intent: intent.intent_id,
            envelopes: vec![welcome.clone()],
        });
        for request in plan(units.collect(), RequestBounds::default()) {
            let envelopes: Vec<Bytes> = request
                .into_iter()
                .flat_map(|unit| unit.envelopes)
                .collect();
            let sent = v1::PublishRequest {
                envelopes: decode(&envelopes)?,
            };
            context.transport.publish(sent).await?;
            delivered(context, group, intent.intent_id, envelopes.len()).await?;
        }
    }
    Ok(())
}

/// Forgets Welcomes that the backend has; the last one finishes the intent.
async fn delivered(
    context: &Context,
    group: GroupId,
    number: u64,
    count: usize,
) -> Result<(), StorageError> {
    context
        .database
        .write_queued(Priority::Foreground, Durability::Ordered, move |txn| {
            let Some(mut intent) = store::intent(txn, number)? else {
                return Ok(());
            };
            if intent.state() != IntentState::Committed {
                return Ok(());
            }
            intent.welcomes.drain(..count.min(intent.welcomes.len()));
            if intent.welcomes.is_empty() {
                intent.set_state(IntentState::Processed);
            }
            store::put(txn, &group, &intent)
        })
        .await
}
