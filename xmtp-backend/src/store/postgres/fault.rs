//! What errors of the database mean, and waiting for a server that says nothing.
//!
//! A server ends what takes too long by itself, as long as it runs and its answers arrive. A frozen
//! one does neither, and its connection stays open: every wait for an answer has a limit of its own.

use std::future::Future;
use std::time::Duration;

use deadpool_postgres::PoolError;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use super::tls;
use crate::store::ReadError;

/// Why the database did not do what it was asked.
#[derive(Debug)]
pub(super) enum Trouble {
    /// It refuses, or the connection to it is gone.
    Database(Error),
    /// It gave no answer in time. What it may still do is cut off with its connection.
    Silent,
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Database(error)
    }
}

impl Trouble {
    /// Returns its code for the log, which shows no value.
    pub(super) fn code(&self) -> &str {
        match self {
            Self::Database(error) => code(error),
            Self::Silent => "silent",
        }
    }

    pub(super) fn fault(&self) -> Fault {
        match self {
            Self::Database(error) => Fault::of(error),
            Self::Silent => Fault::Silent,
        }
    }
}

/// Waits for an answer, and no longer than `time`.
pub(super) async fn within<T, E: Into<Trouble>>(
    time: Duration,
    answer: impl Future<Output = Result<T, E>>,
) -> Result<T, Trouble> {
    match tokio::time::timeout(time, answer).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => Err(Trouble::Silent),
    }
}

/// Returns the code of an error for the log, which shows no value.
pub(super) fn code(error: &Error) -> &str {
    match error.code() {
        Some(code) => code.code(),
        None if tls::failure(error).is_some() => "tls",
        None => "connection",
    }
}

/// What an error of the database means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The server undid the transaction to let another one through, or to catch up.
    Again,
    /// The connection is gone.
    Closed,
    /// No answer came in time.
    Silent,
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
            Self::Silent => "silent",
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

pub(super) fn of_pool(error: PoolError) -> ReadError {
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

pub(super) fn of_fault(fault: Fault) -> ReadError {
    match fault {
        Fault::TimedOut | Fault::LockTimeout | Fault::Silent => ReadError::TimedOut,
        Fault::Refused => ReadError::Broken("the database refuses a read"),
        Fault::Again | Fault::Closed | Fault::Unavailable => ReadError::Unavailable,
    }
}
