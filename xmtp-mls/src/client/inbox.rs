//! Bringing an inbox's verified state up to its head at the backend.

use xmtp_core::engine::Context;
use xmtp_core::engine::fetch::{FetchError, fetch_page};
use xmtp_core::limits::MAX_PENDING_ROWS_PER_TOPIC;
use xmtp_core::processing::{self, Left};
use xmtp_core::processor::latest_identity_state;
use xmtp_core::storage::{Durability, Priority, StorageError};
use xmtp_identity::AssociationState;
use xmtp_proto::{InboxId, SequenceId, Topic};

/// Pages of one inbox log; the log's own bound is far below.
const MAX_LOG_PAGES: usize = 16;

/// Fetches and verifies an inbox log, and answers its newest verified state.
///
/// # Errors
/// When the backend or the database fails.
pub(crate) async fn newest_state(
    context: &Context,
    inbox: InboxId,
) -> Result<Option<(SequenceId, AssociationState)>, FetchError> {
    let topic = Topic::identity(&inbox);
    for _ in 0..MAX_LOG_PAGES {
        let fetched = fetch_page(context, &[topic]).await?;
        if fetched.new == 0 && !fetched.more {
            break;
        }
    }
    apply_all(context, topic).await?;
    Ok(stored_state(context, inbox).await?)
}

/// Applies what is received of a topic. A turn is bounded, and while a client is built nobody else
/// gives any.
async fn apply_all(context: &Context, topic: Topic) -> Result<(), StorageError> {
    for _ in 0..MAX_PENDING_ROWS_PER_TOPIC {
        let processors = context.processors.clone();
        let turn =
            context
                .database
                .write_queued(Priority::Foreground, Durability::Ordered, move |txn| {
                    processing::turn(txn, &topic, &processors, false)
                });
        if turn.await?.left != Left::More {
            break;
        }
    }
    Ok(())
}

/// Reads the newest verified state that is stored.
pub(crate) async fn stored_state(
    context: &Context,
    inbox: InboxId,
) -> Result<Option<(SequenceId, AssociationState)>, StorageError> {
    context
        .database
        .read_queued(move |snapshot| {
            let Some((sequence, bytes)) = latest_identity_state(snapshot, &inbox)? else {
                return Ok(None);
            };
            let state = crate::processor::decode_state(&bytes)?;
            Ok::<_, StorageError>(Some((sequence, state)))
        })
        .await
}
