//! Finds out what lies at a path by reading alone.
//!
//! An ordinary open changes files even when it fails: with a wrong key SQLite takes the log for
//! garbage and removes it. So nothing is opened for writing before the key is proved and the
//! file is known to be whole.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::time::SystemTime;

use xmtp_core::storage::{DatabaseKey, OpenError};

use crate::connection::PAGE_BYTES;
use crate::judge::judge;
use crate::log::{self, Log};
use crate::options::io_error;
use crate::turn::sibling;
use crate::wait::Wait;

/// Pages looked at from the start of the file.
const HEAD_PAGES: usize = 9;
/// How often an adverse finding has to repeat before it counts.
const REPEATS: u32 = 3;

/// What lies at a path, when opening may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing at all.
    Nothing,
    /// A database of this engine, whole, that the key opens.
    Ours,
}

/// What was read of a database.
#[derive(Debug)]
pub(crate) struct Evidence {
    /// Bytes of the file.
    pub(crate) length: u64,
    /// Its first pages.
    pub(crate) head: Vec<u8>,
    /// Its log, when that holds a commit.
    pub(crate) log: Option<Log>,
}

/// Finds out what lies at `path`, and whether `key` opens it.
///
/// Another process may be writing, so that what was read does not fit together. A finding
/// against the file therefore counts only when it repeats while the files hold still.
pub(crate) fn inspect(
    path: &Path,
    key: Option<&DatabaseKey>,
    wait: Wait,
) -> Result<Found, OpenError> {
    let mut last = None;
    let mut repeats = 0;
    loop {
        let stamp = stamp(path);
        let error = match look(path, key) {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        let finding = Some((stamp, error));
        repeats = if finding == last { repeats + 1 } else { 1 };
        last = finding;
        if repeats >= REPEATS || !wait.pause() {
            return last.map_or(Ok(Found::Nothing), |(_, error)| Err(error));
        }
    }
}

type Stamp = [Option<(u64, Option<SystemTime>)>; 2];

fn stamp(path: &Path) -> Stamp {
    [path.to_owned(), sibling(path, "-wal")].map(|path| {
        let metadata = fs::metadata(path).ok()?;
        Some((metadata.len(), metadata.modified().ok()))
    })
}

fn look(path: &Path, key: Option<&DatabaseKey>) -> Result<Found, OpenError> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => return Err(folder(path)),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return absent(path),
        Err(error) => return Err(io_error("look at the database", &error)),
    }
    let evidence = gather(path).map_err(|error| io_error("read the database", &error))?;
    judge(path, key, &evidence)?;
    Ok(Found::Ours)
}

/// A missing file is a new database, unless the log of an old one is still there.
fn absent(path: &Path) -> Result<Found, OpenError> {
    match fs::metadata(sibling(path, "-wal")) {
        Ok(log) if log.len() > 0 => Err(OpenError::Damaged {
            detail: "its file is missing, its log is there".to_owned(),
        }),
        _ => Ok(Found::Nothing),
    }
}

fn folder(path: &Path) -> OpenError {
    let has = |name: &str| path.join(name).exists();
    if has("xmtp.header") || (has("conf") && has("db")) {
        return OpenError::OtherEngine {
            expected: "sqlite",
            found: "sled",
        };
    }
    OpenError::NotADatabase
}

fn gather(path: &Path) -> io::Result<Evidence> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut head = Vec::new();
    file.take((HEAD_PAGES * PAGE_BYTES) as u64)
        .read_to_end(&mut head)?;
    let log = log::read(&sibling(path, "-wal"))?;
    Ok(Evidence { length, head, log })
}

impl Evidence {
    /// Answers the first page as the last commit left it; shorter when the file is.
    pub(crate) fn first_page(&self) -> &[u8] {
        let logged = self.log.as_ref().and_then(|log| log.first.as_deref());
        logged.unwrap_or(&self.head[..self.head.len().min(PAGE_BYTES)])
    }

    /// Answers the pages looked at, but for the first of the file, with their numbers.
    pub(crate) fn other_pages(&self) -> impl Iterator<Item = (u32, &[u8])> {
        let filed = self.head.chunks_exact(PAGE_BYTES).zip(1..).skip(1);
        let logged = self.log.iter().flat_map(|log| &log.samples);
        filed
            .map(|(page, number)| (number, page))
            .chain(logged.map(|(number, page)| (*number, &page[..])))
    }

    /// Tells whether a page that the database has is neither in the file nor in the log.
    pub(crate) fn lacks_pages(&self) -> bool {
        let whole = self.length / PAGE_BYTES as u64;
        match &self.log {
            Some(log) => (1..=log.database_pages)
                .any(|page| u64::from(page) > whole && !log.pages.contains(&page)),
            None => !self.length.is_multiple_of(PAGE_BYTES as u64),
        }
    }
}
