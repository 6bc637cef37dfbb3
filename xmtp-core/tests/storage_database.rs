//! The facade: what commits, what rolls back, what is refused, and what opening does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use xmtp_core::runtime::{Runtime, SimulatedRuntime};
use xmtp_core::storage::schema::{self, CounterName};
use xmtp_core::storage::{
    All, Change, Database, Domain, Durability, Key, Layout, OpenError, Order, Page, Raw, Read,
    Storage, StorageError, Table, TableChanges, Value, WriteBatch, WriteTxn, verify,
};
use xmtp_core::testing::faulty::Faulty;
use xmtp_core::testing::memory::{MemoryDisk, MemoryStorage};
use xmtp_proto::storage::v1::{Counter, DatabaseRecord};

const ROWS: Table<u64, Raw> = Table::new(900, "rows", Layout::Numbered, Domain::Messages);
const MIB: usize = 1024 * 1024;

fn runtime() -> Arc<dyn Runtime> {
    Arc::new(SimulatedRuntime::new(1))
}

fn open(storage: Arc<dyn Storage>) -> Database {
    storage.open_tables(&[ROWS.info]).expect("tables");
    Database::open(storage, runtime()).expect("open")
}

fn write<T>(
    database: &Database,
    f: impl FnOnce(&mut WriteTxn<'_>) -> Result<T, StorageError>,
) -> Result<T, StorageError> {
    database.write(Durability::Ordered, f)
}

fn get(database: &Database, key: u64) -> Option<Vec<u8>> {
    let row = database.read(|snapshot| snapshot.row(ROWS, &key));
    let row: Result<Option<Raw>, StorageError> = row;
    row.expect("read").map(|Raw(bytes)| bytes)
}

fn raw(byte: u8) -> Raw {
    Raw(vec![byte])
}

/// An error or a panic of the closure leaves nothing, and the next write works.
///
/// covers: STR-070, STR-077
#[test]
fn a_failed_write_leaves_nothing() {
    let database = open(MemoryStorage::new());
    let failed: Result<(), _> = write(&database, |txn| {
        txn.put(ROWS, &1, &raw(1))?;
        Err(StorageError::Full)
    });
    assert_eq!(failed, Err(StorageError::Full));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        write(&database, |txn| {
            txn.put(ROWS, &1, &raw(1))?;
            panic!("inside");
            #[allow(unreachable_code)]
            Ok(())
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(get(&database, 1), None);
    write(&database, |txn| txn.put(ROWS, &1, &raw(2))).expect("the next write");
    assert_eq!(get(&database, 1), Some(vec![2]));
}

/// A panic inside a savepoint, caught above it, undoes the savepoint alone.
///
/// covers: STR-071
#[test]
fn a_panic_in_a_savepoint_undoes_it_alone() {
    let database = open(MemoryStorage::new());
    write(&database, |txn| {
        txn.put(ROWS, &1, &raw(1))?;
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            txn.savepoint::<(), StorageError>(|txn| {
                txn.put(ROWS, &1, &raw(9))?;
                txn.savepoint(|txn| txn.put(ROWS, &2, &raw(9)))?;
                txn.clear(ROWS, &All)?;
                txn.hold_back();
                panic!("inside");
            })
        }));
        assert!(panicked.is_err() && !txn.is_held_back());
        assert_eq!(txn.row(ROWS, &1)?, Some(raw(1)));
        txn.put(ROWS, &3, &raw(3))
    })
    .expect("write");
    let all = [1, 2, 3].map(|key| get(&database, key));
    assert_eq!(all, [Some(vec![1]), None, Some(vec![3])]);
}

/// What is held back in memory must be written before commit.
///
/// covers: STR-071
#[test]
fn held_back_state_refuses_the_commit() {
    let database = open(MemoryStorage::new());
    let refused = write(&database, |txn| {
        txn.hold_back();
        txn.put(ROWS, &1, &raw(1))
    });
    assert_eq!(refused, Err(StorageError::HeldBack));
    assert_eq!(get(&database, 1), None);
    write(&database, |txn| {
        let undone: Result<(), _> = txn.savepoint(|txn| {
            txn.hold_back();
            Err(StorageError::Full)
        });
        assert_eq!(
            (undone, txn.is_held_back()),
            (Err(StorageError::Full), false)
        );
        txn.hold_back();
        let undone: Result<(), _> = txn.savepoint(|txn| {
            txn.release_held_back();
            Err(StorageError::Full)
        });
        assert_eq!(
            (undone, txn.is_held_back()),
            (Err(StorageError::Full), true)
        );
        txn.release_held_back();
        txn.put(ROWS, &1, &raw(2))
    })
    .expect("write");
    assert_eq!(get(&database, 1), Some(vec![2]));
}

/// A row put as new and deleted again leaves no trace: the engine is not even asked to commit.
#[test]
fn a_cancelled_row_leaves_no_trace() {
    let faulty = Faulty::new(MemoryStorage::new());
    let database = open(faulty.clone());
    let mut changes = database.changes();
    let (commits, revision) = (faulty.commits(), changes.revision());
    write(&database, |txn| {
        txn.put_new(ROWS, &1, &raw(1))?;
        txn.put(ROWS, &1, &raw(2))?;
        txn.delete(ROWS, &1)?;
        let undone: Result<(), _> = txn.savepoint(|txn| {
            txn.put(ROWS, &2, &raw(1))?;
            txn.clear(ROWS, &All)?;
            Err(StorageError::Full)
        });
        assert_eq!(undone, Err(StorageError::Full));
        Ok(())
    })
    .expect("write");
    assert_eq!((faulty.commits(), changes.revision()), (commits, revision));
    write(&database, |txn| {
        txn.put_new(ROWS, &1, &raw(1))?;
        txn.delete(ROWS, &1)?;
        txn.put(schema::KIND_BUDGET, &0, &Default::default())
    })
    .expect("write");
    let runtime = SimulatedRuntime::new(1);
    let commit = runtime.run(async move { changes.changed(u64::MAX).await });
    let commit = commit.expect("open");
    assert_eq!(commit.domains, Domain::Progress.bit(), "only what changed");
    assert_eq!(commit.revision, revision + 1);
}

/// A row that is there after all cannot be new.
#[test]
fn a_new_row_that_exists_is_a_defect() {
    let database = open(MemoryStorage::new());
    write(&database, |txn| txn.put(ROWS, &1, &raw(1))).expect("write");
    let twice = catch_unwind(AssertUnwindSafe(|| {
        write(&database, |txn| txn.put_new(ROWS, &1, &raw(2)))
    }));
    match twice {
        Err(_) if cfg!(debug_assertions) => {}
        Err(_) => panic!("panics in debug builds alone"),
        Ok(outcome) => assert_eq!(outcome, Err(StorageError::Exists { table: "rows" })),
    }
    assert_eq!(get(&database, 1), Some(vec![1]));
}

/// Values and write sets over their bound are refused, and the transaction stays usable.
#[test]
fn bounds_are_kept() {
    let database = open(MemoryStorage::new());
    let too_large = |error: &StorageError, wanted| match error {
        StorageError::TooLarge { what, bytes, max } => *what == wanted && bytes > max,
        _ => false,
    };
    write(&database, |txn| {
        let value = Raw(vec![0; 64 * MIB + 1]);
        let refused = txn.put(ROWS, &1, &value).expect_err("over the bound");
        assert!(too_large(&refused, "value"), "{refused}");
        let half = Raw(vec![0; 64 * MIB - 8]);
        txn.put(ROWS, &1, &half)?;
        txn.put(ROWS, &2, &half)?;
        let refused = txn.put(ROWS, &3, &raw(1)).expect_err("over the bound");
        assert!(too_large(&refused, "write set"), "{refused}");
        assert_eq!(txn.row(ROWS, &3)?, None);
        txn.put(ROWS, &2, &raw(1))?;
        txn.put(ROWS, &3, &raw(1))?;
        txn.delete(ROWS, &1)
    })
    .expect("write");
    assert_eq!(get(&database, 3), Some(vec![1]));
}

/// Rows go from one database to another inside a read; a write to the database that is being read
/// could wait for ever, and is a defect.
#[test]
fn a_read_may_feed_another_database() {
    let (from, to) = (open(MemoryStorage::new()), open(MemoryStorage::new()));
    write(&from, |txn| txn.put(ROWS, &1, &raw(1))).expect("write");
    let copied = from.read(|snapshot| {
        let row = snapshot.row(ROWS, &1)?.expect("written");
        write(&to, |txn| txn.put(ROWS, &1, &row))
    });
    assert_eq!((copied, get(&to, 1)), (Ok(()), Some(vec![1])));
    let inside = || from.read(|_| write(&from, |txn| txn.put(ROWS, &2, &raw(1))));
    let outcome = catch_unwind(AssertUnwindSafe(inside));
    assert_eq!(outcome.is_err(), cfg!(debug_assertions));
    write(&from, |txn| txn.put(ROWS, &3, &raw(3))).expect("the next write");
}

/// Time stands still within a transaction.
#[test]
fn now_is_fixed() {
    let runtime = SimulatedRuntime::new(1);
    let storage = MemoryStorage::new();
    let database = Database::open(storage, Arc::new(runtime.clone())).expect("open");
    let clock = runtime.clock();
    let times = database.write::<_, StorageError>(Durability::Ordered, |txn| {
        let before = txn.now_ns();
        clock.advance(Duration::from_secs(1));
        Ok((before, txn.now_ns(), txn.runtime().now_ns()))
    });
    let (before, after, outside) = times.expect("write");
    assert_eq!((before, before + 1_000_000_000), (after, outside));
}

/// The id is made once; every open keeps it and what was committed.
#[test]
fn opening_again_keeps_the_database() {
    let disk = MemoryDisk::new();
    let first = open(disk.open());
    write(&first, |txn| txn.put(ROWS, &1, &raw(1))).expect("write");
    first.close().expect("close");
    let second = open(disk.open());
    assert_eq!((second.id(), get(&second, 1)), (first.id(), Some(vec![1])));
    assert_ne!(open(MemoryStorage::new()).id().as_bytes(), &[0; 16]);
    assert_eq!(verify::verify_database(&second), Ok(()));
    assert_eq!(format!("{second:?}"), "Database(memory)");
}

/// Commits one row past the facade.
fn force<K: Key, V: Value>(disk: &MemoryDisk, table: Table<K, V>, key: &K, value: &V) {
    let storage = disk.open();
    storage.open_tables(schema::TABLES).expect("tables");
    let rows = [(key.to_bytes(), Change::Put(value.encode_value()))];
    let changes = TableChanges {
        cleared: Vec::new(),
        rows: rows.into(),
    };
    let batch = WriteBatch {
        tables: [(table.info.id, changes)].into(),
    };
    let writer = storage.writer(Duration::ZERO, Durability::Flushed);
    writer.expect("writer").commit(&batch).expect("commit");
    storage.close().expect("close");
}

/// A newer schema is refused before anything is written.
///
/// covers: EXT-003
#[test]
fn a_newer_schema_is_refused_untouched() {
    let disk = MemoryDisk::new();
    let record = DatabaseRecord {
        id: vec![7; 16].into(),
        schema_version: schema::SCHEMA_VERSION + 1,
        created_ns: 1,
    };
    force(&disk, schema::DATABASE, &(), &record);
    let storage = disk.open();
    let before = storage.version();
    let refused = Database::open(storage.clone(), runtime()).map(drop);
    let expected = OpenError::NewerSchema {
        found: schema::SCHEMA_VERSION + 1,
        supported: schema::SCHEMA_VERSION,
    };
    assert_eq!(refused, Err(expected));
    assert_eq!(storage.version(), before);
    let snapshot = storage.snapshot().expect("snapshot");
    let other = snapshot.get(schema::TOPIC.info.id, &[]);
    assert!(other.is_err(), "no other table was opened or made");
}

/// A damaged record is named, not replaced.
#[test]
fn a_damaged_record_is_not_replaced() {
    for (id, schema_version) in [(vec![7; 15], 1), (vec![7; 16], 0)] {
        let disk = MemoryDisk::new();
        let record = DatabaseRecord {
            id: id.into(),
            schema_version,
            created_ns: 1,
        };
        force(&disk, schema::DATABASE, &(), &record);
        let storage = disk.open();
        let before = storage.version();
        let refused = Database::open(storage.clone(), runtime()).map(drop);
        let is_named = matches!(
            refused,
            Err(OpenError::Storage(StorageError::Corrupt {
                table: "database",
                ..
            }))
        );
        assert!(is_named, "{refused:?}");
        assert_eq!(storage.version(), before);
    }
}

/// After close everything is refused, closing again is nothing, and the files are free.
#[test]
fn close_is_final() {
    let disk = MemoryDisk::new();
    let database = open(disk.open());
    let mut changes = database.changes();
    let other = database.clone();
    database.close().expect("close");
    other.close().expect("close again");
    assert_eq!(write(&other, |_| Ok(())), Err(StorageError::Closed));
    let read = other.read::<_, StorageError>(|_| Ok(()));
    assert_eq!(read, Err(StorageError::Closed));
    let runtime = SimulatedRuntime::new(1);
    let told = runtime.run(async move { changes.changed(u64::MAX).await.map(drop) });
    assert_eq!(told.map_err(StorageError::from), Err(StorageError::Closed));
    open(disk.open());
}

/// A page of typed rows ends where it says, and says so when a row is damaged.
#[test]
fn typed_pages() {
    let disk = MemoryDisk::new();
    let database = open(disk.open());
    write(&database, |txn| {
        (1..=5).try_for_each(|key| txn.put(ROWS, &key, &raw(key as u8)))
    })
    .expect("write");
    let page = |order, after: Option<u64>| {
        let bounds = Page {
            rows: 2,
            bytes: 1000,
            order,
        };
        let page = database.read(|snapshot| snapshot.page(ROWS, &All, after.as_ref(), bounds));
        let page = page.map_err(|error: StorageError| error).expect("page");
        let keys: Vec<u64> = page.rows.into_iter().map(|(key, _)| key).collect();
        (keys, page.more)
    };
    assert_eq!(page(Order::Ascending, None), (vec![1, 2], true));
    assert_eq!(page(Order::Ascending, Some(3)), (vec![4, 5], false));
    assert_eq!(page(Order::Descending, None), (vec![5, 4], true));
    assert_eq!(page(Order::Descending, Some(3)), (vec![2, 1], false));
    let name = CounterName::Delivery as u8;
    let damaged: Table<u8, Raw> = Table::new(
        schema::COUNTER.info.id.0,
        "counter",
        Layout::Small,
        Domain::Database,
    );
    force(&disk, damaged, &name, &Raw(vec![0xff; 3]));
    let row = database.read(|snapshot| snapshot.row(schema::COUNTER, &name));
    let row: Result<Option<Counter>, StorageError> = row;
    let what = "value";
    assert_eq!(
        row,
        Err(StorageError::Corrupt {
            table: "counter",
            what
        })
    );
}
