//! Opening the database: whose it is, and how its connections behave.

use std::io;
use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior};

use super::checkpoint::{Checkpoint, checkpoint};
use super::schema::{APPLICATION_ID, CREATE, SCHEMA_VERSION};
use crate::hooks::Clock;
use crate::limits::{DATABASE_BUSY_WAIT, STATEMENT_CACHE};

/// Reports why a database was not opened. Nothing of it was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the database open.
    #[error("another process has the database open")]
    InUse,
    /// The database is not one of this server.
    #[error("the file is not a database of this server")]
    Foreign,
    /// A newer version of the server wrote the database.
    #[error("the database has version {found}; this build reads version {known}")]
    Newer {
        /// The version of the database.
        found: i32,
        /// The version of this build.
        known: i32,
    },
    /// The database belongs to another deployment.
    #[error("server.identifier is not the identifier that the database was created with")]
    OtherDeployment,
    /// A file could not be opened or locked.
    #[error("a file of the database could not be opened: {0}")]
    Files(io::ErrorKind),
    /// SQLite refused.
    #[error("the database could not be opened")]
    Database(#[from] rusqlite::Error),
}

/// Opens the connection that writes, and creates the tables of an empty database.
pub(super) fn open_for_writing(
    path: &Path,
    identifier: &str,
    clock: &dyn Clock,
) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(DATABASE_BUSY_WAIT)?;
    let is_empty = check_marks(&connection)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    let no_checkpoint = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
    connection.set_db_config(no_checkpoint, true)?;
    // A process that ended after a failed sync leaves a log that can be read and may not be on the
    // disk. What is read from it is written again, into the database file, before anything builds
    // on it.
    checkpoint(&connection, Checkpoint::Truncate)?;
    connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE);
    if is_empty {
        create(&mut connection, identifier, clock)?;
    }
    check_deployment(&connection, identifier)?;
    Ok(connection)
}

/// Opens one connection that reads.
pub(super) fn open_for_reading(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(DATABASE_BUSY_WAIT)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE);
    Ok(connection)
}

/// Tells whether the database is empty, or fails if it is not ours.
fn check_marks(connection: &Connection) -> Result<bool, OpenError> {
    let number = |pragma| connection.pragma_query_value(None, pragma, |row| row.get::<_, i32>(0));
    let marks = number("application_id").and_then(|id| Ok((id, number("user_version")?)));
    let (application, version) = match marks {
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::NotADatabase) => {
            return Err(OpenError::Foreign);
        }
        marks => marks?,
    };
    if (application, version) == (0, 0) {
        let tables = "SELECT count(*) FROM sqlite_schema";
        let count: i64 = connection.query_row(tables, [], |row| row.get(0))?;
        return if count == 0 {
            Ok(true)
        } else {
            Err(OpenError::Foreign)
        };
    }
    match version {
        _ if application != APPLICATION_ID => Err(OpenError::Foreign),
        SCHEMA_VERSION => Ok(false),
        found => Err(OpenError::Newer {
            found,
            known: SCHEMA_VERSION,
        }),
    }
}

fn create(
    connection: &mut Connection,
    identifier: &str,
    clock: &dyn Clock,
) -> Result<(), OpenError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(CREATE)?;
    let now = i64::try_from(clock.now_ns()).unwrap_or(i64::MAX);
    transaction.execute(
        "INSERT INTO deployment VALUES (1, ?1, ?2)",
        (identifier, now),
    )?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    transaction.commit()?;
    Ok(())
}

fn check_deployment(connection: &Connection, identifier: &str) -> Result<(), OpenError> {
    let stored: Option<String> = connection
        .query_row("SELECT identifier FROM deployment", [], |row| row.get(0))
        .optional()?;
    if stored.as_deref() == Some(identifier) {
        Ok(())
    } else {
        Err(OpenError::OtherDeployment)
    }
}
