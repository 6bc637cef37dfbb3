//! What an error of the engine means.

use rusqlite::{Error, ErrorCode, ffi};

use crate::store::ReadError;
use crate::telemetry::metrics;

/// Tells whether the disk had no room: nothing of the statement is stored.
pub(super) fn is_full(error: &Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}

/// Tells whether a sync failed, after which no later one can be believed.
pub(super) fn is_failed_sync(error: &Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    code.is_some_and(|code| [ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_IOERR_DIR_FSYNC].contains(&code))
}

/// Tells whether the disk or what stands on it failed, and not the statement.
pub(super) fn is_of_disk(error: &Error) -> bool {
    matches!(name(error), "full" | "disk" | "corrupt")
}

/// Returns the name of an error in the numbers.
fn name(error: &Error) -> &'static str {
    use ErrorCode as Code;
    match error.sqlite_error_code() {
        Some(Code::DiskFull) => "full",
        Some(Code::SystemIoFailure | Code::CannotOpen | Code::ReadOnly) => "disk",
        Some(Code::DatabaseCorrupt | Code::NotADatabase) => "corrupt",
        Some(Code::DatabaseBusy | Code::DatabaseLocked) => "busy",
        Some(Code::OperationInterrupted) => "timeout",
        _ => "refused",
    }
}

/// Counts an error.
pub(super) fn counted(error: &Error) {
    metrics::database_failed(name(error));
}

/// Counts an error and tells the log of it, without anything of the statement.
pub(super) fn told(what: &'static str, error: &Error) {
    counted(error);
    tracing::warn!(code = ?error.sqlite_error_code(), "{what}");
}

/// Reports an error to whoever reads: the caller may try again.
pub(super) fn of_read(error: Error) -> ReadError {
    told("a read of the database failed", &error);
    match error.sqlite_error_code() {
        Some(ErrorCode::OperationInterrupted) => ReadError::TimedOut,
        _ => ReadError::Unavailable,
    }
}
