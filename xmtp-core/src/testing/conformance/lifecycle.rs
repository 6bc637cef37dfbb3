//! Opening, closing, tables and the version number.

use std::sync::Arc;
use std::thread;

use super::Engine;
use super::fixture::{
    Batch, Fixture, PATIENCE, SMALL, TABLES, commit, dump_last, get, info, number, rows,
};
use crate::storage::{Durability, Layout, Storage, StorageError, TableId};

/// What was committed is there after closing and opening.
pub(super) fn reopen_keeps(engine: &dyn Engine) {
    let mut fixture = Fixture::new(engine);
    fixture.commit(&Batch::new().put(SMALL, b"a", b"1").put(SMALL, b"b", b"2"));
    fixture.commit(&Batch::new().put(SMALL, b"a", b"3").delete(SMALL, b"b"));
    fixture.reopen();
    assert_eq!(dump_last(&**fixture.storage(), SMALL), rows(&[("a", "3")]));
    fixture.commit(&Batch::new().put(SMALL, b"c", b"4"));
    fixture.reopen();
    let expected = rows(&[("a", "3"), ("c", "4")]);
    assert_eq!(dump_last(&**fixture.storage(), SMALL), expected);
}

/// Closing releases the files before it returns: 200 times open, write, close, with no wait.
pub(super) fn close_releases(engine: &dyn Engine) {
    let mut fixture = Fixture::new(engine);
    for round in 1..=200u64 {
        let batch = Batch::new().put(SMALL, b"round", &round.to_be_bytes());
        fixture.commit(&batch);
        fixture.reopen();
        let snapshot = fixture.storage().snapshot().expect("snapshot");
        assert_eq!(number(&*snapshot, SMALL, b"round"), round);
    }
}

/// A database that was let go without closing opens again.
pub(super) fn dropped_opens_again(engine: &dyn Engine) {
    let mut fixture = Fixture::new(engine);
    for round in 1..=20u64 {
        let batch = Batch::new().put(SMALL, b"round", &round.to_be_bytes());
        fixture.commit(&batch);
        fixture.forget();
        fixture.reopen();
        let snapshot = fixture.storage().snapshot().expect("snapshot");
        assert_eq!(number(&*snapshot, SMALL, b"round"), round);
    }
}

/// After close every call answers `Closed`, through every handle of the instance.
pub(super) fn closed_answers_closed(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    fixture.commit(&Batch::new().put(SMALL, b"k", b"1"));
    let storage = fixture.storage().clone();
    storage.close().expect("close");
    let closed = StorageError::Closed;
    let held: [&Arc<dyn Storage>; 2] = [&storage, fixture.storage()];
    for storage in held {
        assert_eq!(storage.snapshot().map(drop), Err(closed.clone()));
        let writer = storage.writer(PATIENCE, Durability::Ordered);
        assert_eq!(writer.map(drop), Err(closed.clone()));
        assert_eq!(storage.version().map(drop), Err(closed.clone()));
        assert_eq!(storage.open_tables(TABLES), Err(closed.clone()));
    }
}

/// Closing twice is closing once, and from two threads too.
pub(super) fn close_is_idempotent(engine: &dyn Engine) {
    let mut fixture = Fixture::new(engine);
    fixture.commit(&Batch::new().put(SMALL, b"k", b"1"));
    let storage = fixture.storage().clone();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| storage.close().expect("close"));
        }
    });
    storage.close().expect("close again");
    fixture.reopen();
    storage.close().expect("an old handle closes nothing new");
    assert_eq!(get(&**fixture.storage(), SMALL, b"k"), Some(b"1".to_vec()));
}

/// A writer that waits while the database closes is told so.
pub(super) fn close_ends_a_wait(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let storage = fixture.storage().clone();
    let writer = fixture.storage().writer(PATIENCE, Durability::Ordered);
    let writer = writer.expect("writer");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| storage.writer(PATIENCE, Durability::Ordered).map(drop));
        let closing = scope.spawn(|| storage.close());
        writer.commit(&Batch::new().put(SMALL, b"k", b"1").0).ok();
        let told = waiting.join().expect("join");
        let served_or_closed = matches!(told, Ok(()) | Err(StorageError::Closed));
        assert!(served_or_closed, "{told:?}");
        closing.join().expect("join").expect("close");
    });
    assert_eq!(storage.snapshot().map(drop), Err(StorageError::Closed));
}

/// Opening tables again keeps their rows, and adds those that are missing.
pub(super) fn open_tables_adds_missing(engine: &dyn Engine) {
    let mut fixture = Fixture::new(engine);
    let more = TableId(905);
    fixture.commit(&Batch::new().put(SMALL, b"k", b"1"));
    for _ in 0..3 {
        fixture
            .storage()
            .open_tables(TABLES)
            .expect("the same tables");
    }
    assert_eq!(get(&**fixture.storage(), SMALL, b"k"), Some(b"1".to_vec()));
    fixture.reopen();
    let tables = [TABLES, &[info(more, "suite_more", Layout::Large)]].concat();
    fixture
        .storage()
        .open_tables(&tables)
        .expect("one more table");
    fixture.commit(&Batch::new().put_new(more, b"k", b"2"));
    let storage = &**fixture.storage();
    assert_eq!(get(storage, SMALL, b"k"), Some(b"1".to_vec()));
    assert_eq!(dump_last(storage, more), rows(&[("k", "2")]));
    fixture.reopen();
    let alone = [info(more, "suite_more", Layout::Large)];
    fixture
        .storage()
        .open_tables(&alone)
        .expect("the added table alone");
    assert_eq!(dump_last(&**fixture.storage(), more), rows(&[("k", "2")]));
}

/// The version moves on each commit of this instance.
pub(super) fn version_moves_on_own_commit(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let storage = fixture.storage();
    let mut last = storage.version().expect("version");
    for round in 0..50u64 {
        fixture.commit(&Batch::new().put(SMALL, b"k", &round.to_be_bytes()));
        let next = storage.version().expect("version");
        assert_ne!(next, last, "round {round}");
        last = next;
    }
}

/// The version moves on each commit of another thread.
pub(super) fn version_moves_on_another_threads(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    for round in 0..50u64 {
        let before = fixture.storage().version().expect("version");
        let storage = fixture.storage().clone();
        let thread = thread::spawn(move || {
            let batch = Batch::new().put(SMALL, b"k", &round.to_be_bytes());
            commit(&*storage, &batch)
        });
        thread.join().expect("join").expect("commit");
        let after = fixture.storage().version().expect("version");
        assert_ne!(after, before, "round {round}");
    }
}

/// What an engine promises does not change over its life, and makes sense.
pub(super) fn capability_is_constant(engine: &dyn Engine) {
    let mut fixture = Fixture::new(engine);
    let before = fixture.storage().capability();
    assert!(!before.name.is_empty());
    assert!(before.max_value_bytes > 0);
    fixture.commit(&Batch::new().put(SMALL, b"k", b"1"));
    assert_eq!(fixture.storage().capability(), before);
    fixture.reopen();
    assert_eq!(fixture.storage().capability(), before);
}

/// Two databases in two directories are two databases.
pub(super) fn databases_are_apart(engine: &dyn Engine) {
    let (one, two) = (Fixture::new(engine), Fixture::new(engine));
    one.commit(&Batch::new().put(SMALL, b"k", b"1"));
    two.commit(&Batch::new().put(SMALL, b"l", b"2"));
    assert_eq!(dump_last(&**one.storage(), SMALL), rows(&[("k", "1")]));
    assert_eq!(dump_last(&**two.storage(), SMALL), rows(&[("l", "2")]));
    let writer = one.storage().writer(PATIENCE, Durability::Ordered);
    two.commit(&Batch::new().put(SMALL, b"l", b"3"));
    drop(writer);
}
