//! Whose turn it is among processes: an advisory lock beside the database.
//!
//! The write lock of SQLite goes to whoever asks at the right moment, so a process that commits
//! back to back wins over those that poll. Waiting processes therefore hold `<database>.turn`
//! shared while they ask for the write lock, and the process that has committed last steps aside
//! while that lock shows that another waits. The file holds nothing; the operating system drops
//! the locks of a process that dies, and one that is stopped while it waits costs the others at
//! most [`ASIDE`] a commit.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use xmtp_core::storage::StorageError;

use crate::fault;

/// How long a process steps aside at most for one that waits.
pub(crate) const ASIDE: Duration = Duration::from_millis(20);

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

    /// Takes the file for itself; false while anyone waits.
    pub(crate) fn take(&self) -> Result<bool, StorageError> {
        locked(self.0.try_lock())
    }

    /// Tells whether anyone else waits.
    pub(crate) fn is_awaited(&self) -> Result<bool, StorageError> {
        let free = self.take()?;
        if free {
            self.leave()?;
        }
        Ok(!free)
    }

    /// Shows that this instance waits; false, for an instant, while another process looks.
    pub(crate) fn join(&self) -> Result<bool, StorageError> {
        locked(self.0.try_lock_shared())
    }

    /// Gives up what [`Turn::take`] or [`Turn::join`] took.
    pub(crate) fn leave(&self) -> Result<(), StorageError> {
        let left = self.0.unlock();
        left.map_err(|error| fault::file("unlock the turn file", &error))
    }
}

fn locked(result: Result<(), TryLockError>) -> Result<bool, StorageError> {
    match result {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(fault::file("lock the turn file", &error)),
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
