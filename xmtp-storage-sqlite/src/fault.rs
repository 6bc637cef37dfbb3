//! Turns what SQLite says into typed errors, free of statements, keys and values.

use rusqlite::ErrorCode;
use xmtp_core::storage::StorageError;

/// Tells whether another connection's lock is the reason.
pub(crate) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

/// Tells whether the bytes on disk are the reason.
pub(crate) fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
    )
}

/// Names the cause by SQLite's own words for its code. The message itself is left out, because
/// it may quote a statement.
pub(crate) fn detail(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqliteFailure(code, _) => code.to_string(),
        rusqlite::Error::SqlInputError { error, .. } => error.to_string(),
        _ => "unexpected answer".to_owned(),
    }
}

/// Types a failure that belongs to no table.
pub(crate) fn storage(action: &'static str, error: &rusqlite::Error) -> StorageError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StorageError::Full,
        _ => StorageError::Io {
            action,
            detail: detail(error),
        },
    }
}

/// Types a failure that belongs to a table.
pub(crate) fn table(
    action: &'static str,
    table: &'static str,
    error: &rusqlite::Error,
) -> StorageError {
    if is_damage(error) {
        return StorageError::Corrupt {
            table,
            what: "page",
        };
    }
    storage(action, error)
}

/// Types a failure of the file system.
pub(crate) fn file(action: &'static str, error: &std::io::Error) -> StorageError {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => StorageError::Full,
        kind => StorageError::Io {
            action,
            detail: kind.to_string(),
        },
    }
}
