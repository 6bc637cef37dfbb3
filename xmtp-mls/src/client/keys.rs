//! Keeps this installation addable: a current key package at the backend, and old private keys
//! destroyed in time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use xmtp_core::engine::Context;
use xmtp_core::error::Coded;
use xmtp_core::limits::{PUBLISH_FIRST_PAUSE, RECONNECT_LONGEST_PAUSE};
use xmtp_core::runtime::RuntimeExt;
use xmtp_core::storage::{Domain, Durability, Priority, StorageError, WriteTxn};
use xmtp_core::transport::TransportError;
use xmtp_core::welcome::has_unresolved;
use xmtp_proto::backend::v1::{ClientEnvelope, PublishRequest};

use crate::Installation;
use crate::key_package::{MakeFault, Rotation, confirm, destroy, make};

/// Most key packages destroyed in one transaction.
const MAX_DESTROYED: usize = 16;

/// Runs until the database closes.
pub(super) async fn run(context: Context, installation: Arc<Installation>) {
    let mut changes = context.database.changes();
    let mut pause = Duration::ZERO;
    loop {
        match maintain(&context, &installation).await {
            Ok(()) => pause = Duration::ZERO,
            Err(code) => {
                tracing::debug!(code, "the key package is not current yet");
                pause = (pause * 2).clamp(PUBLISH_FIRST_PAUSE, RECONNECT_LONGEST_PAUSE);
            }
        }
        if changes.changed_or_poll(Domain::Mls.bit()).await.is_err() {
            return;
        }
        context.runtime.sleep(pause).await;
    }
}

/// Makes and publishes a package that is due, and destroys what may go.
///
/// # Errors
/// The code of what failed; the next round repeats it with the same bytes.
pub(super) async fn maintain(
    context: &Context,
    installation: &Arc<Installation>,
) -> Result<(), &'static str> {
    if let Some((hash_ref, envelope)) = due(context, installation).await? {
        publish(context, envelope)
            .await
            .map_err(|error| error.code())?;
        context
            .database
            .write_queued(Priority::Background, Durability::Ordered, move |txn| {
                confirm(txn, &hash_ref, txn.now_ns())
            })
            .await
            .map_err(|error: StorageError| error.code())?;
    }
    let welcome_topic = context.welcome_topic;
    context
        .database
        .write_queued(Priority::Background, Durability::Ordered, move |txn| {
            let unresolved = has_unresolved(txn, &welcome_topic)?;
            destroy_old(txn, unresolved)
        })
        .await
        .map_err(|error| error.code())
}

/// Answers the package to publish, made and flushed before anyone can see it.
async fn due(
    context: &Context,
    installation: &Arc<Installation>,
) -> Result<Option<(Vec<u8>, Bytes)>, &'static str> {
    let now = context.runtime.now_ns();
    let waiting = context
        .database
        .read_queued(move |snapshot| {
            let rotation = Rotation::read(snapshot)?;
            let newest = rotation.unconfirmed().next_back();
            let kept = newest.map(|record| (record.hash_ref.to_vec(), record.envelope.clone()));
            Ok::<_, StorageError>((kept, rotation.needs_rotation(now)))
        })
        .await
        .map_err(|error| error.code())?;
    match waiting {
        (Some(kept), _) => Ok(Some(kept)),
        (None, false) => Ok(None),
        (None, true) => {
            let installation = installation.clone();
            let made = context
                .database
                .write_queued(Priority::Background, Durability::Flushed, move |txn| {
                    // Another process may have made one since the look.
                    let rotation = Rotation::read(txn)?;
                    if let Some(kept) = rotation.unconfirmed().next_back() {
                        return Ok((kept.hash_ref.to_vec(), kept.envelope.clone()));
                    }
                    let made = make(txn, &installation)?;
                    Ok::<_, MakeFault>((made.hash_ref, made.envelope.encode_to_vec().into()))
                })
                .await;
            made.map(Some).map_err(|_| "key_package.make")
        }
    }
}

/// Publishes one stored envelope.
///
/// # Errors
/// When the backend does not take it.
pub(super) async fn publish(context: &Context, envelope: Bytes) -> Result<(), TransportError> {
    let envelope = ClientEnvelope::decode(envelope).map_err(|_| TransportError::Protocol {
        rule: "a stored envelope decodes",
    })?;
    let request = PublishRequest {
        envelopes: vec![envelope],
    };
    context.transport.publish(request).await.map(|_| ())
}

fn destroy_old(txn: &mut WriteTxn<'_>, unresolved: bool) -> Result<(), StorageError> {
    let now = txn.now_ns();
    let rotation = Rotation::read(txn)?;
    let gone: Vec<Vec<u8>> = rotation
        .destroyable(now, unresolved)
        .take(MAX_DESTROYED)
        .map(|record| record.hash_ref.to_vec())
        .collect();
    for hash_ref in gone {
        destroy(txn, &hash_ref)?;
    }
    Ok(())
}
