//! The facade over an engine: typed transactions, queues, durable counters and commit wakes.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use tokio::sync::{Semaphore, oneshot};
use xmtp_proto::DatabaseId;
use xmtp_proto::storage::v1::Revision;

use super::changes::{Changes, Publisher};
use super::queue::{Priority, Queue};
use super::{
    Capability, Change, Durability, Key, OpenError, Read, Snapshot, Storage, StorageError, Value,
    WriteBatch, WriteTxn, Writer, counter, open, schema,
};
use crate::runtime::Runtime;

/// How long a writer waits for others, over all threads and processes, before `Busy`.
pub const WRITER_PATIENCE: Duration = Duration::from_secs(5);
/// Most queued reads under way at once.
const READ_JOBS: usize = 8;

thread_local! {
    /// The databases that this thread is reading. An engine may make a commit wait for a read.
    static READING: RefCell<Vec<*const Inner>> = const { RefCell::new(Vec::new()) };
}

/// An open database; cheap to clone.
///
/// ```
/// # use std::sync::Arc;
/// # use xmtp_core::runtime::SimulatedRuntime;
/// # use xmtp_core::storage::{Database, Durability, Read, StorageError, schema};
/// # use xmtp_core::testing::memory::MemoryStorage;
/// # use xmtp_proto::storage::v1::Lease;
/// # let runtime = Arc::new(SimulatedRuntime::new(1));
/// let database = Database::open(MemoryStorage::new(), runtime)?;
/// database.write::<_, StorageError>(Durability::Ordered, |txn| {
///     let generation = txn.row(schema::LEASE, &())?.unwrap_or_default().generation + 1;
///     txn.put(schema::LEASE, &(), &Lease { generation, ..Lease::default() })
/// })?;
/// let lease = database.read::<_, StorageError>(|snapshot| snapshot.row(schema::LEASE, &()))?;
/// assert_eq!(lease.expect("written").generation, 1);
/// # Ok::<_, xmtp_core::storage::OpenError>(())
/// ```
///
/// The closures of reads and writes are synchronous, so none of them can wait for anything but
/// the disk (STR-071):
///
/// ```compile_fail,E0728
/// # use xmtp_core::storage::{Database, Durability, StorageError};
/// # async fn fetch() {}
/// # fn no_await(database: &Database) -> Result<(), StorageError> {
/// database.write(Durability::Ordered, |txn| {
///     fetch().await;
///     Ok(())
/// })
/// # }
/// ```
///
/// The transaction cannot leave its closure:
///
/// ```compile_fail,E0521
/// # use xmtp_core::storage::{Database, Durability, StorageError, WriteTxn};
/// # fn no_escape(database: &Database) -> Result<(), StorageError> {
/// let mut kept: Option<&mut WriteTxn<'_>> = None;
/// database.write(Durability::Ordered, |txn| {
///     kept = Some(txn);
///     Ok(())
/// })
/// # }
/// ```
///
/// Nor inside a future:
///
/// ```compile_fail
/// # use xmtp_core::storage::{Database, Durability, StorageError};
/// # fn no_future(database: &Database) -> Result<(), StorageError> {
/// let later = database.write::<_, StorageError>(Durability::Ordered, |txn| {
///     Ok(async move { txn.now_ns() })
/// })?;
/// # drop(later);
/// # Ok(())
/// # }
/// ```
///
/// And a writer of the engine cannot be held over an await in a task:
///
/// ```compile_fail
/// # use std::time::Duration;
/// # use xmtp_core::storage::{Durability, Storage};
/// # use std::sync::Arc;
/// # async fn fetch() {}
/// # fn start(task: impl Future<Output = ()> + Send) {}
/// # fn no_writer_in_task(storage: Arc<dyn Storage>) {
/// start(async move {
///     let writer = storage.writer(Duration::ZERO, Durability::Ordered);
///     fetch().await;
///     drop(writer);
/// });
/// # }
/// ```
#[derive(Clone)]
pub struct Database {
    inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) publisher: Publisher,
    pub(super) seen_version: Mutex<Option<u64>>,
    id: DatabaseId,
    max_value_bytes: usize,
    queue: Arc<Queue>,
    read_slots: Semaphore,
    is_closing: AtomicBool,
    /// Held shared by whatever runs, alone by `close`.
    gate: RwLock<()>,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Database({})", self.inner.storage.capability().name)
    }
}

impl Database {
    /// Opens a database over an engine: creates or migrates it, and lifts its counters so that
    /// no number is given twice after a power loss (STR-090).
    ///
    /// Fails with `NewerSchema` before anything is written.
    pub fn open(storage: Arc<dyn Storage>, runtime: Arc<dyn Runtime>) -> Result<Self, OpenError> {
        let opened = open::prepare(&*storage, &runtime)?;
        let inner = Inner {
            max_value_bytes: storage.capability().max_value_bytes,
            publisher: Publisher::new(opened.revision),
            seen_version: Mutex::new(None),
            id: opened.id,
            queue: Queue::new(runtime.lane("storage-writer")),
            read_slots: Semaphore::new(READ_JOBS),
            is_closing: AtomicBool::new(false),
            gate: RwLock::new(()),
            storage,
            runtime,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Answers the random id that the database was created with.
    pub fn id(&self) -> DatabaseId {
        self.inner.id
    }

    /// Answers what the engine can promise.
    pub fn capability(&self) -> Capability {
        self.inner.storage.capability()
    }

    /// Answers the engine.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.inner.storage
    }

    /// Answers the runtime.
    pub fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.inner.runtime
    }

    /// Reads from one committed version, on the calling thread.
    ///
    /// # Panics
    /// In debug builds, [`Database::write`] inside `f` does: some engines make a commit wait for
    /// the read.
    pub fn read<T, E: From<StorageError>>(
        &self,
        f: impl FnOnce(&dyn Snapshot) -> Result<T, E>,
    ) -> Result<T, E> {
        self.inner.read(f)
    }

    /// Writes in one transaction, on the calling thread.
    ///
    /// # Behavior
    /// - Waits at most [`WRITER_PATIENCE`] for the writer, then fails with `Busy`.
    /// - An error or panic of `f` rolls back; so does a write that is held back (`HeldBack`).
    /// - A transaction that changes nothing commits nothing.
    pub fn write<T, E: From<StorageError>>(
        &self,
        durability: Durability,
        f: impl FnOnce(&mut WriteTxn<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.inner.write(WRITER_PATIENCE, durability, f)
    }

    /// Writes in one transaction, in turn with the other queued writes.
    ///
    /// # Behavior
    /// - A closure that has not started within [`WRITER_PATIENCE`] is withdrawn: `Busy`.
    /// - A caller that is dropped before the closure started withdraws it; dropped later, the
    ///   commit still happens and is published.
    /// - A panic of `f` continues in the caller.
    pub async fn write_queued<T, E>(
        &self,
        priority: Priority,
        durability: Durability,
        f: impl FnOnce(&mut WriteTxn<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StorageError> + Send + 'static,
    {
        let runtime = &self.inner.runtime;
        let deadline = runtime.monotonic().saturating_add(WRITER_PATIENCE);
        let mut timeout = runtime.sleep_until(deadline);
        let slot = tokio::select! {
            biased;
            slot = self.inner.queue.slot(priority) => slot.ok_or(StorageError::Closed)?,
            () = &mut timeout => return Err(busy().into()),
        };
        let (reply, mut answer) = oneshot::channel();
        let inner = self.inner.clone();
        let ticket = self.inner.queue.submit(
            slot,
            Box::new(move || {
                let patience = deadline.saturating_sub(inner.runtime.monotonic());
                let run = AssertUnwindSafe(|| inner.write(patience, durability, f));
                // A caller that is gone changes nothing: the commit is published already.
                let _ = reply.send(catch_unwind(run));
            }),
        );
        let outcome = tokio::select! {
            biased;
            outcome = &mut answer => outcome,
            () = timeout => {
                if ticket.withdraw() {
                    return Err(busy().into());
                }
                answer.await
            }
        };
        settle(outcome)
    }

    /// Reads from one committed version, off the async threads.
    ///
    /// A panic of `f` continues in the caller.
    pub async fn read_queued<T, E>(
        &self,
        f: impl FnOnce(&dyn Snapshot) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StorageError> + Send + 'static,
    {
        let slot = self.inner.read_slots.acquire().await;
        let _slot = slot.map_err(|_| StorageError::Closed)?;
        let (reply, answer) = oneshot::channel();
        let inner = self.inner.clone();
        self.inner.runtime.offload(Box::new(move || {
            if !reply.is_closed() {
                let run = AssertUnwindSafe(|| inner.read(f));
                let _ = reply.send(catch_unwind(run));
            }
        }));
        settle(answer.await)
    }

    /// Follows the commits from here on.
    pub fn changes(&self) -> Changes {
        Changes::new(self.inner.clone())
    }

    /// Closes the database: tells everyone who waits, refuses what is queued, waits for what
    /// runs, then closes the engine; idempotent. Must not be called inside a closure.
    pub fn close(&self) -> Result<(), StorageError> {
        let inner = &self.inner;
        inner.is_closing.store(true, Ordering::SeqCst);
        inner.publisher.close();
        inner.queue.close();
        inner.read_slots.close();
        let _nothing_runs = inner.gate.write();
        inner.storage.close()
    }
}

impl Inner {
    pub(super) fn read<T, E: From<StorageError>>(
        &self,
        f: impl FnOnce(&dyn Snapshot) -> Result<T, E>,
    ) -> Result<T, E> {
        let _running = self.enter()?;
        let _reading = Reading::begin(self);
        let snapshot = self.storage.snapshot()?;
        f(&*snapshot)
    }

    fn write<T, E: From<StorageError>>(
        &self,
        patience: Duration,
        durability: Durability,
        f: impl FnOnce(&mut WriteTxn<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        debug_assert!(
            !Reading::is_under_way(self),
            "a write inside the closure of a read of the same database"
        );
        let _running = self.enter()?;
        let writer = self.writer(patience, durability)?;
        let mut txn = WriteTxn::new(&*writer, self.runtime.clone(), self.max_value_bytes);
        let value = f(&mut txn)?;
        let (batch, domains) = txn.finish()?;
        if !batch.is_empty() {
            let revision = commit(writer, batch, domains)?;
            self.publisher.publish(revision, domains);
        }
        Ok(value)
    }

    /// Takes the writer, with enough numbers in reserve for one transaction.
    fn writer(
        &self,
        patience: Duration,
        durability: Durability,
    ) -> Result<Box<dyn Writer + '_>, StorageError> {
        let writer = self.storage.writer(patience, durability)?;
        if counter::has_reserve(&*writer)? {
            return Ok(writer);
        }
        drop(writer);
        let writer = self.storage.writer(patience, Durability::Flushed)?;
        let mut txn = WriteTxn::new(&*writer, self.runtime.clone(), self.max_value_bytes);
        counter::raise(&mut txn)?;
        let (batch, domains) = txn.finish()?;
        let revision = commit(writer, batch, domains)?;
        self.publisher.publish(revision, domains);
        self.storage.writer(patience, durability)
    }

    fn enter(&self) -> Result<RwLockReadGuard<'_, ()>, StorageError> {
        // A read inside a write must not wait for a `close` that waits for the write.
        let running = self.gate.read_recursive();
        if self.is_closing.load(Ordering::SeqCst) {
            return Err(StorageError::Closed);
        }
        Ok(running)
    }
}

/// Stamps the batch with the next revision and commits it.
pub(super) fn commit(
    writer: Box<dyn Writer + '_>,
    mut batch: WriteBatch,
    domains: u64,
) -> Result<u64, StorageError> {
    let last = (*writer).row(schema::REVISION, &())?.unwrap_or_default();
    let stamp = Revision {
        revision: last.revision + 1,
        domains,
    };
    let table = batch.tables.entry(schema::REVISION.info.id).or_default();
    table
        .rows
        .insert(().to_bytes(), Change::Put(stamp.encode_value()));
    writer.commit(&batch)?;
    Ok(stamp.revision)
}

/// What a job sends back: its result, or the panic that ended it.
type Outcome<T, E> = Result<Result<T, E>, Box<dyn Any + Send>>;

fn settle<T, E: From<StorageError>>(
    outcome: Result<Outcome<T, E>, oneshot::error::RecvError>,
) -> Result<T, E> {
    match outcome {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => resume_unwind(panic),
        // Only `close` drops a job.
        Err(_) => Err(StorageError::Closed.into()),
    }
}

fn busy() -> StorageError {
    StorageError::Busy {
        waited_ms: WRITER_PATIENCE.as_millis() as u64,
    }
}

struct Reading(*const Inner);

impl Reading {
    fn begin(database: &Inner) -> Self {
        let database: *const Inner = database;
        READING.with_borrow_mut(|reading| reading.push(database));
        Self(database)
    }

    fn is_under_way(database: &Inner) -> bool {
        let database: *const Inner = database;
        READING.with_borrow(|reading| reading.contains(&database))
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        READING.with_borrow_mut(|reading| {
            if let Some(at) = reading.iter().rposition(|other| *other == self.0) {
                reading.swap_remove(at);
            }
        });
    }
}
