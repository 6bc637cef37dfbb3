//! When D moves, and what becomes of an item when something dies in between.

use std::sync::Mutex;

use super::*;
use crate::delivery::{Flow, ForEachError};
use crate::error::Coded;
use crate::testing::faulty::{Faulty, Side};

/// Asking for the next item moves D, before that item is handed over; nothing else does.
/// covers: STR-094
#[test]
fn only_the_next_request_acknowledges() {
    let world = World::new();
    let [a1, a2] = world.put_texts(1, ["a1", "a2"]);
    let mut consumer = world.consume(Scope::All);
    assert_eq!(next(&mut consumer), "a1");
    assert_eq!(
        world.d(1),
        0,
        "the first item is not acknowledged by itself"
    );
    assert_eq!(next(&mut consumer), "a2");
    assert_eq!(world.d(1), a1);
    drop(consumer);
    assert_eq!(world.d(1), a1, "a dropped consumer acknowledges nothing");
    let mut consumer = world.consume(Scope::All);
    assert_eq!(next(&mut consumer), "a2");
    assert_eq!(poll(&mut consumer), None);
    assert_eq!(world.d(1), a2, "a request that waits has acknowledged");
}

/// A request that is dropped at any point loses nothing and skips nothing.
/// covers: STR-094, STR-104
#[test]
fn a_dropped_request_loses_nothing() {
    let world = World::new();
    let mut consumer = world.consume(Scope::All);
    for round in 0..3 {
        assert_eq!(poll(&mut consumer), None);
        assert_eq!(poll(&mut consumer), None);
        world.put(1, &format!("a{round}"));
        // A future that never ran acknowledges nothing.
        let d = world.d(1);
        drop(consumer.next());
        assert_eq!(world.d(1), d);
        assert_eq!(next(&mut consumer), format!("a{round}"));
    }
}

/// `for_each` acknowledges when the callback has succeeded; its failure and its panic do not.
/// covers: STR-094, STR-024
#[test]
fn a_callback_acknowledges_by_returning() {
    let world = World::new();
    let [a1, a2, _] = world.put_texts(1, ["a1", "a2", "a3"]);
    let seen = Mutex::new(Vec::new());
    let failed = world
        .consume(Scope::All)
        .for_each(async |message: &Message| {
            seen.lock().unwrap().push(text(message));
            if text(message) == "a2" {
                Err("no")
            } else {
                Ok(Flow::Continue)
            }
        });
    let failed = failed.now_or_never().unwrap();
    assert!(matches!(failed, Err(ForEachError::Callback("no"))));
    assert_eq!(world.d(1), a1);
    let panicking = world.consume(Scope::All).for_each(async |_: &Message| {
        if world.d(1) == a1 {
            panic!("the callback of a test");
        }
        Ok::<_, ()>(Flow::Continue)
    });
    let panicking = std::panic::AssertUnwindSafe(panicking).catch_unwind();
    assert!(panicking.now_or_never().unwrap().is_err());
    assert_eq!(world.d(1), a1);
    let stopped = world
        .consume(Scope::All)
        .for_each(async |message: &Message| {
            seen.lock().unwrap().push(text(message));
            Ok::<_, ()>(Flow::Stop)
        });
    stopped.now_or_never().unwrap().unwrap();
    assert_eq!(world.d(1), a2, "stopping acknowledges the last item");
    assert_eq!(*seen.lock().unwrap(), ["a1", "a2", "a2"]);
    assert_eq!(drain(&mut world.consume(Scope::All)), ["a3"]);
}

/// A process that dies after a hand-off gets the same message again, under the same id; five
/// queued behind it come too.
/// covers: STR-095, STR-094
#[test]
fn a_crash_after_a_hand_off_repeats_the_item() {
    let world = World::new();
    let faulty = Faulty::new(world.disk.open());
    let dying = World::over(world.runtime.clone(), world.disk.clone(), faulty.clone());
    let all = ["a1", "a2", "a3", "a4", "a5"];
    world.put_texts(1, all);
    let mut consumer = dying.consume(Scope::All);
    let item = consumer.next().now_or_never().unwrap().unwrap().unwrap();
    let id = item.id;
    faulty.crash();
    drop(consumer);
    world
        .runtime
        .clock()
        .advance(std::time::Duration::from_secs(31));
    let mut consumer = world.consume(Scope::All);
    let item = consumer.next().now_or_never().unwrap().unwrap().unwrap();
    assert_eq!((item.id, text(&item)), (id, "a1".to_owned()));
    assert_eq!(drain(&mut consumer), all[1..]);
}

/// Whichever commit of an acknowledgement the process dies at, before or after it, the item
/// repeats or has been acknowledged; none is skipped.
/// covers: STR-095
#[test]
fn a_crash_at_any_commit_skips_nothing() {
    for (commit, side) in (1..=6).flat_map(|n| [(n, Side::Before), (n, Side::After)]) {
        let world = World::new();
        let texts: Vec<String> = (0..4).map(|n| format!("a{n}")).collect();
        for text in &texts {
            world.put(1, text);
        }
        let faulty = Faulty::new(world.disk.open());
        let dying = World::over(world.runtime.clone(), world.disk.clone(), faulty.clone());
        faulty.crash_at_commit(faulty.commits() + commit, side);
        let mut seen = Vec::new();
        if let Ok(mut consumer) = dying.try_consume(Scope::All) {
            while let Some(Ok(Some(text))) = poll(&mut consumer) {
                seen.push(text);
            }
        }
        world
            .runtime
            .clock()
            .advance(std::time::Duration::from_secs(31));
        let rest = drain(&mut world.consume(Scope::All));
        let overlap = (seen.len() + rest.len()).saturating_sub(texts.len());
        assert!(
            overlap <= 1,
            "commit {commit} {side:?}: {seen:?} then {rest:?}"
        );
        let again: Vec<String> = seen
            .iter()
            .take(seen.len() - overlap)
            .cloned()
            .chain(rest)
            .collect();
        assert_eq!(again, texts, "commit {commit} {side:?}");
    }
}

/// A failed acknowledgement is tried again, and the next item comes only after it.
/// covers: STR-095
#[test]
fn a_failed_acknowledgement_is_tried_again() {
    let (world, faulty) = failing();
    let [a1, _] = world.put_texts(1, ["a1", "a2"]);
    let mut consumer = world.consume(Scope::All);
    assert_eq!(next(&mut consumer), "a1");
    let error = StorageError::UnknownOutcome;
    faulty.fail_commit(faulty.commits() + 1, Side::After, error);
    let runtime = world.runtime.clone();
    let item = runtime.run(async move {
        let item = consumer.next().await.unwrap().unwrap();
        text(&item)
    });
    assert_eq!((item, world.d(1)), ("a2".to_owned(), a1));
}

/// An acknowledgement that cannot be stored stops the reader with its cause, and the next
/// consumer repeats the item.
/// covers: STR-095
#[test]
fn an_acknowledgement_that_cannot_be_stored_stops_the_reader() {
    let (world, faulty) = failing();
    world.put_texts(1, ["a1", "a2"]);
    let mut consumer = world.consume(Scope::All);
    assert_eq!(next(&mut consumer), "a1");
    faulty.fail_commit(faulty.commits() + 1, Side::Before, StorageError::Full);
    for _ in 0..2 {
        let error = poll(&mut consumer).unwrap().unwrap_err();
        let cause = StorageError::Full;
        assert_eq!(error, StreamError::AckNotStored { cause });
        assert_eq!(error.code(), "stream.ack_not_stored");
    }
    assert_eq!(world.d(1), 0);
    drop(consumer);
    assert_eq!(drain(&mut world.consume(Scope::All)), ["a1", "a2"]);
}

fn failing() -> (World, Arc<Faulty>) {
    let (runtime, disk) = (SimulatedRuntime::new(7), MemoryDisk::new());
    let faulty = Faulty::new(disk.open());
    (World::over(runtime, disk, faulty.clone()), faulty)
}

/// Whichever operation of the database fails, no item is skipped and none is acknowledged early.
/// covers: STR-095, STR-094
#[test]
fn a_failure_of_any_operation_skips_nothing() {
    for n in 1..60 {
        let (world, faulty) = failing();
        let texts: Vec<String> = (0..4).map(|n| format!("a{n}")).collect();
        let numbers: Vec<u64> = texts.iter().map(|text| world.put(1, text)).collect();
        let mut consumer = world.consume(Scope::All);
        faulty.fail_operation(faulty.operations() + n, StorageError::Full);
        let mut handled = Vec::new();
        for _ in 0..40 {
            let last = numbers.iter().filter(|at| **at <= world.peek_d(1)).count();
            assert!(last <= handled.len(), "operation {n}: D is ahead");
            match poll(&mut consumer) {
                Some(Ok(Some(text))) if handled.last() != Some(&text) => handled.push(text),
                Some(Ok(_)) => {}
                Some(Err(_)) => {
                    drop(consumer);
                    consumer = world.consume(Scope::All);
                }
                None => break,
            }
        }
        assert_eq!(handled, texts, "operation {n}");
    }
}
