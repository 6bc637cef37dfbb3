//! The log beside the database: when it is moved into the database file, and how large it may grow.
//!
//! A passive checkpoint moves what no read needs and leaves the log to grow while reads overlap,
//! since each holds a snapshot that the next commit is behind. Past a bound the writer waits for the
//! reads that are open, which have a bound of time, while new ones read the database file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::hooks::Wal;

use super::SqliteSettings;
use super::checkpoint::{Checkpoint, checkpoint};
use super::fault::{is_full, told};
use crate::limits::{CHECKPOINT_PAGES, DATABASE_BUSY_WAIT, DATABASE_SLACK};
use crate::telemetry::metrics;

/// The log, as the writer sees it.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    /// Pages in it after the last commit.
    pages: Arc<AtomicI32>,
    /// How large it may be before publishes wait, in pages.
    bound: i32,
    /// From how many pages on they wait next.
    waits_from: i32,
    /// How long they wait for reads to end.
    patience: Duration,
}

impl Log {
    pub(super) fn new(database: &Path, settings: SqliteSettings) -> Self {
        let mut path = database.as_os_str().to_owned();
        path.push("-wal");
        let patience = settings.max_statement_time.saturating_add(DATABASE_SLACK);
        Self {
            path: path.into(),
            pages: Arc::default(),
            bound: settings.log_pages,
            waits_from: settings.log_pages,
            patience: patience.max(DATABASE_BUSY_WAIT),
        }
    }

    /// Watches the connection that writes; this stands in for SQLite's own checkpoint.
    pub(super) fn watch(&self, connection: &mut Connection) -> rusqlite::Result<()> {
        connection.busy_timeout(self.patience)?;
        let told = self.pages.clone();
        connection.wal_hook(Some(move |_: &mut Wal, pages| {
            told.store(pages, Ordering::Relaxed);
            Ok(())
        }))
    }

    /// Moves the log into the database file if it is time, and empties it if it is too large.
    pub(super) fn tend(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let pages = self.pages.load(Ordering::Relaxed);
        if pages >= self.waits_from {
            let is_empty = self.move_all(connection, Checkpoint::Truncate)?;
            // A read that does not end is not waited for again before as much was written again.
            self.waits_from = if is_empty {
                self.bound
            } else {
                pages.saturating_add(self.bound)
            };
        } else if pages >= CHECKPOINT_PAGES {
            self.move_all(connection, Checkpoint::Passive)?;
        }
        let bytes = std::fs::metadata(&self.path).map_or(0, |file| file.len());
        metrics::database_log(bytes);
        Ok(())
    }

    /// Moves the log into the database file; where there is no room for it, the log grows.
    pub(super) fn move_all(
        &self,
        connection: &Connection,
        how: Checkpoint,
    ) -> rusqlite::Result<bool> {
        match checkpoint(connection, how) {
            Ok(true) => {
                self.pages.store(0, Ordering::Relaxed);
                Ok(true)
            }
            Ok(false) => Ok(false),
            Err(error) if is_full(&error) => {
                told("the disk has no room to move the log", &error);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}
