//! How a database is opened or created.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;

use xmtp_core::storage::{DatabaseKey, Encryption, OpenError};

use crate::check;
use crate::header::{self, damaged};
use crate::home::{Found, Home, Mark, refused, wait_for_lock};
use crate::log::{Log, told};
use crate::seal::Sealer;
use crate::storage::{CLOSE_PATIENCE, Open, SledStorage};

/// The settings of one database; [`SledStorage::options`] begins them.
#[derive(Clone, Debug)]
pub struct Options {
    dir: PathBuf,
    mode: Option<Mode>,
}

#[derive(Clone, Debug)]
enum Mode {
    Plain,
    Key(DatabaseKey),
}

impl Options {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir, mode: None }
    }

    /// Seals values with a key.
    #[must_use]
    pub fn key(mut self, key: DatabaseKey) -> Self {
        self.mode = Some(Mode::Key(key));
        self
    }

    /// Stores values as they are.
    #[must_use]
    pub fn plain(mut self) -> Self {
        self.mode = Some(Mode::Plain);
        self
    }

    /// Opens the database, or creates it where nothing or an empty directory is.
    ///
    /// # Behavior
    /// - A failed open changes nothing on disk, with one exception: the damage of a log over 64
    ///   MiB is found by sled itself, which repairs what it opens.
    /// - A new database needs the choice between [`Options::key`] and [`Options::plain`];
    ///   without one it answers [`OpenError::KeyRequired`], so that no database is unencrypted
    ///   by oversight.
    /// - While one instance is open, in this or any other process, a second answers
    ///   [`OpenError::InUse`].
    pub fn open(self) -> Result<Arc<SledStorage>, OpenError> {
        let home = Home::new(self.dir);
        let key = match &self.mode {
            Some(Mode::Key(key)) => Some(key),
            Some(Mode::Plain) | None => None,
        };
        match home.look()? {
            Found::Database => open(home, key),
            Found::Nothing | Found::Unfinished if self.mode.is_none() => {
                Err(OpenError::KeyRequired)
            }
            Found::Nothing | Found::Unfinished => create(home, key),
        }
    }
}

fn encryption(sealer: &Sealer) -> Encryption {
    match sealer {
        Sealer::Plain => Encryption::None,
        Sealer::Sealed(_) => Encryption::Values,
    }
}

fn open(home: Home, key: Option<&DatabaseKey>) -> Result<Arc<SledStorage>, OpenError> {
    let lock = home.lock_header()?;
    let bytes = fs::read(home.header()).map_err(|e| refused("read the header", &e))?;
    let sealer = header::prove(&bytes, key)?;
    let (mark, marked) = home.open_mark()?;
    check::prove_log(&home, &sealer, marked)?;
    let log = open_log(&home, &sealer)?;
    if log.record().number < marked.number {
        return Err(damaged("its log has lost commits"));
    }
    Ok(storage(home, &sealer, log, mark, lock))
}

fn open_log(home: &Home, sealer: &Sealer) -> Result<Log, OpenError> {
    let held = File::open(home.log_lock()).map_err(|e| refused("open the log", &e))?;
    let is_free = wait_for_lock(&held, CLOSE_PATIENCE);
    if !is_free.map_err(|e| refused("lock the log", &e))? {
        return Err(OpenError::InUse);
    }
    drop(held);
    let log = Log::open(&home.log(), sealer.clone());
    log.map_err(|error| OpenError::Storage(told("open the log", &error)))
}

fn create(home: Home, key: Option<&DatabaseKey>) -> Result<Arc<SledStorage>, OpenError> {
    let is_ours = !home.dir().exists();
    fs::create_dir_all(home.dir()).map_err(|e| refused("create the directory", &e))?;
    let Some(mut lock) = home.lock_new_header()? else {
        // Another one was faster; the stray header is nobody's.
        let _ = fs::remove_file(home.new_header());
        return open(home, key);
    };
    match fill(&home, &mut lock, key) {
        Ok((sealer, log, mark)) => Ok(storage(home, &sealer, log, mark, lock)),
        Err(error) => {
            let _ = home.clean_unfinished();
            let _ = fs::remove_file(home.new_header());
            if is_ours {
                let _ = fs::remove_dir(home.dir());
            }
            Err(error)
        }
    }
}

fn fill(
    home: &Home,
    lock: &mut File,
    key: Option<&DatabaseKey>,
) -> Result<(Sealer, Log, Mark), OpenError> {
    home.clean_unfinished()?;
    let (bytes, sealer) = header::make(key)?;
    home.write_new_header(lock, &bytes)?;
    let log = Log::open(&home.log(), sealer.clone());
    let mut log = log.map_err(|error| OpenError::Storage(told("create the log", &error)))?;
    log.begin()?;
    let mark = home.make_mark()?;
    home.finish()?;
    Ok((sealer, log, mark))
}

fn storage(home: Home, sealer: &Sealer, log: Log, mark: Mark, lock: File) -> Arc<SledStorage> {
    let encryption = encryption(sealer);
    let open = Open { log, mark, lock };
    Arc::new(SledStorage::new(home, encryption, open))
}
