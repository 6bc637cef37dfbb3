//! Proves the log on a copy, because sled repairs what it opens: it cuts a damaged log at the
//! damage and zeroes the rest. A failed open must not change a byte (EXT-003).

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use xmtp_core::storage::OpenError;

use crate::header::damaged;
use crate::home::{Home, Marked, refused};
use crate::log::Log;
use crate::seal::Sealer;

/// The largest log that is proved before it is opened, in bytes: what copies and reads in well
/// under a second. A larger one is opened as it is; a damaged one of that size may be changed by
/// the open that finds the damage.
pub(crate) const MAX_CHECKED_BYTES: u64 = 64 * 1024 * 1024;

/// Proves that the log opens, holds every acknowledged commit, and has lost no row.
pub(crate) fn prove_log(home: &Home, sealer: &Sealer, marked: Marked) -> Result<(), OpenError> {
    let log = home.log();
    let file = match fs::metadata(home.log_lock()) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(damaged("its log is missing"));
        }
        Err(error) => return Err(refused("look at the log", &error)),
    };
    let bytes = size(&log).map_err(|e| refused("look at the log", &e))?;
    if bytes > MAX_CHECKED_BYTES {
        tracing::debug!(bytes, "the log is too large to be proved on a copy");
        return Ok(());
    }
    let copy = tempfile::tempdir().map_err(|e| refused("make a copy of the log", &e))?;
    copy_files(&log, copy.path()).map_err(|e| refused("copy the log", &e))?;
    // sled asserts where others return: a panic is an answer too.
    let proof = AssertUnwindSafe(|| is_proved(copy.path(), sealer, marked));
    if catch_unwind(proof).unwrap_or(false) {
        return Ok(());
    }
    if file.len() < marked.log_bytes {
        return Err(OpenError::Truncated);
    }
    Err(damaged("its log has lost rows or commits"))
}

fn is_proved(copy: &Path, sealer: &Sealer, marked: Marked) -> bool {
    let Ok(log) = Log::open(copy, sealer.clone()) else {
        return false;
    };
    log.is_whole().unwrap_or(false) && log.record().number >= marked.number
}

fn size(dir: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let about = entry.metadata()?;
        bytes += if about.is_dir() {
            size(&entry.path())?
        } else {
            about.len()
        };
    }
    Ok(bytes)
}

fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_files(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}
