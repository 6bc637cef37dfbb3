//! A database in a folder of its own, closed or as a crash left it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use tempfile::TempDir;
use xmtp_core::storage::schema::SCHEMA_VERSION;
use xmtp_core::storage::{Change, Durability, OpenError, Storage, WriteBatch};
use xmtp_storage_sqlite::DatabaseKey;

use crate::common::*;

pub(crate) const ROWS: u64 = 300;

/// What lies beside the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing: the database was closed.
    Closed,
    /// A log that holds everything, the first page too.
    Unsettled,
    /// A log that holds the last commits to a file that was whole before, and no first page.
    Settled,
}

pub(crate) const STATES: [State; 3] = [State::Closed, State::Unsettled, State::Settled];
pub(crate) const MODES: [bool; 2] = [false, true];

pub(crate) struct Fixture {
    pub(crate) dir: TempDir,
    pub(crate) encrypted: bool,
    pub(crate) state: State,
}

impl Fixture {
    pub(crate) fn new(encrypted: bool, state: State) -> Self {
        let dir = TempDir::new().expect("a folder");
        let mode = if encrypted { "encrypted" } else { "plain" };
        let argument = format!("{mode} {}", dir.path().display());
        let fixture = Self {
            dir,
            encrypted,
            state,
        };
        if state != State::Unsettled {
            let storage = open(fixture.path(), fixture.key()).expect("open");
            fill(&*storage);
            storage.close().expect("close");
        }
        match state {
            State::Closed => {}
            State::Unsettled => crash("fill", &argument),
            State::Settled => crash("touch", &argument),
        }
        assert_eq!(
            fixture.path().join("x.db-wal").exists(),
            state != State::Closed
        );
        fixture
    }

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let each = |encrypted| {
            STATES
                .into_iter()
                .map(move |state| Self::new(encrypted, state))
        };
        MODES.into_iter().flat_map(each)
    }

    pub(crate) fn of(encrypted: bool) -> impl Iterator<Item = Self> {
        STATES
            .into_iter()
            .map(move |state| Self::new(encrypted, state))
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.path().join("x.db")
    }

    pub(crate) fn key(&self) -> Option<DatabaseKey> {
        self.encrypted.then(key)
    }

    pub(crate) fn edit(&self, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = fs::read(self.file()).expect("read");
        edit(&mut bytes);
        fs::write(self.file(), bytes).expect("write");
    }

    /// Opens with the right key, or none, and checks that a refusal has touched nothing.
    pub(crate) fn refusal(&self) -> OpenError {
        self.refusal_with(self.key())
    }

    pub(crate) fn refusal_with(&self, key: Option<DatabaseKey>) -> OpenError {
        let before = picture(self.path());
        let options = options(self.path(), key).patience(Duration::from_millis(200));
        let refused = options.open().map(drop).expect_err("the open fails");
        assert!(before == picture(self.path()), "{refused:?} touched a file");
        refused
    }

    /// Opens with the right key, or none, and finds everything.
    pub(crate) fn opens(&self) {
        let storage = open(self.path(), self.key()).expect("open");
        assert_eq!(count(&*storage, NUMBERED), ROWS as usize);
        assert_eq!(count(&*storage, LARGE), ROWS as usize);
        let snapshot = storage.snapshot().expect("snapshot");
        let touched = if self.state == State::Settled { 2 } else { 1 };
        assert_eq!(number(&*snapshot, b"number"), touched);
    }

    pub(crate) fn describe(&self) -> String {
        format!("encrypted {}, {:?}", self.encrypted, self.state)
    }
}

pub(crate) fn fill(storage: &dyn Storage) {
    let mut rows = WriteBatch::default();
    for row in 0..ROWS {
        let value = Change::New(vec![row as u8; 100]);
        for table in [NUMBERED, LARGE] {
            let changes = rows.tables.entry(table).or_default();
            changes
                .rows
                .insert(row.to_be_bytes().to_vec(), value.clone());
        }
    }
    commit(storage, Durability::Ordered, &rows).expect("commit");
    increment(storage, Durability::Ordered).expect("increment");
}

pub(crate) fn crash(task: &str, argument: &str) {
    let mut child = Helper::start(task, argument);
    assert_eq!(child.hear(), "done");
    child.kill();
}

/// A fixture with nothing in it.
pub(crate) fn empty() -> Fixture {
    Fixture {
        dir: TempDir::new().expect("a folder"),
        encrypted: false,
        state: State::Closed,
    }
}

/// Opens the file as a program of another author would, with the raw key alone.
pub(crate) fn raw(path: &Path, encrypted: bool) -> Connection {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE);
    let connection = connection.expect("open");
    if encrypted {
        let key = format!("PRAGMA key = \"x'{}'\"", "11".repeat(32));
        connection.execute_batch(&key).expect("key");
    }
    connection
}

pub(crate) fn upgrade(connection: &Connection) {
    let newer = format!("PRAGMA user_version = {}", SCHEMA_VERSION + 1);
    connection.execute_batch(&newer).expect("upgrade");
}
