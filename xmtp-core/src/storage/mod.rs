//! The storage seam: a narrow, ordered, transactional byte store for engines to implement.
//!
//! Everything above bytes lives once, in core: typed tables ([`Table`]), the read-your-writes
//! overlay and savepoints ([`WriteTxn`]), bounds, and commit wakes ([`Database`]). Methods are
//! synchronous because a state-write attempt must not wait for anything but the disk (STR-071):
//! a closure that cannot be `async` cannot hold a transaction across a network call.

mod batch;
mod changes;
mod counter;
mod database;
mod error;
mod key;
mod merge;
pub mod migrate;
mod open;
mod overlay;
mod queue;
pub mod schema;
mod secret;
mod table;
mod transaction;
pub mod verify;

use std::fmt::Debug;
use std::time::Duration;

pub use batch::{Change, TableChanges, WriteBatch};
pub use changes::{Changes, Closed, Commit};
pub use database::{Database, WRITER_PATIENCE};
pub use error::{OpenError, StorageError};
pub use key::{All, Key, KeyError, Prefix2, PrefixOf};
pub use queue::Priority;
pub use secret::DatabaseKey;
pub use table::{Domain, Layout, Raw, Read, Table, TableId, TableInfo, TypedPage, Value};
pub use transaction::WriteTxn;

/// Largest value an engine is handed, in bytes (64 MiB).
pub const MAX_VALUE_BYTES: usize = 64 * 1024 * 1024;
/// Largest write set of one transaction, keys and values, in bytes (128 MiB).
pub const MAX_WRITE_SET_BYTES: usize = 128 * 1024 * 1024;

/// An ordered, transactional byte store; held as `Arc<dyn Storage>`.
///
/// # Behavior
/// - At most one [`Writer`] exists at a time over all threads and all processes that may share
///   the database (STR-070).
/// - A [`Snapshot`] sees exactly one committed version, fixed when it is created.
/// - A commit is atomic: after a crash at any point either all of its batch is there or none.
/// - After [`Storage::close`] every call answers [`StorageError::Closed`].
pub trait Storage: Debug + Send + Sync {
    /// States what the engine can promise (EXT-004).
    fn capability(&self) -> Capability;

    /// Creates the tables that are missing; idempotent, and called before any other access.
    fn open_tables(&self, tables: &[TableInfo]) -> Result<(), StorageError>;

    /// Opens a view of the last committed version, fixed at creation and not at the first read.
    ///
    /// # Behavior
    /// - Only [`Database`] calls it.
    /// - It never waits for a writer that is computing; an engine may make it wait for a commit
    ///   in progress.
    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, StorageError>;

    /// Takes the one writer, or answers [`StorageError::Busy`] once `patience` has passed.
    ///
    /// # Behavior
    /// - The writer reads the newest committed version, whichever process committed it.
    /// - Waiting writers are served fairly across threads and processes: a process that loops
    ///   without pause lets another in before 20 more of its own commits.
    /// - Dropping the writer without commit rolls back.
    /// - `durability` is the level of this writer's commit.
    fn writer(
        &self,
        patience: Duration,
        durability: Durability,
    ) -> Result<Box<dyn Writer + '_>, StorageError>;

    /// Answers a number that changes when any process commits; comparable only with this
    /// instance's own earlier answers.
    fn version(&self) -> Result<u64, StorageError>;

    /// Closes the engine and releases its files before it returns; idempotent.
    fn close(&self) -> Result<(), StorageError>;
}

/// A fixed view of one committed version. Deliberately not `Send`: it stays within one call.
pub trait Snapshot {
    /// Reads one value.
    fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError>;

    /// Reads several values, in the order of `keys`.
    fn get_many(
        &self,
        table: TableId,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Vec<u8>>>, StorageError>;

    /// Reads one page of a half-open key range, in key order or its reverse.
    ///
    /// # Behavior
    /// - At most `page.rows` rows; ends before the row whose key and value would pass
    ///   `page.bytes`, but holds at least one row when there is one.
    /// - [`Rows::more`] is exact: true only when a further row exists in the range.
    fn scan(&self, table: TableId, range: KeyRange<'_>, page: Page) -> Result<Rows, StorageError>;
}

/// The one writer: reads the newest committed version and commits one batch.
pub trait Writer: Snapshot {
    /// Applies the batch atomically and releases the writer.
    ///
    /// # Behavior
    /// - Ranges of `cleared` are deleted first, then rows are changed.
    /// - [`Change::New`] over a present row answers [`StorageError::Exists`] and commits nothing.
    /// - Any error commits nothing, except [`StorageError::UnknownOutcome`], after which a fresh
    ///   snapshot shows which it was.
    fn commit(self: Box<Self>, batch: &WriteBatch) -> Result<(), StorageError>;
}

/// What an engine can promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// The engine's name for the stack card, such as `sqlite`.
    pub name: &'static str,
    /// Whether several processes may open one database.
    pub processes: Processes,
    /// What is encrypted at rest.
    pub encryption: Encryption,
    /// Whether deleted values are overwritten at once; `false` when they linger in old segments.
    pub erases_deleted: bool,
    /// Largest value the engine stores, in bytes.
    pub max_value_bytes: usize,
}

/// How many processes may share a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processes {
    /// One process; a second open is refused.
    One,
    /// Several processes at the same time.
    Many,
}

/// What is encrypted at rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encryption {
    /// Nothing.
    None,
    /// Values; keys stay readable.
    Values,
    /// The whole file.
    Whole,
}

/// What a commit survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Survives a crash of the process, and of the machine in commit order: any suffix of
    /// `Ordered` commits after the last `Flushed` one may disappear on power loss. For what the
    /// backend can send again (receipt, processing, acknowledgement).
    Ordered,
    /// Survives power loss once commit returns. For what the outside may already hold
    /// (prepared attempts, keys, reservations).
    Flushed,
}

/// A half-open key range `[start, end)`; no end means to the end of the table.
#[derive(Clone, Copy, Debug)]
pub struct KeyRange<'a> {
    /// The first key in the range.
    pub start: &'a [u8],
    /// The first key after the range, if bounded.
    pub end: Option<&'a [u8]>,
}

/// Bounds of one scanned page.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// Most rows; at least 1.
    pub rows: u32,
    /// Most bytes of keys and values together, a single larger row excepted.
    pub bytes: u32,
    /// Direction.
    pub order: Order,
}

/// Direction of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Smallest key first.
    Ascending,
    /// Largest key first.
    Descending,
}

/// A page of rows in one buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    buffer: Vec<u8>,
    spans: Vec<(usize, usize, usize)>,
    /// Whether a further row exists in the range.
    pub more: bool,
}

impl Rows {
    /// Makes an empty page.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends one row.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(key);
        let middle = self.buffer.len();
        self.buffer.extend_from_slice(value);
        self.spans.push((start, middle, self.buffer.len()));
    }

    /// Counts the rows.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Tells whether the page holds no row.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Counts the bytes of keys and values.
    pub fn bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Reads row `index` as key and value.
    ///
    /// # Panics
    /// When `index` is not below [`Rows::len`].
    pub fn row(&self, index: usize) -> (&[u8], &[u8]) {
        let (start, middle, end) = self.spans[index];
        (&self.buffer[start..middle], &self.buffer[middle..end])
    }

    /// Iterates over keys and values in page order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> + '_ {
        (0..self.spans.len()).map(|index| self.row(index))
    }
}
