//! A commit beside an open snapshot waits, and does not wait for ever.

use std::time::{Duration, Instant};

use xmtp_core::storage::WriteBatch;
use xmtp_core::storage::{Change, Durability, Layout, Storage, StorageError, TableId, TableInfo};
use xmtp_storage_sled::SledStorage;

const TABLE: TableId = TableId(900);

/// covers: STR-070
#[test]
fn a_commit_beside_a_snapshot_of_its_own_thread_is_busy_and_commits_nothing() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let storage = SledStorage::options(dir.path())
        .plain()
        .open()
        .expect("open");
    let info = TableInfo {
        id: TABLE,
        name: "notes",
        layout: Layout::Small,
    };
    storage.open_tables(&[info]).expect("open the table");
    let mut batch = WriteBatch::default();
    let rows = &mut batch.tables.entry(TABLE).or_default().rows;
    rows.insert(b"k".to_vec(), Change::New(b"v".to_vec()));
    let write = || {
        let writer = storage.writer(Duration::ZERO, Durability::Flushed)?;
        writer.commit(&batch)
    };

    let snapshot = storage.snapshot().expect("snapshot");
    let start = Instant::now();
    let refused = write();
    assert!(
        matches!(refused, Err(StorageError::Busy { .. })),
        "{refused:?}"
    );
    assert!(start.elapsed() < Duration::from_secs(20));
    assert_eq!(snapshot.get(TABLE, b"k"), Ok(None));
    drop(snapshot);
    assert_eq!(write(), Ok(()));
    let snapshot = storage.snapshot().expect("snapshot");
    assert_eq!(snapshot.get(TABLE, b"k"), Ok(Some(b"v".to_vec())));
}
