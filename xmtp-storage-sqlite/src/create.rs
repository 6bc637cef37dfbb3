//! Makes a new database whole before it gets its name.
//!
//! Made in place, a database would be seen half-made by a process that opens it at that moment,
//! and by everyone after a crash.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use rusqlite::OpenFlags;
use xmtp_core::storage::schema::SCHEMA_VERSION;
use xmtp_core::storage::{DatabaseKey, OpenError};

use crate::connection::{self, APPLICATION_ID, PAGE_BYTES};
use crate::fault;
use crate::options::io_error;
use crate::turn::{self, Turn, sibling};
use crate::wait::Wait;

/// Creates the database at `path`, unless another process did so in the meantime.
pub(crate) fn create(path: &Path, key: Option<&DatabaseKey>, wait: Wait) -> Result<(), OpenError> {
    let turn_file = turn::path(path);
    let found_turn = turn_file.exists();
    let mut turn = Turn::open(path).map_err(|error| io_error("create the turn file", &error))?;
    while !turn.take()? {
        if !wait.pause() {
            return Err(OpenError::InUse);
        }
    }
    if path.exists() {
        return Ok(());
    }
    let made = make(path, key);
    if made.is_err() {
        // What this call made goes with its failure.
        discard(path);
        if !found_turn {
            let _ = fs::remove_file(turn_file);
        }
    }
    made
}

fn make(path: &Path, key: Option<&DatabaseKey>) -> Result<(), OpenError> {
    let draft = sibling(path, ".new");
    // A draft that is there was left by a process that died here: the turn is ours.
    discard(path);
    draw_up(&draft, key).map_err(|error| OpenError::Io {
        action: "create the database",
        detail: fault::detail(&error),
    })?;
    publish(&draft, path).map_err(|error| io_error("create the database", &error))
}

fn draw_up(draft: &Path, key: Option<&DatabaseKey>) -> rusqlite::Result<()> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    let connection = connection::open(draft, key, flags)?;
    connection.execute_batch(&format!(
        "PRAGMA page_size = {PAGE_BYTES};
         PRAGMA application_id = {APPLICATION_ID};
         PRAGMA user_version = {SCHEMA_VERSION};
         PRAGMA journal_mode = WAL"
    ))?;
    connection.close().map_err(|(_, error)| error)
}

fn publish(draft: &Path, path: &Path) -> io::Result<()> {
    File::options().write(true).open(draft)?.sync_all()?;
    fs::rename(draft, path)?;
    sync_folder(path)
}

#[cfg(unix)]
fn sync_folder(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(not(unix))]
fn sync_folder(_path: &Path) -> io::Result<()> {
    Ok(())
}

fn discard(path: &Path) {
    for suffix in [".new", ".new-journal", ".new-wal", ".new-shm"] {
        let _ = fs::remove_file(sibling(path, suffix));
    }
}
