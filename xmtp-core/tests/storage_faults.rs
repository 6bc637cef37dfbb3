//! One story, told again with a fault at every operation and a crash at every commit: whatever
//! happens, trying again after a restart reaches the same end.

use std::sync::Arc;
use std::time::Duration;

use xmtp_core::runtime::{Runtime, SimulatedRuntime};
use xmtp_core::storage::schema::{self, CounterName, PENDING, TOPIC};
use xmtp_core::storage::{
    Database, Durability, KeyRange, OpenError, Order, Page, Read, Snapshot, Storage, StorageError,
    WriteTxn,
};
use xmtp_core::testing::faulty::{Faulty, Side};
use xmtp_core::testing::memory::MemoryDisk;
use xmtp_core::testing::mock::{MockSnapshot, MockStorage, MockWriter};
use xmtp_proto::storage::v1::{PendingEnvelope, TopicRecord};
use xmtp_proto::{GroupId, SequenceId, Topic};

const STEPS: u64 = 6;

fn topic() -> Topic {
    Topic::group(&GroupId::from_bytes([1; 16]))
}

fn sequence(number: u64) -> SequenceId {
    SequenceId::checked(number).expect("in range")
}

fn open(storage: Arc<dyn Storage>) -> Result<Database, OpenError> {
    let runtime: Arc<dyn Runtime> = Arc::new(SimulatedRuntime::new(1));
    Database::open(storage, runtime)
}

fn record(snapshot: &dyn Snapshot) -> Result<TopicRecord, StorageError> {
    Ok(snapshot.row(TOPIC, &topic())?.unwrap_or_default())
}

/// Receives one envelope and processes the one before; a repetition changes nothing.
fn step(txn: &mut WriteTxn<'_>, number: u64) -> Result<(), StorageError> {
    let mut topic_record = record(txn)?;
    if topic_record.received >= number {
        return Ok(());
    }
    let envelope = PendingEnvelope {
        server_ns: number,
        ..PendingEnvelope::default()
    };
    txn.put_new(PENDING, &(topic(), sequence(number)), &envelope)?;
    if number > 1 {
        txn.delete(PENDING, &(topic(), sequence(number - 1)))?;
        topic_record.processed = number - 1;
    }
    topic_record.received = number;
    txn.take_number(CounterName::Delivery)?;
    txn.put(TOPIC, &topic(), &topic_record)
}

/// Plays the story to its end, or to the first failure.
fn play(storage: Arc<dyn Storage>) -> Result<(), OpenError> {
    let database = open(storage)?;
    for number in 1..=STEPS {
        let durability = [Durability::Ordered, Durability::Flushed][number as usize % 2];
        database.write::<_, StorageError>(durability, |txn| step(txn, number))?;
        // A commit is there at once or not at all: F and the pending row together.
        database.read::<_, StorageError>(|snapshot| {
            let received = record(snapshot)?.received;
            let row = snapshot.row(PENDING, &(topic(), sequence(received)))?;
            assert!(received >= number && row.is_some(), "F {received}");
            Ok(())
        })?;
    }
    database.close()?;
    Ok(())
}

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

/// What the story left, the database's own bookkeeping aside.
fn end(disk: &MemoryDisk) -> Vec<Rows> {
    let storage = disk.open();
    storage.open_tables(schema::TABLES).expect("tables");
    let snapshot = storage.snapshot().expect("snapshot");
    let own = [
        schema::DATABASE.info,
        schema::REVISION.info,
        schema::COUNTER.info,
    ];
    let tables = schema::TABLES.iter().filter(|info| !own.contains(info));
    let all = KeyRange {
        start: &[],
        end: None,
    };
    let page = Page {
        rows: 1000,
        bytes: u32::MAX,
        order: Order::Ascending,
    };
    tables
        .map(|info| {
            let rows = snapshot.scan(info.id, all, page).expect("scan");
            rows.iter()
                .map(|(key, value)| (key.to_vec(), value.to_vec()))
                .collect()
        })
        .collect()
}

fn expected() -> (Vec<Rows>, u64, u64) {
    let disk = MemoryDisk::new();
    let faulty = Faulty::new(disk.open());
    play(faulty.clone()).expect("no fault");
    (end(&disk), faulty.operations(), faulty.commits())
}

/// Restarts without faults and compares the end.
fn restart(disk: &MemoryDisk, expected: &[Rows], what: &str) {
    play(disk.open()).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(end(disk), expected, "{what}");
}

/// covers: EXT-006, STR-077
#[test]
fn every_operation_may_fail() {
    let (expected, operations, _) = expected();
    for error in [StorageError::Full, StorageError::Busy { waited_ms: 1 }] {
        for n in 1..=operations {
            let disk = MemoryDisk::new();
            let faulty = Faulty::new(disk.open());
            faulty.fail_operation(n, error.clone());
            let told = play(faulty.clone());
            assert_eq!(told, Err(error.clone().into()), "operation {n}");
            faulty.close().expect("close");
            restart(&disk, &expected, &format!("operation {n} of {operations}"));
        }
    }
}

/// covers: EXT-006, STR-077
#[test]
fn the_process_may_die_at_every_commit() {
    let (expected, _, commits) = expected();
    for n in 1..=commits {
        for side in [Side::Before, Side::After] {
            let disk = MemoryDisk::new();
            let faulty = Faulty::new(disk.open());
            faulty.crash_at_commit(n, side);
            assert_eq!(play(faulty.clone()), Err(StorageError::Closed.into()));
            assert!(faulty.is_dead() && faulty.snapshot().is_err());
            restart(
                &disk,
                &expected,
                &format!("{side:?} commit {n} of {commits}"),
            );
        }
    }
}

/// covers: EXT-006
#[test]
fn a_commit_may_end_unknown() {
    let (expected, _, commits) = expected();
    for n in 1..=commits {
        for side in [Side::Before, Side::After] {
            let disk = MemoryDisk::new();
            let faulty = Faulty::new(disk.open());
            faulty.fail_commit(n, side, StorageError::UnknownOutcome);
            let told = play(faulty);
            assert_eq!(told, Err(StorageError::UnknownOutcome.into()));
            restart(
                &disk,
                &expected,
                &format!("{side:?} commit {n} of {commits}"),
            );
        }
    }
}

/// Any suffix of ordered commits after the last flushed one may be lost.
///
/// covers: EXT-006
#[test]
fn power_may_fail_at_every_commit() {
    let (expected, _, commits) = expected();
    for n in 1..=commits {
        for keep in 0..3 {
            let disk = MemoryDisk::new();
            let faulty = Faulty::new(disk.open());
            faulty.crash_at_commit(n, Side::After);
            assert_eq!(play(faulty), Err(StorageError::Closed.into()));
            disk.lose_unflushed(keep);
            restart(
                &disk,
                &expected,
                &format!("power loss after commit {n} of {commits}"),
            );
        }
    }
}

/// The wrapper adds nothing when no fault is planned, and counts what it passes on.
#[test]
fn without_a_plan_nothing_fails() {
    let disk = MemoryDisk::new();
    let faulty = Faulty::new(disk.open());
    faulty.open_tables(schema::TABLES).expect("tables");
    assert_eq!((faulty.operations(), faulty.commits()), (0, 0));
    let writer = faulty
        .writer(Duration::ZERO, Durability::Ordered)
        .expect("writer");
    assert_eq!(writer.get(TOPIC.info.id, &[]), Ok(None));
    assert_eq!(writer.get_many(TOPIC.info.id, &[&[]]), Ok(vec![None]));
    writer.commit(&Default::default()).expect("commit");
    assert_eq!((faulty.operations(), faulty.commits()), (4, 1));
    faulty.crash();
    assert_eq!(faulty.version(), Err(StorageError::Closed));
    assert!(format!("{faulty:?}").starts_with("Faulty("));
}

/// The mocks stand in for each part of the seam: the facade asks for a writer before anything
/// else, and a commit that fails is told.
#[test]
fn mocks_stand_in_for_an_engine() {
    let disk = MemoryDisk::new();
    let engine = disk.open();
    let mut storage = MockStorage::new();
    let capability = engine.capability();
    storage.expect_capability().return_const(capability);
    storage.expect_open_tables().times(2).returning(|_| Ok(()));
    storage.expect_snapshot().times(1).returning(|| {
        let mut snapshot = MockSnapshot::new();
        snapshot.expect_get().times(1).returning(|_, _| Ok(None));
        Ok(Box::new(snapshot))
    });
    storage.expect_writer().times(1).returning(|_, durability| {
        assert_eq!(durability, Durability::Flushed);
        let mut writer = MockWriter::new();
        writer.expect_get().returning(|_, _| Ok(None));
        writer.expect_commit().times(1).returning(|batch| {
            assert!(batch.tables.contains_key(&schema::DATABASE.info.id));
            Err(StorageError::Full)
        });
        Ok(Box::new(writer))
    });
    let refused = open(Arc::new(storage)).map(drop);
    assert_eq!(refused, Err(StorageError::Full.into()));
}
