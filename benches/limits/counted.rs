//! Counts what is asked of a storage engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use xmtp_core::storage::{
    Capability, Durability, KeyRange, Page, Rows, Snapshot, Storage, StorageError, TableId,
    TableInfo, WriteBatch, Writer,
};

/// How often a storage was asked for what.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Values asked for.
    pub(crate) reads: u64,
    /// Pages of a range asked for.
    pub(crate) scans: u64,
    /// Rows and ranges changed.
    pub(crate) writes: u64,
}

/// Wraps an engine and counts.
#[derive(Debug)]
pub(crate) struct Counted {
    inner: Arc<dyn Storage>,
    reads: AtomicU64,
    scans: AtomicU64,
    writes: AtomicU64,
}

impl Counted {
    /// Wraps an engine.
    pub(crate) fn new(inner: Arc<dyn Storage>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            reads: AtomicU64::new(0),
            scans: AtomicU64::new(0),
            writes: AtomicU64::new(0),
        })
    }

    /// Takes what was counted since the last time.
    pub(crate) fn take(&self) -> Counts {
        Counts {
            reads: self.reads.swap(0, Ordering::Relaxed),
            scans: self.scans.swap(0, Ordering::Relaxed),
            writes: self.writes.swap(0, Ordering::Relaxed),
        }
    }
}

impl Storage for Counted {
    fn capability(&self) -> Capability {
        self.inner.capability()
    }

    fn open_tables(&self, tables: &[TableInfo]) -> Result<(), StorageError> {
        self.inner.open_tables(tables)
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, StorageError> {
        let inner = self.inner.snapshot()?;
        Ok(Box::new(Counting { inner, all: self }))
    }

    fn writer(
        &self,
        patience: Duration,
        durability: Durability,
    ) -> Result<Box<dyn Writer + '_>, StorageError> {
        let inner = self.inner.writer(patience, durability)?;
        Ok(Box::new(Counting { inner, all: self }))
    }

    fn version(&self) -> Result<u64, StorageError> {
        self.inner.version()
    }

    fn close(&self) -> Result<(), StorageError> {
        self.inner.close()
    }
}

struct Counting<'a, S: ?Sized> {
    inner: Box<S>,
    all: &'a Counted,
}

impl<S: Snapshot + ?Sized> Snapshot for Counting<'_, S> {
    fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.all.reads.fetch_add(1, Ordering::Relaxed);
        self.inner.get(table, key)
    }

    fn get_many(
        &self,
        table: TableId,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
        let values = keys.len() as u64;
        self.all.reads.fetch_add(values, Ordering::Relaxed);
        self.inner.get_many(table, keys)
    }

    fn scan(&self, table: TableId, range: KeyRange<'_>, page: Page) -> Result<Rows, StorageError> {
        self.all.scans.fetch_add(1, Ordering::Relaxed);
        self.inner.scan(table, range, page)
    }
}

impl Writer for Counting<'_, dyn Writer + '_> {
    fn commit(self: Box<Self>, batch: &WriteBatch) -> Result<(), StorageError> {
        let changes = batch.tables.values();
        let writes = changes.map(|table| (table.rows.len() + table.cleared.len()) as u64);
        self.all.writes.fetch_add(writes.sum(), Ordering::Relaxed);
        self.inner.commit(batch)
    }
}
