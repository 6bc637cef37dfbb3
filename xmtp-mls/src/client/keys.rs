//! Keeps this installation addable: a current key package at the backend, and old private keys
//! destroyed in time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use xmtp_core::engine::Context;
use xmtp_core::engine::fetch::fetch_page;
use xmtp_core::error::Coded;
use xmtp_core::limits::{PUBLISH_FIRST_PAUSE, RECONNECT_LONGEST_PAUSE};
use xmtp_core::runtime::RuntimeExt;
use xmtp_core::storage::{Domain, Durability, Priority, StorageError, WriteTxn};
use xmtp_core::transport::TransportError;
use xmtp_core::welcome::has_unresolved;
use xmtp_proto::backend::v1::{ClientEnvelope, PublishRequest};

use crate::Installation;
use crate::key_package::{MakeFault, Rotation, bring_back, confirm, destroy, make};

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
    destroy_old(context).await
}

/// Destroys the private keys of packages that were replaced long enough ago.
///
/// Every Welcome that was sent until now is received first, for one that nobody has fetched yet may
/// be sealed to such a package; and none may be unresolved (STR-081).
async fn destroy_old(context: &Context) -> Result<(), &'static str> {
    let (topic, now) = (context.welcome_topic, context.runtime.now_ns());
    let looked = context.database.read_queued(move |snapshot| {
        let unresolved = has_unresolved(snapshot, &topic)?;
        let rotation = Rotation::read(snapshot)?;
        Ok::<_, StorageError>(rotation.destroyable(now, unresolved).next().is_some())
    });
    if !looked.await.map_err(|error| error.code())? {
        return Ok(());
    }
    loop {
        let fetched = fetch_page(context, &[topic]).await;
        let fetched = fetched.map_err(|error| error.code())?;
        if !fetched.is_whole() {
            return Ok(());
        }
        if !fetched.more {
            break;
        }
    }
    context
        .database
        .write_queued(Priority::Background, Durability::Ordered, move |txn| {
            let unresolved = has_unresolved(txn, &topic)?;
            destroy_destroyable(txn, unresolved)
        })
        .await
        .map_err(|error| error.code())
}

/// A package to publish: its reference, and the exact envelope.
type Unpublished = (Vec<u8>, Bytes);

/// Answers the package to publish, made and flushed before anyone can see it.
async fn due(
    context: &Context,
    installation: &Arc<Installation>,
) -> Result<Option<Unpublished>, &'static str> {
    let now = context.runtime.now_ns();
    let looked = context
        .database
        .read_queued(move |snapshot| {
            let rotation = Rotation::read(snapshot)?;
            let kept = unpublished(&rotation).filter(|_| !rotation.is_made_ahead(now));
            Ok::<_, StorageError>((kept, rotation.needs_rotation(now)))
        })
        .await
        .map_err(|error| error.code())?;
    match looked {
        (None, true) => {
            let installation = installation.clone();
            let made = context
                .database
                .write_queued(Priority::Background, Durability::Flushed, move |txn| {
                    make_if_due(txn, &installation)
                })
                .await;
            made.map_err(|_| "key_package.make")
        }
        (kept, _) => Ok(kept),
    }
}

fn unpublished(rotation: &Rotation) -> Option<Unpublished> {
    let newest = rotation.unconfirmed().next_back();
    newest.map(|record| (record.hash_ref.to_vec(), record.envelope.clone()))
}

/// Makes a package, unless another process has made one since the look, published or not.
fn make_if_due(
    txn: &mut WriteTxn<'_>,
    installation: &Installation,
) -> Result<Option<Unpublished>, MakeFault> {
    let now_ns = txn.now_ns();
    let rotation = Rotation::read(txn)?;
    if rotation.is_made_ahead(now_ns) {
        tracing::warn!("a key package was made while the clock was ahead; it is replaced");
        bring_back(txn, now_ns)?;
    } else {
        let kept = unpublished(&rotation);
        if kept.is_some() || !rotation.needs_rotation(now_ns) {
            return Ok(kept);
        }
    }
    let made = make(txn, installation)?;
    Ok(Some((made.hash_ref, made.envelope.encode_to_vec().into())))
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

fn destroy_destroyable(txn: &mut WriteTxn<'_>, unresolved: bool) -> Result<(), StorageError> {
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

#[cfg(test)]
mod tests {
    use xmtp_core::runtime::{Runtime, SimulatedRuntime};
    use xmtp_core::storage::Database;
    use xmtp_core::testing::memory::MemoryDisk;
    use xmtp_proto::InboxId;

    use super::*;
    use crate::key_package::ROTATE_AFTER_NS;

    /// A process that found a package due makes none when another one was faster: it publishes
    /// the other's, and leaves alone what the other has published already.
    #[test]
    fn whoever_comes_second_makes_no_package() {
        let simulated = SimulatedRuntime::new(3);
        let clock = simulated.clock();
        let runtime: Arc<dyn Runtime> = Arc::new(simulated);
        let installation = Installation::generate(&*runtime, InboxId::from_bytes([3; 32]));
        let disk = MemoryDisk::new();
        let [one, two] = [(); 2].map(|()| Database::open(disk.open(), runtime.clone()).unwrap());
        let make = |database: &Database| {
            let make = |txn: &mut WriteTxn<'_>| make_if_due(txn, &installation);
            database.write(Durability::Flushed, make).unwrap()
        };
        let confirm = |hash_ref: &[u8]| {
            let confirm = |txn: &mut WriteTxn<'_>| confirm(txn, hash_ref, txn.now_ns());
            let confirmed: Result<(), StorageError> = one.write(Durability::Ordered, confirm);
            confirmed.unwrap();
        };
        for _ in 0..2 {
            let (hash_ref, envelope) = make(&one).expect("it is due");
            assert_eq!(make(&two), Some((hash_ref.clone(), envelope)));
            confirm(&hash_ref);
            assert_eq!(make(&two), None, "it is published already");
            clock.advance(Duration::from_nanos(ROTATE_AFTER_NS));
        }
    }

    /// A package that was made while the clock was a year ahead is replaced at once by the clock as
    /// it is, published or not, and once; its keys go a day later, and the next one is due in time.
    #[test]
    fn a_package_made_while_the_clock_was_ahead_is_replaced() {
        const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
        for is_published in [false, true] {
            let ahead = SimulatedRuntime::new(3);
            ahead.clock().advance(YEAR);
            let right = SimulatedRuntime::new(4);
            let clock = right.clock();
            let disk = MemoryDisk::new();
            let [ahead, right] = [ahead, right].map(|runtime| {
                Database::open(disk.open(), Arc::new(runtime) as Arc<dyn Runtime>).unwrap()
            });
            let installation = Installation::from_seed(&[3; 32], InboxId::from_bytes([3; 32]));
            let make = |database: &Database| {
                let make = |txn: &mut WriteTxn<'_>| make_if_due(txn, &installation);
                database.write(Durability::Flushed, make).unwrap()
            };
            let confirm = |database: &Database, hash_ref: &[u8]| {
                let confirm = |txn: &mut WriteTxn<'_>| confirm(txn, hash_ref, txn.now_ns());
                let confirmed: Result<(), StorageError> =
                    database.write(Durability::Ordered, confirm);
                confirmed.unwrap();
            };
            let read = || {
                let read = |snapshot: &dyn xmtp_core::storage::Snapshot| Rotation::read(snapshot);
                right.read::<_, StorageError>(read).unwrap()
            };
            let (first, _) = make(&ahead).expect("it is due");
            let noted: Result<(), StorageError> =
                ahead.write(Durability::Ordered, crate::key_package::note_welcome);
            noted.unwrap();
            if is_published {
                confirm(&ahead, &first);
            }
            let (second, envelope) = make(&right).expect("the first is of no time yet");
            assert_ne!(second, first);
            assert_eq!(
                make(&right),
                Some((second.clone(), envelope)),
                "one is made"
            );
            confirm(&right, &second);
            assert_eq!(make(&right), None);
            assert_eq!(read().current().expect("a package").hash_ref, second);
            let made = read().current().expect("a package").created_ns;
            assert_eq!(read().due_ns(), made + ROTATE_AFTER_NS);
            clock.advance(Duration::from_secs(24 * 60 * 60));
            let now = made + 24 * 60 * 60 * 1_000_000_000;
            let gone: Vec<_> = read()
                .destroyable(now, false)
                .map(|record| record.hash_ref.clone())
                .collect();
            assert_eq!(gone, [first], "its keys go a day later");
            let noted: Result<(), StorageError> =
                right.write(Durability::Ordered, crate::key_package::note_welcome);
            noted.unwrap();
            let soon = now + crate::key_package::ROTATE_AFTER_WELCOME_NS;
            assert_eq!(read().due_ns(), soon, "a Welcome counts by the right clock");
        }
    }
}
