//! An engine that fails where it is told to, over any other engine.
//!
//! Two kinds of fault: one operation answers an error and the process lives on, or the process
//! dies before or after a commit, and everything after that answers `Closed`. A restart is a new
//! [`Faulty`] over a fresh handle of the same disk.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::storage::{
    Capability, Durability, KeyRange, Page, Rows, Snapshot, Storage, StorageError, TableId,
    TableInfo, WriteBatch, Writer,
};

/// On which side of a commit something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Before: nothing of it is there.
    Before,
    /// After: all of it is there, and its caller does not know.
    After,
}

#[derive(Default)]
struct Plan {
    operations: u64,
    commits: u64,
    fail_operation: Option<(u64, StorageError)>,
    fail_commit: Option<(u64, Side, StorageError)>,
    crash: Option<(u64, Side)>,
    is_dead: bool,
}

/// Wraps an engine and fails on demand.
///
/// # Behavior
/// - An operation is a call of `snapshot`, `writer`, `get`, `get_many`, `scan` or `commit`; the
///   first one counts 1.
/// - Each planned fault happens once.
pub struct Faulty {
    inner: Arc<dyn Storage>,
    plan: Mutex<Plan>,
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Faulty({:?})", self.inner)
    }
}

impl Faulty {
    /// Wraps an engine; nothing fails yet.
    pub fn new(inner: Arc<dyn Storage>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            plan: Mutex::default(),
        })
    }

    /// Lets operation number `n` fail, counted from the first.
    pub fn fail_operation(&self, n: u64, error: StorageError) {
        self.plan.lock().fail_operation = Some((n, error));
    }

    /// Lets commit number `n` fail, counted from the first; on the side `After` it has happened,
    /// which only [`StorageError::UnknownOutcome`] tells honestly.
    pub fn fail_commit(&self, n: u64, side: Side, error: StorageError) {
        self.plan.lock().fail_commit = Some((n, side, error));
    }

    /// Lets the process die before or after commit number `n`, counted from the first.
    pub fn crash_at_commit(&self, n: u64, side: Side) {
        self.plan.lock().crash = Some((n, side));
    }

    /// Lets the process die now.
    pub fn crash(&self) {
        self.plan.lock().is_dead = true;
    }

    /// Tells whether the process has died.
    pub fn is_dead(&self) -> bool {
        self.plan.lock().is_dead
    }

    /// Counts the operations so far.
    pub fn operations(&self) -> u64 {
        self.plan.lock().operations
    }

    /// Counts the commits asked for so far.
    pub fn commits(&self) -> u64 {
        self.plan.lock().commits
    }

    fn alive(&self) -> Result<(), StorageError> {
        if self.is_dead() {
            return Err(StorageError::Closed);
        }
        Ok(())
    }

    /// Counts one operation and fails if it is the one.
    fn operation(&self) -> Result<(), StorageError> {
        let mut plan = self.plan.lock();
        if plan.is_dead {
            return Err(StorageError::Closed);
        }
        plan.operations += 1;
        let now = plan.operations;
        match plan.fail_operation.take_if(|(n, _)| *n == now) {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }

    /// Counts one commit; answers its number.
    fn count_commit(&self) -> u64 {
        let mut plan = self.plan.lock();
        plan.commits += 1;
        plan.commits
    }

    /// Lets the planned fault of one side of a commit happen.
    fn at_commit(&self, now: u64, side: Side) -> Result<(), StorageError> {
        let mut plan = self.plan.lock();
        if plan.crash == Some((now, side)) {
            plan.is_dead = true;
            return Err(StorageError::Closed);
        }
        let planned = plan
            .fail_commit
            .take_if(|(n, planned, _)| (*n, *planned) == (now, side));
        match planned {
            Some((_, _, error)) => Err(error),
            None => Ok(()),
        }
    }
}

#[deny(clippy::missing_trait_methods)]
impl Storage for Faulty {
    fn capability(&self) -> Capability {
        self.inner.capability()
    }

    fn open_tables(&self, tables: &[TableInfo]) -> Result<(), StorageError> {
        self.alive()?;
        self.inner.open_tables(tables)
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, StorageError> {
        self.operation()?;
        Ok(Box::new(FaultySnapshot {
            inner: self.inner.snapshot()?,
            faulty: self,
        }))
    }

    fn writer(
        &self,
        patience: Duration,
        durability: Durability,
    ) -> Result<Box<dyn Writer + '_>, StorageError> {
        self.operation()?;
        Ok(Box::new(FaultyWriter {
            inner: self.inner.writer(patience, durability)?,
            faulty: self,
        }))
    }

    fn version(&self) -> Result<u64, StorageError> {
        self.alive()?;
        self.inner.version()
    }

    // A dead process lets go of its files too.
    fn close(&self) -> Result<(), StorageError> {
        self.inner.close()
    }
}

struct FaultySnapshot<'a> {
    inner: Box<dyn Snapshot + 'a>,
    faulty: &'a Faulty,
}

#[deny(clippy::missing_trait_methods)]
impl Snapshot for FaultySnapshot<'_> {
    fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.faulty.operation()?;
        self.inner.get(table, key)
    }

    fn get_many(
        &self,
        table: TableId,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
        self.faulty.operation()?;
        self.inner.get_many(table, keys)
    }

    fn scan(&self, table: TableId, range: KeyRange<'_>, page: Page) -> Result<Rows, StorageError> {
        self.faulty.operation()?;
        self.inner.scan(table, range, page)
    }
}

struct FaultyWriter<'a> {
    inner: Box<dyn Writer + 'a>,
    faulty: &'a Faulty,
}

#[deny(clippy::missing_trait_methods)]
impl Snapshot for FaultyWriter<'_> {
    fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.faulty.operation()?;
        self.inner.get(table, key)
    }

    fn get_many(
        &self,
        table: TableId,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
        self.faulty.operation()?;
        self.inner.get_many(table, keys)
    }

    fn scan(&self, table: TableId, range: KeyRange<'_>, page: Page) -> Result<Rows, StorageError> {
        self.faulty.operation()?;
        self.inner.scan(table, range, page)
    }
}

#[deny(clippy::missing_trait_methods)]
impl Writer for FaultyWriter<'_> {
    fn commit(self: Box<Self>, batch: &WriteBatch) -> Result<(), StorageError> {
        self.faulty.operation()?;
        let now = self.faulty.count_commit();
        self.faulty.at_commit(now, Side::Before)?;
        self.inner.commit(batch)?;
        self.faulty.at_commit(now, Side::After)
    }
}
