//! Moving what is committed from the log into the database file.
//!
//! The writer does it by itself and looks at the result. SQLite's own checkpoint within a commit
//! ignores a sync that failed and tries again later, and a later success would prove nothing.

use rusqlite::Connection;

/// How far a checkpoint goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Checkpoint {
    /// As far as it can without waiting for readers.
    Passive,
    /// To the end, and the log is empty afterwards.
    Truncate,
}

/// Runs a checkpoint; answers whether all of the log was moved and nobody reads it any more.
pub(super) fn checkpoint(connection: &Connection, how: Checkpoint) -> rusqlite::Result<bool> {
    let sql = match how {
        Checkpoint::Passive => "PRAGMA wal_checkpoint(PASSIVE)",
        Checkpoint::Truncate => "PRAGMA wal_checkpoint(TRUNCATE)",
    };
    let mut statement = connection.prepare_cached(sql)?;
    statement.query_row([], |row| {
        let (is_busy, pages, moved): (bool, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(!is_busy && pages == moved)
    })
}
