//! A storage engine in memory, stricter than any real one.
//!
//! What a real engine may let pass fails here: a second writer on one thread, a batch that is not
//! in order, a key or value out of bounds, a table that was not opened, a call after close. Power
//! loss is a method: [`MemoryDisk::lose_unflushed`].

mod check;
mod turn;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::storage::{
    Capability, Change, Durability, Encryption, KeyRange, MAX_VALUE_BYTES, Order, Page, Processes,
    Rows, Snapshot, Storage, StorageError, TableChanges, TableId, TableInfo, WriteBatch, Writer,
};
use turn::{Held, Turn};

type Bytes = Arc<[u8]>;
type Content = BTreeMap<Bytes, Bytes>;
/// Rows as they were before a commit.
type Undo = Vec<(TableId, Bytes, Option<Bytes>)>;

static NEXT_DISK: AtomicU64 = AtomicU64::new(0);

#[derive(Clone)]
struct Table {
    info: TableInfo,
    rows: Arc<Content>,
}

#[derive(Clone, Default)]
struct Version {
    tables: BTreeMap<TableId, Table>,
}

#[derive(Default)]
struct State {
    current: Arc<Version>,
    number: u64,
    /// Power losses so far; a handle of an earlier one is dead.
    generation: u64,
    unflushed: Vec<Undo>,
}

struct Shared {
    id: u64,
    state: Mutex<State>,
    turn: Mutex<Turn>,
}

/// What outlives a process: open it several times for several processes; cheap to clone.
#[derive(Clone)]
pub struct MemoryDisk {
    shared: Arc<Shared>,
}

impl fmt::Debug for MemoryDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryDisk({})", self.shared.id)
    }
}

impl Default for MemoryDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryDisk {
    /// Makes an empty disk.
    pub fn new() -> Self {
        let shared = Shared {
            id: NEXT_DISK.fetch_add(1, Ordering::Relaxed),
            state: Mutex::default(),
            turn: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Makes another disk with everything that is committed here.
    pub fn copy(&self) -> Self {
        let other = Self::new();
        other.shared.state.lock().current = self.shared.state.lock().current.clone();
        other
    }

    /// Opens the disk for one process.
    pub fn open(&self) -> Arc<MemoryStorage> {
        let handle = Handle {
            shared: self.shared.clone(),
            generation: self.shared.state.lock().generation,
            opened: Mutex::default(),
            is_closed: AtomicBool::new(false),
        };
        Arc::new(MemoryStorage {
            handle: Arc::new(handle),
        })
    }

    /// Counts the `Ordered` commits since the last `Flushed` one.
    pub fn unflushed(&self) -> usize {
        self.shared.state.lock().unflushed.len()
    }

    /// Counts the writers that wait for their turn.
    pub fn waiting(&self) -> usize {
        self.shared.turn.lock().waiting.len()
    }

    /// Loses power: of the commits since the last `Flushed` one only the first `keep` survive,
    /// and every open handle is dead. Answers how many commits were lost.
    pub fn lose_unflushed(&self, keep: usize) -> usize {
        let mut state = self.shared.state.lock();
        let state = &mut *state;
        let lost = state.unflushed.split_off(keep.min(state.unflushed.len()));
        let tables = &mut Arc::make_mut(&mut state.current).tables;
        for undo in lost.iter().rev() {
            for (table, key, before) in undo.iter().rev() {
                let Some(table) = tables.get_mut(table) else {
                    continue;
                };
                let rows = Arc::make_mut(&mut table.rows);
                match before {
                    Some(value) => rows.insert(key.clone(), value.clone()),
                    None => rows.remove(key),
                };
            }
        }
        state.unflushed.clear();
        state.generation += 1;
        state.number += 1;
        let mut turn = self.shared.turn.lock();
        turn.holder = None;
        for (_, waiter) in turn.waiting.drain(..) {
            waiter.notify_all();
        }
        lost.len()
    }
}

struct Handle {
    shared: Arc<Shared>,
    generation: u64,
    opened: Mutex<BTreeMap<TableId, TableInfo>>,
    is_closed: AtomicBool,
}

impl Handle {
    fn check(&self) -> Result<(), StorageError> {
        self.check_at(self.shared.state.lock().generation)
    }

    fn check_at(&self, generation: u64) -> Result<(), StorageError> {
        if self.is_closed.load(Ordering::SeqCst) || generation != self.generation {
            return Err(StorageError::Closed);
        }
        Ok(())
    }

    fn table(&self, id: TableId) -> Result<TableInfo, StorageError> {
        let opened = self.opened.lock();
        let info = opened.get(&id).copied();
        info.ok_or_else(|| refusal("find a table", "it was not opened"))
    }
}

/// One process's handle on a [`MemoryDisk`].
pub struct MemoryStorage {
    handle: Arc<Handle>,
}

impl fmt::Debug for MemoryStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryStorage")
    }
}

impl MemoryStorage {
    /// Opens a disk of its own.
    pub fn new() -> Arc<Self> {
        MemoryDisk::new().open()
    }

    /// Answers the disk.
    pub fn disk(&self) -> MemoryDisk {
        MemoryDisk {
            shared: self.handle.shared.clone(),
        }
    }
}

impl Storage for MemoryStorage {
    fn capability(&self) -> Capability {
        Capability {
            name: "memory",
            processes: Processes::Many,
            encryption: Encryption::None,
            erases_deleted: true,
            max_value_bytes: MAX_VALUE_BYTES,
        }
    }

    fn open_tables(&self, tables: &[TableInfo]) -> Result<(), StorageError> {
        let mut state = self.handle.shared.state.lock();
        self.handle.check_at(state.generation)?;
        let known = &mut Arc::make_mut(&mut state.current).tables;
        for info in tables {
            let table = known.entry(info.id).or_insert_with(|| Table {
                info: *info,
                rows: Arc::default(),
            });
            if table.info != *info {
                return Err(refusal("open a table", "it has another name or layout"));
            }
            self.handle.opened.lock().insert(info.id, *info);
        }
        Ok(())
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, StorageError> {
        let state = self.handle.shared.state.lock();
        self.handle.check_at(state.generation)?;
        Ok(Box::new(View {
            handle: self.handle.clone(),
            version: state.current.clone(),
        }))
    }

    fn writer(
        &self,
        patience: Duration,
        durability: Durability,
    ) -> Result<Box<dyn Writer + '_>, StorageError> {
        self.handle.check()?;
        let held = Held::take(&self.handle, patience)?;
        let version = self.handle.shared.state.lock().current.clone();
        Ok(Box::new(MemoryWriter {
            view: View {
                handle: self.handle.clone(),
                version,
            },
            durability,
            _held: held,
        }))
    }

    fn version(&self) -> Result<u64, StorageError> {
        let state = self.handle.shared.state.lock();
        self.handle.check_at(state.generation)?;
        Ok(state.number)
    }

    fn close(&self) -> Result<(), StorageError> {
        self.handle.is_closed.store(true, Ordering::SeqCst);
        let turn = self.handle.shared.turn.lock();
        for (_, waiter) in &turn.waiting {
            waiter.notify_all();
        }
        Ok(())
    }
}

struct View {
    handle: Arc<Handle>,
    version: Arc<Version>,
}

impl View {
    fn rows(&self, id: TableId) -> Result<(&Content, TableInfo), StorageError> {
        self.handle.check()?;
        let info = self.handle.table(id)?;
        // A table made after the version was fixed is empty in it.
        static EMPTY: Content = Content::new();
        let rows = self
            .version
            .tables
            .get(&id)
            .map_or(&EMPTY, |table| &table.rows);
        Ok((rows, info))
    }
}

impl Snapshot for View {
    fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        let (rows, info) = self.rows(table)?;
        check::key(info, key)?;
        Ok(rows.get(key).map(|value| value.to_vec()))
    }

    fn get_many(
        &self,
        table: TableId,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
        keys.iter().map(|key| self.get(table, key)).collect()
    }

    fn scan(&self, table: TableId, range: KeyRange<'_>, page: Page) -> Result<Rows, StorageError> {
        let (rows, _) = self.rows(table)?;
        if page.rows == 0 {
            return Err(refusal("scan a table", "a page of no rows"));
        }
        if range.end.is_some_and(|end| end <= range.start) {
            return Ok(Rows::new());
        }
        let found = within(rows, range.start, range.end);
        Ok(match page.order {
            Order::Ascending => fill(found, page),
            Order::Descending => fill(found.rev(), page),
        })
    }
}

fn within<'a>(
    rows: &'a Content,
    start: &[u8],
    end: Option<&[u8]>,
) -> impl DoubleEndedIterator<Item = (&'a Bytes, &'a Bytes)> + use<'a> {
    let end = end.map_or(Bound::Unbounded, Bound::Excluded);
    rows.range::<[u8], _>((Bound::Included(start), end))
}

fn fill<'a>(found: impl Iterator<Item = (&'a Bytes, &'a Bytes)>, page: Page) -> Rows {
    let mut out = Rows::new();
    for (key, value) in found {
        let bytes = out.bytes() + key.len() + value.len();
        let is_full = out.len() == page.rows as usize || bytes > page.bytes as usize;
        if is_full && !out.is_empty() {
            out.more = true;
            break;
        }
        out.push(key, value);
    }
    out
}

struct MemoryWriter {
    view: View,
    durability: Durability,
    _held: Held,
}

impl Snapshot for MemoryWriter {
    fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.view.get(table, key)
    }

    fn get_many(
        &self,
        table: TableId,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
        self.view.get_many(table, keys)
    }

    fn scan(&self, table: TableId, range: KeyRange<'_>, page: Page) -> Result<Rows, StorageError> {
        self.view.scan(table, range, page)
    }
}

impl Writer for MemoryWriter {
    fn commit(self: Box<Self>, batch: &WriteBatch) -> Result<(), StorageError> {
        let this = *self;
        let View { handle, version } = this.view;
        check::batch(&handle, &version, batch)?;
        // The rows are copied only for those who still read them.
        drop(version);
        let mut state = handle.shared.state.lock();
        handle.check_at(state.generation)?;
        let mut undo = Undo::new();
        let tables = &mut Arc::make_mut(&mut state.current).tables;
        for (id, changes) in &batch.tables {
            let Some(table) = tables.get_mut(id) else {
                continue;
            };
            apply(*id, Arc::make_mut(&mut table.rows), changes, &mut undo);
        }
        state.number += 1;
        match this.durability {
            Durability::Ordered => state.unflushed.push(undo),
            Durability::Flushed => state.unflushed.clear(),
        }
        Ok(())
    }
}

fn apply(id: TableId, rows: &mut Content, changes: &TableChanges, undo: &mut Undo) {
    for (start, end) in &changes.cleared {
        let found = within(rows, start, end.as_deref());
        let keys: Vec<Bytes> = found.map(|(key, _)| key.clone()).collect();
        for key in keys {
            let before = rows.remove(&key);
            undo.push((id, key, before));
        }
    }
    for (key, change) in &changes.rows {
        let key = Bytes::from(key.as_slice());
        let before = match change {
            Change::Put(value) | Change::New(value) => {
                rows.insert(key.clone(), Bytes::from(value.as_slice()))
            }
            Change::Delete => rows.remove(&key),
        };
        undo.push((id, key, before));
    }
}

fn refusal(action: &'static str, detail: &str) -> StorageError {
    StorageError::Io {
        action,
        detail: detail.to_owned(),
    }
}
