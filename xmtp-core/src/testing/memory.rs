//! A storage engine in memory, stricter than any real one.
//!
//! What a real engine may let pass fails here: a second writer on one thread, a batch that is not
//! in order, a key or value out of bounds, a table that was not opened, a call after close. Power
//! loss is a method: [`MemoryDisk::lose_unflushed`].

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::storage::{
    Capability, Change, Durability, Encryption, KeyRange, Layout, MAX_VALUE_BYTES,
    MAX_WRITE_SET_BYTES, Order, Page, Processes, Rows, Snapshot, Storage, StorageError,
    TableChanges, TableId, TableInfo, WriteBatch, Writer,
};

type Bytes = Arc<[u8]>;
type Content = BTreeMap<Bytes, Bytes>;
/// Rows as they were before a commit.
type Undo = Vec<(TableId, Bytes, Option<Bytes>)>;

thread_local! {
    /// The disks that this thread writes to.
    static WRITING: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

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

/// Who writes, and who waits for it, first come first served.
#[derive(Default)]
struct Turn {
    holder: Option<u64>,
    waiting: VecDeque<(u64, Arc<Condvar>)>,
    next_ticket: u64,
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

/// The turn to write, given back when dropped.
struct Held {
    handle: Arc<Handle>,
    ticket: u64,
}

impl Held {
    fn take(handle: &Arc<Handle>, patience: Duration) -> Result<Self, StorageError> {
        let disk = handle.shared.id;
        if WRITING.with_borrow(|disks| disks.contains(&disk)) {
            // Waiting for oneself would take the whole patience.
            return Err(StorageError::Busy { waited_ms: 0 });
        }
        let mut turn = handle.shared.turn.lock();
        let ticket = turn.next_ticket;
        turn.next_ticket += 1;
        if turn.holder.is_none() && turn.waiting.is_empty() {
            turn.holder = Some(ticket);
        } else {
            let waiter = Arc::new(Condvar::new());
            turn.waiting.push_back((ticket, waiter.clone()));
            let must_wait = |turn: &mut Turn| {
                let is_waiting = turn.waiting.iter().any(|(other, _)| *other == ticket);
                is_waiting && !handle.is_closed.load(Ordering::SeqCst)
            };
            waiter.wait_while_for(&mut turn, must_wait, patience);
            turn.waiting.retain(|(other, _)| *other != ticket);
        }
        let is_mine = turn.holder == Some(ticket);
        drop(turn);
        WRITING.with_borrow_mut(|disks| disks.push(disk));
        let held = Self {
            handle: handle.clone(),
            ticket,
        };
        handle.check()?;
        if is_mine {
            return Ok(held);
        }
        let waited_ms = patience.as_millis() as u64;
        Err(StorageError::Busy { waited_ms })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let disk = self.handle.shared.id;
        WRITING.with_borrow_mut(|disks| disks.retain(|other| *other != disk));
        let mut turn = self.handle.shared.turn.lock();
        if turn.holder != Some(self.ticket) {
            return;
        }
        turn.holder = None;
        if let Some((ticket, waiter)) = turn.waiting.pop_front() {
            turn.holder = Some(ticket);
            waiter.notify_all();
        }
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
        check_key(info, key)?;
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
        check_batch(&handle, &version, batch)?;
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

fn check_batch(handle: &Handle, version: &Version, batch: &WriteBatch) -> Result<(), StorageError> {
    let mut total = 0;
    for (id, changes) in &batch.tables {
        let info = handle.table(*id)?;
        check_cleared(&changes.cleared)?;
        let rows = version.tables.get(id).map(|table| &table.rows);
        for (key, change) in &changes.rows {
            check_key(info, key)?;
            let value = match change {
                Change::Put(value) | Change::New(value) => value.len(),
                Change::Delete => 0,
            };
            within_bound("value", value, MAX_VALUE_BYTES)?;
            total += key.len() + value;
            let is_present = rows.is_some_and(|rows| rows.contains_key(key.as_slice()));
            if matches!(change, Change::New(_)) && is_present && !is_cleared(changes, key) {
                return Err(StorageError::Exists { table: info.name });
            }
        }
    }
    within_bound("write set", total, MAX_WRITE_SET_BYTES)
}

fn is_cleared(changes: &TableChanges, key: &[u8]) -> bool {
    changes.cleared.iter().any(|(start, end)| {
        start.as_slice() <= key && end.as_ref().is_none_or(|end| key < end.as_slice())
    })
}

fn check_cleared(ranges: &[(Vec<u8>, Option<Vec<u8>>)]) -> Result<(), StorageError> {
    let is_proper = ranges
        .iter()
        .all(|(start, end)| end.as_ref().is_none_or(|end| start < end));
    let is_sorted = ranges
        .windows(2)
        .all(|pair| pair[0].1.as_ref().is_some_and(|end| *end <= pair[1].0));
    if is_proper && is_sorted {
        return Ok(());
    }
    Err(refusal(
        "clear ranges",
        "they are empty, unsorted or overlap",
    ))
}

fn check_key(info: TableInfo, key: &[u8]) -> Result<(), StorageError> {
    if info.layout != Layout::Numbered {
        return Ok(());
    }
    match <[u8; 8]>::try_from(key).map(u64::from_be_bytes) {
        Ok(number) if number < 1 << 63 => Ok(()),
        _ => Err(refusal(
            "use a key",
            "a numbered table takes numbers below 2^63",
        )),
    }
}

fn within_bound(what: &'static str, bytes: usize, max: usize) -> Result<(), StorageError> {
    if bytes > max {
        return Err(StorageError::TooLarge { what, bytes, max });
    }
    Ok(())
}

fn refusal(action: &'static str, detail: &str) -> StorageError {
    StorageError::Io {
        action,
        detail: detail.to_owned(),
    }
}
