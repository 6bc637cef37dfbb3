//! The storage trait on encrypted SQLite, through the facade, against bare rusqlite.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::Connection;
use rusqlite::types::Value;
use xmtp_core::runtime::{NativeRuntime, Runtime, RuntimeExt};
use xmtp_core::storage::{
    Database, Domain, Durability, Key, KeyRange, Layout, Order, Page, Raw, Storage, StorageError,
    Table,
};
use xmtp_storage_sqlite::{DatabaseKey, SqliteStorage};

use crate::report::{Failure, Name, Report};
use crate::sqlite::{self, KEY, Synchronous};

const NUMBERED: Table<u64, Raw> =
    Table::new(900, "bench_numbered", Layout::Numbered, Domain::Messages);
const LARGE: Table<[u8; 24], Raw> = Table::new(901, "bench_large", Layout::Large, Domain::Messages);

/// Bytes of a value.
const VALUE_BYTES: usize = 1024;
/// Rows of one write transaction, and reads of one snapshot.
const BATCH_ROWS: usize = 100;
/// Batches of one slice.
const BATCHES: usize = 10;
/// Rows of one scanned page.
const PAGE_ROWS: usize = 1000;
/// Pages of one slice.
const PAGES: usize = 8;

/// Measures both layouts that hold rows of a kilobyte.
pub(crate) fn measure(report: &mut Report) -> Result<(), Failure> {
    let numbered = |place: u64| (place, Value::Integer(place.cast_signed()));
    Bench::open(NUMBERED, ("numbered", "id"), numbered)?.measure(report)?;
    let large = |place: u64| {
        let mut key = [9; 24];
        key[16..].copy_from_slice(&place.to_be_bytes());
        (key, Value::Blob(key.to_vec()))
    };
    Bench::open(LARGE, ("large", "key"), large)?.measure(report)
}

/// One table, twice: in a database of ours and in a bare one.
struct Bench<K, F> {
    table: Table<K, Raw>,
    layout: &'static str,
    column: &'static str,
    /// The key at a place, for ours and for SQLite; keys rise with places.
    key: F,
    runtime: Arc<NativeRuntime>,
    ours: Database,
    writer: Connection,
    reader: Connection,
    rows: u64,
    _folder: tempfile::TempDir,
}

impl<K: Key, F: Fn(u64) -> (K, Value)> Bench<K, F> {
    fn open(
        table: Table<K, Raw>,
        (layout, column): (&'static str, &'static str),
        key: F,
    ) -> Result<Self, Failure> {
        let folder = tempfile::tempdir()?;
        let runtime = NativeRuntime::current();
        let storage = storage(&folder.path().join("ours.db"), table)?;
        let bare = bare_file(folder.path(), table)?;
        Ok(Self {
            table,
            layout,
            column,
            key,
            ours: Database::open(storage, runtime.clone())?,
            runtime,
            writer: sqlite::client_writer(&bare, Synchronous::Normal)?,
            reader: sqlite::client_reader(&bare)?,
            rows: 0,
            _folder: folder,
        })
    }

    fn measure(mut self, report: &mut Report) -> Result<(), Failure> {
        let rounds = report.rounds();
        report.figure(&self.name("engine_insert"), |run| {
            for _ in 0..rounds * BATCHES {
                let rows = self.fresh_rows();
                run.ours(|| self.insert(&rows))?;
                run.limit(|| self.insert_bare(&rows))?;
            }
            Ok(rounds * BATCHES * BATCH_ROWS)
        })?;
        report.figure(&self.name("engine_get"), |run| {
            for _ in 0..rounds * BATCHES {
                let keys = self.random_keys(BATCH_ROWS);
                let ours = run.ours(|| self.get(&keys))?;
                let limit = run.limit(|| self.get_bare(&keys))?;
                same(ours, limit, BATCH_ROWS)?;
            }
            Ok(rounds * BATCHES * BATCH_ROWS)
        })?;
        report.figure(&self.name("engine_scan"), |run| {
            for key in self.random_keys(rounds * PAGES) {
                let ours = run.ours(|| self.scan(&key))?;
                let limit = run.limit(|| self.scan_bare(&key))?;
                same(ours, limit, PAGE_ROWS)?;
            }
            Ok(rounds * PAGES * PAGE_ROWS)
        })?;
        self.ours.close()?;
        Ok(())
    }

    fn name(&self, measure: &'static str) -> Name<'static> {
        Name {
            measure,
            label: Some(("layout", self.layout.into())),
            unit: "rows/s",
        }
    }

    fn fresh_rows(&mut self) -> Vec<(K, Value, Raw)> {
        let first = self.rows + 1;
        self.rows += BATCH_ROWS as u64;
        let row = |place| {
            let (key, bare) = (self.key)(place);
            let mut value = vec![0; VALUE_BYTES];
            self.runtime.fill(&mut value);
            (key, bare, Raw(value))
        };
        (first..=self.rows).map(row).collect()
    }

    /// Draws keys that are there, a page before the last.
    fn random_keys(&self, count: usize) -> Vec<(Vec<u8>, Value)> {
        let places = self.rows - PAGE_ROWS as u64;
        let key = |_| {
            let random = u64::from_be_bytes(self.runtime.random());
            let (key, bare) = (self.key)(1 + random % places);
            (key.to_bytes(), bare)
        };
        (0..count).map(key).collect()
    }

    fn insert(&self, rows: &[(K, Value, Raw)]) -> Result<(), StorageError> {
        self.ours.write(Durability::Ordered, |txn| {
            rows.iter()
                .try_for_each(|(key, _, value)| txn.put_new(self.table, key, value))
        })
    }

    fn insert_bare(&self, rows: &[(K, Value, Raw)]) -> rusqlite::Result<()> {
        let (table, column) = (self.table.info.id.0, self.column);
        let sql = format!("INSERT INTO t{table} ({column}, value) VALUES (?1, ?2)");
        self.writer.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let mut insert = self.writer.prepare_cached(&sql)?;
        for (_, key, value) in rows {
            insert.execute((key, &value.0))?;
        }
        self.writer.prepare_cached("COMMIT")?.execute([])?;
        Ok(())
    }

    fn get(&self, keys: &[(Vec<u8>, Value)]) -> Result<usize, StorageError> {
        self.ours.read(|snapshot| {
            let mut bytes = 0;
            for (key, _) in keys {
                let value = snapshot.get(self.table.info.id, key)?;
                bytes += black_box(value).map_or(0, |value| value.len());
            }
            Ok(bytes)
        })
    }

    fn get_bare(&self, keys: &[(Vec<u8>, Value)]) -> rusqlite::Result<usize> {
        let (table, column) = (self.table.info.id.0, self.column);
        let sql = format!("SELECT value FROM t{table} WHERE {column} = ?1");
        self.reader.prepare_cached("BEGIN")?.execute([])?;
        let mut select = self.reader.prepare_cached(&sql)?;
        let mut bytes = 0;
        for (_, key) in keys {
            let mut found = select.query([key])?;
            // A key is there once: to step on would be work that ours does not do.
            if let Some(row) = found.next()? {
                bytes += black_box(row.get_ref(0)?.as_blob()?).len();
            }
        }
        self.reader.prepare_cached("COMMIT")?.execute([])?;
        Ok(bytes)
    }

    fn scan(&self, (start, _): &(Vec<u8>, Value)) -> Result<usize, StorageError> {
        let page = Page {
            rows: PAGE_ROWS as u32,
            bytes: u32::MAX,
            order: Order::Ascending,
        };
        self.ours.read(|snapshot| {
            let range = KeyRange { start, end: None };
            let rows = snapshot.scan(self.table.info.id, range, page)?;
            Ok(rows.iter().map(|(_, value)| black_box(value).len()).sum())
        })
    }

    fn scan_bare(&self, (_, start): &(Vec<u8>, Value)) -> rusqlite::Result<usize> {
        let (table, column) = (self.table.info.id.0, self.column);
        let sql = format!(
            "SELECT {column}, value FROM t{table} WHERE {column} >= ?1 ORDER BY {column} LIMIT ?2"
        );
        let mut select = self.reader.prepare_cached(&sql)?;
        let mut found = select.query((start, PAGE_ROWS as i64))?;
        let mut bytes = 0;
        while let Some(row) = found.next()? {
            black_box(row.get_ref(0)?);
            bytes += black_box(row.get_ref(1)?.as_blob()?).len();
        }
        Ok(bytes)
    }
}

fn storage<K>(path: &Path, table: Table<K, Raw>) -> Result<Arc<SqliteStorage>, Failure> {
    let key = DatabaseKey::new(KEY);
    let storage = SqliteStorage::options(path).key(key).open()?;
    storage.open_tables(&[table.info])?;
    Ok(storage)
}

/// Makes the same table in a file that no engine holds open.
fn bare_file<K>(folder: &Path, table: Table<K, Raw>) -> Result<PathBuf, Failure> {
    let path = folder.join("bare.db");
    storage(&path, table)?.close()?;
    Ok(path)
}

fn same(ours: usize, limit: usize, rows: usize) -> Result<(), Failure> {
    if ours != limit || ours != rows * VALUE_BYTES {
        return Err("the two sides did not read the same rows".into());
    }
    Ok(())
}
