//! Counters: a number that the outside may hold is never given again.

use std::collections::BTreeSet;
use std::sync::Arc;

use xmtp_core::runtime::{Runtime, SimulatedRuntime};
use xmtp_core::storage::schema::{CounterName, MESSAGE};
use xmtp_core::storage::{Database, Durability, StorageError};
use xmtp_core::testing::memory::MemoryDisk;

fn open(disk: &MemoryDisk) -> Database {
    let runtime: Arc<dyn Runtime> = Arc::new(SimulatedRuntime::new(1));
    Database::open(disk.open(), runtime).expect("open")
}

fn take(database: &Database, name: CounterName, count: u64) -> Result<Vec<u64>, StorageError> {
    database.write(Durability::Ordered, |txn| {
        (0..count).map(|_| txn.take_number(name)).collect()
    })
}

/// Takes numbers in one commit and checks that they rise above all before.
fn take_new(database: &Database, given: &mut BTreeSet<u64>, count: u64) {
    for number in take(database, CounterName::Delivery, count).expect("numbers") {
        let is_greatest = given.last().is_none_or(|last| *last < number);
        assert!(number > 0 && is_greatest, "{number} was given before");
        given.insert(number);
    }
}

/// Delivery numbers rise over reopening, and over power losses that undo any suffix of the
/// commits that took them, far beyond one reserved block.
///
/// covers: STR-090
#[test]
fn a_delivery_number_is_never_given_twice() {
    let disk = MemoryDisk::new();
    let mut given = BTreeSet::new();
    for round in 0..6 {
        let database = open(&disk);
        for _ in 0..20 {
            take_new(&database, &mut given, 4_096);
        }
        if round % 2 == 0 {
            database.close().expect("close");
        }
        let unflushed = disk.unflushed();
        assert!(unflushed > 0);
        let keep = [0, 1, unflushed / 2, unflushed][round % 4];
        disk.lose_unflushed(keep);
    }
    assert_eq!(given.len(), 6 * 20 * 4_096);
}

/// The same when every number is taken alone and every commit is lost.
///
/// covers: STR-090
#[test]
fn single_numbers_survive_repeated_power_loss() {
    let disk = MemoryDisk::new();
    let mut given = BTreeSet::new();
    for _ in 0..20 {
        let database = open(&disk);
        for _ in 0..10 {
            take_new(&database, &mut given, 1);
        }
        assert_eq!(disk.lose_unflushed(0), 10);
    }
    assert_eq!(given.len(), 200);
}

/// Two processes on one disk share the counter.
///
/// covers: STR-090
#[test]
fn processes_share_the_counter() {
    let disk = MemoryDisk::new();
    let (one, two) = (open(&disk), open(&disk));
    let mut given = BTreeSet::new();
    for _ in 0..40 {
        take_new(&one, &mut given, 4_000);
        take_new(&two, &mut given, 4_000);
    }
}

/// A number rolled back was never given; the row written with it is gone too.
#[test]
fn a_number_goes_back_with_its_transaction() {
    let database = open(&MemoryDisk::new());
    let first = database.write::<_, StorageError>(Durability::Ordered, |txn| {
        let lost: Result<(), _> = txn.savepoint(|txn| {
            let number = txn.take_number(CounterName::Delivery)?;
            txn.put_new(MESSAGE, &number, &Default::default())?;
            Err(StorageError::Full)
        });
        assert_eq!(lost, Err(StorageError::Full));
        txn.take_number(CounterName::Delivery)
    });
    let next = take(&database, CounterName::Delivery, 1).expect("a number");
    assert_eq!(next, [first.expect("a number") + 1]);
}

/// Counters are apart, and one transaction cannot take more than is in reserve.
#[test]
fn the_reserve_bounds_one_transaction() {
    let database = open(&MemoryDisk::new());
    let reserve = take(&database, CounterName::Delivery, 100_000);
    let Err(StorageError::TooLarge { what, bytes, max }) = reserve else {
        panic!("{reserve:?}");
    };
    assert_eq!((what, bytes), ("number block", max));
    let delivery = take(&database, CounterName::Delivery, 60_000).expect("numbers");
    let intent = take(&database, CounterName::Intent, 1).expect("a number");
    assert_eq!((delivery[0], intent[0]), (1, 1));
    let more = take(&database, CounterName::Delivery, 4_096).expect("numbers");
    assert_eq!(more.first(), Some(&60_001));
}
