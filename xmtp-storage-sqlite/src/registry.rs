//! The databases this process has open.
//!
//! POSIX locks belong to a process and a file: when a process closes any descriptor of a file,
//! all its locks on that file are gone, SQLite's too. So a file is inspected with descriptors of
//! our own only while this process has no connection to it, and openings of one path follow one
//! another. While it is open, a second opening is checked against the key of the first.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::{ArcMutexGuard, Mutex, RawMutex};
use xmtp_core::storage::{DatabaseKey, OpenError};

static PLACES: Mutex<BTreeMap<PathBuf, Weak<Mutex<Place>>>> = Mutex::new(BTreeMap::new());

/// A path, with what this process has open there.
#[derive(Debug, Default)]
struct Place {
    open: usize,
    key: Option<DatabaseKey>,
}

/// The right to inspect and open one path, alone in this process.
pub(crate) struct Opening {
    place: Arc<Mutex<Place>>,
    guard: ArcMutexGuard<RawMutex, Place>,
}

/// One open instance; counted until dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    place: Arc<Mutex<Place>>,
    key: Option<DatabaseKey>,
}

/// Waits for other openings of the path, which has to be canonical.
pub(crate) fn enter(path: &Path) -> Opening {
    let place = {
        let mut places = PLACES.lock();
        places.retain(|_, place| place.strong_count() > 0);
        match places.get(path).and_then(Weak::upgrade) {
            Some(place) => place,
            None => {
                let place = Arc::default();
                places.insert(path.to_owned(), Arc::downgrade(&place));
                place
            }
        }
    };
    let guard = place.lock_arc();
    Opening { place, guard }
}

impl Opening {
    /// Tells whether this process has the path open, and checks the key against that.
    pub(crate) fn is_open(&self, key: Option<&DatabaseKey>) -> Result<bool, OpenError> {
        if self.guard.open == 0 {
            return Ok(false);
        }
        match (&self.guard.key, key) {
            (Some(proved), Some(key)) if proved != key => Err(OpenError::WrongKey),
            (Some(_), None) => Err(OpenError::KeyRequired),
            (None, Some(_)) => Err(OpenError::NotEncrypted),
            _ => Ok(true),
        }
    }

    /// Counts an instance that is open now.
    pub(crate) fn lease(mut self, key: Option<DatabaseKey>) -> Lease {
        self.guard.open += 1;
        self.guard.key.clone_from(&key);
        Lease {
            place: self.place.clone(),
            key,
        }
    }
}

impl Lease {
    /// Answers the key of the database.
    pub(crate) fn key(&self) -> Option<DatabaseKey> {
        self.key.clone()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut place = self.place.lock();
        place.open -= 1;
        if place.open == 0 {
            place.key = None;
        }
    }
}
