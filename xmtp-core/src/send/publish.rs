//! Hands exact bytes to the transport until their outcome is known (STR-111).
//!
//! An attempt that this process prepared and has not sent yet is the only one whose first refusal
//! proves that nothing was stored. Any other attempt may have been sent before, so its refusal
//! settles nothing: the topic is read to its head, and only processing past that head without a
//! match ends it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use xmtp_proto::backend::v1;
use xmtp_proto::backend::v1::message_hash::Hash;
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::storage::v1::IntentState;
use xmtp_proto::{GroupId, SequenceId, Topic};

use super::plan::{RequestBounds, Unit, plan};
use super::{attempt, store, welcomes};
use crate::engine::context::Context;
use crate::engine::fetch::{FetchError, fetch_page};
use crate::limits::{PUBLISH_FIRST_PAUSE, PUBLISH_LONGEST_PAUSE};
use crate::receipt::{self, AdmissionError};
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
    welcomes::publish(context, group).await
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
                if let [_] = request {
                    return settle_by_reading(context, group, request).await;
                }
                // It is never sent again as it was: what the topic does not hold goes alone.
                read_to_head(context, Topic::group(&group)).await?;
                let open = still_open(context, request).await?;
                return each_alone(context, group, &open, &[]).await;
            }
            Err(error) if error.is_retryable() => {
                if is_first && error.is_ambiguous() {
                    ambiguous(context, group, request).await?;
                    is_first = false;
                }
                let least = error.asked_pause();
                context
                    .runtime
                    .sleep(jittered(context, pause).max(least))
                    .await;
                pause = (pause * PAUSE_FACTOR).min(PUBLISH_LONGEST_PAUSE);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

pub(super) fn decode(envelopes: &[Bytes]) -> Result<Vec<v1::ClientEnvelope>, StorageError> {
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
                // A reply for bytes that are no longer current says nothing of the new ones.
                if store::is_in_flight(&intent) && has_bytes(&intent, unit) {
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
    if !response.envelope_metas.iter().all(is_receipt) {
        return Err(FetchError::Transport(TransportError::Protocol {
            rule: "a publish answers with ids and hashes",
        }));
    }
    let mut metas = response.envelope_metas.into_iter();
    let mut by_intent = std::collections::BTreeMap::new();
    for unit in request {
        let last = metas.by_ref().take(unit.envelopes.len()).last();
        by_intent.insert(unit.intent, last.unwrap_or_default());
    }
    let topic = Topic::group(&group);
    let broken = Arc::new(AtomicU64::new(0));
    let found = broken.clone();
    change(context, group, request, move |txn, group, intent| {
        let Some(meta) = by_intent.get(&intent.intent_id) else {
            return Ok(());
        };
        let sequence = meta.cursor.map_or(0, |cursor| cursor.sequence_id);
        let place = SequenceId::saturating(sequence);
        if !receipt::order::holds_receipt(txn, &topic, place, receipt_hash(meta))? {
            // Its bytes may be stored there: they are kept, and nothing else changes.
            found.store(
                receipt::store::topic(txn, &topic)?.received,
                Ordering::Relaxed,
            );
            return mark_ambiguous(txn, group, intent);
        }
        if let Some(attempt) = &mut intent.attempt {
            attempt.receipt_sequence_id = sequence;
            attempt.receipt_server_ns = meta.server_ns;
            attempt.receipt_hash = Bytes::copy_from_slice(receipt_hash(meta));
        }
        intent.set_state(IntentState::Receipted);
        store::put(txn, group, intent)
    })
    .await?;
    match broken.load(Ordering::Relaxed) {
        0 => Ok(()),
        received => {
            tracing::error!(topic = %topic.short(), "a receipt names a place that was given before");
            Err(AdmissionError::WentBack { received }.into())
        }
    }
}

/// The hash of a receipt; none when it has another form.
fn receipt_hash(meta: &v1::EnvelopeMeta) -> &[u8] {
    let hash = meta.message_hash.as_ref();
    match hash.and_then(|hash| hash.hash.as_ref()) {
        Some(Hash::Sha256(hash)) => hash,
        _ => &[],
    }
}

/// Tells whether a receipt names a place in the order and a hash of the right form.
fn is_receipt(meta: &v1::EnvelopeMeta) -> bool {
    let id = meta.cursor.map_or(0, |cursor| cursor.sequence_id);
    id > 0 && SequenceId::checked(id).is_ok() && receipt_hash(meta).len() == 32
}

/// Handles INVALID_ARGUMENT for the named envelope: on a first try it is definite, later it is
/// settled by reading. The rest of the request stays as it is.
async fn refused(
    context: &Context,
    group: GroupId,
    request: &[Unit],
    index: Option<u32>,
    is_first: bool,
) -> Result<(), FetchError> {
    let named = match index {
        Some(index) => unit_at(request, index as usize),
        None => request.first().filter(|_| request.len() == 1),
    };
    match named {
        Some(unit) if is_first => reject(context, group, unit, "refused").await,
        Some(unit) => settle_by_reading(context, group, std::slice::from_ref(unit)).await,
        None => {
            // A bound of the whole request: each unit goes alone.
            let intents = request.iter().map(|unit| unit.intent);
            let first: Vec<u64> = intents.filter(|_| is_first).collect();
            each_alone(context, group, request, &first).await
        }
    }
}

/// Sends units one by one.
async fn each_alone(
    context: &Context,
    group: GroupId,
    units: &[Unit],
    first: &[u64],
) -> Result<(), FetchError> {
    for unit in units {
        let alone = std::slice::from_ref(unit);
        Box::pin(publish_request(context, group, alone, first)).await?;
    }
    Ok(())
}

/// Reads which units of a request still await their outcome with these bytes.
async fn still_open(context: &Context, request: &[Unit]) -> Result<Vec<Unit>, StorageError> {
    let mut units = request.to_vec();
    let read = context.database.read_queued(move |snapshot| {
        let numbers: Vec<u64> = units.iter().map(|unit| unit.intent).collect();
        let mut intents = store::intents(snapshot, &numbers)?.into_iter();
        units.retain(|unit| {
            let intent = intents.next().flatten();
            intent.is_some_and(|intent| store::is_in_flight(&intent) && has_bytes(&intent, unit))
        });
        Ok(units)
    });
    read.await
}

/// Tells whether the bytes of a unit are the current ones of its intent.
fn has_bytes(intent: &stored::Intent, unit: &Unit) -> bool {
    let attempt = intent.attempt.as_ref();
    attempt.is_some_and(|attempt| attempt.envelopes == unit.envelopes)
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
    if !read_to_head(context, topic).await? {
        return Err(UNSETTLED.into());
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
    match still_open(context, request).await?.is_empty() {
        true => Ok(()),
        // The caller pauses before it looks again.
        false => Err(UNSETTLED.into()),
    }
}

/// What an attempt is told as whose outcome cannot be read yet.
const UNSETTLED: TransportError = TransportError::OutOfRange;

/// Reads a topic to its head through the one receive path; answers whether all of it was admitted.
async fn read_to_head(context: &Context, topic: Topic) -> Result<bool, FetchError> {
    for _ in 0..MAX_SETTLE_PAGES {
        let fetched = fetch_page(context, &[topic]).await?;
        if !fetched.gone_back.is_empty() {
            return Ok(false);
        }
        if fetched.new == 0 && !fetched.more && fetched.is_whole() {
            return Ok(true);
        }
    }
    Ok(false)
}
