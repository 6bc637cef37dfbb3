//! One transaction of publishes: three round trips, whatever their number.
//!
//! 1. Locks and facts: the topics in the order of their bytes, then the barrier, and only then, by
//!    statements of their own and so from snapshots that see whoever held the locks before, what is
//!    stored.
//! 2. Ids and rows, in request order.
//! 3. The commit. Before it is sent a failure means that nothing is stored, and the same may be run
//!    again; after it the outcome is unknown until the answer comes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{ClientWrapper, Pool};
use tokio_postgres::{Error, Statement};
use xmtp_proto::id::{SequenceId, Topic};

use super::PostgresOptions;
use super::connect::{Lease, Parameters, Server};
use super::decode::{column, position};
use super::fault::{Fault, code, pool_code, within};
use super::guard;
use super::read::stored;
use super::statements as sql;
use crate::hooks::{Hooks, Point, Verdict};
use crate::limits::{DATABASE_ANSWER_TIME, DATABASE_SLACK, PUBLISH_ATTEMPTS};
use crate::store::decide::{Facts, decide, new_meta};
use crate::store::record::{EnvelopeKey, Meta, PreparedEnvelope};
use crate::store::{PublishError, ReadError};
use crate::telemetry::step;

mod rows;

use rows::{NewRow, NewRows};

/// The first server that ends a transaction by its age.
const TRANSACTION_TIMEOUT_SERVER: i32 = 170_000;

/// One request of a transaction.
pub(super) type Request = [PreparedEnvelope];
/// What became of one request.
pub(super) type Outcome = Result<Vec<Meta>, PublishError>;

/// What runs transactions.
#[derive(Debug)]
pub(super) struct Publisher {
    pool: Pool,
    begin: String,
    max_time: Duration,
    hooks: Arc<dyn Hooks>,
}

/// Why an attempt ended without an outcome for each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failed {
    /// Nothing is stored, and another attempt may do better.
    Again,
    /// All requests are answered so.
    With(PublishError),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        tracing::warn!(code = code(&error), "a publish failed before its commit");
        match Fault::of(&error) {
            Fault::Again | Fault::Closed => Self::Again,
            Fault::Refused => Self::With(PublishError::Broken("the database refuses a publish")),
            Fault::TimedOut | Fault::LockTimeout | Fault::Silent | Fault::Unavailable => {
                Self::With(PublishError::Unavailable)
            }
        }
    }
}

impl From<ReadError> for Failed {
    fn from(_: ReadError) -> Self {
        Self::With(PublishError::Broken("a stored value can not be read"))
    }
}

/// What the locks brought.
struct Locked {
    heads: HashMap<Topic, SequenceId>,
    stored: HashMap<EnvelopeKey, Meta>,
    entries: HashMap<Topic, u32>,
    /// The time of the database, in nanoseconds since 1970.
    now_ns: u64,
}

impl Publisher {
    pub(super) fn new(
        server: &Server,
        size: usize,
        settings: &PostgresOptions,
        server_version: i32,
        hooks: &Arc<dyn Hooks>,
    ) -> Self {
        let max_time = settings.max_publish_time;
        Self {
            pool: server.pool(size, Some(max_time), Some(guard::whole_history())),
            begin: begin(max_time, server_version),
            max_time,
            hooks: hooks.clone(),
        }
    }

    pub(super) fn close(&self) {
        self.pool.close();
    }

    /// Runs one transaction over the requests.
    ///
    /// - The requests have distinct keys, and updates of distinct inboxes.
    /// - A request that is refused or whose inbox has moved is left out and fails alone.
    /// - An error is about all of them.
    pub(super) async fn publish(
        &self,
        requests: &[&Request],
    ) -> Result<Vec<Outcome>, PublishError> {
        for _ in 0..PUBLISH_ATTEMPTS {
            let lease = Lease::take(&self.pool).await.map_err(|error| {
                tracing::warn!(code = pool_code(&error), "the database can not be reached");
                PublishError::Unavailable
            })?;
            // The server ends the transaction itself; this is for a server that does not answer.
            let attempt = self.attempt(&lease, requests);
            let attempt = tokio::time::timeout(self.max_time + DATABASE_SLACK, attempt).await;
            let prepared = match attempt {
                Ok(Ok(prepared)) => prepared,
                Ok(Err(Failed::Again)) => continue,
                Ok(Err(Failed::With(error))) => return Err(error),
                Err(_) => return Err(PublishError::Unavailable),
            };
            let outcomes = self.commit(lease, prepared).await;
            return outcomes.ok_or(PublishError::UnknownOutcome);
        }
        Err(PublishError::Unavailable)
    }

    /// Sends the commit, or undoes a transaction that stored nothing; `None` if no answer came.
    async fn commit(&self, lease: Lease, prepared: Prepared) -> Option<Vec<Outcome>> {
        if !prepared.stores {
            // Nothing hangs on the answer; a connection that gives none is closed and not used again.
            let undone = lease.batch_execute("ROLLBACK");
            if within(DATABASE_ANSWER_TIME, undone).await.is_ok() {
                lease.give_back();
            }
            return Some(prepared.outcomes);
        }
        let commit = tokio::time::timeout(self.max_time, lease.batch_execute("COMMIT")).await;
        let answered = matches!(commit, Ok(Ok(())));
        let lost = self.hooks.reach(Point::CommitSent).await == Verdict::Unavailable;
        if !answered || lost {
            return None;
        }
        lease.give_back();
        Some(prepared.outcomes)
    }

    async fn attempt(
        &self,
        client: &ClientWrapper,
        requests: &[&Request],
    ) -> Result<Prepared, Failed> {
        let locked = step!("publish.locks", Box::pin(self.lock(client, requests))).await?;
        self.reach(Point::TopicsLocked).await?;
        let server_ns = locked.now_ns;
        let (mut outcomes, mut rows) =
            (Vec::with_capacity(requests.len()), NewRows::new(server_ns));
        for request in requests {
            outcomes.push(judge(request, &locked, &mut rows, server_ns));
        }
        if rows.is_empty() {
            return Ok(Prepared {
                outcomes,
                stores: false,
            });
        }
        let ids = rows.store(client).await?;
        for meta in outcomes.iter_mut().flatten().flatten() {
            if meta.sequence_id == SequenceId::ZERO {
                let missing = PublishError::Broken("a new row has no id");
                meta.sequence_id = *ids.get(&meta.key).ok_or(Failed::With(missing))?;
            }
        }
        self.reach(Point::Allocated).await?;
        Ok(Prepared {
            outcomes,
            stores: true,
        })
    }

    /// A hook that fails stands for a lost connection.
    async fn reach(&self, point: Point) -> Result<(), Failed> {
        match self.hooks.reach(point).await {
            Verdict::Go => Ok(()),
            Verdict::Unavailable => Err(Failed::With(PublishError::Unavailable)),
        }
    }

    async fn lock(&self, client: &ClientWrapper, requests: &[&Request]) -> Result<Locked, Failed> {
        let all = || requests.iter().copied().flatten();
        let topics: BTreeSet<&[u8]> = all().map(|row| row.key.topic.as_bytes()).collect();
        let topics: Vec<&[u8]> = topics.into_iter().collect();
        let updates = all().filter(|row| row.identity.is_some());
        let inboxes: Vec<&[u8]> = updates.map(|row| row.key.topic.as_bytes()).collect();
        let key_topics: Vec<&[u8]> = all().map(|row| row.key.topic.as_bytes()).collect();
        let hashes: Vec<&[u8]> = all().map(|row| &row.key.hash.0[..]).collect();
        let known = LockStatements::prepare(client).await?;
        let with_identity = !inboxes.is_empty();
        let by_topic: &Parameters<'_> = &[&topics];
        let by_key: &Parameters<'_> = &[&key_topics, &hashes];
        let by_inbox: &Parameters<'_> = &[&inboxes];
        let (begun, identity, opened, heads, barrier, now, stored_rows, entries) = tokio::join!(
            biased;
            client.batch_execute(&self.begin),
            async {
                match with_identity {
                    true => client.execute(&known.lock, &[&sql::IDENTITY]).await,
                    false => Ok(0),
                }
            },
            client.execute(&known.open_heads, by_topic),
            client.query(&known.lock_heads, by_topic),
            client.execute(&known.lock_shared, &[&sql::BARRIER]),
            client.query_one(&known.now, &[]),
            client.query(&known.stored, by_key),
            async {
                match with_identity {
                    true => client.query(&known.count_entries, by_inbox).await,
                    false => Ok(Vec::new()),
                }
            },
        );
        begun?;
        identity?;
        opened?;
        let heads = heads?;
        barrier?;
        let now_ns: i64 = column(&now?, 0)?;
        let (stored_rows, entries) = (stored_rows?, entries?);
        let mut locked = Locked {
            now_ns: now_ns.cast_unsigned(),
            heads: HashMap::with_capacity(heads.len()),
            stored: stored(&stored_rows)?,
            entries: HashMap::new(),
        };
        for row in &heads {
            locked
                .heads
                .insert(topic(column(row, 0)?)?, position(column(row, 1)?)?);
        }
        for row in &entries {
            let count: i64 = column(row, 1)?;
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            locked.entries.insert(topic(column(row, 0)?)?, count);
        }
        Ok(locked)
    }
}

/// A transaction that is ready for its commit.
struct Prepared {
    outcomes: Vec<Outcome>,
    /// Whether there is anything to commit.
    stores: bool,
}

struct LockStatements {
    lock: Statement,
    lock_shared: Statement,
    now: Statement,
    open_heads: Statement,
    lock_heads: Statement,
    stored: Statement,
    count_entries: Statement,
}

impl LockStatements {
    /// Prepares what the connection has not prepared yet.
    async fn prepare(client: &ClientWrapper) -> Result<Self, Error> {
        Ok(Self {
            lock: client.prepare_cached(sql::LOCK).await?,
            lock_shared: client.prepare_cached(sql::LOCK_SHARED).await?,
            now: client.prepare_cached(sql::NOW).await?,
            open_heads: client.prepare_cached(sql::OPEN_HEADS).await?,
            lock_heads: client.prepare_cached(sql::LOCK_HEADS).await?,
            stored: client.prepare_cached(sql::STORED).await?,
            count_entries: client.prepare_cached(sql::COUNT_ENTRIES).await?,
        })
    }
}

fn topic(bytes: &[u8]) -> Result<Topic, Failed> {
    let broken = |_| Failed::With(PublishError::Broken("a stored topic can not be read"));
    Topic::parse(bytes).map_err(broken)
}

/// Opens a transaction that the server ends when it gets too old.
fn begin(max_time: Duration, server_version: i32) -> String {
    let limit = max_time.as_millis();
    let mut begin = format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL synchronous_commit = on; \
         SET LOCAL statement_timeout = {limit}; \
         SET LOCAL idle_in_transaction_session_timeout = {limit}"
    );
    if server_version >= TRANSACTION_TIMEOUT_SERVER {
        begin.push_str(&format!("; SET LOCAL transaction_timeout = {limit}"));
    }
    begin
}

/// Decides about one request; its new rows join the others, and their records wait for their ids.
fn judge<'r>(
    request: &'r Request,
    locked: &Locked,
    rows: &mut NewRows<'r>,
    server_ns: u64,
) -> Outcome {
    let facts = |envelope: &PreparedEnvelope| Facts {
        stored: locked.stored.get(&envelope.key).copied(),
        head: locked.head(&envelope.key.topic),
        entries: locked
            .entries
            .get(&envelope.key.topic)
            .copied()
            .unwrap_or(0),
    };
    let facts: Vec<Facts> = request.iter().map(facts).collect();
    decide(request, &facts)?;
    let (mut metas, mut new) = (Vec::with_capacity(request.len()), Vec::new());
    for (envelope, facts) in request.iter().zip(&facts) {
        metas.push(match facts.stored {
            Some(stored) => stored,
            None => {
                let meta = new_meta(envelope, SequenceId::ZERO, server_ns)?;
                new.push(NewRow { meta, envelope });
                meta
            }
        });
    }
    rows.extend(new)?;
    Ok(metas)
}

impl Locked {
    fn head(&self, topic: &Topic) -> SequenceId {
        self.heads.get(topic).copied().unwrap_or(SequenceId::ZERO)
    }
}
