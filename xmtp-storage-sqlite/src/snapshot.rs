//! A fixed view of one committed version, and the bounded pool of connections behind it.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use rusqlite::Connection;
use xmtp_core::storage::{DatabaseKey, KeyRange, Page, Rows, Snapshot, StorageError, TableId};

use crate::connection::{self, Role};
use crate::layout::{Tables, find};
use crate::slot::Slot;
use crate::wait::Wait;
use crate::{fault, read};

/// Most read connections of one instance; a snapshot beyond them waits for one to end.
pub(crate) const MAX_READERS: usize = 16;

/// The read connections.
#[derive(Debug)]
pub(crate) struct Readers {
    path: PathBuf,
    key: Option<DatabaseKey>,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Arc<Slot>>,
    all: Vec<Arc<Slot>>,
    /// Connections that are being opened.
    opening: usize,
    closed: bool,
}

impl Readers {
    pub(crate) fn new(path: PathBuf, key: Option<DatabaseKey>) -> Self {
        Self {
            path,
            key,
            state: Mutex::default(),
            returned: Condvar::new(),
        }
    }

    /// Lends a connection, opening one while there are fewer than [`MAX_READERS`].
    fn take(&self, wait: Wait) -> Result<Arc<Slot>, StorageError> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return Err(StorageError::Closed);
            }
            if let Some(slot) = state.idle.pop() {
                return Ok(slot);
            }
            if state.all.len() + state.opening < MAX_READERS {
                state.opening += 1;
                break;
            }
            if self.returned.wait_until(&mut state, wait.end()).timed_out() {
                let waited_ms = wait.waited_ms();
                return Err(StorageError::Busy { waited_ms });
            }
        }
        drop(state);
        self.add(wait)
    }

    fn add(&self, wait: Wait) -> Result<Arc<Slot>, StorageError> {
        let opened = connection::keyed(&self.path, self.key.as_ref(), Role::Reader, wait);
        let mut state = self.state.lock();
        state.opening -= 1;
        self.returned.notify_one();
        let connection = opened.map_err(|error| {
            if fault::is_busy(&error) {
                let waited_ms = wait.waited_ms();
                return StorageError::Busy { waited_ms };
            }
            fault::table("open a connection", "sqlite_schema", &error)
        })?;
        let slot = Arc::new(Slot::new(connection));
        if state.closed {
            drop(state);
            slot.close()?;
            return Err(StorageError::Closed);
        }
        state.all.push(slot.clone());
        Ok(slot)
    }

    /// Takes a connection back; one that failed is closed instead of lent again.
    fn give(&self, slot: Arc<Slot>, sound: bool) {
        let mut state = self.state.lock();
        if sound && !state.closed {
            state.idle.push(slot);
        } else {
            state.all.retain(|other| !Arc::ptr_eq(other, &slot));
            if let Err(error) = slot.close() {
                tracing::warn!(%error, "a read connection did not close");
            }
        }
        self.returned.notify_one();
    }

    /// Closes every connection, lent ones too, for good.
    pub(crate) fn close(&self) -> Result<(), StorageError> {
        let mut state = self.state.lock();
        state.closed = true;
        state.idle.clear();
        let slots = std::mem::take(&mut state.all);
        self.returned.notify_all();
        drop(state);
        slots.iter().try_for_each(|slot| slot.close())
    }
}

/// A snapshot: a read transaction on a lent connection.
pub(crate) struct SqliteSnapshot<'s> {
    readers: &'s Readers,
    tables: Arc<Tables>,
    slot: Arc<Slot>,
}

impl<'s> SqliteSnapshot<'s> {
    pub(crate) fn begin(
        readers: &'s Readers,
        tables: Arc<Tables>,
        wait: Wait,
    ) -> Result<Self, StorageError> {
        let slot = readers.take(wait)?;
        let snapshot = Self {
            readers,
            tables,
            slot,
        };
        while !snapshot.slot.with(fix_version)? {
            if !wait.pause() {
                let waited_ms = wait.waited_ms();
                return Err(StorageError::Busy { waited_ms });
            }
        }
        Ok(snapshot)
    }
}

/// Begins a read transaction; false when a lock is in the way.
///
/// BEGIN alone takes no snapshot: the first read does.
fn fix_version(connection: &Connection) -> Result<bool, StorageError> {
    let begin = || -> rusqlite::Result<()> {
        connection.prepare_cached("BEGIN")?.execute([])?;
        let mut first = connection.prepare_cached("SELECT 1 FROM sqlite_schema LIMIT 1")?;
        first.exists([]).map(drop)
    };
    let Err(error) = begin() else {
        return Ok(true);
    };
    roll_back(connection)?;
    if fault::is_busy(&error) {
        return Ok(false);
    }
    Err(fault::storage("begin a snapshot", &error))
}

/// Ends whatever transaction is open.
pub(crate) fn roll_back(connection: &Connection) -> Result<(), StorageError> {
    if connection.is_autocommit() {
        return Ok(());
    }
    let end = || connection.prepare_cached("ROLLBACK")?.execute([]);
    end().map_err(|error| fault::storage("roll back", &error))?;
    Ok(())
}

impl Snapshot for SqliteSnapshot<'_> {
    fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        let table = find(&self.tables, table)?;
        self.slot
            .with(|connection| read::get(connection, table, key))
    }

    fn get_many(
        &self,
        table: TableId,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
        let table = find(&self.tables, table)?;
        self.slot
            .with(|connection| read::get_many(connection, table, keys))
    }

    fn scan(&self, table: TableId, range: KeyRange<'_>, page: Page) -> Result<Rows, StorageError> {
        let table = find(&self.tables, table)?;
        self.slot
            .with(|connection| read::scan(connection, table, range, page))
    }
}

impl Drop for SqliteSnapshot<'_> {
    fn drop(&mut self) {
        let ended = self.slot.with(roll_back);
        self.readers.give(self.slot.clone(), ended.is_ok());
    }
}
