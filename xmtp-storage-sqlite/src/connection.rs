//! Opens connections: each one is keyed, checked and bounded in the same way.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use xmtp_core::storage::DatabaseKey;

use crate::fault;
use crate::key;
use crate::wait::Wait;

/// Bytes of a page.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Marks the file as a database of this engine (`xmtp` in ASCII).
pub(crate) const APPLICATION_ID: u32 = 0x786d_7470;

/// Cached pages of the writer, in KiB.
const WRITER_CACHE_KIB: u32 = 8 * 1024;
/// Cached pages of a reader, in KiB.
const READER_CACHE_KIB: u32 = 2 * 1024;
/// Statements a connection keeps prepared: more than all tables need.
const STATEMENTS: usize = 512;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Commits.
    Writer {
        /// Pages after which a commit moves the log into the file.
        checkpoint_pages: u32,
    },
    /// Only reads.
    Reader,
}

/// Opens a file, with the key as the first statement.
pub(crate) fn open(
    path: &Path,
    key: Option<&DatabaseKey>,
    flags: OpenFlags,
) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(Duration::ZERO)?;
    // SQLCipher would write to standard error on its own.
    connection.execute_batch("PRAGMA cipher_log_level = NONE")?;
    if let Some(key) = key {
        connection.execute_batch(&key::pragma(key))?;
    }
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(connection)
}

/// Opens a connection to a database that is known to be there and to open with the key.
pub(crate) fn keyed(
    path: &Path,
    key: Option<&DatabaseKey>,
    role: Role,
    wait: Wait,
) -> rusqlite::Result<Connection> {
    patiently(wait, || {
        let connection = open(path, key, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
        configure(&connection, role)?;
        Ok(connection)
    })
}

/// Repeats a call while a lock is in its way and the patience lasts.
pub(crate) fn patiently<T>(
    wait: Wait,
    mut call: impl FnMut() -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    loop {
        match call() {
            Err(error) if fault::is_busy(&error) && wait.pause() => {}
            done => return done,
        }
    }
}

fn configure(connection: &Connection, role: Role) -> rusqlite::Result<()> {
    connection.execute_batch("PRAGMA temp_store = MEMORY; PRAGMA trusted_schema = OFF")?;
    let checkpoint_pages = match role {
        Role::Reader => {
            return connection.execute_batch(&format!(
                "PRAGMA cache_size = -{READER_CACHE_KIB}; PRAGMA query_only = ON"
            ));
        }
        Role::Writer { checkpoint_pages } => checkpoint_pages,
    };
    let mode: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
    if mode != "wal" {
        connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    }
    let log_bytes = log_bytes(checkpoint_pages);
    connection.execute_batch(&format!(
        "PRAGMA cache_size = -{WRITER_CACHE_KIB};
         PRAGMA secure_delete = ON;
         PRAGMA synchronous = FULL;
         PRAGMA wal_autocheckpoint = {checkpoint_pages};
         PRAGMA journal_size_limit = {log_bytes}"
    ))
}

/// Answers the bytes of a log that holds so many pages.
pub(crate) fn log_bytes(pages: u32) -> u64 {
    32 + u64::from(pages) * (24 + PAGE_BYTES as u64)
}
