//! The memory engine refuses what a real one may let pass, and loses power on demand.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use xmtp_core::storage::{
    Change, Durability, KeyRange, Layout, MAX_VALUE_BYTES, Order, Page, Storage, StorageError,
    TableChanges, TableId, TableInfo, WriteBatch,
};
use xmtp_core::testing::memory::{MemoryDisk, MemoryStorage};

const NAMED: TableInfo = TableInfo {
    id: TableId(900),
    name: "named",
    layout: Layout::Small,
};
const NUMBERED: TableInfo = TableInfo {
    id: TableId(901),
    name: "numbered",
    layout: Layout::Numbered,
};
const PATIENCE: Duration = Duration::from_secs(60);

fn open(disk: &MemoryDisk) -> std::sync::Arc<MemoryStorage> {
    let storage = disk.open();
    storage.open_tables(&[NAMED, NUMBERED]).expect("tables");
    storage
}

fn batch(table: TableId, changes: TableChanges) -> WriteBatch {
    WriteBatch {
        tables: [(table, changes)].into(),
    }
}

fn change(table: TableId, key: &[u8], change: Change) -> WriteBatch {
    let mut changes = TableChanges::default();
    changes.rows.insert(key.to_vec(), change);
    batch(table, changes)
}

fn put(key: &[u8], value: u8) -> WriteBatch {
    change(NAMED.id, key, Change::Put(vec![value]))
}

fn commit(
    storage: &MemoryStorage,
    batch: &WriteBatch,
    durability: Durability,
) -> Result<(), StorageError> {
    storage.writer(PATIENCE, durability)?.commit(batch)
}

fn get(storage: &MemoryStorage, key: &[u8]) -> Option<Vec<u8>> {
    let snapshot = storage.snapshot().expect("snapshot");
    snapshot.get(NAMED.id, key).expect("get")
}

fn is_refusal(outcome: Result<(), StorageError>) -> bool {
    matches!(outcome, Err(StorageError::Io { .. }))
}

#[test]
fn a_second_writer_on_one_thread_is_refused_at_once() {
    let disk = MemoryDisk::new();
    let (storage, other) = (open(&disk), open(&disk));
    let writer = storage
        .writer(PATIENCE, Durability::Ordered)
        .expect("writer");
    for handle in [&storage, &other] {
        let refused = handle.writer(PATIENCE, Durability::Ordered).map(drop);
        assert_eq!(refused, Err(StorageError::Busy { waited_ms: 0 }));
    }
    drop(writer);
    commit(&other, &put(b"k", 1), Durability::Ordered).expect("commit");
}

#[test]
fn writers_wait_in_turn_over_handles() {
    let disk = MemoryDisk::new();
    let storage = open(&disk);
    let writer = storage
        .writer(PATIENCE, Durability::Ordered)
        .expect("writer");
    let (served, order) = mpsc::channel();
    thread::scope(|scope| {
        for number in 0..5u8 {
            let (handle, served) = (open(&disk), served.clone());
            scope.spawn(move || {
                let writer = handle
                    .writer(PATIENCE, Durability::Ordered)
                    .expect("writer");
                served.send(number).expect("sent");
                writer.commit(&put(b"k", number)).expect("commit");
            });
            while disk.waiting() <= usize::from(number) {
                thread::yield_now();
            }
        }
        drop(writer);
    });
    drop(served);
    assert_eq!(order.iter().collect::<Vec<u8>>(), [0, 1, 2, 3, 4]);
    assert_eq!(get(&storage, b"k"), Some(vec![4]));
}

#[test]
fn a_batch_must_be_in_order_and_in_bounds() {
    let storage = open(&MemoryDisk::new());
    let key = |byte: u8| vec![byte];
    let cleared = |ranges: Vec<(Vec<u8>, Option<Vec<u8>>)>| {
        let changes = TableChanges {
            cleared: ranges,
            ..TableChanges::default()
        };
        commit(&storage, &batch(NAMED.id, changes), Durability::Ordered)
    };
    assert!(is_refusal(cleared(vec![(key(1), Some(key(1)))])), "empty");
    assert!(is_refusal(cleared(vec![
        (key(5), Some(key(6))),
        (key(1), Some(key(2)))
    ])));
    assert!(is_refusal(cleared(vec![
        (key(1), Some(key(3))),
        (key(2), Some(key(4)))
    ])));
    assert!(is_refusal(cleared(vec![
        (key(1), None),
        (key(2), Some(key(3)))
    ])));
    cleared(vec![(key(1), Some(key(2))), (key(2), None)]).expect("sorted and disjoint");
    let large = Change::Put(vec![0; MAX_VALUE_BYTES + 1]);
    let refused = commit(
        &storage,
        &change(NAMED.id, b"k", large),
        Durability::Ordered,
    );
    assert!(matches!(
        refused,
        Err(StorageError::TooLarge { what: "value", .. })
    ));
    let half = Change::Put(vec![0; MAX_VALUE_BYTES]);
    let mut changes = TableChanges::default();
    for key in [b"a", b"b"] {
        changes.rows.insert(key.to_vec(), half.clone());
    }
    let refused = commit(&storage, &batch(NAMED.id, changes), Durability::Ordered);
    assert!(matches!(
        refused,
        Err(StorageError::TooLarge {
            what: "write set",
            ..
        })
    ));
}

#[test]
fn numbered_keys_are_numbers_below_2_63() {
    let storage = open(&MemoryDisk::new());
    let most = (1u64 << 63) - 1;
    for (key, is_fine) in [
        (most.to_be_bytes().to_vec(), true),
        ((most + 1).to_be_bytes().to_vec(), false),
        (vec![1; 7], false),
        (vec![1; 9], false),
    ] {
        let put = change(NUMBERED.id, &key, Change::Put(Vec::new()));
        let outcome = commit(&storage, &put, Durability::Ordered);
        assert_eq!(outcome.is_ok(), is_fine, "{key:?}");
        let snapshot = storage.snapshot().expect("snapshot");
        assert_eq!(snapshot.get(NUMBERED.id, &key).is_ok(), is_fine, "{key:?}");
    }
}

#[test]
fn tables_must_be_opened_and_stay_as_they_are() {
    let disk = MemoryDisk::new();
    let storage = disk.open();
    storage.open_tables(&[NAMED]).expect("tables");
    open(&disk);
    let snapshot = storage.snapshot().expect("snapshot");
    assert!(
        snapshot.get(NUMBERED.id, &[0; 8]).is_err(),
        "by another handle only"
    );
    let unknown = change(NUMBERED.id, &[0; 8], Change::Delete);
    assert!(is_refusal(commit(&storage, &unknown, Durability::Ordered)));
    for changed in [
        TableInfo {
            name: "other",
            ..NAMED
        },
        TableInfo {
            layout: Layout::Large,
            ..NAMED
        },
    ] {
        assert!(is_refusal(storage.open_tables(&[changed])));
    }
}

#[test]
fn a_refused_batch_changes_nothing() {
    let storage = open(&MemoryDisk::new());
    commit(&storage, &put(b"k", 1), Durability::Ordered).expect("commit");
    let version = storage.version();
    let mut refused = put(b"a", 2);
    let rows = &mut refused.tables.entry(NAMED.id).or_default().rows;
    rows.insert(b"k".to_vec(), Change::New(vec![2]));
    let outcome = commit(&storage, &refused, Durability::Ordered);
    assert_eq!(outcome, Err(StorageError::Exists { table: "named" }));
    assert_eq!(
        (get(&storage, b"a"), get(&storage, b"k")),
        (None, Some(vec![1]))
    );
    assert_eq!(storage.version(), version);
}

#[test]
fn nothing_is_read_or_committed_after_close() {
    let disk = MemoryDisk::new();
    let storage = open(&disk);
    let snapshot = storage.snapshot().expect("snapshot");
    let writer = storage
        .writer(PATIENCE, Durability::Ordered)
        .expect("writer");
    storage.close().expect("close");
    let all = KeyRange {
        start: &[],
        end: None,
    };
    let page = Page {
        rows: 1,
        bytes: 1,
        order: Order::Ascending,
    };
    assert_eq!(snapshot.get(NAMED.id, b"k"), Err(StorageError::Closed));
    assert_eq!(
        snapshot.scan(NAMED.id, all, page),
        Err(StorageError::Closed)
    );
    assert_eq!(writer.commit(&put(b"k", 1)), Err(StorageError::Closed));
    assert_eq!(get(&open(&disk), b"k"), None);
}

#[test]
fn power_loss_keeps_a_prefix_of_the_unflushed_commits() {
    for keep in 0..=3usize {
        let disk = MemoryDisk::new();
        let storage = open(&disk);
        commit(&storage, &put(b"a", 0), Durability::Flushed).expect("commit");
        let mut clear = put(b"b", 2);
        let changes = clear.tables.entry(NAMED.id).or_default();
        changes.cleared.push((b"a".to_vec(), Some(b"b".to_vec())));
        for ordered in [put(b"a", 1), clear, put(b"a", 3)] {
            commit(&storage, &ordered, Durability::Ordered).expect("commit");
        }
        assert_eq!(disk.unflushed(), 3);
        assert_eq!(disk.lose_unflushed(keep), 3 - keep);
        assert_eq!(storage.snapshot().map(drop), Err(StorageError::Closed));
        let storage = open(&disk);
        let expected = [
            (Some(0), None),
            (Some(1), None),
            (None, Some(2)),
            (Some(3), Some(2)),
        ];
        let (a, b) = expected[keep];
        let found = (get(&storage, b"a"), get(&storage, b"b"));
        assert_eq!(
            found,
            (a.map(|a| vec![a]), b.map(|b| vec![b])),
            "keep {keep}"
        );
        assert_eq!(disk.lose_unflushed(0), 0, "what came back is on disk");
    }
}

#[test]
fn a_snapshot_stays_as_it_was() {
    let storage = open(&MemoryDisk::new());
    commit(&storage, &put(b"k", 1), Durability::Ordered).expect("commit");
    let snapshot = storage.snapshot().expect("snapshot");
    commit(&storage, &put(b"k", 2), Durability::Ordered).expect("commit");
    assert_eq!(snapshot.get(NAMED.id, b"k"), Ok(Some(vec![1])));
    assert_eq!(get(&storage, b"k"), Some(vec![2]));
}

#[test]
fn debug_shows_no_row() {
    let disk = MemoryDisk::new();
    let storage = open(&disk);
    commit(&storage, &put(b"secret", 0xab), Durability::Ordered).expect("commit");
    let text = format!("{storage:?} {disk:?}");
    assert!(text.starts_with("MemoryStorage MemoryDisk("), "{text}");
    assert!(!text.contains("secret"));
}
