//! The one writer: exclusion, patience, fairness, and what happens when it is let go.

use std::hint;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::Engine;
use super::fixture::{Batch, Fixture, PATIENCE, SMALL, get, increment, number, rounds, rows};
use crate::storage::{Durability, Storage, StorageError};

/// Commits that a looping holder may make before a waiting writer is served.
pub(super) const FAIR: u64 = 20;
/// How long the looping holder computes in each transaction.
const COMPUTING: Duration = Duration::from_millis(2);
/// The row that the looping holder counts in.
pub(super) const LOOPS: &[u8] = b"loops";

/// Four threads that increment one counter lose no increment.
pub(super) fn at_most_one(engine: &dyn Engine) {
    const EACH: u64 = 50;
    let fixture = Fixture::new(engine);
    thread::scope(|scope| {
        for _ in 0..4 {
            let storage = fixture.storage().clone();
            scope.spawn(move || {
                for _ in 0..EACH {
                    increment(&*storage, b"counter").expect("increment");
                }
            });
        }
    });
    let snapshot = fixture.storage().snapshot().expect("snapshot");
    assert_eq!(number(&*snapshot, SMALL, b"counter"), 4 * EACH);
}

/// While a writer is out, another is `Busy` once its patience has passed and not before.
pub(super) fn busy_after_patience(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let writer = fixture.storage().writer(PATIENCE, Durability::Ordered);
    let writer = writer.expect("writer");
    for patience in [0, 1, 120] {
        let patience = Duration::from_millis(patience);
        let storage = fixture.storage().clone();
        let waited = thread::spawn(move || {
            let start = Instant::now();
            let refused = storage.writer(patience, Durability::Flushed).map(drop);
            (refused, start.elapsed())
        });
        let (refused, waited) = waited.join().expect("join");
        let is_busy = matches!(refused, Err(StorageError::Busy { .. }));
        assert!(is_busy, "{refused:?}");
        assert!(waited >= patience, "busy after {waited:?} of {patience:?}");
        let most = patience + Duration::from_secs(10);
        assert!(waited < most, "busy only after {waited:?} of {patience:?}");
    }
    drop(writer);
    increment(&**fixture.storage(), b"k").expect("the writer is free again");
}

/// A writer that waits is served when the one before it is let go.
pub(super) fn a_waiting_writer_is_served(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    for commits in [true, false] {
        let writer = fixture.storage().writer(PATIENCE, Durability::Ordered);
        let writer = writer.expect("writer");
        let storage = fixture.storage().clone();
        let (starts, started) = mpsc::channel();
        let waiting = thread::spawn(move || {
            starts.send(()).expect("tell");
            increment(&*storage, b"k")
        });
        started.recv().expect("the other thread started");
        if commits {
            let batch = Batch::new().put(SMALL, b"k", &100u64.to_be_bytes());
            writer.commit(&batch.0).expect("commit");
        } else {
            drop(writer);
        }
        let served = waiting.join().expect("join").expect("served");
        assert_eq!(served, if commits { 101 } else { 102 });
    }
}

/// Dropping a writer without commit changes nothing and lets the next one in.
pub(super) fn drop_rolls_back(engine: &dyn Engine) {
    let mut fixture = Fixture::new(engine);
    fixture.commit(&Batch::new().put(SMALL, b"k", b"1"));
    for durability in [Durability::Ordered, Durability::Flushed] {
        let writer = fixture.storage().writer(PATIENCE, durability);
        let writer = writer.expect("writer");
        assert_eq!(writer.get(SMALL, b"k").expect("get"), Some(b"1".to_vec()));
        drop(writer);
    }
    assert_eq!(get(&**fixture.storage(), SMALL, b"k"), Some(b"1".to_vec()));
    fixture.commit(&Batch::new().put(SMALL, b"l", b"2"));
    fixture.reopen();
    let found = super::fixture::dump_last(&**fixture.storage(), SMALL);
    assert_eq!(found, rows(&[("k", "1"), ("l", "2")]));
}

/// A panic while a writer is out, or a thread that ends with one, lets the next one in.
pub(super) fn a_panic_releases_the_writer(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    for _ in 0..3 {
        let storage = fixture.storage().clone();
        let ended = thread::spawn(move || {
            catch_unwind(AssertUnwindSafe(|| {
                let _writer = storage.writer(PATIENCE, Durability::Ordered);
                std::panic::resume_unwind(Box::new("on purpose"));
            }))
            .is_err()
        });
        assert!(ended.join().expect("join"), "the panic came through");
        increment(&**fixture.storage(), b"k").expect("the writer is free again");
    }
    let snapshot = fixture.storage().snapshot().expect("snapshot");
    assert_eq!(number(&*snapshot, SMALL, b"k"), 3);
}

/// The writer reads what was committed last, also by another thread while it waited.
pub(super) fn reads_the_newest_version(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let storage = fixture.storage().clone();
    let (turn, my_turn) = mpsc::channel::<()>();
    let (answer, answered) = mpsc::channel();
    let thread = thread::spawn(move || {
        for () in my_turn {
            let _ = answer.send(increment(&*storage, b"k"));
        }
    });
    for round in 0..100u64 {
        let mine = increment(&**fixture.storage(), b"k").expect("increment");
        assert_eq!(mine, round * 2 + 1);
        turn.send(()).expect("turn");
        let theirs = answered.recv().expect("answer").expect("increment");
        assert_eq!(theirs, round * 2 + 2);
    }
    drop(turn);
    thread.join().expect("join");
}

/// A thread that loops without pause lets another in before 20 more of its own commits.
pub(super) fn fair_over_threads(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let storage = fixture.storage().clone();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| loop_without_pause(&*storage, &stop));
        let served = catch_unwind(AssertUnwindSafe(|| {
            wait_turns(&**fixture.storage(), rounds(100));
        }));
        stop.store(true, Ordering::Release);
        if let Err(panic) = served {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Commits back to back, each time after some computing, and counts the commits in a row.
pub(super) fn loop_without_pause(storage: &dyn Storage, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        let writer = storage
            .writer(PATIENCE, Durability::Ordered)
            .expect("writer");
        let next = number(&*writer, SMALL, LOOPS) + 1;
        let start = Instant::now();
        while start.elapsed() < COMPUTING {
            hint::spin_loop();
        }
        let batch = Batch::new().put(SMALL, LOOPS, &next.to_be_bytes());
        writer.commit(&batch.0).expect("commit");
    }
}

/// Takes the writer again and again, and counts the looping holder's commits meanwhile.
pub(super) fn wait_turns(storage: &dyn Storage, rounds: u64) {
    for round in 0..rounds {
        let snapshot = storage.snapshot().expect("snapshot");
        let before = number(&*snapshot, SMALL, LOOPS);
        drop(snapshot);
        let writer = storage
            .writer(PATIENCE, Durability::Ordered)
            .expect("served");
        let passed = number(&*writer, SMALL, LOOPS) - before;
        assert!(passed <= FAIR, "round {round}: {passed} commits went first");
        let batch = Batch::new().put(SMALL, b"mine", &round.to_be_bytes());
        writer.commit(&batch.0).expect("commit");
    }
}
