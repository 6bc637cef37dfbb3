//! Whose turn it is among processes: an advisory lock beside the database.
//!
//! The write lock of SQLite goes to whoever asks at the right moment, so a process that commits
//! back to back wins over one that polls. A writer therefore first locks `<database>.turn` and
//! keeps that lock only until it has the write lock: the process that has just committed meets
//! the one that waits at the turn, and lets it pass. The operating system drops the lock of a
//! process that dies, and the file holds nothing.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use xmtp_core::storage::StorageError;

use crate::fault;
use crate::wait::Wait;

/// The lock file of one instance.
#[derive(Debug)]
pub(crate) struct Turn(File);

impl Turn {
    /// Opens the lock file, and creates it when missing.
    pub(crate) fn open(database: &Path) -> io::Result<Self> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        options.open(path(database)).map(Self)
    }

    /// Takes the turn; false when another process has it.
    pub(crate) fn take(&self) -> Result<bool, StorageError> {
        match self.0.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(fault::file("take a turn", &error)),
        }
    }

    /// Waits for the turn; false when the patience ended.
    pub(crate) fn wait(&self, wait: Wait) -> Result<bool, StorageError> {
        while !self.take()? {
            if !wait.pause() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Passes the turn on.
    pub(crate) fn pass(&self) -> Result<(), StorageError> {
        let passed = self.0.unlock();
        passed.map_err(|error| fault::file("pass a turn", &error))
    }
}

/// Names the lock file of a database.
pub(crate) fn path(database: &Path) -> PathBuf {
    sibling(database, ".turn")
}

/// Names a file beside the database.
pub(crate) fn sibling(database: &Path, suffix: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
