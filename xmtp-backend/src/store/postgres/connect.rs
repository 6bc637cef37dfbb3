//! Connections: how they behave, and how they are shared.

use std::future::Future;
use std::ops::Deref;
use std::time::Duration;

use deadpool_postgres::{
    ClientWrapper, Hook, Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime,
};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use super::SetupError;
use super::fault::{Fault, Trouble, code, of_fault, of_pool, within};
use super::tls::Connector;
use crate::config::{Address, Secret};
use crate::limits::{
    DATABASE_CONNECT_TIME, DATABASE_KEEPALIVE, DATABASE_SLACK, READ_ATTEMPTS, STREAM_READS,
};
use crate::store::ReadError;
use crate::telemetry::metrics;

/// The parameters of a statement.
pub(super) type Parameters<'p> = [&'p (dyn ToSql + Sync)];

/// How the connections of this program are known to the database.
const APPLICATION: &str = "xmtp-backend";

/// A database server, and how it is reached.
#[derive(Clone, Debug)]
pub(super) struct Server {
    config: tokio_postgres::Config,
    tls: Connector,
}

impl Server {
    /// Reads the address of a server, and the authorities that it names; an error shows none of it.
    pub(super) fn parse(url: &Secret) -> Result<Self, SetupError> {
        let address = Address::read(url).map_err(|_| SetupError::Address)?;
        let tls = Connector::new(&address.proof)?;
        let mut config = address.server;
        config
            .application_name(APPLICATION)
            .connect_timeout(DATABASE_CONNECT_TIME)
            .keepalives(true)
            .keepalives_idle(DATABASE_KEEPALIVE)
            .keepalives_interval(DATABASE_KEEPALIVE)
            .tcp_user_timeout(DATABASE_KEEPALIVE * 3);
        Ok(Self { config, tls })
    }

    /// Opens a connection that nobody shares; dropping it closes it.
    pub(super) async fn connect(&self, purpose: &str) -> Result<ClientWrapper, Trouble> {
        let mut config = self.config.clone();
        config.application_name(format!("{APPLICATION} {purpose}"));
        let connect = config.connect(self.tls.clone());
        let (client, connection) = within(DATABASE_CONNECT_TIME, connect).await?;
        let task = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::warn!(code = code(&error), "a connection to the database ended");
            }
        });
        Ok(ClientWrapper::new(client, task))
    }

    /// Creates a pool whose new connections must pass `hook`; who finds none free waits for as long as
    /// `patience`, or for as long as it takes.
    pub(super) fn pool(&self, size: usize, patience: Option<Duration>, hook: Option<Hook>) -> Pool {
        let (config, tls) = (self.config.clone(), self.tls.clone());
        let recycling_method = RecyclingMethod::Fast;
        let manager = Manager::from_config(config, tls, ManagerConfig { recycling_method });
        let mut builder = Pool::builder(manager)
            .max_size(size)
            .runtime(Runtime::Tokio1)
            .wait_timeout(patience)
            .create_timeout(Some(DATABASE_CONNECT_TIME));
        if let Some(hook) = hook {
            builder = builder.post_create(hook);
        }
        builder.build().expect("timeouts have a runtime")
    }
}

/// How the connections to one database are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) publishes: usize,
    pub(super) queries: usize,
    pub(super) turns: usize,
}

impl Sizes {
    /// Connections that nobody shares: the tail's and the boundary's.
    const DEDICATED: usize = 2;

    /// Divides the connections: a third publishes, a quarter serves streams, the rest reads.
    pub(super) fn of(max_connections: usize) -> Self {
        let shared = max_connections.saturating_sub(Self::DEDICATED);
        let publishes = (shared / 3).max(1);
        let turns = (shared / 4).clamp(1, STREAM_READS);
        Self {
            publishes,
            queries: shared.saturating_sub(publishes + turns).max(1),
            turns,
        }
    }
}

/// Connections that serve one kind of call, so that one kind cannot starve another.
#[derive(Clone)]
pub(super) struct Lane {
    pool: Pool,
    /// Opens the transaction of one read.
    begin: String,
    /// How long a call may wait for its answer.
    patience: Duration,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane")
            .field("status", &self.pool.status())
            .finish_non_exhaustive()
    }
}

impl Lane {
    /// Creates a lane whose new connections must pass `hook`. Who finds none free is told so in time.
    pub(super) fn new(
        server: &Server,
        size: usize,
        max_statement_time: Duration,
        hook: Option<Hook>,
    ) -> Self {
        let wait = Some(max_statement_time + DATABASE_SLACK);
        Self::with_wait(server, size, max_statement_time, hook, wait)
    }

    /// Creates a lane for callers whose number is bounded: they wait for a connection for as long as
    /// it takes the others, each of which lets go in time.
    pub(super) fn for_few(
        server: &Server,
        size: usize,
        max_statement_time: Duration,
        hook: Option<Hook>,
    ) -> Self {
        Self::with_wait(server, size, max_statement_time, hook, None)
    }

    fn with_wait(
        server: &Server,
        size: usize,
        max_statement_time: Duration,
        hook: Option<Hook>,
        wait: Option<Duration>,
    ) -> Self {
        let patience = max_statement_time + DATABASE_SLACK;
        Self {
            pool: server.pool(size, wait, hook),
            begin: format!(
                "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = {}",
                max_statement_time.as_millis()
            ),
            patience,
        }
    }

    pub(super) fn close(&self) {
        self.pool.close();
    }

    /// Closes the connections that nobody uses now; new ones have to pass the hook.
    pub(super) fn renew(&self) {
        self.pool.retain(|_, _| false);
    }

    /// Runs `read` with a connection, and again if the connection was lost or the server asks for
    /// it.
    pub(super) async fn run<T, F>(&self, read: impl Fn(Session) -> F) -> Result<T, ReadError>
    where
        F: Future<Output = Result<(T, Session), Failed>>,
    {
        for attempt in 1.. {
            let lease = Lease::take(&self.pool).await.map_err(of_pool)?;
            let begin = self.begin.clone();
            let read = read(Session { lease, begin });
            let failed = match tokio::time::timeout(self.patience, read).await {
                Err(_) => return Err(ReadError::TimedOut),
                Ok(Ok((value, session))) => {
                    session.lease.give_back();
                    return Ok(value);
                }
                Ok(Err(failed)) => failed,
            };
            let error = match failed {
                Failed::Answer(error) => return Err(error),
                Failed::Database(error) => error,
            };
            let fault = Fault::of(&error);
            metrics::database_failed(fault.name());
            if attempt >= READ_ATTEMPTS || !matches!(fault, Fault::Again | Fault::Closed) {
                tracing::warn!(code = code(&error), "a read of the database failed");
                return Err(of_fault(fault));
            }
        }
        Err(ReadError::Unavailable)
    }

    /// Runs one statement in a snapshot of its own, in one round trip.
    pub(super) async fn select(
        &self,
        sql: &str,
        parameters: &Parameters<'_>,
    ) -> Result<Vec<Row>, ReadError> {
        self.run(|session| async move {
            let statement = session.lease.prepare_cached(sql).await?;
            let (begun, rows, ended) = tokio::join!(
                biased;
                session.lease.batch_execute(&session.begin),
                session.lease.query(&statement, parameters),
                session.lease.batch_execute("COMMIT"),
            );
            begun?;
            let rows = rows?;
            ended?;
            Ok((rows, session))
        })
        .await
    }
}

/// A connection that a read has to itself.
pub(super) struct Session {
    pub(super) lease: Lease,
    pub(super) begin: String,
}

/// Why a read ended without a value.
pub(super) enum Failed {
    /// The caller is told so.
    Answer(ReadError),
    /// The database or the way to it failed.
    Database(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Database(error)
    }
}

impl From<ReadError> for Failed {
    fn from(error: ReadError) -> Self {
        Self::Answer(error)
    }
}

/// A connection on loan. One that is dropped instead of given back is closed, because it may be in
/// the middle of something.
pub(super) struct Lease(Option<Object>);

impl Lease {
    pub(super) async fn take(pool: &Pool) -> Result<Self, PoolError> {
        pool.get().await.map(|object| Self(Some(object)))
    }

    /// Returns the connection for others to use; no transaction is open on it.
    pub(super) fn give_back(mut self) {
        drop(self.0.take());
    }
}

impl Deref for Lease {
    type Target = ClientWrapper;

    fn deref(&self) -> &ClientWrapper {
        self.0
            .as_deref()
            .expect("a lease holds its connection until it is given back")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(object) = self.0.take() {
            metrics::open_transaction_released();
            drop(Object::take(object));
        }
    }
}
