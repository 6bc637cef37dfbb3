//! A scope that changes while items are queued, handed over or awaited.

use std::time::Duration;

use parking_lot::Mutex;

use super::*;
use crate::delivery::{EndHandle, ScopeHandle};
use crate::storage::{Capability, Snapshot, TableInfo, Writer};
use crate::testing::faulty::Faulty;

type Hook = Box<dyn FnOnce() + Send>;

/// Lets something happen right before the next writer begins.
struct Hooked {
    inner: Arc<dyn Storage>,
    hook: Mutex<Option<Hook>>,
}

impl std::fmt::Debug for Hooked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hooked")
    }
}

impl Storage for Hooked {
    fn capability(&self) -> Capability {
        self.inner.capability()
    }
    fn open_tables(&self, tables: &[TableInfo]) -> Result<(), StorageError> {
        self.inner.open_tables(tables)
    }
    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, StorageError> {
        self.inner.snapshot()
    }
    fn writer(
        &self,
        patience: Duration,
        durability: Durability,
    ) -> Result<Box<dyn Writer + '_>, StorageError> {
        if let Some(hook) = self.hook.lock().take() {
            hook();
        }
        self.inner.writer(patience, durability)
    }
    fn version(&self) -> Result<u64, StorageError> {
        self.inner.version()
    }
    fn close(&self) -> Result<(), StorageError> {
        self.inner.close()
    }
}

/// Hands over the first of two items, then lets `hook` happen while the second is picked.
fn during_hand_off(
    hook: impl FnOnce(ScopeHandle, EndHandle) + Send + 'static,
) -> (
    World,
    MessageConsumer,
    Option<Result<Option<String>, StreamError>>,
) {
    let (runtime, disk) = (SimulatedRuntime::new(7), MemoryDisk::new());
    let hooked = Arc::new(Hooked {
        inner: disk.open(),
        hook: Mutex::new(None),
    });
    let world = World::over(runtime, disk, hooked.clone());
    world.put_all([(1, "a1"), (2, "b1")]);
    let mut consumer = world.consume(Scope::All);
    assert_eq!(next(&mut consumer), "a1");
    let (scope, end) = (consumer.scope(), consumer.end_handle());
    *hooked.hook.lock() = Some(Box::new(move || hook(scope, end)));
    let answer = poll(&mut consumer);
    (world, consumer, answer)
}

/// An item that was picked is not handed over when its group leaves the scope in that moment; the
/// acknowledgement before it is kept.
/// covers: STR-022, STR-094
#[test]
fn a_group_that_leaves_while_its_item_is_picked_gets_no_hand_off() {
    let (world, mut consumer, answer) = during_hand_off(|scope, _| scope.remove([group(2)]));
    assert_eq!(answer, None);
    assert_eq!((world.d(1) > 0, world.d(2)), (true, 0));
    consumer.scope().add([group(2)]);
    assert_eq!(drain(&mut consumer), ["b1"]);
}

/// An item that was picked is not handed over when the consumer ends in that moment, and comes to
/// the next consumer.
/// covers: STR-097, STR-094
#[test]
fn an_item_that_is_picked_while_the_consumer_ends_is_not_lost() {
    let (world, consumer, answer) = during_hand_off(|_, end| end.end());
    assert_eq!(answer, Some(Ok(None)));
    assert_eq!((world.d(1) > 0, world.d(2)), (true, 0));
    drop(consumer);
    assert_eq!(drain(&mut world.consume(Scope::All)), ["b1"]);
}

/// What lies between is jumped over, not read: neither other groups nor acknowledged messages.
/// covers: STR-101
#[test]
fn what_is_not_wanted_is_not_read_through() {
    let (runtime, disk) = (SimulatedRuntime::new(7), MemoryDisk::new());
    let faulty = Faulty::new(disk.open());
    let world = World::over(runtime, disk, faulty.clone());
    for n in 0..3_000 {
        world.put(2, &n.to_string());
    }
    world.put(1, "a1");
    let mut consumer = world.consume(group(1));
    let before = faulty.operations();
    assert_eq!(next(&mut consumer), "a1");
    assert!(
        faulty.operations() - before < 25,
        "{}",
        faulty.operations() - before
    );
}

/// A group taken out gets no hand-off, though its items were queued; put in again, they are
/// selected from fresh state, in order.
/// covers: STR-022, STR-092
#[test]
fn a_group_taken_out_gets_no_hand_off() {
    let world = World::new();
    world.put(1, "a1");
    let [b1, _] = world.put_texts(2, ["b1", "b2"]);
    world.put(1, "a2");
    let mut consumer = world.consume(Scope::All);
    let scope = consumer.scope();
    assert_eq!(next(&mut consumer), "a1");
    scope.remove([group(2)]);
    assert!(!scope.contains(&group(2)));
    assert_eq!(next(&mut consumer), "a2");
    assert_eq!(poll(&mut consumer), None);
    assert_eq!(world.d(2), 0);
    // What changed while it was out of scope counts when it is back.
    world.delete(b1);
    scope.add([group(2)]);
    assert_eq!(drain(&mut consumer), ["b2"]);
}

/// Taking a group out and putting it in again does not revive what was queued before.
/// covers: STR-022
#[test]
fn a_queued_item_is_selected_again() {
    let world = World::new();
    let [_, b1, _, b2] = world.put_all([(1, "a1"), (2, "b1"), (1, "a2"), (2, "b2")]);
    let mut consumer = world.consume(Scope::All);
    let scope = consumer.scope();
    assert_eq!(next(&mut consumer), "a1");
    let generation = scope.generation();
    scope.remove([group(2)]);
    scope.add([group(2)]);
    assert_eq!(scope.generation(), generation + 2);
    // Another owner's progress in between is honoured: selection starts from D.
    world.change(|txn| store::put_delivered(txn, &group(2), b1));
    assert_eq!(drain(&mut consumer), ["a2", "b2"]);
    assert_eq!(world.d(2), b2);
}

/// An item that the application works on when its group leaves the scope is still acknowledged.
/// covers: STR-022, STR-094
#[test]
fn an_item_at_work_is_acknowledged_after_its_group_left() {
    let world = World::new();
    let a1 = world.put(1, "a1");
    let mut consumer = world.consume(groups(&[1]));
    assert_eq!(next(&mut consumer), "a1");
    consumer.scope().remove([group(1)]);
    assert_eq!(poll(&mut consumer), None);
    assert_eq!(world.d(1), a1);
}

/// A consumer that waits sees a group that is put in at once, with what is stored already.
/// covers: STR-022, STR-101
#[test]
fn a_waiting_consumer_sees_a_wider_scope_at_once() {
    let world = World::new();
    world.put(2, "b1");
    let mut consumer = world.consume(groups(&[]));
    let scope = consumer.scope();
    let (runtime, clock) = (world.runtime.clone(), world.runtime.clock());
    let starter = runtime.clone();
    let found = runtime.run(async move {
        let before = scope.generation();
        starter.start(
            "app",
            Box::pin(async move {
                scope.add([group(2)]);
                assert_eq!(scope.changed(before).await, before + 1);
            }),
        );
        text(&consumer.next().await.unwrap().unwrap())
    });
    assert_eq!(found, "b1");
    assert_eq!(clock.now(), std::time::Duration::ZERO);
}

/// Ending from elsewhere ends a loop that waits, acknowledges nothing, and frees the lease; the
/// item before is acknowledged only when the loop asks once more.
/// covers: STR-097, STR-094, STR-024
#[test]
fn ending_from_elsewhere_ends_the_loop() {
    let world = World::new();
    let a1 = world.put(1, "a1");
    let mut consumer = world.consume(Scope::All);
    let end = consumer.end_handle();
    let (runtime, starter) = (world.runtime.clone(), world.runtime.clone());
    let later = end.clone();
    runtime.run(async move {
        starter.start("app", Box::pin(async move { later.end() }));
        let first = consumer.next().await.unwrap();
        assert!(first.is_none_or(|item| text(&item) == "a1"));
        while consumer.next().await.unwrap().is_some() {}
    });
    assert_eq!(world.d(1), a1);
    let mut consumer = world.consume(Scope::All);
    world.put(1, "a2");
    assert_eq!(next(&mut consumer), "a2");
    consumer.end_handle().end();
    assert_eq!(world.d(1), a1, "ending acknowledges nothing");
    world.put(1, "a3");
    assert_eq!(poll(&mut consumer), Some(Ok(None)));
    assert!(world.d(1) > a1, "asking for the next does");
    assert_eq!(poll(&mut consumer), Some(Ok(None)));
}

/// A closed database ends a consumer that waits, and tells one that had something to acknowledge.
/// covers: STR-097, STR-095
#[test]
fn a_closed_database_ends_the_consumer() {
    let world = World::new();
    world.put(1, "a1");
    let mut consumer = world.consume(Scope::All);
    assert_eq!(next(&mut consumer), "a1");
    world.database.close().unwrap();
    assert_eq!(poll(&mut consumer), Some(Err(StreamError::Closed)));
    let world = World::new();
    let mut consumer = world.consume(Scope::All);
    assert_eq!(poll(&mut consumer), None);
    world.database.close().unwrap();
    assert_eq!(poll(&mut consumer), Some(Ok(None)));
}
