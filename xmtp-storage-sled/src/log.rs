//! Rows over one sled tree, and the record of each commit beside them.
//!
//! All tables share one tree, because sled applies a batch atomically within one. A stored key is
//! the byte 1, the table's number and the row's key; byte 0 begins the engine's own record. That
//! record holds the commit's number and a sum over all stored rows, so that a log which lost a
//! part of itself is told from a whole one.

use std::collections::BTreeMap;
use std::path::Path;

use sled::{Db, IVec};
use xmtp_core::storage::{
    Change, KeyRange, Order, Page, Rows, StorageError, TableChanges, TableId,
};

use crate::seal::Sealer;

/// Memory that sled may keep pages in.
const CACHE_BYTES: u64 = 32 * 1024 * 1024;
const RECORD_KEY: &[u8] = b"\0commit";
const ROW: u8 = 1;
const ROW_PREFIX_BYTES: usize = 3;

/// What the log says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// The number of the last commit.
    pub(crate) number: u64,
    /// Rows of all tables.
    rows: u64,
    /// The sum over the prints of all rows.
    sum: u128,
}

/// An open log.
pub(crate) struct Log {
    db: Db,
    sealer: Sealer,
    record: Record,
    /// A commit failed half way: nothing in memory can be trusted until the log is opened again.
    is_broken: bool,
}

impl Log {
    /// Opens the log in `dir`, or makes it.
    pub(crate) fn open(dir: &Path, sealer: Sealer) -> sled::Result<Self> {
        let db = sled::Config::new()
            .path(dir)
            .cache_capacity(CACHE_BYTES)
            // Every commit flushes.
            .flush_every_ms(None)
            .open()?;
        let mut log = Self {
            db,
            sealer,
            record: Record::default(),
            is_broken: false,
        };
        log.record = log.read_record()?.unwrap_or_default();
        Ok(log)
    }

    /// Writes the record of a new log.
    pub(crate) fn begin(&mut self) -> Result<(), StorageError> {
        self.apply(sled::Batch::default(), Record::default())
    }

    /// Answers the record of the last commit.
    pub(crate) fn record(&self) -> Record {
        self.record
    }

    fn read_record(&self) -> sled::Result<Option<Record>> {
        let Some(stored) = self.db.get(RECORD_KEY)? else {
            return Ok(None);
        };
        let record = self.sealer.open(RECORD_KEY, &stored);
        Ok(record.as_deref().and_then(Record::decode))
    }

    /// Reads every row: whether the log holds all that its record says.
    pub(crate) fn is_whole(&self) -> sled::Result<bool> {
        let Some(record) = self.read_record()? else {
            return Ok(false);
        };
        let mut found = Record {
            number: record.number,
            ..Record::default()
        };
        for row in self.db.range([ROW]..) {
            let (key, stored) = row?;
            if self.sealer.open(&key, &stored).is_none() {
                return Ok(false);
            }
            found.rows += 1;
            found.sum = found.sum.wrapping_add(self.sealer.print(&key, &stored));
        }
        Ok(found == record)
    }

    /// Reads one value.
    pub(crate) fn get(&self, table: Named, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.usable()?;
        let key = row_key(table.id, key);
        let stored = self.db.get(&key).map_err(|error| told("read", &error))?;
        let value = stored.map(|stored| self.sealer.open(&key, &stored));
        match value {
            Some(None) => Err(table.corrupt()),
            Some(value) => Ok(value),
            None => Ok(None),
        }
    }

    /// Reads one page.
    pub(crate) fn scan(
        &self,
        table: Named,
        range: KeyRange<'_>,
        page: Page,
    ) -> Result<Rows, StorageError> {
        self.usable()?;
        let start = row_key(table.id, range.start);
        let end = end_key(table.id, range.end);
        if start >= end {
            return Ok(Rows::new());
        }
        let found = self.db.range(start..end);
        match page.order {
            Order::Ascending => self.fill(table, found, page),
            Order::Descending => self.fill(table, found.rev(), page),
        }
    }

    fn fill(
        &self,
        table: Named,
        found: impl Iterator<Item = sled::Result<(IVec, IVec)>>,
        page: Page,
    ) -> Result<Rows, StorageError> {
        let mut rows = Rows::new();
        for row in found {
            let (key, stored) = row.map_err(|error| told("read", &error))?;
            let short = &key[ROW_PREFIX_BYTES..];
            let bytes = rows.bytes() + short.len() + self.sealer.value_len(stored.len());
            let is_full = rows.len() >= page.rows as usize || bytes > page.bytes as usize;
            if is_full && !rows.is_empty() {
                rows.more = true;
                break;
            }
            let value = self.sealer.open(&key, &stored);
            rows.push(short, &value.ok_or_else(|| table.corrupt())?);
        }
        Ok(rows)
    }

    /// Applies a batch in one piece and flushes it.
    pub(crate) fn commit(
        &mut self,
        changes: &[(Named, &TableChanges)],
    ) -> Result<(), StorageError> {
        self.usable()?;
        let mut record = self.record;
        record.number += 1;
        let mut batch = sled::Batch::default();
        for (table, changes) in changes {
            let mut cleared = self.cleared(*table, changes)?;
            for (key, change) in &changes.rows {
                let key = row_key(table.id, key);
                let was_cleared = cleared.remove(&key);
                let before = match &was_cleared {
                    Some(stored) => Some(stored.clone()),
                    None => self.db.get(&key).map_err(|error| told("read", &error))?,
                };
                if matches!(change, Change::New(_)) && before.is_some() && was_cleared.is_none() {
                    return Err(StorageError::Exists { table: table.name });
                }
                if let Some(stored) = &before {
                    record.remove(self.sealer.print(&key, stored));
                }
                match change {
                    Change::Put(value) | Change::New(value) => {
                        let stored = self.sealer.seal(&key, value)?;
                        record.add(self.sealer.print(&key, &stored));
                        batch.insert(key, stored);
                    }
                    Change::Delete if before.is_some() => batch.remove(key),
                    Change::Delete => {}
                }
            }
            for (key, stored) in cleared {
                record.remove(self.sealer.print(&key, &stored));
                batch.remove(key);
            }
        }
        self.apply(batch, record)
    }

    fn cleared(
        &self,
        table: Named,
        changes: &TableChanges,
    ) -> Result<BTreeMap<Vec<u8>, IVec>, StorageError> {
        let mut cleared = BTreeMap::new();
        for (start, end) in &changes.cleared {
            let (start, end) = (row_key(table.id, start), end_key(table.id, end.as_deref()));
            if start >= end {
                continue;
            }
            for row in self.db.range(start..end) {
                let (key, stored) = row.map_err(|error| told("read", &error))?;
                cleared.insert(key.to_vec(), stored);
            }
        }
        Ok(cleared)
    }

    /// Writes rows and record in one batch. Once sled has begun, a failure leaves the outcome
    /// open.
    fn apply(&mut self, mut batch: sled::Batch, record: Record) -> Result<(), StorageError> {
        batch.insert(RECORD_KEY, self.sealer.seal(RECORD_KEY, &record.encode())?);
        let written = self.db.apply_batch(batch).and_then(|()| self.db.flush());
        if let Err(error) = written {
            self.is_broken = true;
            let error = told("commit", &error);
            tracing::error!(%error, "the outcome of a commit is unknown; the database needs to be opened again");
            return Err(StorageError::UnknownOutcome);
        }
        self.record = record;
        Ok(())
    }

    fn usable(&self) -> Result<(), StorageError> {
        if self.is_broken {
            return Err(StorageError::Io {
                action: "go on after a failed commit",
                detail: "open the database again".to_owned(),
            });
        }
        Ok(())
    }
}

impl Record {
    fn add(&mut self, print: u128) {
        self.rows += 1;
        self.sum = self.sum.wrapping_add(print);
    }

    fn remove(&mut self, print: u128) {
        self.rows = self.rows.saturating_sub(1);
        self.sum = self.sum.wrapping_sub(print);
    }

    fn encode(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&self.number.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.rows.to_be_bytes());
        bytes[16..].copy_from_slice(&self.sum.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (number, rest) = bytes.split_first_chunk()?;
        let (rows, sum) = rest.split_first_chunk()?;
        Some(Self {
            number: u64::from_be_bytes(*number),
            rows: u64::from_be_bytes(*rows),
            sum: u128::from_be_bytes(sum.try_into().ok()?),
        })
    }
}

/// A table with the name for its errors.
#[derive(Clone, Copy)]
pub(crate) struct Named {
    pub(crate) id: TableId,
    pub(crate) name: &'static str,
}

impl Named {
    fn corrupt(self) -> StorageError {
        StorageError::Corrupt {
            table: self.name,
            what: "value",
        }
    }
}

fn row_key(table: TableId, key: &[u8]) -> Vec<u8> {
    let mut stored = Vec::with_capacity(ROW_PREFIX_BYTES + key.len());
    stored.push(ROW);
    stored.extend_from_slice(&table.0.to_be_bytes());
    stored.extend_from_slice(key);
    stored
}

/// Makes the end of a range; without one, the first key after the table.
fn end_key(table: TableId, end: Option<&[u8]>) -> Vec<u8> {
    match (end, table.0.checked_add(1)) {
        (Some(end), _) => row_key(table, end),
        (None, Some(next)) => row_key(TableId(next), b""),
        (None, None) => vec![ROW + 1],
    }
}

/// Turns an error of sled into ours, without keys or paths.
pub(crate) fn told(action: &'static str, error: &sled::Error) -> StorageError {
    let detail = match error {
        sled::Error::Io(error) if error.kind() == std::io::ErrorKind::StorageFull => {
            return StorageError::Full;
        }
        sled::Error::Io(error) => error.kind().to_string(),
        sled::Error::Corruption { .. } => {
            return StorageError::Corrupt {
                table: "log",
                what: "page",
            };
        }
        sled::Error::CollectionNotFound(_) => "a tree is missing".to_owned(),
        sled::Error::Unsupported(_) => "sled does not support it".to_owned(),
        sled::Error::ReportableBug(_) => "a defect in sled".to_owned(),
    };
    StorageError::Io { action, detail }
}
