//! A fresh database with the suite's own tables, and short words for the usual steps.

use std::env;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

use super::Engine;
use crate::storage::{
    Change, Durability, KeyRange, Layout, Order, Page, Snapshot, Storage, StorageError, TableId,
    TableInfo, WriteBatch,
};

/// A table of small rows.
pub(super) const SMALL: TableId = TableId(901);
/// A table of larger rows, and the number after [`SMALL`].
pub(super) const LARGE: TableId = TableId(902);
/// A table with numbers as keys.
pub(super) const NUMBERED: TableId = TableId(903);
/// A second table with numbers as keys.
pub(super) const OTHER_NUMBERED: TableId = TableId(904);

/// The suite's tables, as an engine is told of them.
pub(super) const TABLES: &[TableInfo] = &[
    info(SMALL, "suite_small", Layout::Small),
    info(LARGE, "suite_large", Layout::Large),
    info(NUMBERED, "suite_numbered", Layout::Numbered),
    info(OTHER_NUMBERED, "suite_other_numbered", Layout::Numbered),
];

/// How long a case waits for a writer that has to come.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// A page that holds whatever a case has written.
pub(super) const ALL: Page = page(1_000_000, 1 << 30, Order::Ascending);

pub(super) const fn info(id: TableId, name: &'static str, layout: Layout) -> TableInfo {
    TableInfo { id, name, layout }
}

pub(super) const fn page(rows: u32, bytes: u32, order: Order) -> Page {
    Page { rows, bytes, order }
}

/// Makes a range of two keys.
pub(super) fn range<'a>(start: &'a [u8], end: &'a [u8]) -> KeyRange<'a> {
    KeyRange {
        start,
        end: Some(end),
    }
}

/// Makes a range from a key to the end of the table.
pub(super) fn from(start: &[u8]) -> KeyRange<'_> {
    KeyRange { start, end: None }
}

/// Answers how many rounds a long case runs: `XMTP_ROUNDS`, or `default`.
pub(super) fn rounds(default: u64) -> u64 {
    let given = env::var("XMTP_ROUNDS").ok();
    given.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// One database in a directory of its own.
pub(super) struct Fixture<'e> {
    engine: &'e dyn Engine,
    storage: Option<Arc<dyn Storage>>,
    dir: TempDir,
}

impl<'e> Fixture<'e> {
    pub(super) fn new(engine: &'e dyn Engine) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let storage = Some(open(engine, dir.path()));
        Self {
            engine,
            storage,
            dir,
        }
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn storage(&self) -> &Arc<dyn Storage> {
        self.storage.as_ref().expect("the fixture is open")
    }

    /// Opens a further handle on the same database, for engines that share.
    pub(super) fn other(&self) -> Arc<dyn Storage> {
        open(self.engine, self.dir.path())
    }

    /// Closes the database and opens it again, with no wait between.
    pub(super) fn reopen(&mut self) {
        self.close();
        self.storage = Some(open(self.engine, self.dir.path()));
    }

    /// Closes the database.
    pub(super) fn close(&mut self) {
        if let Some(storage) = self.storage.take() {
            storage.close().expect("close");
        }
    }

    /// Lets go of the database without closing it.
    pub(super) fn forget(&mut self) {
        self.storage = None;
    }

    pub(super) fn commit(&self, batch: &Batch) {
        commit(&**self.storage(), batch).expect("commit");
    }
}

impl Drop for Fixture<'_> {
    fn drop(&mut self) {
        if let Some(storage) = self.storage.take() {
            let _ = storage.close();
        }
    }
}

/// Opens a database with the suite's tables.
pub(super) fn open(engine: &dyn Engine, dir: &Path) -> Arc<dyn Storage> {
    let storage = engine.open(dir).expect("open");
    storage.open_tables(TABLES).expect("open the tables");
    storage
}

/// Commits a batch with the usual patience.
pub(super) fn commit(storage: &dyn Storage, batch: &Batch) -> Result<(), StorageError> {
    let writer = storage.writer(PATIENCE, Durability::Ordered)?;
    writer.commit(&batch.0)
}

/// Builds a write batch in one expression.
#[derive(Clone, Default)]
pub(super) struct Batch(pub(super) WriteBatch);

impl Batch {
    pub(super) fn new() -> Self {
        Self::default()
    }

    fn change(mut self, table: TableId, key: &[u8], change: Change) -> Self {
        let rows = &mut self.0.tables.entry(table).or_default().rows;
        rows.insert(key.to_vec(), change);
        self
    }

    pub(super) fn put(self, table: TableId, key: &[u8], value: &[u8]) -> Self {
        self.change(table, key, Change::Put(value.to_vec()))
    }

    pub(super) fn put_new(self, table: TableId, key: &[u8], value: &[u8]) -> Self {
        self.change(table, key, Change::New(value.to_vec()))
    }

    pub(super) fn delete(self, table: TableId, key: &[u8]) -> Self {
        self.change(table, key, Change::Delete)
    }

    /// Clears a range; calls must come in key order and must not overlap.
    pub(super) fn clear(mut self, table: TableId, start: &[u8], end: Option<&[u8]>) -> Self {
        let cleared = &mut self.0.tables.entry(table).or_default().cleared;
        cleared.push((start.to_vec(), end.map(<[u8]>::to_vec)));
        self
    }
}

/// A row as a case compares it.
pub(super) type Row = (Vec<u8>, Vec<u8>);

/// Reads a whole table in key order, through one page.
pub(super) fn dump(snapshot: &dyn Snapshot, table: TableId) -> Vec<Row> {
    let rows = snapshot.scan(table, from(b""), ALL).expect("scan");
    assert!(!rows.more, "a page without bounds holds everything");
    rows.iter()
        .map(|(key, value)| (key.to_vec(), value.to_vec()))
        .collect()
}

/// Reads a whole table of the last committed version.
pub(super) fn dump_last(storage: &dyn Storage, table: TableId) -> Vec<Row> {
    dump(&*storage.snapshot().expect("snapshot"), table)
}

/// Reads a range page by page, until `more` says that there is nothing more.
pub(super) fn walk(
    snapshot: &dyn Snapshot,
    table: TableId,
    bounds: KeyRange<'_>,
    by: Page,
) -> Vec<Row> {
    let mut found: Vec<Row> = Vec::new();
    let mut start = bounds.start.to_vec();
    let mut end = bounds.end.map(<[u8]>::to_vec);
    loop {
        let rest = KeyRange {
            start: &start,
            end: end.as_deref(),
        };
        let rows = snapshot.scan(table, rest, by).expect("scan");
        found.extend(rows.iter().map(|(k, v)| (k.to_vec(), v.to_vec())));
        if !rows.more {
            return found;
        }
        assert!(!rows.is_empty(), "a page with more to come is not empty");
        let (last, _) = rows.row(rows.len() - 1);
        match by.order {
            Order::Ascending => {
                start = last.to_vec();
                start.push(0);
            }
            Order::Descending => end = Some(last.to_vec()),
        }
    }
}

/// Makes rows from text, for comparison.
pub(super) fn rows(pairs: &[(&str, &str)]) -> Vec<Row> {
    pairs
        .iter()
        .map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec()))
        .collect()
}

/// Reads one row of the last committed version.
pub(super) fn get(storage: &dyn Storage, table: TableId, key: &[u8]) -> Option<Vec<u8>> {
    let snapshot = storage.snapshot().expect("snapshot");
    snapshot.get(table, key).expect("get")
}

/// Reads a row as a number; a missing row is zero.
pub(super) fn number(snapshot: &dyn Snapshot, table: TableId, key: &[u8]) -> u64 {
    match snapshot.get(table, key).expect("get") {
        Some(bytes) => u64::from_be_bytes(bytes.try_into().expect("a number has eight bytes")),
        None => 0,
    }
}

/// Adds one to a counter within one writer, and answers the new value.
pub(super) fn increment(storage: &dyn Storage, key: &[u8]) -> Result<u64, StorageError> {
    let writer = storage.writer(PATIENCE, Durability::Ordered)?;
    let next = number(&*writer, SMALL, key) + 1;
    writer.commit(&Batch::new().put(SMALL, key, &next.to_be_bytes()).0)?;
    Ok(next)
}

/// A small source of repeatable numbers (splitmix64).
pub(super) struct Seeded(pub(super) u64);

impl Seeded {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Answers a number below `bound`.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
