//! What [`Database`] keeps in its own tables: identity, revision, counters.
//!
//! [`Database`]: crate::storage::Database

use std::collections::BTreeSet;
use std::thread;

use super::Engine;
use super::fixture::Fixture;
use super::overlay::{NUMBERS, facade};
use crate::storage::schema::{CounterName, REVISION};
use crate::storage::{Database, Durability, Raw, Read, StorageError};

fn take(database: &Database) -> u64 {
    let taken = database.write(Durability::Ordered, |txn| {
        let number = txn.take_number(CounterName::Delivery)?;
        txn.put_new(NUMBERS, &number, &Raw(Vec::new()))?;
        Ok::<_, StorageError>(number)
    });
    taken.expect("take a number")
}

/// Numbers rise over facades, threads and reopening, and none is given twice.
pub(super) fn counters(engine: &dyn Engine) {
    let mut fixture = Fixture::new(engine);
    let mut given = BTreeSet::new();
    let mut largest = 0;
    for _ in 0..3 {
        let (one, two) = (facade(&fixture), facade(&fixture));
        for database in [&one, &two, &two, &one] {
            let number = take(database);
            assert!(number > largest, "numbers rise");
            largest = number;
            given.insert(number);
        }
        let taken = thread::scope(|scope| {
            let threads = [&one, &two].map(|database| {
                scope.spawn(move || (0..25).map(|_| take(database)).collect::<Vec<u64>>())
            });
            threads.map(|thread| thread.join().expect("join"))
        });
        for number in taken.into_iter().flatten() {
            assert!(given.insert(number), "a number was given twice");
            largest = largest.max(number);
        }
        drop((one, two));
        fixture.reopen();
    }
    assert_eq!(given.len(), 3 * 54);
}

/// Two facades of one engine that add to one row lose nothing.
pub(super) fn two_facades(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let facades = [facade(&fixture), facade(&fixture)];
    thread::scope(|scope| {
        for at in 0..4 {
            let database = facades[at % 2].clone();
            scope.spawn(move || {
                for _ in 0..25 {
                    let added = database.write(Durability::Ordered, |txn| {
                        let mut row = txn.row(NUMBERS, &1)?.unwrap_or_default();
                        row.0.push(at as u8);
                        txn.put(NUMBERS, &1, &row)
                    });
                    added.expect("write");
                }
            });
        }
    });
    let read = facades[0].read(|snapshot| snapshot.row(NUMBERS, &1));
    assert_eq!(read.expect("read").expect("the row").0.len(), 100);
}

/// The id stays over reopening, and the revision rises with each commit.
pub(super) fn identity(engine: &dyn Engine) {
    let mut fixture = Fixture::new(engine);
    let id = facade(&fixture).id();
    let mut last = 0;
    for _ in 0..3 {
        fixture.reopen();
        let database = facade(&fixture);
        assert_eq!(database.id(), id);
        for _ in 0..5 {
            take(&database);
            let stamp = database.read(|snapshot| snapshot.row(REVISION, &()));
            let revision = stamp.expect("read").expect("the stamp").revision;
            assert!(revision > last, "the revision rises");
            last = revision;
        }
    }
}
