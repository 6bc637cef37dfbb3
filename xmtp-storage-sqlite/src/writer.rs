//! The one writer: a `BEGIN IMMEDIATE` transaction that reads, and commits one batch.

use std::sync::Arc;

use parking_lot::FairMutexGuard;
use rusqlite::{CachedStatement, Connection, ErrorCode, ToSql};
use xmtp_core::storage::{
    Change, Durability, KeyRange, Layout, MAX_VALUE_BYTES, Page, Rows, Snapshot, StorageError,
    TableId, WriteBatch, Writer,
};

use crate::layout::{Span, Statements, Tables, find, number};
use crate::snapshot::roll_back;
use crate::storage::{SqliteStorage, data_version};
use crate::{fault, read};

/// What the writers of one instance hand on to each other.
#[derive(Debug)]
pub(crate) struct Desk {
    /// The level the connection has; a switch costs a statement, so it is made only on change.
    durability: Option<Durability>,
    /// The version when this instance last had its turn.
    last: Option<u64>,
    /// The log's size when readers last kept it from being emptied; zero otherwise.
    pub(crate) log_tried: u64,
}

impl Desk {
    pub(crate) fn new() -> Self {
        Self {
            durability: None,
            last: None,
            log_tried: 0,
        }
    }

    /// Notes that this instance has its turn.
    pub(crate) fn sign(&mut self, connection: &Connection) -> Result<(), StorageError> {
        self.last = data_version(connection)?;
        Ok(())
    }

    /// Tells whether nobody has committed since this instance had its turn. On the connection
    /// that writes, the version moves only with the commits of others.
    pub(crate) fn was_last(&self, connection: &Connection) -> Result<bool, StorageError> {
        match self.last {
            None => Ok(false),
            last => Ok(data_version(connection)? == last),
        }
    }

    /// Sets what the next commit survives. SQLite refuses it inside a transaction.
    pub(crate) fn set(
        &mut self,
        connection: &Connection,
        durability: Durability,
    ) -> Result<(), StorageError> {
        if self.durability == Some(durability) {
            return Ok(());
        }
        let sql = match durability {
            Durability::Flushed => "PRAGMA synchronous = FULL",
            Durability::Ordered => "PRAGMA synchronous = NORMAL",
        };
        let switch = || connection.prepare_cached(sql)?.execute([]);
        switch().map_err(|error| fault::storage("set the durability", &error))?;
        self.durability = Some(durability);
        Ok(())
    }
}

/// Begins the write transaction; false when another connection has the write lock.
///
/// It is immediate from the start: a transaction that reads first and writes later is refused
/// at once when another has committed in between.
pub(crate) fn begin(connection: &Connection) -> Result<bool, StorageError> {
    roll_back(connection)?;
    let begin = || connection.prepare_cached("BEGIN IMMEDIATE")?.execute([]);
    match begin() {
        Ok(_) => Ok(true),
        Err(error) if fault::is_busy(&error) => Ok(false),
        Err(error) => Err(fault::storage("begin a transaction", &error)),
    }
}

/// The writer. Its transaction is rolled back when it is dropped.
pub(crate) struct SqliteWriter<'s> {
    storage: &'s SqliteStorage,
    tables: Arc<Tables>,
    /// Held for the life of the writer; given on to the thread that waited longest.
    desk: FairMutexGuard<'s, Desk>,
}

impl<'s> SqliteWriter<'s> {
    /// Takes over a transaction that has begun.
    pub(crate) fn new(
        storage: &'s SqliteStorage,
        tables: Arc<Tables>,
        desk: FairMutexGuard<'s, Desk>,
    ) -> Self {
        Self {
            storage,
            tables,
            desk,
        }
    }

    /// Notes whose turn it is; a failure rolls back.
    pub(crate) fn signed(mut self) -> Result<Self, StorageError> {
        let slot = self.storage.write_slot();
        slot.with(|connection| self.desk.sign(connection))?;
        Ok(self)
    }

    /// Runs statements in the transaction, and commits it.
    pub(crate) fn finish(
        mut self,
        change: impl FnOnce(&Connection, &Tables) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let (tables, slot) = (self.tables.clone(), self.storage.write_slot());
        slot.with(|connection| {
            let done = change(connection, &tables).and_then(|()| commit(connection));
            if done.is_err() {
                roll_back(connection)?;
            }
            done
        })?;
        self.storage.bound_log(&mut self.desk);
        Ok(())
    }
}

impl Snapshot for SqliteWriter<'_> {
    fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        let table = find(&self.tables, table)?;
        let slot = self.storage.write_slot();
        slot.with(|connection| read::get(connection, table, key))
    }

    fn get_many(
        &self,
        table: TableId,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
        let table = find(&self.tables, table)?;
        let slot = self.storage.write_slot();
        slot.with(|connection| read::get_many(connection, table, keys))
    }

    fn scan(&self, table: TableId, range: KeyRange<'_>, page: Page) -> Result<Rows, StorageError> {
        let table = find(&self.tables, table)?;
        let slot = self.storage.write_slot();
        slot.with(|connection| read::scan(connection, table, range, page))
    }
}

impl Writer for SqliteWriter<'_> {
    fn commit(self: Box<Self>, batch: &WriteBatch) -> Result<(), StorageError> {
        self.finish(|connection, tables| apply(connection, tables, batch))
    }
}

impl Drop for SqliteWriter<'_> {
    fn drop(&mut self) {
        match self.storage.write_slot().with(roll_back) {
            Ok(()) | Err(StorageError::Closed) => {}
            Err(error) => tracing::warn!(%error, "a transaction did not roll back"),
        }
    }
}

fn commit(connection: &Connection) -> Result<(), StorageError> {
    let end = || connection.prepare_cached("COMMIT")?.execute([]);
    let Err(error) = end() else {
        return Ok(());
    };
    let full = error.sqlite_error_code() == Some(ErrorCode::DiskFull);
    // A transaction that is still open has not been committed, and a full disk kept its commit
    // record out. After any other failure the record may be on the disk.
    if connection.is_autocommit() && !full {
        return Err(StorageError::UnknownOutcome);
    }
    Err(fault::storage("commit", &error))
}

fn apply(connection: &Connection, tables: &Tables, batch: &WriteBatch) -> Result<(), StorageError> {
    for (&id, changes) in &batch.tables {
        let table = find(tables, id)?;
        for (start, end) in &changes.cleared {
            let range = KeyRange {
                start,
                end: end.as_deref(),
            };
            clear(connection, table, &table.span(range))?;
        }
        Rewrite::new(connection, table).rows(&changes.rows)?;
    }
    Ok(())
}

fn clear(connection: &Connection, table: &Statements, span: &Span<'_>) -> Result<(), StorageError> {
    let mut statement = read::prepare(connection, table, table.clear(span))?;
    let cleared = match span {
        Span::Empty => return Ok(()),
        Span::Numbers(first, last) => statement.execute([first, last]),
        Span::Keys(start, Some(end)) => statement.execute([start, end]),
        Span::Keys(start, None) => statement.execute([start]),
    };
    cleared.map_err(|error| failed(table, &error))?;
    Ok(())
}

/// Changes rows of one table; each statement is looked up once.
struct Rewrite<'c, 't> {
    connection: &'c Connection,
    table: &'t Statements,
    put: Option<CachedStatement<'c>>,
    new: Option<CachedStatement<'c>>,
    delete: Option<CachedStatement<'c>>,
}

impl<'c, 't> Rewrite<'c, 't> {
    fn new(connection: &'c Connection, table: &'t Statements) -> Self {
        Self {
            connection,
            table,
            put: None,
            new: None,
            delete: None,
        }
    }

    fn rows<'b>(
        &mut self,
        rows: impl IntoIterator<Item = (&'b Vec<u8>, &'b Change)>,
    ) -> Result<(), StorageError> {
        for (key, change) in rows {
            let number = match self.table.info.layout {
                Layout::Numbered => match number(key) {
                    None if matches!(change, Change::Delete) => continue,
                    None => return Err(self.not_a_number()),
                    some => some,
                },
                Layout::Large | Layout::Small => None,
            };
            match &number {
                Some(number) => self.row(number, change)?,
                None => self.row(key, change)?,
            }
        }
        Ok(())
    }

    fn row(&mut self, key: &dyn ToSql, change: &Change) -> Result<(), StorageError> {
        let (connection, table) = (self.connection, self.table);
        let (slot, sql) = match change {
            Change::Put(_) => (&mut self.put, &table.put),
            Change::New(_) => (&mut self.new, &table.new),
            Change::Delete => (&mut self.delete, &table.delete),
        };
        let statement = match slot {
            Some(statement) => statement,
            empty => empty.insert(read::prepare(connection, table, sql)?),
        };
        let done = match change {
            Change::Put(value) | Change::New(value) => {
                fits(value)?;
                statement.execute([key, value])
            }
            Change::Delete => statement.execute([key]),
        };
        done.map_err(|error| failed(table, &error))?;
        Ok(())
    }

    fn not_a_number(&self) -> StorageError {
        StorageError::Corrupt {
            table: self.table.info.name,
            what: "key",
        }
    }
}

fn fits(value: &[u8]) -> Result<(), StorageError> {
    if value.len() > MAX_VALUE_BYTES {
        return Err(StorageError::TooLarge {
            what: "value",
            bytes: value.len(),
            max: MAX_VALUE_BYTES,
        });
    }
    Ok(())
}

fn failed(table: &Statements, error: &rusqlite::Error) -> StorageError {
    let name = table.info.name;
    match error.sqlite_error_code() {
        // No statement but the plain insert can meet a row that is there.
        Some(ErrorCode::ConstraintViolation) => StorageError::Exists { table: name },
        _ => fault::table("write", name, error),
    }
}
