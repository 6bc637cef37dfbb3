//! What the tests share: a small table, rows, a picture of a folder, and child processes.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use xmtp_core::storage::{
    Change, Durability, KeyRange, Layout, OpenError, Order, Page, Snapshot, Storage, StorageError,
    TableId, TableInfo, WriteBatch,
};
use xmtp_storage_sqlite::{DatabaseKey, SqliteOptions, SqliteStorage};

pub(crate) const SMALL: TableId = TableId(901);
pub(crate) const LARGE: TableId = TableId(902);
pub(crate) const NUMBERED: TableId = TableId(903);
pub(crate) const TABLES: &[TableInfo] = &[
    info(SMALL, "small", Layout::Small),
    info(LARGE, "large", Layout::Large),
    info(NUMBERED, "numbered", Layout::Numbered),
];

/// How long a writer waits that has to be served; only a defect lets it pass.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// A page larger than any table of the tests.
pub(crate) const ALL: Page = Page {
    rows: u32::MAX,
    bytes: u32::MAX,
    order: Order::Ascending,
};

const fn info(id: TableId, name: &'static str, layout: Layout) -> TableInfo {
    TableInfo { id, name, layout }
}

/// Answers the size of a long loop: `small`, or what `XMTP_ROUNDS` asks for.
pub(crate) fn rounds(small: u64) -> u64 {
    let asked = std::env::var("XMTP_ROUNDS").ok();
    asked
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(0)
        .max(small)
}

pub(crate) fn key() -> DatabaseKey {
    DatabaseKey::new([0x11; 32])
}

/// Opens the database of the tests in `dir`.
pub(crate) fn options(dir: &Path, key: Option<DatabaseKey>) -> SqliteOptions {
    let options = SqliteStorage::options(dir.join("x.db"));
    match key {
        Some(key) => options.key(key),
        None => options.plain(),
    }
}

/// Opens the database of the tests in `dir`, with its tables.
pub(crate) fn open(dir: &Path, key: Option<DatabaseKey>) -> Result<Arc<SqliteStorage>, OpenError> {
    let storage = options(dir, key).open()?;
    storage.open_tables(TABLES)?;
    Ok(storage)
}

/// Makes a batch of one kind of change.
pub(crate) fn batch<'r>(
    table: TableId,
    rows: impl IntoIterator<Item = (&'r [u8], Change)>,
) -> WriteBatch {
    let mut batch = WriteBatch::default();
    let changes = batch.tables.entry(table).or_default();
    changes
        .rows
        .extend(rows.into_iter().map(|(key, change)| (key.to_vec(), change)));
    batch
}

pub(crate) fn put(table: TableId, key: &[u8], value: &[u8]) -> WriteBatch {
    batch(table, [(key, Change::Put(value.to_vec()))])
}

pub(crate) fn commit(
    storage: &dyn Storage,
    durability: Durability,
    batch: &WriteBatch,
) -> Result<(), StorageError> {
    storage.writer(PATIENCE, durability)?.commit(batch)
}

/// Reads a number at a key; zero when absent.
pub(crate) fn number(snapshot: &(impl Snapshot + ?Sized), key: &[u8]) -> u64 {
    let value = snapshot.get(SMALL, key).expect("get");
    value.map_or(0, |value| {
        u64::from_be_bytes(value[..8].try_into().expect("eight bytes"))
    })
}

/// Adds one to a number in one transaction, and answers the new one.
pub(crate) fn increment(
    storage: &dyn Storage,
    durability: Durability,
) -> Result<u64, StorageError> {
    let writer = storage.writer(PATIENCE, durability)?;
    let next = number(&*writer, b"number") + 1;
    writer.commit(&put(SMALL, b"number", &next.to_be_bytes()))?;
    Ok(next)
}

/// Counts the rows of a table.
pub(crate) fn count(storage: &dyn Storage, table: TableId) -> usize {
    let range = KeyRange {
        start: &[],
        end: None,
    };
    let snapshot = storage.snapshot().expect("snapshot");
    snapshot.scan(table, range, ALL).expect("scan").len()
}

/// Reads every file below a folder.
pub(crate) fn picture(dir: &Path) -> BTreeMap<String, Option<Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).expect("list the folder") {
        let path = entry.expect("an entry").path();
        let name = path.display().to_string();
        if path.is_dir() {
            files.extend(picture(&path));
            files.insert(name, None);
        } else {
            files.insert(name, Some(fs::read(&path).expect("read a file")));
        }
    }
    files
}

const TASK: &str = "XMTP_SQLITE_TEST_TASK";
const MARK: &str = "@child ";

/// The task of this process, when a test started it: a name and an argument.
pub(crate) fn task() -> Option<(String, String)> {
    let task = std::env::var(TASK).ok()?;
    let (name, argument) = task.split_once(' ').expect("a name and an argument");
    Some((name.to_owned(), argument.to_owned()))
}

/// Says a line to the parent; false when it is gone.
pub(crate) fn say(words: &str) -> bool {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{words}")
        .and_then(|()| out.flush())
        .is_ok()
}

/// Waits for a line of the parent; false when it is gone.
pub(crate) fn told() -> bool {
    std::io::stdin()
        .lock()
        .read_line(&mut String::new())
        .unwrap_or(0)
        > 0
}

/// A child process that runs the test `child` of this binary; killed when dropped.
pub(crate) struct Helper {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Helper {
    pub(crate) fn start(name: &str, argument: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", "child", "--nocapture"])
            .env(TASK, format!("{name} {argument}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start a child");
        let input = child.stdin.take().expect("its input");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Self {
            child,
            input,
            output,
        }
    }

    /// Reads the next line of the child; `None` when it has ended.
    pub(crate) fn try_hear(&mut self) -> Option<String> {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap_or(0) > 0 {
            // A line that a kill cut short was not said.
            if let (Some(said), true) = (line.split(MARK).nth(1), line.ends_with('\n')) {
                return Some(said.trim_end().to_owned());
            }
            line.clear();
        }
        None
    }

    pub(crate) fn hear(&mut self) -> String {
        self.try_hear().expect("the child said something")
    }

    pub(crate) fn tell(&mut self) {
        self.input
            .write_all(b"\n")
            .and_then(|()| self.input.flush())
            .expect("tell the child");
    }

    /// Ends the child as a crash would (SIGKILL on Unix).
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().expect("the child is gone");
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.kill();
    }
}
