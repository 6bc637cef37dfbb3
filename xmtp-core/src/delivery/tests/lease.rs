//! Who owns the default consumer, over processes and over time.

use std::time::Duration;

use super::*;
use crate::delivery::clear_if_single;
use crate::delivery::lease::LeaseToken;
use crate::error::Coded;
use crate::limits::DEFAULT_CONSUMER_LEASE_DURATION as LEASE;
use crate::storage::{Capability, Processes, Snapshot, TableInfo, Writer};

fn active(world: &World) -> Duration {
    match world.try_consume(Scope::All).map(|_| ()) {
        Err(StreamError::AlreadyActive { expires_in }) => expires_in,
        other => panic!("expected another owner, got {other:?}"),
    }
}

/// A second consumer is refused with a typed error, in this process and in another, for all groups
/// and for selected ones alike.
/// covers: STR-023, STR-096
#[test]
fn a_second_consumer_is_refused() {
    let world = World::new();
    let peer = world.another();
    let consumer = world.consume(group(1));
    assert_eq!(active(&world), LEASE);
    assert_eq!(active(&peer), LEASE);
    let error = peer.try_consume(group(2)).unwrap_err();
    assert_eq!(error.code(), "stream.already_active");
    drop(consumer);
    drop(world.consume(Scope::All));
}

/// A clean close frees the consumer for another process at once; a drop does so as soon as the
/// runtime runs.
/// covers: STR-096, STR-097
#[test]
fn closing_and_dropping_give_the_lease_back() {
    let world = World::new();
    let peer = world.another();
    world
        .consume(Scope::All)
        .close()
        .now_or_never()
        .unwrap()
        .unwrap();
    let consumer = peer.consume(Scope::All);
    drop(consumer);
    assert_eq!(active(&world), LEASE, "the release has not run yet");
    let runtime = world.runtime.clone();
    runtime.run(async {});
    let runtime = world.runtime.clone();
    let sleeper = runtime.clone();
    runtime.run(async move { sleeper.sleep_until(Duration::from_secs(1)).await });
    drop(world.consume(Scope::All));
}

/// A dead owner is followed after its lease has lapsed, and not before.
/// covers: STR-096
#[test]
fn a_lease_lapses_after_its_duration() {
    let world = World::new();
    let peer = world.another();
    let dead = world.consume(Scope::All);
    let clock = world.runtime.clock();
    clock.advance(LEASE - Duration::from_nanos(1));
    assert_eq!(active(&peer), Duration::from_nanos(1));
    clock.advance(Duration::from_nanos(1));
    let consumer = peer.consume(Scope::All);
    drop((dead, consumer));
}

/// An owner that slept through its lease moves no D, neither its own nor the new owner's.
/// covers: STR-096, STR-095
#[test]
fn an_old_owner_cannot_move_d() {
    let world = World::new();
    let peer = world.another();
    world.put_texts(1, ["a1", "a2", "a3"]);
    let mut old = world.consume(Scope::All);
    assert_eq!(next(&mut old), "a1");
    world.runtime.clock().advance(LEASE);
    let mut new = peer.consume(Scope::All);
    assert_eq!(next(&mut new), "a1", "handled by neither, so it repeats");
    for _ in 0..2 {
        assert_eq!(poll(&mut old), Some(Err(StreamError::OwnershipLost)));
    }
    assert_eq!(world.d(1), 0);
    drop(old);
    world.runtime.run(async {});
    assert_eq!(
        drain(&mut new),
        ["a2", "a3"],
        "the old owner's end frees nothing"
    );
}

/// A lapsed owner is refused even when nobody took over, also for what a filter excludes.
/// covers: STR-096, STR-093
#[test]
fn a_lapsed_owner_moves_nothing() {
    let world = World::new();
    world.set_type(1, ConversationType::Dm);
    world.put(1, "a1");
    let mut consumer = world.consume(Scope::All);
    consumer
        .scope()
        .set_filter(Filter::conversation_types([ConversationType::Group]));
    world.runtime.clock().advance(LEASE);
    assert_eq!(poll(&mut consumer), Some(Err(StreamError::OwnershipLost)));
    assert_eq!(world.d(1), 0);
}

/// A callback that takes longer than the lease keeps it: the lease is renewed meanwhile.
/// covers: STR-096, STR-094, STR-079
#[test]
fn a_long_callback_keeps_its_lease() {
    let world = World::new();
    let peer = world.another();
    let [a1, _] = world.put_texts(1, ["a1", "a2"]);
    let mut consumer = world.consume(Scope::All);
    let (runtime, sleeper) = (world.runtime.clone(), world.runtime.clone());
    let late = runtime.run(async move {
        consumer.next().await.unwrap().unwrap();
        sleeper.sleep_until(3 * LEASE).await;
        peer.put(1, "a3");
        assert!(active(&peer) > LEASE / 2);
        assert_eq!(peer.d(1), 0);
        text(&consumer.next().await.unwrap().unwrap())
    });
    assert_eq!((late, world.d(1)), ("a2".to_owned(), a1));
}

/// A consumer that waits learns from its renewal that another took over, and stops.
/// covers: STR-096
#[test]
fn a_waiting_consumer_learns_that_it_was_replaced() {
    let world = World::new();
    let mut consumer = world.consume(Scope::All);
    world.change(|txn| {
        let mut lease = store::lease(txn)?;
        lease.token = vec![9; 16].into();
        store::put_lease(txn, &lease)
    });
    let runtime = world.runtime.clone();
    let lost = runtime.run(async move { consumer.next().await.map(|_| ()).unwrap_err() });
    assert_eq!(lost, StreamError::OwnershipLost);
    assert!(world.runtime.clock().now() < LEASE);
}

/// A wall clock that went back delays a takeover by one duration at most.
/// covers: STR-096
#[test]
fn a_clock_that_went_back_delays_a_takeover_by_one_duration() {
    let world = World::new();
    world.change(|txn| {
        let lease = stored::Lease {
            token: vec![9; 16].into(),
            generation: 4,
            expires_ns: u64::MAX,
        };
        store::put_lease(txn, &lease)
    });
    assert_eq!(active(&world), LEASE);
    world.runtime.clock().advance(LEASE);
    drop(world.consume(Scope::All));
    let read = |snapshot: &dyn Snapshot| store::lease(snapshot);
    assert_eq!(
        world
            .database
            .read::<_, StorageError>(read)
            .unwrap()
            .generation,
        5
    );
}

/// A request to own that is given up leaves no owner behind.
/// covers: STR-096
#[test]
fn an_abandoned_acquisition_leaves_no_owner() {
    let world = World::new();
    drop(world.messages.consume(Scope::All, Filter::all()));
    drop(world.consume(Scope::All));
    let token = format!("{:?}", LeaseToken([3; 16]));
    assert_eq!(token, "LeaseToken", "a token is not printed");
}

/// The memory engine as one that a single process may open.
#[derive(Debug)]
struct Single(Arc<dyn Storage>);

impl Storage for Single {
    fn capability(&self) -> Capability {
        Capability {
            processes: Processes::One,
            ..self.0.capability()
        }
    }
    fn open_tables(&self, tables: &[TableInfo]) -> Result<(), StorageError> {
        self.0.open_tables(tables)
    }
    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, StorageError> {
        self.0.snapshot()
    }
    fn writer(
        &self,
        patience: Duration,
        durability: Durability,
    ) -> Result<Box<dyn Writer + '_>, StorageError> {
        self.0.writer(patience, durability)
    }
    fn version(&self) -> Result<u64, StorageError> {
        self.0.version()
    }
    fn close(&self) -> Result<(), StorageError> {
        self.0.close()
    }
}

/// An engine of one process proves at open that no owner lives; a shared one proves nothing.
/// covers: STR-096
#[test]
fn an_engine_of_one_process_clears_a_dead_owner_at_open() {
    let world = World::new();
    let dead = world.consume(Scope::All);
    clear_if_single(&world.database).unwrap();
    assert_eq!(active(&world), LEASE);
    let single = Arc::new(Single(world.disk.open()));
    let single = World::over(world.runtime.clone(), world.disk.clone(), single);
    clear_if_single(&single.database).unwrap();
    drop(single.consume(Scope::All));
    drop(dead);
}
