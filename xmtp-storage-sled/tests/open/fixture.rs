//! Databases to spoil, and a look at every byte of them.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use xmtp_core::storage::{
    Change, Durability, Layout, OpenError, Storage, TableId, TableInfo, WriteBatch,
};
use xmtp_storage_sled::{DatabaseKey, SledStorage};

pub(crate) const CHILD: &str = "XMTP_SLED_OPEN_DIR";
const KEYED: &str = "XMTP_SLED_OPEN_KEYED";
pub(crate) const TABLE: TableId = TableId(900);
pub(crate) const COMMITS: u64 = 40;

pub(crate) fn key() -> DatabaseKey {
    DatabaseKey::new([7; 32])
}

pub(crate) fn open(dir: &Path, key: Option<DatabaseKey>) -> Result<Arc<SledStorage>, OpenError> {
    let options = SledStorage::options(dir);
    let storage = match key {
        Some(key) => options.key(key),
        None => options.plain(),
    };
    let storage = storage.open()?;
    storage.open_tables(&[TableInfo {
        id: TABLE,
        name: "notes",
        layout: Layout::Large,
    }])?;
    Ok(storage)
}

pub(crate) fn commit(storage: &SledStorage, number: u64) {
    let mut batch = WriteBatch::default();
    let rows = &mut batch.tables.entry(TABLE).or_default().rows;
    rows.insert(
        number.to_be_bytes().to_vec(),
        Change::Put(vec![number as u8; 3_000]),
    );
    let writer = storage.writer(Duration::from_secs(5), Durability::Flushed);
    writer.expect("writer").commit(&batch).expect("commit");
}

/// A database to spoil, closed or crashed.
pub(crate) struct Fixture {
    pub(crate) dir: TempDir,
    pub(crate) keyed: bool,
    crashed: bool,
}

impl Fixture {
    pub(crate) fn new(keyed: bool, crashed: bool) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let fixture = Self {
            dir,
            keyed,
            crashed,
        };
        if crashed {
            crash(&fixture.db(), keyed);
        } else {
            let storage = open(&fixture.db(), keyed.then(key)).expect("open");
            (1..=COMMITS).for_each(|number| commit(&storage, number));
            storage.close().expect("close");
        }
        fixture
    }

    pub(crate) fn db(&self) -> PathBuf {
        self.dir.path().join("db")
    }

    /// Opens, wants an error that fits, and wants every byte as it was.
    pub(crate) fn refused(&self, key: Option<DatabaseKey>, fits: fn(&OpenError) -> bool) {
        let before = bytes(self.dir.path());
        for _ in 0..2 {
            let error = open(&self.db(), key.clone()).expect_err("does not open");
            let keyed = self.keyed;
            assert!(
                fits(&error),
                "{error:?} (keyed {keyed}, crashed {})",
                self.crashed
            );
            assert!(
                bytes(self.dir.path()) == before,
                "{error:?} changed the files"
            );
        }
    }

    /// Opens after all: the refusals did no harm.
    pub(crate) fn opens(&self) {
        let storage = open(&self.db(), self.keyed.then(key)).expect("open");
        let snapshot = storage.snapshot().expect("snapshot");
        for number in 1..=COMMITS {
            let value = snapshot.get(TABLE, &number.to_be_bytes()).expect("get");
            assert_eq!(value, Some(vec![number as u8; 3_000]));
        }
        drop(snapshot);
        storage.close().expect("close");
    }
}

/// Every file below a directory with its bytes, and every directory.
pub(crate) fn bytes(dir: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    if dir.is_file() {
        found.insert(dir.to_owned(), fs::read(dir).ok());
        return found;
    }
    found.insert(dir.to_owned(), None);
    for entry in fs::read_dir(dir).into_iter().flatten() {
        found.extend(bytes(&entry.expect("entry").path()));
    }
    found
}

/// Lets a child commit, and kills it after it has acknowledged the last commit.
fn crash(dir: &Path, keyed: bool) {
    let mut command = Command::new(env::current_exe().expect("this test"));
    command
        .env(CHILD, dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    if keyed {
        command.env(KEYED, "1");
    }
    let mut child = command.spawn().expect("start the child");
    let mut line = String::new();
    let output = child.stdout.take().expect("its output");
    BufReader::new(output)
        .read_line(&mut line)
        .expect("its word");
    assert_eq!(line, "committed\n");
    child.kill().expect("kill");
    child.wait().expect("wait");
}

pub(crate) fn child(dir: &Path) {
    let storage = open(dir, env::var_os(KEYED).map(|_| key())).expect("open");
    (1..=COMMITS).for_each(|number| commit(&storage, number));
    let _ = writeln!(io::stdout(), "committed");
    // Holds the database until it is killed, or until nobody is there to do it.
    let _ = io::stdin().read_line(&mut String::new());
}
