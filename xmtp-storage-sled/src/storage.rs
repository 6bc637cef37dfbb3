//! The engine: one writer in turn, readers under one lock that a commit takes.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{RwLock, RwLockReadGuard};
use xmtp_core::storage::{
    Capability, Durability, Encryption, KeyRange, MAX_VALUE_BYTES, Page, Processes, Rows, Snapshot,
    Storage, StorageError, TableId, TableInfo, WriteBatch, Writer,
};
use xmtp_core::storage::{Change, TableChanges};

use crate::home::{Home, Mark, wait_for_lock};
use crate::log::{Log, Named};
use crate::options::Options;
use crate::turn::{Held, Turn};

/// How long closing waits for the writer, the readers and sled's threads.
pub(crate) const CLOSE_PATIENCE: Duration = Duration::from_secs(10);
/// How long a commit waits for open snapshots when its writer was less patient: a commit that
/// has been computed is worth it. After that a snapshot of the same thread is the likely cause.
const COMMIT_PATIENCE: Duration = Duration::from_secs(2);

thread_local! {
    /// Snapshots of this thread, over all databases.
    static SNAPSHOTS: Cell<usize> = const { Cell::new(0) };
}

/// A database in a directory, for one process.
pub struct SledStorage {
    home: Home,
    encryption: Encryption,
    tables: RwLock<BTreeMap<TableId, &'static str>>,
    turn: Turn,
    version: AtomicU64,
    /// `None` once closed. Readers share it for the life of a snapshot, because sled has no
    /// snapshots; a commit takes it alone.
    gate: RwLock<Option<Open>>,
}

/// What an open database holds; the header's lock goes last.
pub(crate) struct Open {
    pub(crate) log: Log,
    pub(crate) mark: Mark,
    pub(crate) lock: File,
}

impl fmt::Debug for SledStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SledStorage")
    }
}

impl SledStorage {
    /// Begins the settings of a database in `dir`.
    pub fn options(dir: impl Into<PathBuf>) -> Options {
        Options::new(dir.into())
    }

    pub(crate) fn new(home: Home, encryption: Encryption, open: Open) -> Self {
        Self {
            home,
            encryption,
            tables: RwLock::default(),
            turn: Turn::default(),
            version: AtomicU64::new(0),
            gate: RwLock::new(Some(open)),
        }
    }

    fn check_open(&self) -> Result<(), StorageError> {
        if self.turn.is_closed() {
            return Err(StorageError::Closed);
        }
        Ok(())
    }

    fn table(&self, id: TableId) -> Result<Named, StorageError> {
        let name = self.tables.read().get(&id).copied();
        let name = name.ok_or_else(|| StorageError::Io {
            action: "find a table",
            detail: "it was not opened".to_owned(),
        })?;
        Ok(Named { id, name })
    }

    /// Shares the gate. A thread that has a snapshot already must not queue behind a commit that
    /// waits for it.
    fn share(&self) -> RwLockReadGuard<'_, Option<Open>> {
        if SNAPSHOTS.get() > 0 {
            self.gate.read_recursive()
        } else {
            self.gate.read()
        }
    }

    fn named<'b>(
        &self,
        batch: &'b WriteBatch,
    ) -> Result<Vec<(Named, &'b TableChanges)>, StorageError> {
        let mut named = Vec::with_capacity(batch.tables.len());
        for (id, changes) in &batch.tables {
            for change in changes.rows.values() {
                check_value(change)?;
            }
            named.push((self.table(*id)?, changes));
        }
        Ok(named)
    }

    fn commit(&self, batch: &WriteBatch, patience: Duration) -> Result<(), StorageError> {
        let named = self.named(batch)?;
        let patience = patience.max(COMMIT_PATIENCE);
        let mut gate = self.gate.try_write_for(patience);
        let open = match gate.as_deref_mut() {
            Some(Some(open)) => open,
            Some(None) => return Err(StorageError::Closed),
            None => {
                let waited_ms = patience.as_millis() as u64;
                return Err(StorageError::Busy { waited_ms });
            }
        };
        let committed = open.log.commit(&named);
        if matches!(committed, Ok(()) | Err(StorageError::UnknownOutcome)) {
            self.version.fetch_add(1, Ordering::SeqCst);
        }
        committed?;
        let number = open.log.record().number;
        if let Err(error) = open.mark.set(number, &self.home.log_lock()) {
            // The commit is durable; the mark only lags.
            tracing::warn!(kind = %error.kind(), "the commit mark was not written");
        }
        Ok(())
    }

    /// Lets go of sled and waits until its threads have let go of the files, then of the lock.
    fn release(&self, open: Open) -> Result<(), StorageError> {
        let Open { log, mark, lock } = open;
        drop(log);
        drop(mark);
        let free =
            File::open(self.home.log_lock()).and_then(|file| wait_for_lock(&file, CLOSE_PATIENCE));
        drop(lock);
        match free {
            Ok(true) => Ok(()),
            Ok(false) => Err(StorageError::Io {
                action: "close the log",
                detail: "sled still holds it".to_owned(),
            }),
            // The files are gone, and with them whoever could hold them.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(StorageError::Io {
                action: "close the log",
                detail: error.kind().to_string(),
            }),
        }
    }
}

impl Storage for SledStorage {
    fn capability(&self) -> Capability {
        Capability {
            name: "sled",
            processes: Processes::One,
            encryption: self.encryption,
            erases_deleted: false,
            max_value_bytes: MAX_VALUE_BYTES,
        }
    }

    fn open_tables(&self, tables: &[TableInfo]) -> Result<(), StorageError> {
        self.check_open()?;
        let mut known = self.tables.write();
        known.extend(tables.iter().map(|info| (info.id, info.name)));
        Ok(())
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, StorageError> {
        self.check_open()?;
        let gate = self.share();
        if gate.is_none() {
            return Err(StorageError::Closed);
        }
        Ok(Box::new(SledSnapshot::new(self, gate)))
    }

    /// Takes the writer. Both durabilities flush: sled writes from a buffer in memory, so without
    /// a flush even a killed process would lose commits.
    fn writer(
        &self,
        patience: Duration,
        _durability: Durability,
    ) -> Result<Box<dyn Writer + '_>, StorageError> {
        let held = self.turn.take(patience)?;
        Ok(Box::new(SledWriter {
            storage: self,
            patience,
            _held: held,
        }))
    }

    fn version(&self) -> Result<u64, StorageError> {
        self.check_open()?;
        Ok(self.version.load(Ordering::SeqCst))
    }

    /// Closes the engine. Waits up to ten seconds for a writer or snapshot that is out, and
    /// answers [`StorageError::Busy`] when it stays; closing again then goes on.
    fn close(&self) -> Result<(), StorageError> {
        let waited_ms = CLOSE_PATIENCE.as_millis() as u64;
        if !self.turn.close(CLOSE_PATIENCE) {
            return Err(StorageError::Busy { waited_ms });
        }
        let gate = self.gate.try_write_for(CLOSE_PATIENCE);
        let mut gate = gate.ok_or(StorageError::Busy { waited_ms })?;
        match gate.take() {
            Some(open) => self.release(open),
            None => Ok(()),
        }
    }
}

impl Drop for SledStorage {
    fn drop(&mut self) {
        if let Some(open) = self.gate.get_mut().take() {
            let _ = self.release(open);
        }
    }
}

fn check_value(change: &Change) -> Result<(), StorageError> {
    match change {
        Change::Put(value) | Change::New(value) if value.len() > MAX_VALUE_BYTES => {
            Err(StorageError::TooLarge {
                what: "value",
                bytes: value.len(),
                max: MAX_VALUE_BYTES,
            })
        }
        _ => Ok(()),
    }
}

fn get_each(
    snapshot: &dyn Snapshot,
    table: TableId,
    keys: &[&[u8]],
) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
    keys.iter().map(|key| snapshot.get(table, key)).collect()
}

/// A version that stays because no commit can happen beside it.
struct SledSnapshot<'s> {
    storage: &'s SledStorage,
    gate: RwLockReadGuard<'s, Option<Open>>,
}

impl<'s> SledSnapshot<'s> {
    fn new(storage: &'s SledStorage, gate: RwLockReadGuard<'s, Option<Open>>) -> Self {
        SNAPSHOTS.set(SNAPSHOTS.get() + 1);
        Self { storage, gate }
    }

    fn log(&self) -> Result<&Log, StorageError> {
        self.storage.check_open()?;
        let open = self.gate.as_ref().ok_or(StorageError::Closed)?;
        Ok(&open.log)
    }
}

impl Drop for SledSnapshot<'_> {
    fn drop(&mut self) {
        SNAPSHOTS.set(SNAPSHOTS.get() - 1);
    }
}

impl Snapshot for SledSnapshot<'_> {
    fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.log()?.get(self.storage.table(table)?, key)
    }

    fn get_many(
        &self,
        table: TableId,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
        get_each(self, table, keys)
    }

    fn scan(&self, table: TableId, range: KeyRange<'_>, page: Page) -> Result<Rows, StorageError> {
        self.log()?.scan(self.storage.table(table)?, range, page)
    }
}

/// The one writer. It reads without a snapshot of its own: nobody else can commit.
struct SledWriter<'s> {
    storage: &'s SledStorage,
    patience: Duration,
    _held: Held<'s>,
}

impl SledWriter<'_> {
    fn with_log<T>(
        &self,
        read: impl FnOnce(&Log) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let gate = self.storage.share();
        let open = gate.as_ref().ok_or(StorageError::Closed)?;
        read(&open.log)
    }
}

impl Snapshot for SledWriter<'_> {
    fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        let table = self.storage.table(table)?;
        self.with_log(|log| log.get(table, key))
    }

    fn get_many(
        &self,
        table: TableId,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
        get_each(self, table, keys)
    }

    fn scan(&self, table: TableId, range: KeyRange<'_>, page: Page) -> Result<Rows, StorageError> {
        let table = self.storage.table(table)?;
        self.with_log(|log| log.scan(table, range, page))
    }
}

impl Writer for SledWriter<'_> {
    fn commit(self: Box<Self>, batch: &WriteBatch) -> Result<(), StorageError> {
        self.storage.commit(batch, self.patience)
    }
}
