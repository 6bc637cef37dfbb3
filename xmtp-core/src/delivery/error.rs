//! What can go wrong between stored messages and the application.

use std::time::Duration;

use thiserror::Error;
use xmtp_proto::DatabaseId;

use crate::error::{Class, Coded};
use crate::storage::StorageError;

/// A failure of a consumer, a replay or a cursor.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StreamError {
    /// Another default consumer owns the database (STR-023).
    #[error(
        "another default consumer is active; close it, or wait {} s for its lease",
        .expires_in.as_secs()
    )]
    AlreadyActive {
        /// When its lease lapses, unless it renews.
        expires_in: Duration,
    },
    /// The lease lapsed or another consumer took over; nothing was acknowledged.
    #[error("this consumer lost its ownership; start another, which repeats the last item")]
    OwnershipLost,
    /// The token is not of the item that was handed over last.
    #[error("the token is not of the last item; acknowledge the item that was handed over last")]
    StaleToken,
    /// Another request for the next item is under way.
    #[error("a request for the next item is under way; wait for it")]
    ConcurrentNext,
    /// The acknowledgement could not be stored, so the reader stopped (STR-095).
    #[error("the acknowledgement was not stored; start another consumer, which repeats the item")]
    AckNotStored {
        /// Why it could not be stored.
        #[source]
        cause: StorageError,
    },
    /// The consumer or its database is closed.
    #[error("the stream is closed; open another")]
    Closed,
    /// The cursor is of another database.
    #[error("the cursor is of database {found}, not of {expected}; begin this database anew", found = .found.short(), expected = .expected.short())]
    WrongDatabase {
        /// The database that was asked.
        expected: DatabaseId,
        /// The database that the cursor is of.
        found: DatabaseId,
    },
    /// The text is not a cursor.
    #[error("the text is not a delivery cursor; pass one as it was printed")]
    Malformed,
    /// The cursor is ahead of every message of the database.
    #[error("the cursor is ahead of the database; it is of a newer copy, so begin anew")]
    AheadOfDatabase,
    /// The database failed.
    #[error(transparent)]
    Storage(StorageError),
}

impl From<StorageError> for StreamError {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::Closed => Self::Closed,
            error => Self::Storage(error),
        }
    }
}

impl Coded for StreamError {
    fn code(&self) -> &'static str {
        match self {
            Self::AlreadyActive { .. } => "stream.already_active",
            Self::OwnershipLost => "stream.ownership_lost",
            Self::StaleToken => "stream.stale_token",
            Self::ConcurrentNext => "stream.concurrent_next",
            Self::AckNotStored { .. } => "stream.ack_not_stored",
            Self::Closed => "stream.closed",
            Self::WrongDatabase { .. } => "cursor.wrong_database",
            Self::Malformed => "cursor.malformed",
            Self::AheadOfDatabase => "cursor.ahead",
            Self::Storage(error) => error.code(),
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::AlreadyActive { .. } | Self::ConcurrentNext => Class::Wait,
            Self::OwnershipLost | Self::StaleToken | Self::Closed => Class::Permanent,
            Self::WrongDatabase { .. } | Self::Malformed | Self::AheadOfDatabase => {
                Class::Permanent
            }
            Self::AckNotStored { cause } => cause.class(),
            Self::Storage(error) => error.class(),
        }
    }
}
