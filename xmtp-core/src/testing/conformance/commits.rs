//! Commits: all of a batch or none of it, in the order that the batch states.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::Engine;
use super::fixture::{
    Batch, Fixture, LARGE, NUMBERED, PATIENCE, SMALL, commit, dump_last, get, number, rows,
};
use crate::storage::{Durability, StorageError};

/// Every reader sees the three tables of a batch at the same generation.
pub(super) fn atomic(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let storage = fixture.storage().clone();
    let zero = 0u64.to_be_bytes();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for generation in 1..=200u64 {
                let value = generation.to_be_bytes();
                let batch = Batch::new()
                    .put(SMALL, b"generation", &value)
                    .put(LARGE, b"generation", &value)
                    .put(NUMBERED, &zero, &value);
                commit(&*storage, &batch).expect("commit");
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            let snapshot = fixture.storage().snapshot().expect("snapshot");
            let small = number(&*snapshot, SMALL, b"generation");
            let large = number(&*snapshot, LARGE, b"generation");
            let numbered = number(&*snapshot, NUMBERED, &zero);
            assert_eq!((small, large), (large, numbered), "half a batch was seen");
        }
    });
    assert_eq!(
        get(&*storage, LARGE, b"generation"),
        Some(200u64.to_be_bytes().to_vec())
    );
}

/// Deleted ranges come first: a row changed inside one is there afterwards.
pub(super) fn cleared_first(engine: &dyn Engine) {
    for table in [SMALL, LARGE] {
        let fixture = Fixture::new(engine);
        let before = Batch::new()
            .put(table, b"a", b"1")
            .put(table, b"b", b"1")
            .put(table, b"c", b"1")
            .put(table, b"d", b"1");
        fixture.commit(&before);
        let batch = Batch::new()
            .clear(table, b"b", Some(b"d"))
            .put(table, b"b", b"2")
            .put_new(table, b"c", b"2")
            .put_new(table, b"cc", b"2");
        fixture.commit(&batch);
        let expected = rows(&[("a", "1"), ("b", "2"), ("c", "2"), ("cc", "2"), ("d", "1")]);
        assert_eq!(dump_last(&**fixture.storage(), table), expected);
    }
}

/// A deleted range without end stops at the end of its own table.
pub(super) fn cleared_to_the_end(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let top = i64::MAX.to_be_bytes();
    let before = Batch::new()
        .put(SMALL, b"a", b"1")
        .put(SMALL, b"b", b"1")
        .put(SMALL, b"\xff\xff\xff\xff", b"1")
        .put(LARGE, b"", b"1")
        .put(LARGE, b"a", b"1")
        .put(NUMBERED, &top, b"1");
    fixture.commit(&before);
    fixture.commit(&Batch::new().clear(SMALL, b"b", None));
    let storage = &**fixture.storage();
    assert_eq!(dump_last(storage, SMALL), rows(&[("a", "1")]));
    assert_eq!(dump_last(storage, LARGE), rows(&[("", "1"), ("a", "1")]));
    fixture.commit(&Batch::new().clear(LARGE, b"", None));
    assert_eq!(dump_last(storage, LARGE), rows(&[]));
    assert_eq!(get(storage, NUMBERED, &top), Some(b"1".to_vec()));
    fixture.commit(&Batch::new().clear(NUMBERED, b"", None));
    assert_eq!(dump_last(storage, NUMBERED), rows(&[]));
}

/// Several deleted ranges of one batch leave what lies between them.
pub(super) fn cleared_apart(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    for table in [SMALL, LARGE] {
        let before = "abcdefgh".chars().fold(Batch::new(), |batch, key| {
            batch.put(table, key.to_string().as_bytes(), b"1")
        });
        fixture.commit(&before);
        let batch = Batch::new()
            .clear(table, b"a", Some(b"b"))
            .clear(table, b"c", Some(b"e"))
            .clear(table, b"g", None);
        fixture.commit(&batch);
        let expected = rows(&[("b", "1"), ("e", "1"), ("f", "1")]);
        assert_eq!(dump_last(&**fixture.storage(), table), expected);
    }
}

/// A row written as new over a present one refuses the whole batch, in every layout.
pub(super) fn new_over_present(engine: &dyn Engine) {
    let zero = 0u64.to_be_bytes();
    let targets: [(_, &[u8]); 3] = [(SMALL, b"k"), (LARGE, b"k"), (NUMBERED, &zero)];
    for (table, key) in targets {
        let fixture = Fixture::new(engine);
        let before = Batch::new()
            .put(table, key, b"old")
            .put(SMALL, b"z", b"old");
        fixture.commit(&before);
        let batch = Batch::new()
            .clear(SMALL, b"y", None)
            .put(SMALL, b"a", b"new")
            .put(LARGE, b"a", b"new")
            .put_new(table, key, b"new")
            .put(NUMBERED, &7u64.to_be_bytes(), b"new");
        let storage = &**fixture.storage();
        let refused = commit(storage, &batch);
        assert!(
            matches!(refused, Err(StorageError::Exists { .. })),
            "{refused:?}"
        );
        assert_eq!(get(storage, table, key), Some(b"old".to_vec()));
        assert_eq!(get(storage, SMALL, b"a"), None);
        assert_eq!(get(storage, SMALL, b"z"), Some(b"old".to_vec()));
        assert_eq!(get(storage, LARGE, b"a"), None);
        assert_eq!(get(storage, NUMBERED, &7u64.to_be_bytes()), None);
        fixture.commit(&Batch::new().put(SMALL, b"a", b"later"));
    }
}

/// A row written as new where none is present is there afterwards.
pub(super) fn new_over_absent(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let two = 2u64.to_be_bytes();
    let batch = Batch::new()
        .put_new(SMALL, b"k", b"1")
        .put_new(LARGE, b"k", b"2")
        .put_new(NUMBERED, &two, b"3");
    fixture.commit(&batch);
    fixture.commit(&Batch::new().delete(LARGE, b"k"));
    fixture.commit(&Batch::new().put_new(LARGE, b"k", b"4"));
    let storage = &**fixture.storage();
    assert_eq!(get(storage, SMALL, b"k"), Some(b"1".to_vec()));
    assert_eq!(get(storage, LARGE, b"k"), Some(b"4".to_vec()));
    assert_eq!(get(storage, NUMBERED, &two), Some(b"3".to_vec()));
}

/// Put inserts or replaces; delete removes, or does nothing.
pub(super) fn put_and_delete(engine: &dyn Engine) {
    let one = 1u64.to_be_bytes();
    let targets: [(_, &[u8]); 3] = [(SMALL, b"k"), (LARGE, b"k"), (NUMBERED, &one)];
    for (table, key) in targets {
        let fixture = Fixture::new(engine);
        let storage = &**fixture.storage();
        fixture.commit(&Batch::new().delete(table, key));
        assert_eq!(get(storage, table, key), None);
        fixture.commit(&Batch::new().put(table, key, b"first, and longer"));
        fixture.commit(&Batch::new().put(table, key, b"second"));
        assert_eq!(get(storage, table, key), Some(b"second".to_vec()));
        fixture.commit(&Batch::new().delete(table, key));
        assert_eq!(get(storage, table, key), None);
        fixture.commit(&Batch::new().delete(table, key));
        assert!(dump_last(storage, table).is_empty());
    }
}

/// The same key in two tables is two rows.
pub(super) fn tables_are_independent(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let key = 5u64.to_be_bytes();
    let before = Batch::new()
        .put(SMALL, &key, b"small")
        .put(LARGE, &key, b"large")
        .put(NUMBERED, &key, b"numbered");
    fixture.commit(&before);
    let storage = &**fixture.storage();
    fixture.commit(&Batch::new().delete(LARGE, &key));
    assert_eq!(get(storage, SMALL, &key), Some(b"small".to_vec()));
    assert_eq!(get(storage, LARGE, &key), None);
    fixture.commit(&Batch::new().clear(SMALL, b"", None));
    assert_eq!(get(storage, NUMBERED, &key), Some(b"numbered".to_vec()));
}

/// An empty batch commits and releases the writer.
pub(super) fn empty_batch(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    fixture.commit(&Batch::new().put(SMALL, b"k", b"1"));
    fixture.commit(&Batch::new());
    for durability in [Durability::Ordered, Durability::Flushed] {
        let writer = fixture.storage().writer(PATIENCE, durability);
        let committed = writer.expect("writer").commit(&Batch::new().0);
        committed.expect("commit of nothing");
    }
    assert_eq!(dump_last(&**fixture.storage(), SMALL), rows(&[("k", "1")]));
}

/// A value as large as the engine says it takes is kept.
pub(super) fn largest_value(engine: &dyn Engine) {
    let mut fixture = Fixture::new(engine);
    let most = fixture.storage().capability().max_value_bytes;
    let most = most.min(crate::storage::MAX_VALUE_BYTES);
    let value: Vec<u8> = (0..most).map(|at| (at % 251) as u8).collect();
    fixture.commit(&Batch::new().put(LARGE, b"big", &value));
    assert!(get(&**fixture.storage(), LARGE, b"big").as_ref() == Some(&value));
    fixture.reopen();
    let found = get(&**fixture.storage(), LARGE, b"big").expect("the value");
    assert!(found == value, "the largest value came back changed");
}

/// Both levels of durability are seen at once by the next reader.
pub(super) fn both_durabilities(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let levels = [Durability::Ordered, Durability::Flushed];
    for round in 0..20u64 {
        let durability = levels[(round % 2) as usize];
        let writer = fixture.storage().writer(PATIENCE, durability);
        let batch = Batch::new().put(SMALL, b"k", &round.to_be_bytes());
        writer.expect("writer").commit(&batch.0).expect("commit");
        let seen = get(&**fixture.storage(), SMALL, b"k");
        assert_eq!(seen, Some(round.to_be_bytes().to_vec()));
    }
}
