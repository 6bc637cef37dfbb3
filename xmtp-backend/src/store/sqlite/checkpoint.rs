//! Moving what is committed from the log into the database file.
//!
//! The writer does it by itself and looks at the result. SQLite's own checkpoint within a commit
//! ignores a sync that failed and tries again later, and a later success would prove nothing.

use rusqlite::{Connection, Error, ErrorCode, ffi};

/// How far a checkpoint goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Checkpoint {
    /// As far as it can without waiting for readers.
    Passive,
    /// To the end, and the log is empty afterwards.
    Truncate,
}

/// Runs a checkpoint; answers whether all of the log was moved.
pub(super) fn checkpoint(connection: &Connection, how: Checkpoint) -> rusqlite::Result<bool> {
    let sql = match how {
        Checkpoint::Passive => "PRAGMA wal_checkpoint(PASSIVE)",
        Checkpoint::Truncate => "PRAGMA wal_checkpoint(TRUNCATE)",
    };
    let mut statement = connection.prepare_cached(sql)?;
    statement.query_row([], |row| {
        let (pages, moved): (i64, i64) = (row.get(1)?, row.get(2)?);
        Ok(pages == moved)
    })
}

/// Tells whether the disk had no room: nothing of the statement is stored.
pub(super) fn is_full(error: &Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}

/// Tells whether a sync failed, after which no later one can be believed.
pub(super) fn is_failed_sync(error: &Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    code.is_some_and(|code| [ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_IOERR_DIR_FSYNC].contains(&code))
}
