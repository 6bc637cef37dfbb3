//! The store that many servers share: one PostgreSQL database, and at most one replica per server.
//!
//! Ids are taken from a sequence by many transactions at a time, so they become visible in another
//! order than they were taken in. Three rules make that harmless:
//!
//! - A publish holds the rows of its topics from before it takes ids until it has committed, so
//!   within a topic ids become visible in order.
//! - A publish holds the barrier shared for as long. Whoever gets the barrier alone and then reads
//!   the sequence knows that every id up to there is settled: the allocation boundary.
//! - A tail reads each time from one snapshot, remembers the ids it skipped, and forgets one that
//!   stays absent only when that snapshot shows a boundary at or above it.
//!
//! Streams live on one physical database: the tail, the heads and the turns read the same server, and
//! connections to any other are refused.

mod boundary;
mod connect;
mod decode;
mod endpoint;
mod fault;
mod fence;
mod fetch;
mod follow;
mod gaps;
mod guard;
mod open;
mod pace;
mod prune;
mod publish;
mod publishers;
mod read;
mod statements;
mod tail;
#[cfg(test)]
mod tests;
mod tls;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::watch;
use xmtp_proto::id::{InboxId, SequenceId, Topic};

pub use self::fence::fence;
pub use self::open::SetupError;

use self::connect::{Lane, Server, Sizes};
use self::endpoint::Endpoint;
use self::publish::Publisher;
use self::publishers::Publishers;
use super::record::{
    Envelope, EnvelopeKey, IdentifierKey, IdentityHistory, Meta, Page, PreparedEnvelope,
    PruneBudget, Pruned, Query, Turn, TurnBudget, Want,
};
use super::{Interest, PruneError, PublishError, ReadError, Store, Tail, TailError};
use crate::config::{Config, PostgresSettings, Secret};
use crate::hooks::Hooks;
use crate::limits::REPLICA_WAIT;
use crate::telemetry::step;

/// What the store is told.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// The address of the primary.
    pub url: Secret,
    /// The address of the one replica that this server reads streams from.
    pub replica_url: Option<Secret>,
    /// The deployment that the database belongs to.
    pub identifier: String,
    /// The most connections to one database, in connections.
    pub max_connections: usize,
    /// How long one statement of a read may take.
    pub max_statement_time: Duration,
    /// How long one publish may hold its locks.
    pub max_publish_time: Duration,
    /// How long the boundary may hold publishes back in one attempt.
    pub max_barrier_wait: Duration,
    /// How long the replica may be behind when the first tail is opened.
    pub max_replica_wait: Duration,
    /// How often a tail looks.
    pub poll_interval: Duration,
    /// The most ranges of ids that a tail remembers, in ranges.
    pub max_gap_ranges: usize,
}

impl PostgresOptions {
    /// Takes what a configuration says about a database.
    pub fn new(config: &Config, database: &PostgresSettings) -> Self {
        let millis = |value: u32| Duration::from_millis(value.into());
        let (limits, publishing) = (&config.database_limits, &config.publishing);
        Self {
            url: database.url.clone(),
            replica_url: database.replica_url.clone(),
            identifier: config.server.identifier.clone(),
            max_connections: limits.max_connections as usize,
            max_statement_time: millis(limits.max_statement_timeout_ms),
            max_publish_time: millis(publishing.max_publish_duration_ms),
            max_barrier_wait: millis(publishing.max_barrier_wait_ms),
            max_replica_wait: REPLICA_WAIT,
            poll_interval: millis(config.streams.poll_interval_ms),
            max_gap_ranges: config.streams.max_gap_ranges as usize,
        }
    }
}

/// Keeps envelopes in one PostgreSQL database.
#[derive(Debug)]
pub struct PostgresStore {
    shared: Arc<Shared>,
    publishers: Publishers,
}

/// What the store and its tails share.
#[derive(Debug)]
struct Shared {
    settings: PostgresOptions,
    hooks: Arc<dyn Hooks>,
    primary: Server,
    /// Reads that see every acknowledged publish.
    queries: Lane,
    /// Reads that may lag.
    lookups: Lane,
    /// Where streams read.
    endpoint: Endpoint,
    /// Whether a tail was opened before.
    has_followed: AtomicBool,
    /// What the readers of tails wait for; `None` for everything.
    interest: Mutex<Option<Arc<dyn Interest>>>,
    /// Tells tails that something was committed here, and at last that the store is closed.
    news: watch::Sender<News>,
}

/// What tails are told.
#[derive(Clone, Copy, Debug, Default)]
struct News {
    commits: u64,
    closed: bool,
}

impl PostgresStore {
    /// Opens the database, and creates or updates its tables.
    ///
    /// - Refuses a database that another deployment or a newer version owns, and one whose history
    ///   was cut since it was last fenced.
    /// - Refuses a replica that is none of this database.
    /// - Times of envelopes are the database's.
    pub async fn open(
        settings: PostgresOptions,
        hooks: Arc<dyn Hooks>,
    ) -> Result<Self, SetupError> {
        let primary = Server::parse(&settings.url)?;
        let (version, here) = open::prepare(&primary, &settings.identifier).await?;
        let sizes = Sizes::of(settings.max_connections);
        let replica = settings.replica_url.as_ref().map(Server::parse);
        let replica = replica.transpose()?;
        let reads = replica.as_ref().unwrap_or(&primary);
        let time = settings.max_statement_time;
        let endpoint = Endpoint::open(reads.clone(), here, sizes.turns, time).await?;
        let queries = Lane::new(&primary, sizes.queries, time, Some(guard::primary()));
        let lookups = match &replica {
            Some(replica) => {
                let hook = guard::same_database(endpoint.primary());
                Lane::new(replica, sizes.queries, time, Some(hook))
            }
            None => queries.clone(),
        };
        let publisher = Publisher::new(&primary, sizes.publishes, &settings, version, &hooks);
        let shared = Arc::new(Shared {
            settings,
            hooks,
            primary,
            queries,
            lookups,
            endpoint,
            has_followed: AtomicBool::new(false),
            interest: Mutex::default(),
            news: watch::Sender::default(),
        });
        let publishers = Publishers::start(publisher, sizes.publishes, &shared);
        Ok(Self { shared, publishers })
    }
}

impl Shared {
    /// Tells tails on this server to look now.
    fn committed(&self) {
        self.news.send_modify(|news| news.commits += 1);
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn publish(&self, envelopes: Vec<PreparedEnvelope>) -> Result<Vec<Meta>, PublishError> {
        self.publishers.publish(envelopes).await
    }

    async fn existing(&self, keys: Vec<EnvelopeKey>) -> Result<Vec<Option<Meta>>, ReadError> {
        read::existing(&self.shared.queries, &keys).await
    }

    async fn identity_history(&self, topic: Topic) -> Result<IdentityHistory, ReadError> {
        read::identity_history(&self.shared.queries, &topic).await
    }

    async fn query(&self, query: Query) -> Result<Page, ReadError> {
        read::query(&self.shared.queries, &query).await
    }

    async fn newest(
        &self,
        topics: Vec<Topic>,
        full: bool,
        max_bytes: usize,
    ) -> Result<Vec<Envelope>, ReadError> {
        read::newest(&self.shared.lookups, &topics, full, max_bytes).await
    }

    async fn inbox_ids(&self, keys: Vec<IdentifierKey>) -> Result<Vec<Option<InboxId>>, ReadError> {
        read::inbox_ids(&self.shared.lookups, &keys).await
    }

    async fn heads(&self, topics: Vec<Topic>) -> Result<Vec<SequenceId>, ReadError> {
        fetch::heads(&self.shared.endpoint.lane(), &topics).await
    }

    async fn fetch_turn(&self, wants: Vec<Want>, budget: TurnBudget) -> Result<Turn, ReadError> {
        fetch::fetch_turn(&self.shared.endpoint.lane(), &wants, budget).await
    }

    fn attend(&self, interest: Arc<dyn Interest>) {
        *self.shared.interest.lock() = Some(interest);
    }

    async fn tail(&self) -> Result<Box<dyn Tail>, TailError> {
        let opened = step!("tailer.bootstrap", Box::pin(tail::open(&self.shared)));
        Ok(Box::new(opened.await?))
    }

    async fn prune(&self, now_ns: u64, budget: PruneBudget) -> Result<Pruned, PruneError> {
        prune::prune(&self.shared, now_ns, budget).await
    }

    async fn close(&self) {
        self.publishers.stop().await;
        self.shared.news.send_modify(|news| news.closed = true);
        self.shared.queries.close();
        self.shared.lookups.close();
        self.shared.endpoint.lane().close();
    }
}
