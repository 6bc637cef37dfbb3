//! Whose turn it is among processes: an advisory lock beside the database.
//!
//! The write lock of SQLite goes to whoever asks at the right moment, so a process that commits
//! back to back wins over those that poll. Waiting processes therefore hold `<database>.turn`
//! shared, and the process that had the last turn steps aside when it finds that another waits,
//! until the other has committed. It waits in the same room meanwhile, so that the other steps
//! aside in its turn. The file holds nothing, and the operating system drops the locks of a
//! process that dies. One that is stopped while it waits, or rolls back when it is let in, costs
//! the one that stepped aside [`ASIDE`].

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use xmtp_core::storage::StorageError;

use crate::fault;

/// How long a process steps aside at most for one that waits.
pub(crate) const ASIDE: Duration = Duration::from_millis(5);

/// How often a process that waits tries to show it before it sleeps.
const LOOKS: u32 = 1000;

/// The lock file of one instance.
#[derive(Debug)]
pub(crate) struct Turn {
    file: File,
    joined: bool,
}

impl Turn {
    /// Opens the lock file, and creates it when missing.
    pub(crate) fn open(database: &Path) -> io::Result<Self> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(path(database))?;
        let joined = false;
        Ok(Self { file, joined })
    }

    /// Takes the file for this instance alone until dropped; false while anyone waits.
    pub(crate) fn take(&mut self) -> Result<bool, StorageError> {
        locked(self.file.try_lock())
    }

    /// Tells whether anyone else waits. This instance must not wait itself.
    pub(crate) fn is_awaited(&mut self) -> Result<bool, StorageError> {
        let free = self.take()?;
        if free {
            self.unlock()?;
        }
        Ok(!free)
    }

    /// Shows that this instance waits.
    ///
    /// The lock is refused only while another process looks, which takes an instant, so this
    /// tries again at once: to sleep here would be to wait unseen.
    pub(crate) fn join(&mut self) -> Result<(), StorageError> {
        for _ in 0..LOOKS {
            if self.joined {
                break;
            }
            self.joined = locked(self.file.try_lock_shared())?;
            if !self.joined {
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// Shows that this instance waits no longer.
    pub(crate) fn leave(&mut self) -> Result<(), StorageError> {
        if self.joined {
            self.joined = false;
            self.unlock()?;
        }
        Ok(())
    }

    fn unlock(&self) -> Result<(), StorageError> {
        let unlocked = self.file.unlock();
        unlocked.map_err(|error| fault::file("unlock the turn file", &error))
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
