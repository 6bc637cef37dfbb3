//! Power loss on SQLite: what a machine that died may have kept of the write-ahead log.
//!
//! The disk certainly has the log up to the end of the last flushed commit, and may have any part
//! of what follows. The database file itself changes only by a checkpoint, which flushes the log
//! before and the file after; in a scenario none happens but at opening and closing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use xmtp_core::storage::{
    Capability, Durability, KeyRange, Page, Rows, Snapshot, Storage, StorageError, TableId,
    TableInfo, WriteBatch, Writer,
};

use super::PowerLoss;

/// More pages than the log of a scenario has.
pub(super) const NO_CHECKPOINT_PAGES: u32 = 1_000_000;

const HEADER_LEN: usize = 32;
const FRAME_HEADER_LEN: usize = 24;

/// The end of a commit in a log that has this salt; a log that was begun anew has another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mark {
    salt: [u8; 8],
    end: usize,
}

/// An engine on SQLite that notes what its disk certainly has.
#[derive(Debug)]
pub(super) struct Metered {
    inner: Arc<dyn Storage>,
    database: PathBuf,
    flushed: Mutex<Mark>,
}

impl Metered {
    /// Wraps an engine that was opened on a file just now.
    pub(super) fn new(inner: Arc<dyn Storage>, database: &Path) -> Arc<Self> {
        let metered = Self {
            inner,
            database: database.to_owned(),
            flushed: Mutex::default(),
        };
        metered.note();
        Arc::new(metered)
    }

    fn note(&self) {
        *self.flushed.lock() = last_commit(&self.log());
    }

    fn log(&self) -> Vec<u8> {
        // There is none before the first commit.
        fs::read(log_of(&self.database)).unwrap_or_default()
    }

    /// Writes what the disk has after a power loss to a new place. Nothing commits meanwhile.
    pub(super) fn lose_power(&self, loss: PowerLoss, to: &Path) -> io::Result<()> {
        let log = self.log();
        let newest = last_commit(&log);
        let flushed = *self.flushed.lock();
        let kept = match flushed.salt == newest.salt {
            true => flushed.end,
            false => HEADER_LEN.min(log.len()),
        };
        let kept = match loss {
            PowerLoss::All => kept,
            // Amid a commit, and amid a page, if that is where the middle is.
            PowerLoss::Half => kept.midpoint(newest.end.max(kept)),
        };
        fs::copy(&self.database, to)?;
        fs::write(log_of(to), &log[..kept])
    }
}

fn log_of(database: &Path) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push("-wal");
    path.into()
}

/// Finds the end of the last commit in a log.
fn last_commit(log: &[u8]) -> Mark {
    let Some(header) = log.get(..HEADER_LEN) else {
        return Mark::default();
    };
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four bytes"));
    let page = number(&header[8..12]) as usize;
    let salt: [u8; 8] = header[16..24].try_into().expect("eight bytes");
    let mut mark = Mark {
        salt,
        end: HEADER_LEN,
    };
    let frames = log[HEADER_LEN..].chunks_exact(FRAME_HEADER_LEN + page);
    for (index, frame) in frames.take_while(|frame| frame[8..16] == salt).enumerate() {
        let is_commit = number(&frame[4..8]) != 0;
        if is_commit {
            mark.end = HEADER_LEN + (index + 1) * (FRAME_HEADER_LEN + page);
        }
    }
    mark
}

#[deny(clippy::missing_trait_methods)]
impl Storage for Metered {
    fn capability(&self) -> Capability {
        self.inner.capability()
    }

    fn open_tables(&self, tables: &[TableInfo]) -> Result<(), StorageError> {
        self.inner.open_tables(tables)
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, StorageError> {
        self.inner.snapshot()
    }

    fn writer(
        &self,
        patience: Duration,
        durability: Durability,
    ) -> Result<Box<dyn Writer + '_>, StorageError> {
        Ok(Box::new(MeteredWriter {
            inner: self.inner.writer(patience, durability)?,
            metered: self,
            durability,
        }))
    }

    fn version(&self) -> Result<u64, StorageError> {
        self.inner.version()
    }

    fn close(&self) -> Result<(), StorageError> {
        self.inner.close()
    }
}

struct MeteredWriter<'a> {
    inner: Box<dyn Writer + 'a>,
    metered: &'a Metered,
    durability: Durability,
}

#[deny(clippy::missing_trait_methods)]
impl Snapshot for MeteredWriter<'_> {
    fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.inner.get(table, key)
    }

    fn get_many(
        &self,
        table: TableId,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
        self.inner.get_many(table, keys)
    }

    fn scan(&self, table: TableId, range: KeyRange<'_>, page: Page) -> Result<Rows, StorageError> {
        self.inner.scan(table, range, page)
    }
}

#[deny(clippy::missing_trait_methods)]
impl Writer for MeteredWriter<'_> {
    fn commit(self: Box<Self>, batch: &WriteBatch) -> Result<(), StorageError> {
        self.inner.commit(batch)?;
        if self.durability == Durability::Flushed {
            self.metered.note();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log with pages of 8 bytes; each frame is told whether it ends a commit.
    fn log(frames: &[(u8, bool)]) -> Vec<u8> {
        let mut log = vec![0; HEADER_LEN];
        log[11] = 8;
        log[16..24].fill(1);
        for (salt, is_commit) in frames {
            let mut frame = [0; FRAME_HEADER_LEN + 8];
            frame[7] = u8::from(*is_commit);
            frame[8..16].fill(*salt);
            log.extend(frame);
        }
        log
    }

    #[test]
    fn the_last_commit_is_found() {
        let end = |frames: &[(u8, bool)]| last_commit(&log(frames)).end;
        assert_eq!(last_commit(&[]), Mark::default());
        assert_eq!(end(&[]), 32);
        assert_eq!(end(&[(1, false), (1, true), (1, false)]), 32 + 2 * 32);
        assert_eq!(end(&[(1, true), (9, true)]), 32 + 32);
    }
}
