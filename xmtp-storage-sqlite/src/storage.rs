//! The engine: one writer, a pool of readers, and a connection that watches for commits.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{FairMutex, Mutex, RwLock};
use rusqlite::Connection;
use xmtp_core::storage::{
    Capability, Durability, Encryption, MAX_VALUE_BYTES, Processes, Snapshot, Storage,
    StorageError, TableInfo, Writer,
};

use crate::connection::log_bytes;
use crate::fault;
use crate::layout::{Statements, Tables};
use crate::options::SqliteOptions;
use crate::registry::Lease;
use crate::slot::Slot;
use crate::snapshot::{Readers, SqliteSnapshot};
use crate::turn::{ASIDE, Turn, sibling};
use crate::wait::Wait;
use crate::writer::{Desk, SqliteWriter, begin};

/// How long a call without a patience of its own waits for a lock.
const CALL_PATIENCE: Duration = Duration::from_secs(10);
/// The log may grow to this many times its checkpoint size before commits insist on emptying it.
const LOG_EXCESS: u64 = 4;
/// How long one commit waits for readers to leave an overfull log.
const LOG_PATIENCE: Duration = Duration::from_millis(100);

/// A database in one SQLite file, whole-file encrypted when it has a key.
///
/// Several threads and processes may use one file at the same time. See the
/// [crate documentation](crate) for what lies beside the file.
#[derive(Debug)]
pub struct SqliteStorage {
    encryption: Encryption,
    log: PathBuf,
    /// The log's size at which it is moved into the file.
    log_bytes: u64,
    closed: AtomicBool,
    tables: RwLock<Arc<Tables>>,
    desk: FairMutex<Desk>,
    turn: Mutex<Option<Turn>>,
    writer: Slot,
    watcher: Slot,
    readers: Readers,
    lease: Mutex<Option<Lease>>,
}

/// What opening has found and made.
pub(crate) struct Opened {
    pub(crate) path: PathBuf,
    pub(crate) lease: Lease,
    pub(crate) turn: Turn,
    pub(crate) writer: Connection,
    pub(crate) watcher: Connection,
    pub(crate) checkpoint_pages: u32,
}

impl SqliteStorage {
    /// Starts to open the database at `path`; choose a key or none next.
    pub fn options(path: impl Into<PathBuf>) -> SqliteOptions {
        SqliteOptions::new(path.into())
    }

    pub(crate) fn new(opened: Opened) -> Self {
        let key = opened.lease.key();
        let encryption = match key {
            Some(_) => Encryption::Whole,
            None => Encryption::None,
        };
        Self {
            encryption,
            log: sibling(&opened.path, "-wal"),
            log_bytes: log_bytes(opened.checkpoint_pages),
            closed: AtomicBool::new(false),
            tables: RwLock::default(),
            desk: FairMutex::new(Desk::new()),
            turn: Mutex::new(Some(opened.turn)),
            writer: Slot::new(opened.writer),
            watcher: Slot::new(opened.watcher),
            readers: Readers::new(opened.path, key),
            lease: Mutex::new(Some(opened.lease)),
        }
    }

    pub(crate) fn write_slot(&self) -> &Slot {
        &self.writer
    }

    /// Empties a log that grew past its bound because readers kept it from being reset.
    ///
    /// The size of the file is the fill that counts: a reset cuts it to the limit. While readers
    /// stay, the next attempt comes when the log has grown by its checkpoint size again.
    pub(crate) fn bound_log(&self, desk: &mut Desk) {
        let size = std::fs::metadata(&self.log).map_or(0, |log| log.len());
        if size <= LOG_EXCESS * self.log_bytes {
            desk.log_tried = 0;
            return;
        }
        if size < desk.log_tried + self.log_bytes {
            return;
        }
        let wait = Wait::start(LOG_PATIENCE);
        loop {
            match self.writer.with(empty_log) {
                Ok(false) if wait.pause() => {}
                Ok(emptied) => {
                    desk.log_tried = if emptied { 0 } else { size };
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "the log was not emptied; a later commit tries again");
                    return;
                }
            }
        }
    }

    fn tables(&self) -> Result<Arc<Tables>, StorageError> {
        self.check_open()?;
        Ok(self.tables.read().clone())
    }

    fn check_open(&self) -> Result<(), StorageError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(StorageError::Closed);
        }
        Ok(())
    }

    fn begin_write(
        &self,
        wait: Wait,
        durability: Durability,
    ) -> Result<SqliteWriter<'_>, StorageError> {
        let tables = self.tables()?;
        let Some(mut desk) = self.desk.try_lock_until(wait.end()) else {
            self.check_open()?;
            return Err(busy(wait));
        };
        self.writer
            .with(|connection| desk.set(connection, durability))?;
        let begun = self.take_turn(&desk, wait);
        self.turn(Turn::leave)?;
        begun?;
        SqliteWriter::new(self, tables, desk).signed()
    }

    fn take_turn(&self, desk: &Desk, wait: Wait) -> Result<(), StorageError> {
        let was_last = || self.writer.with(|connection| desk.was_last(connection));
        if was_last()? && self.turn(Turn::is_awaited)? {
            self.turn(Turn::join)?;
            let aside = Wait::start(ASIDE.min(wait.left()));
            while was_last()? && aside.pause() {}
        }
        while !self.writer.with(begin)? {
            self.turn(Turn::join)?;
            pause(wait)?;
        }
        Ok(())
    }

    fn turn<T>(
        &self,
        call: impl FnOnce(&mut Turn) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        match &mut *self.turn.lock() {
            Some(turn) => call(turn),
            None => Err(StorageError::Closed),
        }
    }

    fn missing<'t>(
        &self,
        wanted: &'t [Arc<Statements>],
        connection: &Connection,
    ) -> Result<Vec<&'t Arc<Statements>>, StorageError> {
        let stored = stored_tables(connection)
            .map_err(|error| fault::table("list the tables", "sqlite_schema", &error))?;
        let mut missing = Vec::new();
        for table in wanted {
            match stored.get(&table.stored_name()) {
                None => missing.push(table),
                Some(definition) if table.matches(definition) => {}
                Some(_) => {
                    let (table, what) = (table.info.name, "layout");
                    return Err(StorageError::Corrupt { table, what });
                }
            }
        }
        Ok(missing)
    }
}

impl Storage for SqliteStorage {
    fn capability(&self) -> Capability {
        Capability {
            name: "sqlite",
            processes: Processes::Many,
            encryption: self.encryption,
            erases_deleted: true,
            max_value_bytes: MAX_VALUE_BYTES,
        }
    }

    fn open_tables(&self, tables: &[TableInfo]) -> Result<(), StorageError> {
        self.check_open()?;
        let wanted: Vec<Arc<Statements>> = tables
            .iter()
            .map(|&info| Arc::new(Statements::new(info)))
            .collect();
        let missing = self.watcher.with(|connection| {
            let missing = self.missing(&wanted, connection)?;
            Ok(!missing.is_empty())
        })?;
        if missing {
            let writer = self.begin_write(Wait::start(CALL_PATIENCE), Durability::Flushed)?;
            writer.finish(|connection, _| {
                for table in self.missing(&wanted, connection)? {
                    let created = connection.execute_batch(&table.create);
                    created.map_err(|error| fault::storage("create a table", &error))?;
                }
                Ok(())
            })?;
        }
        let mut known = self.tables.write();
        let mut all = Tables::clone(&known);
        all.extend(wanted.into_iter().map(|table| (table.info.id, table)));
        *known = Arc::new(all);
        Ok(())
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, StorageError> {
        let tables = self.tables()?;
        let wait = Wait::start(CALL_PATIENCE);
        Ok(Box::new(SqliteSnapshot::begin(
            &self.readers,
            tables,
            wait,
        )?))
    }

    fn writer(
        &self,
        patience: Duration,
        durability: Durability,
    ) -> Result<Box<dyn Writer + '_>, StorageError> {
        Ok(Box::new(
            self.begin_write(Wait::start(patience), durability)?,
        ))
    }

    fn version(&self) -> Result<u64, StorageError> {
        self.check_open()?;
        let wait = Wait::start(CALL_PATIENCE);
        loop {
            // This connection never writes: SQLite does not count a connection's own commits.
            if let Some(version) = self.watcher.with(data_version)? {
                return Ok(version);
            }
            pause(wait)?;
        }
    }

    fn close(&self) -> Result<(), StorageError> {
        self.closed.store(true, Ordering::Release);
        let readers = self.readers.close();
        let watcher = self.watcher.close();
        // The last connection to go empties the log and removes it.
        let writer = self.writer.close();
        drop(self.turn.lock().take());
        drop(self.lease.lock().take());
        readers.and(watcher).and(writer)
    }
}

impl Drop for SqliteStorage {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(%error, "the database did not close");
        }
    }
}

/// Reads the version; `None` when a lock is in the way.
pub(crate) fn data_version(connection: &Connection) -> Result<Option<u64>, StorageError> {
    let ask = || {
        let mut statement = connection.prepare_cached("PRAGMA data_version")?;
        statement.query_row([], |row| row.get::<_, i64>(0))
    };
    match ask() {
        Ok(version) => Ok(Some(version.cast_unsigned())),
        Err(error) if fault::is_busy(&error) => Ok(None),
        Err(error) => Err(fault::storage("read the version", &error)),
    }
}

/// Moves the log into the file and cuts it to nothing; false while readers need it.
fn empty_log(connection: &Connection) -> Result<bool, StorageError> {
    let sql = "PRAGMA wal_checkpoint(TRUNCATE)";
    let kept = connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    match kept {
        Ok(kept) => Ok(kept == 0),
        Err(error) if fault::is_busy(&error) => Ok(false),
        Err(error) => Err(fault::storage("empty the log", &error)),
    }
}

fn stored_tables(connection: &Connection) -> rusqlite::Result<BTreeMap<String, String>> {
    let sql = "SELECT name, sql FROM sqlite_schema WHERE type = 'table'";
    let mut statement = connection.prepare(sql)?;
    statement
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

fn pause(wait: Wait) -> Result<(), StorageError> {
    if wait.pause() {
        return Ok(());
    }
    Err(busy(wait))
}

fn busy(wait: Wait) -> StorageError {
    let waited_ms = wait.waited_ms();
    StorageError::Busy { waited_ms }
}
