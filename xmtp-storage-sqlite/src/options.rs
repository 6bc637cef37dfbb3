//! How a database is opened.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::OpenFlags;
use xmtp_core::storage::{DatabaseKey, OpenError};

use crate::connection::{self, Role};
use crate::inspect::{self, Found};
use crate::registry;
use crate::storage::{Opened, SqliteStorage};
use crate::turn::Turn;
use crate::wait::Wait;
use crate::{create, fault};

/// Pages of the log after which a commit moves it into the file, unless set otherwise.
const CHECKPOINT_PAGES: u32 = 1000;
/// How long opening waits for a lock, unless set otherwise.
const PATIENCE: Duration = Duration::from_secs(5);

/// How a database is opened; made by [`SqliteStorage::options`].
#[derive(Clone, Debug)]
#[must_use]
pub struct SqliteOptions {
    path: PathBuf,
    key: Option<DatabaseKey>,
    checkpoint_pages: u32,
    patience: Duration,
}

impl SqliteOptions {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            key: None,
            checkpoint_pages: CHECKPOINT_PAGES,
            patience: PATIENCE,
        }
    }

    /// Encrypts the whole file under `key`.
    pub fn key(mut self, key: DatabaseKey) -> Self {
        self.key = Some(key);
        self
    }

    /// Leaves the file readable to all who can read it; this is the default.
    pub fn plain(mut self) -> Self {
        self.key = None;
        self
    }

    /// Sets after how many pages of 4 KiB a commit moves the log into the file: at least 1.
    ///
    /// The default of 1000 costs the commit that does it about 10 ms; 200 keeps that below 5 ms
    /// and costs a tenth of the throughput.
    pub fn checkpoint_pages(mut self, pages: u32) -> Self {
        self.checkpoint_pages = pages.max(1);
        self
    }

    /// Sets how long opening waits for another process before it answers [`OpenError::InUse`];
    /// 5 s by default.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Opens the database, and creates it when there is no file.
    ///
    /// # Behavior
    /// - The folder has to exist.
    /// - A failed open has not deleted, renamed, created or changed a file (EXT-003): what a file
    ///   is, and whether the key opens it, is found out by reading alone.
    /// - Two processes may create one database at the same time: one of them waits.
    pub fn open(self) -> Result<Arc<SqliteStorage>, OpenError> {
        let path = canonical(&self.path)?;
        let key = self.key.as_ref();
        let wait = Wait::start(self.patience);
        let opening = registry::enter(&path);
        if !opening.is_open(key)? {
            while inspect::inspect(&path, key, wait)? == Found::Nothing {
                create::create(&path, key, wait)?;
            }
        }
        let (writer, watcher) = connect(&path, key, self.checkpoint_pages, wait)?;
        let turn = Turn::open(&path).map_err(|error| io_error("open the turn file", &error))?;
        tracing::debug!(encrypted = key.is_some(), "a SQLite database was opened");
        Ok(Arc::new(SqliteStorage::new(Opened {
            lease: opening.lease(self.key),
            path,
            turn,
            writer,
            watcher,
            checkpoint_pages: self.checkpoint_pages,
        })))
    }
}

fn connect(
    path: &Path,
    key: Option<&DatabaseKey>,
    checkpoint_pages: u32,
    wait: Wait,
) -> Result<(rusqlite::Connection, rusqlite::Connection), OpenError> {
    let writer = Role::Writer { checkpoint_pages };
    let both = || {
        let writer = connection::keyed(path, key, writer, wait)?;
        let watcher = connection::keyed(path, key, Role::Reader, wait)?;
        Ok((writer, watcher))
    };
    both().map_err(|error: rusqlite::Error| {
        if fault::is_busy(&error) {
            return OpenError::InUse;
        }
        if fault::is_damage(&error) {
            return OpenError::Damaged {
                detail: fault::detail(&error),
            };
        }
        OpenError::Io {
            action: "open the database",
            detail: fault::detail(&error),
        }
    })
}

/// Makes two spellings of a path the same one. The file need not exist.
fn canonical(path: &Path) -> Result<PathBuf, OpenError> {
    match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        done => return done.map_err(|error| io_error("find the database", &error)),
    }
    let no_name = || io_error("find the database", &io::ErrorKind::InvalidInput.into());
    let name = path.file_name().ok_or_else(no_name)?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let folder = folder.canonicalize();
    let folder = folder.map_err(|error| io_error("find the folder", &error))?;
    Ok(folder.join(name))
}

pub(crate) fn io_error(action: &'static str, error: &io::Error) -> OpenError {
    OpenError::Io {
        action,
        detail: error.kind().to_string(),
    }
}

/// Opens what may be read and not be touched: no lock is taken and no file beside it is used.
pub(crate) fn untouched(
    path: &Path,
    key: Option<&DatabaseKey>,
) -> rusqlite::Result<rusqlite::Connection> {
    let mut uri = String::from("file:");
    for &byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'-' | b'_' | b'.' => uri.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => uri.push(char::from(byte)),
            _ => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri.push_str("?immutable=1&mode=ro");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    connection::open(Path::new(&uri), key, flags)
}
