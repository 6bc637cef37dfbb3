//! SQLite without us: connections with the keys, pragmas and tables of what they are compared with.
//!
//! Tables are never declared here. A bare connection opens a file that the measured part made, so
//! the two cannot come to differ in their shape.

use std::path::Path;

use rusqlite::Connection;

/// The key of every encrypted database here.
pub(crate) const KEY: [u8; 32] = [7; 32];

/// What the client's engine gives its writer, but for the durability.
const CLIENT_WRITER: &str = "PRAGMA temp_store = MEMORY;
    PRAGMA trusted_schema = OFF;
    PRAGMA cache_size = -8192;
    PRAGMA secure_delete = ON;
    PRAGMA wal_autocheckpoint = 1000;
    PRAGMA journal_size_limit = 4120032;";

/// What the client's engine gives a reader.
const CLIENT_READER: &str = "PRAGMA temp_store = MEMORY;
    PRAGMA trusted_schema = OFF;
    PRAGMA cache_size = -2048;
    PRAGMA query_only = ON;";

/// Statements that a connection keeps prepared.
const STATEMENTS: usize = 32;

/// How a commit of the client's engine reaches the disk.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Synchronous {
    /// In order, at the latest with a checkpoint.
    Normal,
    /// Before the commit returns.
    Full,
}

/// Opens an encrypted file as the client's writer.
pub(crate) fn client_writer(path: &Path, synchronous: Synchronous) -> rusqlite::Result<Connection> {
    let connection = keyed(path)?;
    connection.execute_batch(CLIENT_WRITER)?;
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    assert_eq!(mode, "wal", "the journal mode of the limit");
    connection.execute_batch(match synchronous {
        Synchronous::Normal => "PRAGMA synchronous = NORMAL",
        Synchronous::Full => "PRAGMA synchronous = FULL",
    })?;
    Ok(connection)
}

/// Opens an encrypted file as one of the client's readers.
pub(crate) fn client_reader(path: &Path) -> rusqlite::Result<Connection> {
    let connection = keyed(path)?;
    connection.execute_batch(CLIENT_READER)?;
    Ok(connection)
}

fn keyed(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    let key = hex::encode(KEY);
    connection.execute_batch(&format!(
        "PRAGMA cipher_log_level = NONE; PRAGMA key = \"x'{key}'\"; PRAGMA page_size = 4096"
    ))?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(connection)
}
