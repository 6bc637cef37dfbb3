//! What can go wrong with a database, and what the caller may do about it.

use thiserror::Error;

use super::KeyError;
use crate::error::{Class, Coded};

/// A failure of an open database.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StorageError {
    /// Another writer held the database for the whole patience.
    #[error(
        "another writer held the database for {waited_ms} ms; retry, or look for a process with a long transaction"
    )]
    Busy {
        /// How long this call waited, in milliseconds.
        waited_ms: u64,
    },
    /// The database is closed.
    #[error("the database is closed; open it again")]
    Closed,
    /// The disk or quota is full.
    #[error("the disk is full; free space, then retry")]
    Full,
    /// Reading or writing failed.
    #[error("the storage engine failed to {action}: {detail}; retry, then check the disk")]
    Io {
        /// What the engine was doing.
        action: &'static str,
        /// The engine's words, free of keys and values.
        detail: String,
    },
    /// A stored value or key is not what its table holds.
    #[error("table {table} holds a damaged {what}; restore the database from a backup")]
    Corrupt {
        /// The table's name.
        table: &'static str,
        /// What is damaged.
        what: &'static str,
    },
    /// A row written as new was there already.
    #[error("table {table} already holds a row that was written as new; this is a defect")]
    Exists {
        /// The table's name.
        table: &'static str,
    },
    /// A value or write set is over its bound.
    #[error("a {what} of {bytes} bytes is over its bound of {max}; split it")]
    TooLarge {
        /// `value`, `key` or `write set`.
        what: &'static str,
        /// Its size in bytes.
        bytes: usize,
        /// The bound in bytes.
        max: usize,
    },
    /// A transaction was about to commit while state it holds back was not written.
    #[error("held-back state was not written before commit; this is a defect")]
    HeldBack,
    /// The commit may or may not have happened.
    #[error("the outcome of a commit is unknown; read again before retrying")]
    UnknownOutcome,
    /// A row broke a rule that holds across tables.
    #[error("rule {rule} is broken; restore the database from a backup and report it")]
    Invariant {
        /// The rule's name, as in `verify`.
        rule: &'static str,
    },
}

impl Coded for StorageError {
    fn code(&self) -> &'static str {
        match self {
            Self::Busy { .. } => "storage.busy",
            Self::Closed => "storage.closed",
            Self::Full => "storage.full",
            Self::Io { .. } => "storage.io",
            Self::Corrupt { .. } => "storage.corrupt",
            Self::Exists { .. } => "storage.exists",
            Self::TooLarge { .. } => "storage.too_large",
            Self::HeldBack => "storage.held_back",
            Self::UnknownOutcome => "storage.unknown_outcome",
            Self::Invariant { .. } => "storage.invariant",
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Busy { .. } | Self::Io { .. } | Self::UnknownOutcome => Class::Retry,
            Self::Full => Class::UserAction,
            Self::Closed | Self::Corrupt { .. } | Self::Exists { .. } | Self::TooLarge { .. } => {
                Class::Permanent
            }
            Self::HeldBack | Self::Invariant { .. } => Class::Permanent,
        }
    }
}

impl From<KeyError> for StorageError {
    fn from(error: KeyError) -> Self {
        Self::Corrupt {
            table: error.table.unwrap_or("unknown"),
            what: "key",
        }
    }
}

/// A failure to open a database (EXT-003). None of them has deleted, renamed, created or changed
/// a file.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum OpenError {
    /// The key does not open the database.
    #[error("the key does not open this database; use the key it was created with")]
    WrongKey,
    /// The key has the wrong form.
    #[error("a database key has {expected} bytes, this one has {found}; pass the raw key")]
    MalformedKey {
        /// Bytes of a key.
        expected: usize,
        /// Bytes of the key given.
        found: usize,
    },
    /// A key was given for a database that is not encrypted.
    #[error("this database is not encrypted; open it without a key")]
    NotEncrypted,
    /// No key was given for a database that is encrypted.
    #[error("this database is encrypted; pass its key")]
    KeyRequired,
    /// The file is damaged.
    #[error("the database is damaged ({detail}); restore it from a backup")]
    Damaged {
        /// What was found.
        detail: String,
    },
    /// The file ends early.
    #[error("the database file is truncated; restore it from a backup")]
    Truncated,
    /// The file is not a database of this engine, or of any.
    #[error("this file is not a database; check the path")]
    NotADatabase,
    /// The path holds a database of another engine.
    #[error("this path holds a {found} database, not a {expected} one; open it with that engine")]
    OtherEngine {
        /// The engine asked to open it.
        expected: &'static str,
        /// The engine that wrote it.
        found: &'static str,
    },
    /// A newer version of the software wrote the database.
    #[error(
        "the database has schema {found}, this build knows up to {supported}; upgrade the software"
    )]
    NewerSchema {
        /// The stored schema version.
        found: u32,
        /// The newest version this build knows.
        supported: u32,
    },
    /// Another process uses the database and excludes others.
    #[error("another process has this database open; close it first")]
    InUse,
    /// The cause cannot be decided from the file; it is one of those named.
    #[error("the database does not open: {candidates}; check the key, then restore from a backup")]
    Undecided {
        /// The remaining causes, in words.
        candidates: &'static str,
    },
    /// The file system refused.
    #[error("the file system refused to {action}: {detail}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The system's words.
        detail: String,
    },
    /// The composition would break a requirement (EXT-004).
    #[error("this engine cannot be composed so: {requirement} needs {needed}")]
    Unfit {
        /// The requirement's id.
        requirement: &'static str,
        /// What it needs.
        needed: &'static str,
    },
    /// The engine opened, and then failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl Coded for OpenError {
    fn code(&self) -> &'static str {
        match self {
            Self::WrongKey => "open.wrong_key",
            Self::MalformedKey { .. } => "open.malformed_key",
            Self::NotEncrypted => "open.not_encrypted",
            Self::KeyRequired => "open.key_required",
            Self::Damaged { .. } => "open.damaged",
            Self::Truncated => "open.truncated",
            Self::NotADatabase => "open.not_a_database",
            Self::OtherEngine { .. } => "open.other_engine",
            Self::NewerSchema { .. } => "open.newer_schema",
            Self::InUse => "open.in_use",
            Self::Undecided { .. } => "open.undecided",
            Self::Io { .. } => "open.io",
            Self::Unfit { .. } => "open.unfit",
            Self::Storage(error) => error.code(),
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::InUse | Self::Io { .. } => Class::Retry,
            Self::Storage(error) => error.class(),
            _ => Class::UserAction,
        }
    }
}
