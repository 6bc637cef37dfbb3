//! The directory of a database: what lies in it, and what may be done with it.
//!
//! | name | what |
//! | --- | --- |
//! | `xmtp.header` | the header; locked by the one process that has the database open |
//! | `xmtp.commits` | the number of the last acknowledged commit |
//! | `log` | sled's own files |
//! | `xmtp.header.new` | the header of a database whose creation is not finished |

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use xmtp_core::storage::OpenError;

use crate::header::damaged;
use crate::seal::digest;

const HEADER: &str = "xmtp.header";
const NEW_HEADER: &str = "xmtp.header.new";
const MARK: &str = "xmtp.commits";
const LOG: &str = "log";

/// How long a lock may linger after its holder let go: in a child process between fork and exec,
/// or in one of sled's threads.
const LOCK_LINGERS: Duration = Duration::from_millis(100);
/// How often a lingering lock is looked at.
const LOCK_PAUSE: Duration = Duration::from_millis(1);
/// The first bytes of every SQLite file that is not encrypted.
const SQLITE_MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// The smallest page of an SQLite file, encrypted or not.
const SQLITE_SMALLEST: u64 = 512;
/// Bytes of the commit mark.
const MARK_BYTES: usize = 32;

/// The paths of one database.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    dir: PathBuf,
}

/// What lies at the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing, or an empty directory.
    Nothing,
    /// A database whose creation was cut short: nobody has used it.
    Unfinished,
    /// A database.
    Database,
}

impl Home {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.dir.join(LOG)
    }

    pub(crate) fn header(&self) -> PathBuf {
        self.dir.join(HEADER)
    }

    pub(crate) fn new_header(&self) -> PathBuf {
        self.dir.join(NEW_HEADER)
    }

    fn mark(&self) -> PathBuf {
        self.dir.join(MARK)
    }

    /// The file that sled locks.
    pub(crate) fn log_lock(&self) -> PathBuf {
        self.log().join("db")
    }

    /// Tells what lies at the path, by names and first bytes alone.
    pub(crate) fn look(&self) -> Result<Found, OpenError> {
        let about = match fs::metadata(&self.dir) {
            Ok(about) => about,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
            Err(error) => return Err(refused("look at the path", &error)),
        };
        if !about.is_dir() {
            return Err(foreign_file(&self.dir, about.len()));
        }
        let (mut ours, mut foreign) = (Vec::new(), false);
        let entries = fs::read_dir(&self.dir).map_err(|e| refused("list the directory", &e))?;
        for entry in entries {
            let name = entry
                .map_err(|e| refused("list the directory", &e))?
                .file_name();
            match [HEADER, NEW_HEADER, MARK, LOG]
                .iter()
                .find(|known| name == **known)
            {
                Some(known) => ours.push(*known),
                None => foreign = true,
            }
        }
        match (ours.contains(&HEADER), foreign, ours.is_empty()) {
            (true, _, _) => Ok(Found::Database),
            (false, true, _) => Err(OpenError::NotADatabase),
            (false, false, true) => Ok(Found::Nothing),
            (false, false, false) if ours.contains(&NEW_HEADER) => Ok(Found::Unfinished),
            (false, false, false) => Err(damaged("its header is missing")),
        }
    }

    /// Takes the lock of an existing database: its header, without changing it.
    pub(crate) fn lock_header(&self) -> Result<File, OpenError> {
        let header = File::open(self.header()).map_err(|e| refused("open the header", &e))?;
        lock(&header)?;
        Ok(header)
    }

    /// Takes the lock of a database to be created; `None` when another one was faster.
    pub(crate) fn lock_new_header(&self) -> Result<Option<File>, OpenError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let header = options.open(self.new_header());
        let header = header.map_err(|e| refused("create the header", &e))?;
        lock(&header)?;
        if self.header().exists() {
            return Ok(None);
        }
        Ok(Some(header))
    }

    /// Writes the header of an unfinished database.
    pub(crate) fn write_new_header(&self, file: &mut File, header: &[u8]) -> Result<(), OpenError> {
        let written = file
            .set_len(0)
            .and_then(|()| file.seek(SeekFrom::Start(0)))
            .and_then(|_| file.write_all(header))
            .and_then(|()| file.sync_all());
        written.map_err(|e| refused("write the header", &e))
    }

    /// Declares a new database finished, durably.
    pub(crate) fn finish(&self) -> Result<(), OpenError> {
        fs::rename(self.new_header(), self.header())
            .and_then(|()| sync_dir(&self.dir))
            .map_err(|e| refused("name the header", &e))
    }

    /// Removes what an unfinished creation left, but for the locked header.
    pub(crate) fn clean_unfinished(&self) -> Result<(), OpenError> {
        let log = if_there(fs::remove_dir_all(self.log()));
        let mark = if_there(fs::remove_file(self.mark()));
        log.and(mark)
            .map_err(|e| refused("remove an unfinished database", &e))
    }

    /// Makes the commit mark of a new database.
    pub(crate) fn make_mark(&self) -> Result<Mark, OpenError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        let made = options.open(self.mark()).and_then(|file| {
            let mut mark = Mark { file };
            mark.set(0, &self.log_lock())?;
            mark.file.sync_all()?;
            Ok(mark)
        });
        made.map_err(|e| refused("write the commit mark", &e))
    }

    /// Opens the commit mark, and answers what it says.
    pub(crate) fn open_mark(&self) -> Result<(Mark, Marked), OpenError> {
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(true).open(self.mark());
        let mut file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(damaged("its commit mark is missing"));
            }
            Err(error) => return Err(refused("open the commit mark", &error)),
        };
        let mut bytes = Vec::new();
        let read = file.read_to_end(&mut bytes);
        read.map_err(|e| refused("read the commit mark", &e))?;
        let marked = Marked::decode(&bytes).ok_or_else(|| damaged("its commit mark is changed"))?;
        Ok((Mark { file }, marked))
    }
}

/// The number of the last acknowledged commit, in a file beside the log.
///
/// It is written after the log was flushed and is itself not flushed: it may lag after a power
/// loss and is never ahead. A log that ends before it has lost commits.
#[derive(Debug)]
pub(crate) struct Mark {
    file: File,
}

/// What a commit mark says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marked {
    /// The number of the last acknowledged commit.
    pub(crate) number: u64,
    /// How long the log file was then.
    pub(crate) log_bytes: u64,
}

impl Mark {
    /// Notes an acknowledged commit.
    pub(crate) fn set(&mut self, number: u64, log_file: &Path) -> io::Result<()> {
        let log_bytes = fs::metadata(log_file)?.len();
        let mut bytes = [number.to_be_bytes(), log_bytes.to_be_bytes()].concat();
        bytes.extend_from_slice(&digest(&[&bytes]));
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&bytes)
    }
}

impl Marked {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (content, check) = bytes.split_at_checked(MARK_BYTES / 2)?;
        let (number, log_bytes) = content.split_first_chunk()?;
        (digest(&[content]) == check).then_some(Self {
            number: u64::from_be_bytes(*number),
            log_bytes: u64::from_be_bytes(log_bytes.try_into().ok()?),
        })
    }
}

fn lock(file: &File) -> Result<(), OpenError> {
    if wait_for_lock(file, LOCK_LINGERS).map_err(|e| refused("lock the header", &e))? {
        Ok(())
    } else {
        Err(OpenError::InUse)
    }
}

/// Takes a lock that may linger; false when it is really held.
pub(crate) fn wait_for_lock(file: &File, patience: Duration) -> io::Result<bool> {
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) if start.elapsed() < patience => {
                thread::sleep(LOCK_PAUSE);
            }
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Tells what a file is that stands where our directory should.
fn foreign_file(path: &Path, len: u64) -> OpenError {
    let mut magic = [0; SQLITE_MAGIC.len()];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    match read {
        Ok(()) if magic == *SQLITE_MAGIC => OpenError::OtherEngine {
            expected: "sled",
            found: "sqlite",
        },
        Ok(()) if len >= SQLITE_SMALLEST && len.is_multiple_of(SQLITE_SMALLEST) => {
            OpenError::Undecided {
                candidates: "an encrypted SQLite database, or not a database",
            }
        }
        Ok(()) => OpenError::NotADatabase,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => OpenError::NotADatabase,
        Err(error) => refused("read the file", &error),
    }
}

fn if_there(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(unix)]
fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(not(unix))]
fn sync_dir(_dir: &Path) -> io::Result<()> {
    Ok(())
}

pub(crate) fn refused(action: &'static str, error: &io::Error) -> OpenError {
    OpenError::Io {
        action,
        detail: error.kind().to_string(),
    }
}
