//! Bringing an inbox's verified state up to its head at the backend.

use xmtp_core::engine::Context;
use xmtp_core::engine::fetch::{FetchError, fetch_page};
use xmtp_core::processor::latest_identity_state;
use xmtp_core::storage::StorageError;
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
    Ok(stored_state(context, inbox).await?)
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
