//! Opening the database: whose it is, and how its connections behave.

use std::io;
use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior};
use xmtp_proto::id::SequenceId;

use super::checkpoint::{Checkpoint, checkpoint};
use super::mark::{Given, Mark};
use super::publish::{last_sequence_id, set_last_sequence_id};
use super::schema::{APPLICATION_ID, CREATE, SCHEMA_VERSION};
use crate::hooks::Clock;
use crate::limits::{DATABASE_BUSY_WAIT, FENCE_IDS, STATEMENT_CACHE};

/// Reports why a database was not opened. Nothing of it was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the database open.
    #[error("another process has the database open; stop it first")]
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
    /// More may have been given out from the database than it knows: it is a copy, or it has lost
    /// the mark beside it.
    #[error(
        "the database may be older than what clients have seen of it; \
         run `xmtp-backend fence --config FILE` once, and start again"
    )]
    NotFenced,
    /// The fence has no room above the greatest id.
    #[error("no sequence id is left")]
    NoIdLeft,
    /// A file could not be opened or locked.
    #[error("a file of the database could not be opened: {0}")]
    Files(io::ErrorKind),
    /// SQLite refused.
    #[error("the database could not be opened")]
    Database(#[from] rusqlite::Error),
}

/// Reports what a fence did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fenced {
    /// The greatest id that is known to have been given out, where the store tells it.
    pub from: Option<SequenceId>,
    /// The id after which the next one comes.
    pub to: SequenceId,
}

/// A database that is open for writing.
pub(super) struct Opened {
    pub(super) connection: Connection,
    pub(super) mark: Mark,
    /// The greatest id ever given.
    pub(super) last: SequenceId,
}

/// Opens the connection that writes, and creates the tables of an empty database.
///
/// Refuses a database that does not know of everything that was given out from it.
pub(super) fn open_for_writing(
    path: &Path,
    identifier: &str,
    clock: &dyn Clock,
) -> Result<Opened, OpenError> {
    let (connection, given) = connect(path, identifier, clock, Trust::Checked)?;
    Ok(Opened {
        connection,
        mark: Mark::open(path)?,
        last: given.last,
    })
}

/// Raises the greatest id of the database, and marks it as whole.
pub(super) fn fence(path: &Path, identifier: &str, clock: &dyn Clock) -> Result<Fenced, OpenError> {
    let (mut connection, given) = connect(path, identifier, clock, Trust::Unchecked)?;
    let from = Mark::read(path)?.map_or(given.last, |marked| marked.last.max(given.last));
    let to = above(from).ok_or(OpenError::NoIdLeft)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    set_last_sequence_id(&transaction, to)?;
    transaction.commit()?;
    Mark::replace(path, Given { last: to, ..given })?;
    Ok(Fenced {
        from: Some(from),
        to,
    })
}

/// Returns the next multiple of the fence that leaves a whole fence of ids below it: what was
/// given out after a copy was made is not known, but it is less than that.
fn above(from: SequenceId) -> Option<SequenceId> {
    let fences = (from.get() / FENCE_IDS).checked_add(2)?;
    SequenceId::checked(fences.checked_mul(FENCE_IDS)?).ok()
}

/// Whether the mark beside the database must agree with it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trust {
    Checked,
    Unchecked,
}

/// Opens the connection that writes, and tells what the database knows to be given out.
fn connect(
    path: &Path,
    identifier: &str,
    clock: &dyn Clock,
    trust: Trust,
) -> Result<(Connection, Given), OpenError> {
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
    if !checkpoint(&connection, Checkpoint::Truncate)? {
        return Err(OpenError::InUse);
    }
    connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE);
    let marked = Mark::read(path)?;
    if is_empty {
        let is_lost = marked.is_some_and(|marked| marked.last > SequenceId::ZERO);
        if is_lost && trust == Trust::Checked {
            return Err(OpenError::NotFenced);
        }
        let created_ns = i64::try_from(clock.now_ns()).unwrap_or(i64::MAX);
        // The mark of a lost database stays until the fence replaces it. Otherwise the mark is
        // first, so that a crash between the two leaves nothing that looks like a copy.
        if !is_lost {
            let last = SequenceId::ZERO;
            Mark::replace(path, Given { created_ns, last })?;
        }
        create(&mut connection, identifier, created_ns)?;
    }
    let created_ns = check_deployment(&connection, identifier)?;
    let last = last_sequence_id(&connection)?;
    let given = Given { created_ns, last };
    if trust == Trust::Checked && !marked_at_most(path, given)? {
        return Err(OpenError::NotFenced);
    }
    Ok((connection, given))
}

/// Tells whether the mark is one of this database and knows of nothing that the database does not.
fn marked_at_most(path: &Path, given: Given) -> Result<bool, OpenError> {
    let marked = Mark::read(path)?;
    let is_known =
        |marked: Given| marked.created_ns == given.created_ns && marked.last <= given.last;
    Ok(marked.is_some_and(is_known))
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

fn create(connection: &mut Connection, identifier: &str, created_ns: i64) -> Result<(), OpenError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(CREATE)?;
    transaction.execute(
        "INSERT INTO deployment VALUES (1, ?1, ?2)",
        (identifier, created_ns),
    )?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    transaction.commit()?;
    Ok(())
}

/// Returns when the database was created, or fails if it belongs to another deployment.
fn check_deployment(connection: &Connection, identifier: &str) -> Result<i64, OpenError> {
    let sql = "SELECT identifier, created_ns FROM deployment";
    let stored: Option<(String, i64)> = connection
        .query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    match stored {
        Some((stored, created_ns)) if stored == identifier => Ok(created_ns),
        _ => Err(OpenError::OtherDeployment),
    }
}
