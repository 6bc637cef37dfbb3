//! Sends the Welcomes that an applied commit owes: exact bytes, each until the backend has it.

use bytes::Bytes;
use xmtp_proto::GroupId;
use xmtp_proto::backend::v1;
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::storage::v1::IntentState;

use super::plan::{RequestBounds, Unit, plan};
use super::publish::decode;
use super::store;
use crate::engine::context::Context;
use crate::engine::fetch::FetchError;
use crate::storage::{Durability, Priority, Snapshot, StorageError};
use crate::transport::TransportError;

/// The reason of an applied change whose Welcome the backend refused: the member was added and
/// cannot join.
const WELCOME_REFUSED: &str = "welcome_refused";

/// Publishes the Welcomes that applied commits owe, as the exact bytes that are stored.
pub(super) async fn publish(context: &Context, group: GroupId) -> Result<(), FetchError> {
    for intent in owing(context, group).await? {
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
            match context.transport.publish(sent).await {
                Ok(_) => delivered(context, group, intent.intent_id, envelopes, false).await?,
                // Never sent again unchanged: what is refused is owed no longer, and said so.
                Err(TransportError::InvalidArgument { index, .. })
                    if is_named(index, &envelopes) =>
                {
                    let at = index.unwrap_or_default() as usize;
                    let refused = envelopes.into_iter().nth(at).into_iter().collect();
                    delivered(context, group, intent.intent_id, refused, true).await?;
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Answers the intents that owe Welcomes, whose bytes are durable from then on: after a power loss
/// the turn over their commit would make others, and its new members would get two of each.
async fn owing(context: &Context, group: GroupId) -> Result<Vec<stored::Intent>, StorageError> {
    let database = &context.database;
    let owe = move |snapshot: &dyn Snapshot| {
        let mut owing = store::unfinished(snapshot, &group)?;
        owing.retain(|intent| intent.state() == IntentState::Committed);
        Ok::<_, StorageError>(owing)
    };
    if database
        .read_queued(move |snapshot| owe(snapshot))
        .await?
        .is_empty()
    {
        return Ok(Vec::new());
    }
    database
        .write_queued(Priority::Foreground, Durability::Flushed, move |txn| {
            let owing = owe(txn)?;
            for intent in &owing {
                store::put(txn, &group, intent)?;
            }
            Ok(owing)
        })
        .await
}

/// Tells whether a refusal says which of some envelopes it means.
fn is_named(index: Option<u32>, envelopes: &[Bytes]) -> bool {
    match index {
        Some(index) => (index as usize) < envelopes.len(),
        None => envelopes.len() == 1,
    }
}

/// Forgets Welcomes that the backend has, or refuses for good; the last one finishes the intent.
/// Another process may have told of the same ones, so they are found by their bytes.
async fn delivered(
    context: &Context,
    group: GroupId,
    number: u64,
    done: Vec<Bytes>,
    is_refused: bool,
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
            intent.welcomes.retain(|welcome| !done.contains(welcome));
            if is_refused {
                intent.rejection = WELCOME_REFUSED.to_owned();
            }
            if intent.welcomes.is_empty() {
                intent.set_state(match intent.rejection.is_empty() {
                    true => IntentState::Processed,
                    false => IntentState::Rejected,
                });
            }
            store::put(txn, &group, &intent)
        })
        .await
}
