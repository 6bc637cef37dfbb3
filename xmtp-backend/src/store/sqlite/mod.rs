//! The embedded store: one SQLite database, one writer.
//!
//! One thread owns the only connection that writes, so ids are allocated, committed and made
//! visible in one order, and nothing has to prove that an absent id will stay absent. It takes the
//! requests that wait, runs each in a savepoint of one transaction, and answers all after the one
//! commit: the sync of the disk is shared, and a refused request undoes only itself. Reads use
//! read-only connections of their own.
//!
//! After a commit whose outcome is not known, and after any sync that failed, the writer stops for
//! good: the system may have dropped what it could not write, and a second sync that succeeds would
//! prove nothing. What the disk then holds is decided when the database is opened again. A full disk
//! is no such case: it refuses the write, and nothing of it is stored. Every tail is lost with it,
//! as with a page that can not be written or read, and none is opened before a write succeeds; reads
//! go on meanwhile.

mod checkpoint;
mod fault;
mod lock;
mod log;
mod mark;
mod open;
mod pool;
mod prune;
mod publish;
mod read;
mod schema;
#[cfg(test)]
mod tests;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use xmtp_proto::id::{InboxId, SequenceId, Topic};

pub use self::open::{Fenced, OpenError};

use self::lock::DatabaseLock;
use self::log::Log;
use self::pool::ReadPool;
use self::writer::Writer;
use super::feed::Feed;
use super::record::{
    Envelope, EnvelopeKey, IdentifierKey, IdentityHistory, Meta, Page, PreparedEnvelope,
    PruneBudget, Pruned, Query, Turn, TurnBudget, Want,
};
use super::{PruneError, PublishError, ReadError, Store, Tail, TailError};
use crate::config::{Config, DatabaseLimits};
use crate::hooks::Clock;
use crate::limits::LOG_PAGES;

/// What an embedded store is bound by.
#[derive(Clone, Copy, Debug)]
pub struct SqliteSettings {
    /// How long a read may wait for its turn, and how long it may then take.
    pub max_statement_time: Duration,
    /// The size of the log from which on publishes wait until it is empty, in pages.
    pub log_pages: i32,
}

impl Default for SqliteSettings {
    fn default() -> Self {
        Self::of(&DatabaseLimits::default())
    }
}

impl SqliteSettings {
    /// Returns what a configuration says.
    pub(crate) fn new(config: &Config) -> Self {
        Self::of(&config.database_limits)
    }

    fn of(limits: &DatabaseLimits) -> Self {
        Self {
            max_statement_time: Duration::from_millis(limits.max_statement_timeout_ms.into()),
            log_pages: LOG_PAGES,
        }
    }
}

/// Keeps envelopes in one SQLite database.
#[derive(Debug)]
pub struct SqliteStore {
    writer: Writer,
    pool: Arc<ReadPool>,
    feed: Arc<Feed>,
    lock: parking_lot::Mutex<Option<DatabaseLock>>,
}

impl SqliteStore {
    /// Opens the database at `path` for the deployment `identifier`, or creates it.
    ///
    /// - Refuses a database that another process has open, that another program or a newer version
    ///   wrote, or that belongs to another deployment.
    /// - Refuses a database from which more may have been given out than it knows, until
    ///   [`SqliteStore::fence`] has run.
    /// - Touches files and may wait for the disk.
    pub fn open(
        path: &Path,
        identifier: &str,
        clock: Arc<dyn Clock>,
        settings: SqliteSettings,
    ) -> Result<Self, OpenError> {
        let lock = DatabaseLock::take(path)?;
        let open::Opened {
            connection,
            mark,
            last,
        } = open::open_for_writing(path, identifier, clock.as_ref())?;
        let feed = Arc::new(Feed::new(last));
        let pool = Arc::new(ReadPool::open(path, settings.max_statement_time)?);
        let log = Log::new(path, settings);
        let writer = Writer::start(connection, mark, log, clock, feed.clone())?;
        Ok(Self {
            writer,
            pool,
            feed,
            lock: parking_lot::Mutex::new(Some(lock)),
        })
    }

    /// Raises the ids of the database at `path` far above all that was given out from it, so that
    /// a restored database gives no id a second time.
    ///
    /// - Refuses a database that a server has open: stop it first.
    /// - Does no harm where it was not needed, and may be run again.
    /// - Touches files and waits for the disk.
    pub fn fence(path: &Path, identifier: &str, clock: &dyn Clock) -> Result<Fenced, OpenError> {
        let _lock = DatabaseLock::take(path)?;
        open::fence(path, identifier, clock)
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn publish(&self, envelopes: Vec<PreparedEnvelope>) -> Result<Vec<Meta>, PublishError> {
        self.writer.publish(envelopes).await
    }

    async fn existing(&self, keys: Vec<EnvelopeKey>) -> Result<Vec<Option<Meta>>, ReadError> {
        self.pool
            .run(move |snapshot| read::existing(snapshot, &keys))
            .await
    }

    async fn identity_history(&self, topic: Topic) -> Result<IdentityHistory, ReadError> {
        self.pool
            .run(move |snapshot| read::identity_history(snapshot, &topic))
            .await
    }

    async fn query(&self, query: Query) -> Result<Page, ReadError> {
        self.pool
            .run(move |snapshot| read::query(snapshot, &query))
            .await
    }

    async fn newest(
        &self,
        topics: Vec<Topic>,
        full: bool,
        max_bytes: usize,
    ) -> Result<Vec<Envelope>, ReadError> {
        self.pool
            .run(move |snapshot| read::newest(snapshot, &topics, full, max_bytes))
            .await
    }

    async fn inbox_ids(&self, keys: Vec<IdentifierKey>) -> Result<Vec<Option<InboxId>>, ReadError> {
        self.pool
            .run(move |snapshot| read::inbox_ids(snapshot, &keys))
            .await
    }

    async fn heads(&self, topics: Vec<Topic>) -> Result<Vec<SequenceId>, ReadError> {
        self.pool
            .run(move |snapshot| read::heads(snapshot, &topics))
            .await
    }

    async fn fetch_turn(&self, wants: Vec<Want>, budget: TurnBudget) -> Result<Turn, ReadError> {
        self.pool
            .run(move |snapshot| read::fetch_turn(snapshot, &wants, budget))
            .await
    }

    async fn tail(&self) -> Result<Box<dyn Tail>, TailError> {
        if self.feed.is_lost() {
            self.writer.probe().await?;
        }
        Ok(Box::new(self.feed.tail(self.pool.clone())))
    }

    async fn prune(&self, now_ns: u64, budget: PruneBudget) -> Result<Pruned, PruneError> {
        self.writer.prune(now_ns, budget).await
    }

    async fn close(&self) {
        self.writer.stop().await;
        self.pool.close().await;
        self.feed.close();
        drop(self.lock.lock().take());
    }
}
