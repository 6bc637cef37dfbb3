//! The lock by which a second process learns that the database is in use.
//!
//! SQLite's own locks let processes share a database; here one process must own the order of
//! commits. The lock is on a file beside the database and ends with the process, however it ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use super::OpenError;

/// Held while a process has the database open.
#[derive(Debug)]
pub(super) struct DatabaseLock {
    _file: File,
}

impl DatabaseLock {
    /// Takes the lock, or fails at once if another holder has it.
    pub(super) fn take(database: &Path) -> Result<Self, OpenError> {
        let path = lock_path(database);
        let mut options = OpenOptions::new();
        let file = options
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path);
        let file = file.map_err(|error| OpenError::Files(error.kind()))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(OpenError::InUse),
            Err(TryLockError::Error(error)) => Err(OpenError::Files(error.kind())),
        }
    }
}

fn lock_path(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}
