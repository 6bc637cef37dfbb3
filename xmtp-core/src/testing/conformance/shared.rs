//! Engines that several handles and processes may share.

use std::thread;

use super::Engine;
use super::child::{Helper, Task};
use super::fixture::{Batch, Fixture, SMALL, get, increment, number, rounds};
use super::writers::wait_turns;

/// A second handle sees the first one's commits, and its version moves with them.
pub(super) fn second_handle(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let other = fixture.other();
    for round in 0..100u64 {
        let before = other.version().expect("version");
        fixture.commit(&Batch::new().put(SMALL, b"k", &round.to_be_bytes()));
        assert_ne!(other.version().expect("version"), before);
        assert_eq!(
            get(&*other, SMALL, b"k"),
            Some(round.to_be_bytes().to_vec())
        );
        increment(&*other, b"counter").expect("increment");
        let snapshot = fixture.storage().snapshot().expect("snapshot");
        assert_eq!(number(&*snapshot, SMALL, b"counter"), round + 1);
    }
    other.close().expect("close");
    fixture.commit(&Batch::new().put(SMALL, b"k", b"still open"));
}

/// Two threads of each of two handles lose no increment.
pub(super) fn exclusion_over_handles(engine: &dyn Engine) {
    const EACH: u64 = 40;
    let fixture = Fixture::new(engine);
    let other = fixture.other();
    thread::scope(|scope| {
        for at in 0..4 {
            let handles = [fixture.storage(), &other];
            let storage = handles[at % 2].clone();
            scope.spawn(move || {
                for _ in 0..EACH {
                    increment(&*storage, b"counter").expect("increment");
                }
            });
        }
    });
    let snapshot = other.snapshot().expect("snapshot");
    assert_eq!(number(&*snapshot, SMALL, b"counter"), 4 * EACH);
    drop(snapshot);
    other.close().expect("close");
}

/// Two children and this process lose no increment.
pub(super) fn exclusion_over_processes(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let mut children: Vec<Helper> = (0..2)
        .map(|_| Helper::start(engine, fixture.dir(), Task::Increment))
        .collect();
    for child in &mut children {
        assert_eq!(child.hear(), "ready");
    }
    let each = rounds(60);
    for _ in 0..each {
        for child in &mut children {
            child.tell();
        }
        increment(&**fixture.storage(), b"counter").expect("increment");
    }
    for child in &mut children {
        let mut last = 0;
        for _ in 0..each {
            let next = child.hear_number();
            assert!(next > last, "a child's own increments rise");
            last = next;
        }
    }
    let snapshot = fixture.storage().snapshot().expect("snapshot");
    assert_eq!(number(&*snapshot, SMALL, b"counter"), 3 * each);
}

/// A process that loops without pause lets another in before 20 more of its own commits.
pub(super) fn fair_over_processes(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let mut child = Helper::start(engine, fixture.dir(), Task::Loop);
    assert_eq!(child.hear(), "ready");
    wait_turns(&**fixture.storage(), rounds(100));
    child.kill();
}

/// The version moves on each commit of another process.
pub(super) fn version_moves(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let mut child = Helper::start(engine, fixture.dir(), Task::Increment);
    assert_eq!(child.hear(), "ready");
    for round in 0..50 {
        let before = fixture.storage().version().expect("version");
        child.tell();
        child.hear();
        let after = fixture.storage().version().expect("version");
        assert_ne!(after, before, "round {round}");
    }
}

/// The writer of each process reads what the other committed last.
pub(super) fn reads_the_newest_version(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let mut child = Helper::start(engine, fixture.dir(), Task::Increment);
    assert_eq!(child.hear(), "ready");
    for round in 0..50 {
        let mine = increment(&**fixture.storage(), b"counter").expect("increment");
        assert_eq!(mine, round * 2 + 1);
        child.tell();
        assert_eq!(child.hear_number(), round * 2 + 2);
        let snapshot = fixture.storage().snapshot().expect("snapshot");
        assert_eq!(number(&*snapshot, SMALL, b"counter"), round * 2 + 2);
    }
}

/// A process that was killed with the writer out does not keep it.
pub(super) fn killed_holder(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    for round in 0..rounds(5) {
        let mut child = Helper::start(engine, fixture.dir(), Task::Hold);
        assert_eq!(child.hear(), "held");
        child.kill();
        let next = increment(&**fixture.storage(), b"counter").expect("increment");
        assert_eq!(next, round + 1);
    }
}

/// Two processes that create one database at once both end up in it.
pub(super) fn created_at_once(engine: &dyn Engine) {
    for _ in 0..rounds(10) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut children: Vec<Helper> = (0..2)
            .map(|_| Helper::start(engine, dir.path(), Task::Open))
            .collect();
        for child in &mut children {
            assert_eq!(child.hear(), "ready");
        }
        for child in &mut children {
            child.tell();
        }
        for child in &mut children {
            assert_eq!(child.hear(), "opened");
        }
        let storage = super::fixture::open(engine, dir.path());
        let snapshot = storage.snapshot().expect("snapshot");
        assert_eq!(number(&*snapshot, SMALL, b"counter"), 2);
        drop(snapshot);
        storage.close().expect("close");
    }
}
