//! The mark beside the database: how far its ids have been given out.
//!
//! A database that was restored from a copy does not know what was given out after the copy was
//! made. It would give those ids a second time, and every client that has seen them would skip the
//! new envelopes without a word. So the writer leaves a mark in a file of its own, after each
//! commit and before anybody hears of it, and a database that is behind its mark, or that comes
//! without one, is not served until it is fenced.
//!
//! The mark is written without waiting for the disk. What a loss of power takes from it makes the
//! mark older and never newer than the database, so it accuses no database wrongly. A copy of the
//! whole folder brings its mark along and cannot be told from the original.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use xmtp_proto::id::SequenceId;

use super::OpenError;

/// What the file begins with; its version stands in it.
const HEADER: &str = "xmtp-backend mark 1\n";

/// The digits of a number in the file.
const DIGITS: usize = 20;

/// What is known to be given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Given {
    /// When the database was created, which tells it from any other.
    pub(super) created_ns: i64,
    /// The greatest id that was given out.
    pub(super) last: SequenceId,
}

impl Given {
    fn encode(self) -> String {
        let (created_ns, last) = (self.created_ns, self.last.get());
        format!("{HEADER}{created_ns:0DIGITS$}\n{last:0DIGITS$}\n")
    }

    fn decode(text: &str) -> Option<Self> {
        let mut lines = text.strip_prefix(HEADER)?.lines();
        let created_ns = lines.next()?.parse().ok()?;
        let last = SequenceId::checked(lines.next()?.parse().ok()?).ok()?;
        Some(Self { created_ns, last })
    }
}

/// The file, open for the writer.
#[derive(Debug)]
pub(super) struct Mark {
    file: File,
}

impl Mark {
    /// Reads the mark of the database at `database`; nothing if there is none that can be read.
    pub(super) fn read(database: &Path) -> Result<Option<Given>, OpenError> {
        match std::fs::read(path(database)) {
            Ok(bytes) => Ok(std::str::from_utf8(&bytes).ok().and_then(Given::decode)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(OpenError::Files(error.kind())),
        }
    }

    /// Writes the whole mark and waits for the disk.
    pub(super) fn replace(database: &Path, given: Given) -> Result<(), OpenError> {
        let path = path(database);
        let mut new = path.clone().into_os_string();
        new.push(".new");
        let replaced = write_synced(Path::new(&new), given.encode().as_bytes())
            .and_then(|()| std::fs::rename(&new, &path))
            .and_then(|()| sync_folder(&path));
        replaced.map_err(|error| OpenError::Files(error.kind()))
    }

    /// Opens the mark for the writer.
    pub(super) fn open(database: &Path) -> Result<Self, OpenError> {
        let file = OpenOptions::new().write(true).open(path(database));
        let file = file.map_err(|error| OpenError::Files(error.kind()))?;
        Ok(Self { file })
    }

    /// Remembers that ids up to `last` are given out.
    pub(super) fn advance(&self, last: SequenceId) {
        let offset = (HEADER.len() + DIGITS + 1) as u64;
        let digits = format!("{:0DIGITS$}", last.get());
        if let Err(error) = self.file.write_all_at(digits.as_bytes(), offset) {
            tracing::warn!(kind = ?error.kind(), "the mark beside the database was not written");
        }
    }

    /// Waits for the disk.
    pub(super) fn sync(&self) {
        if let Err(error) = self.file.sync_all() {
            tracing::warn!(kind = ?error.kind(), "the mark beside the database was not synced");
        }
    }
}

fn path(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(".mark");
    name.into()
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| folder != &Path::new(""));
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}
