//! Connections: how they behave, how they are shared, and what their errors mean.

use std::future::Future;
use std::ops::Deref;
use std::time::Duration;

use deadpool_postgres::{
    ClientWrapper, Hook, Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime,
};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, NoTls, Row};

use super::SetupError;
use crate::config::Secret;
use crate::limits::{
    DATABASE_CONNECT_TIME, DATABASE_KEEPALIVE, DATABASE_SLACK, FETCH_TURNS, READ_ATTEMPTS,
};
use crate::store::ReadError;

/// The parameters of a statement.
pub(super) type Parameters<'p> = [&'p (dyn ToSql + Sync)];

/// How the connections of this program are known to the database.
const APPLICATION: &str = "xmtp-backend";

/// Reads the address of a database; an error shows none of it.
pub(super) fn parse(url: &Secret) -> Result<tokio_postgres::Config, SetupError> {
    let parsed = url.expose().parse::<tokio_postgres::Config>();
    let mut config = parsed.map_err(|_| SetupError::Address)?;
    config
        .application_name(APPLICATION)
        .connect_timeout(DATABASE_CONNECT_TIME)
        .keepalives(true)
        .keepalives_idle(DATABASE_KEEPALIVE)
        .keepalives_interval(DATABASE_KEEPALIVE)
        .tcp_user_timeout(DATABASE_KEEPALIVE * 3);
    Ok(config)
}

/// Opens a connection that nobody shares; dropping it closes it.
pub(super) async fn connect(
    config: &tokio_postgres::Config,
    purpose: &str,
) -> Result<ClientWrapper, Error> {
    let mut config = config.clone();
    config.application_name(format!("{APPLICATION} {purpose}"));
    let (client, connection) = config.connect(NoTls).await?;
    let task = tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::warn!(code = code(&error), "a connection to the database ended");
        }
    });
    Ok(ClientWrapper::new(client, task))
}

/// Returns the code of an error for the log, which shows no value.
pub(super) fn code(error: &Error) -> &str {
    error.code().map_or("connection", SqlState::code)
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
        let turns = (shared / 4).clamp(1, FETCH_TURNS);
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
    /// How long a call may wait for a connection, and how long for its answer.
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
    pub(super) fn new(
        config: &tokio_postgres::Config,
        size: usize,
        max_statement_time: Duration,
    ) -> Self {
        Self::with_hook(config, size, max_statement_time, None)
    }

    /// Creates a lane whose new connections must pass `hook`.
    pub(super) fn with_hook(
        config: &tokio_postgres::Config,
        size: usize,
        max_statement_time: Duration,
        hook: Option<Hook>,
    ) -> Self {
        let patience = max_statement_time + DATABASE_SLACK;
        Self {
            pool: pool(config, size, patience, hook),
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

/// Creates a pool whose new connections must pass `hook`.
pub(super) fn pool(
    config: &tokio_postgres::Config,
    size: usize,
    patience: Duration,
    hook: Option<Hook>,
) -> Pool {
    let recycling_method = RecyclingMethod::Fast;
    let manager = Manager::from_config(config.clone(), NoTls, ManagerConfig { recycling_method });
    let mut builder = Pool::builder(manager)
        .max_size(size)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(patience))
        .create_timeout(Some(DATABASE_CONNECT_TIME));
    if let Some(hook) = hook {
        builder = builder.post_create(hook);
    }
    builder.build().expect("timeouts have a runtime")
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
            drop(Object::take(object));
        }
    }
}

/// What an error of the database means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The server undid the transaction to let another one through, or to catch up.
    Again,
    /// The connection is gone.
    Closed,
    /// A statement or a transaction took too long.
    TimedOut,
    /// A lock was not to be had in time.
    LockTimeout,
    /// The server can not serve now.
    Unavailable,
    /// The server refuses a statement that it should take.
    Refused,
}

impl Fault {
    /// Returns its name in the numbers.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Again => "again",
            Self::Closed => "closed",
            Self::TimedOut => "timeout",
            Self::LockTimeout => "lock_timeout",
            Self::Unavailable => "unavailable",
            Self::Refused => "refused",
        }
    }

    pub(super) fn of(error: &Error) -> Self {
        let Some(code) = error.code() else {
            return Self::Closed;
        };
        match *code {
            SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED => Self::Again,
            SqlState::QUERY_CANCELED | SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT => {
                Self::TimedOut
            }
            SqlState::LOCK_NOT_AVAILABLE => Self::LockTimeout,
            SqlState::ADMIN_SHUTDOWN | SqlState::CRASH_SHUTDOWN => Self::Closed,
            _ => Self::of_class(code.code()),
        }
    }

    fn of_class(code: &str) -> Self {
        match code.get(..2) {
            // The limit of a transaction's time, which the driver has no name for.
            _ if code == "25P04" => Self::TimedOut,
            Some("08") => Self::Closed,
            Some("21" | "22" | "23" | "42") => Self::Refused,
            _ => Self::Unavailable,
        }
    }
}

fn of_pool(error: PoolError) -> ReadError {
    match error {
        PoolError::Timeout(_) => ReadError::TimedOut,
        PoolError::Closed => ReadError::Unavailable,
        error => {
            tracing::warn!(code = pool_code(&error), "the database can not be reached");
            ReadError::Unavailable
        }
    }
}

/// Returns the code of an error for the log, which shows no value.
pub(super) fn pool_code(error: &PoolError) -> &str {
    match error {
        PoolError::Backend(error) => code(error),
        PoolError::Timeout(_) => "timeout",
        _ => "pool",
    }
}

fn of_fault(fault: Fault) -> ReadError {
    match fault {
        Fault::TimedOut | Fault::LockTimeout => ReadError::TimedOut,
        Fault::Refused => ReadError::Broken("the database refuses a read"),
        Fault::Again | Fault::Closed | Fault::Unavailable => ReadError::Unavailable,
    }
}
