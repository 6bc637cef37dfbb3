//! Snapshots: exactly one committed version, fixed when the snapshot is created.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::Engine;
use super::fixture::{
    Batch, Fixture, LARGE, PATIENCE, SMALL, commit, dump, from, get, number, page, walk,
};
use crate::storage::{Durability, Order, StorageError};

/// How long a case gives another thread's commit to go through beside an open snapshot. An
/// engine may make the commit wait instead.
const BESIDE: Duration = Duration::from_millis(300);

/// A long scan sees one version while another thread attempts 1,000 commits.
pub(super) fn one_version(engine: &dyn Engine) {
    const ROWS: u64 = 48;
    let fixture = Fixture::new(engine);
    let storage = fixture.storage().clone();
    let generation_of = |generation: u64| {
        (0..ROWS).fold(Batch::new(), |batch, row| {
            batch.put(LARGE, &row.to_be_bytes(), &generation.to_be_bytes())
        })
    };
    fixture.commit(&generation_of(0));
    let done = AtomicBool::new(false);
    let committed = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for generation in 1..=1_000 {
                match commit(&*storage, &generation_of(generation)) {
                    Ok(()) => drop(committed.fetch_add(1, Ordering::Relaxed)),
                    Err(StorageError::Busy { .. }) => {}
                    Err(error) => panic!("commit: {error}"),
                }
            }
            done.store(true, Ordering::Release);
        });
        let orders = [Order::Ascending, Order::Descending];
        for round in 0.. {
            let snapshot = fixture.storage().snapshot().expect("snapshot");
            let found = walk(
                &*snapshot,
                LARGE,
                from(b""),
                page(3, 4_096, orders[round % 2]),
            );
            assert_eq!(found.len() as u64, ROWS);
            let first = &found[0].1;
            assert!(
                found.iter().all(|(_, value)| value == first),
                "a scan saw two versions"
            );
            assert_eq!(
                snapshot.get(LARGE, &found[7].0).expect("get").as_ref(),
                Some(first)
            );
            if done.load(Ordering::Acquire) {
                break;
            }
        }
    });
    assert!(
        committed.load(Ordering::Relaxed) > 0,
        "no commit went through"
    );
}

/// The version is fixed at creation: a commit before the first read is not seen.
pub(super) fn fixed_at_creation(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    fixture.commit(
        &Batch::new()
            .put(SMALL, b"k", b"old")
            .put(SMALL, b"l", b"old"),
    );
    let storage = fixture.storage().clone();
    let (sender, receiver) = mpsc::channel();
    let snapshot = fixture.storage().snapshot().expect("snapshot");
    let thread = thread::spawn(move || {
        let batch = Batch::new().put(SMALL, b"k", b"new").delete(SMALL, b"l");
        let committed = commit(&*storage, &batch);
        let _ = sender.send(());
        committed
    });
    let _ = receiver.recv_timeout(BESIDE);
    let old = Some(b"old".to_vec());
    assert_eq!(snapshot.get(SMALL, b"k").expect("get"), old);
    assert_eq!(snapshot.get(SMALL, b"l").expect("get"), old);
    let both: [&[u8]; 2] = [b"k", b"l"];
    let several = snapshot.get_many(SMALL, &both).expect("get_many");
    assert_eq!(several, [old.clone(), old]);
    assert_eq!(dump(&*snapshot, SMALL).len(), 2);
    drop(snapshot);
    thread.join().expect("join").expect("commit");
    assert_eq!(
        get(&**fixture.storage(), SMALL, b"k"),
        Some(b"new".to_vec())
    );
    assert_eq!(get(&**fixture.storage(), SMALL, b"l"), None);
}

/// A snapshot opened after a commit sees it, on whichever thread.
pub(super) fn sees_the_last_commit(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let storage = fixture.storage().clone();
    let (ask, asked) = mpsc::channel::<u64>();
    let (answer, answered) = mpsc::channel::<u64>();
    let thread = thread::spawn(move || {
        for _ in asked {
            let snapshot = storage.snapshot().expect("snapshot");
            let _ = answer.send(number(&*snapshot, SMALL, b"k"));
        }
    });
    for round in 1..=200u64 {
        fixture.commit(&Batch::new().put(SMALL, b"k", &round.to_be_bytes()));
        let snapshot = fixture.storage().snapshot().expect("snapshot");
        assert_eq!(number(&*snapshot, SMALL, b"k"), round);
        drop(snapshot);
        ask.send(round).expect("ask");
        assert_eq!(answered.recv().expect("answer"), round);
    }
    drop(ask);
    thread.join().expect("join");
}

/// A snapshot does not wait for a writer that is computing, and does not see it.
pub(super) fn never_waits_for_a_computing_writer(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    fixture.commit(&Batch::new().put(SMALL, b"k", b"old"));
    let storage = fixture.storage().clone();
    let (taken, is_taken) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        let writer = storage.writer(PATIENCE, Durability::Ordered);
        let writer = writer.expect("writer");
        taken.send(()).expect("tell");
        let _ = may_go_on.recv_timeout(PATIENCE);
        writer.commit(&Batch::new().put(SMALL, b"k", b"new").0)
    });
    is_taken.recv().expect("the writer was taken");
    for _ in 0..10 {
        assert_eq!(
            get(&**fixture.storage(), SMALL, b"k"),
            Some(b"old".to_vec())
        );
    }
    go_on.send(()).expect("the writer was still computing");
    thread.join().expect("join").expect("commit");
    assert_eq!(
        get(&**fixture.storage(), SMALL, b"k"),
        Some(b"new".to_vec())
    );
}

/// Two snapshots of one thread stand side by side.
pub(super) fn several_side_by_side(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    fixture.commit(&Batch::new().put(SMALL, b"k", b"1"));
    let first = fixture.storage().snapshot().expect("snapshot");
    let second = fixture.storage().snapshot().expect("snapshot");
    let third = fixture.storage().snapshot().expect("snapshot");
    for snapshot in [&first, &second, &third] {
        assert_eq!(snapshot.get(SMALL, b"k").expect("get"), Some(b"1".to_vec()));
    }
    drop(second);
    assert_eq!(dump(&*first, SMALL), dump(&*third, SMALL));
}
