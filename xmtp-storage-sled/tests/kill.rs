//! A process that is killed at random in a loop of commits loses none that it acknowledged and
//! leaves none half done. This is about the process; power loss is sled's word.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use xmtp_core::storage::{
    Change, Durability, KeyRange, Layout, Order, Page, Snapshot, Storage, StorageError, TableId,
    TableInfo, WriteBatch,
};
use xmtp_storage_sled::{DatabaseKey, SledStorage};

const DIR: &str = "XMTP_SLED_KILL_DIR";
const MODE: &str = "XMTP_SLED_KILL_MODE";
/// Rows of a batch beside the one that carries its number.
const ROWS: u64 = 60;
const NUMBER: TableId = TableId(900);
const ROW: TableId = TableId(901);
const TABLES: &[TableInfo] = &[
    TableInfo {
        id: NUMBER,
        name: "number",
        layout: Layout::Small,
    },
    TableInfo {
        id: ROW,
        name: "row",
        layout: Layout::Large,
    },
];

fn open(dir: &Path, mode: &str) -> Arc<SledStorage> {
    let options = SledStorage::options(dir);
    let options = match mode {
        "sealed" => options.key(DatabaseKey::new([9; 32])),
        _ => options.plain(),
    };
    let storage = options.open().expect("open");
    storage.open_tables(TABLES).expect("open the tables");
    storage
}

fn number(snapshot: &dyn Snapshot) -> u64 {
    let stored = snapshot.get(NUMBER, b"last").expect("get");
    stored.map_or(0, |bytes| {
        u64::from_be_bytes(bytes.try_into().expect("eight bytes"))
    })
}

/// Batch `number` replaces its rows, deletes every third and brings values of many sizes.
fn batch(number: u64) -> WriteBatch {
    let mut batch = WriteBatch::default();
    let last = Change::Put(number.to_be_bytes().to_vec());
    let rows = &mut batch.tables.entry(NUMBER).or_default().rows;
    rows.insert(b"last".to_vec(), last);
    let rows = &mut batch.tables.entry(ROW).or_default().rows;
    for row in 0..ROWS {
        let change = if (row + number).is_multiple_of(3) {
            Change::Delete
        } else {
            Change::Put(value(number, row))
        };
        rows.insert(row.to_be_bytes().to_vec(), change);
    }
    batch
}

fn value(number: u64, row: u64) -> Vec<u8> {
    let len = [0, 10, 1_000, 9_000][(row % 4) as usize];
    let mut value = number.to_be_bytes().to_vec();
    value.resize(8 + len, row as u8);
    value
}

/// Checks that the last batch is there whole, and answers its number.
fn whole_batch(storage: &SledStorage) -> u64 {
    let snapshot = storage.snapshot().expect("snapshot");
    let last = number(&*snapshot);
    let all = KeyRange {
        start: b"",
        end: None,
    };
    let page = Page {
        rows: 1_000,
        bytes: 1 << 30,
        order: Order::Ascending,
    };
    let found = snapshot.scan(ROW, all, page).expect("scan");
    let expected = (0..ROWS).filter(|row| last > 0 && !(row + last).is_multiple_of(3));
    let expected: Vec<(Vec<u8>, Vec<u8>)> = expected
        .map(|row| (row.to_be_bytes().to_vec(), value(last, row)))
        .collect();
    assert_eq!(found.len(), expected.len(), "a torn batch");
    for ((key, value), (expected_key, expected_value)) in found.iter().zip(&expected) {
        assert_eq!(key, expected_key, "a torn batch");
        assert!(value == expected_value, "a torn batch");
    }
    last
}

/// Commits batches until it is killed, and says the number of each.
fn child(dir: &Path, mode: &str) {
    let storage = open(dir, mode);
    let mut next = number(&*storage.snapshot().expect("snapshot")) + 1;
    loop {
        let durability = match next % 2 {
            0 => Durability::Flushed,
            _ => Durability::Ordered,
        };
        let writer = storage.writer(Duration::from_secs(5), durability);
        let committed: Result<(), StorageError> = writer.and_then(|w| w.commit(&batch(next)));
        committed.expect("commit");
        if writeln!(io::stdout(), "{next}").is_err() {
            return;
        }
        next += 1;
    }
}

fn start(dir: &Path, mode: &str) -> (Child, BufReader<ChildStdout>) {
    let mut command = Command::new(env::current_exe().expect("this test"));
    command.env(DIR, dir).env(MODE, mode).stdout(Stdio::piped());
    let mut child = command.spawn().expect("start the child");
    let output = child.stdout.take().expect("its output");
    (child, BufReader::new(output))
}

/// Whole lines only: what a kill cut short was not said.
fn hear(output: &mut BufReader<ChildStdout>) -> Option<u64> {
    let mut line = String::new();
    let read = output.read_line(&mut line).unwrap_or(0);
    (read > 0 && line.ends_with('\n')).then(|| line.trim().parse().expect("a number"))
}

/// covers: STR-077, STR-063
fn rounds(mode: &str) -> Result<(), Failed> {
    let rounds = env::var("XMTP_ROUNDS").ok().and_then(|n| n.parse().ok());
    let dir = tempfile::tempdir()?;
    let mut before = 0;
    for round in 0..rounds.unwrap_or(24u64) {
        let (mut child, mut output) = start(dir.path(), mode);
        let mut said = before;
        // One more batch each time, so that the kill meets every phase of the log.
        for _ in 0..=round % 17 {
            said = hear(&mut output).ok_or("the child ended by itself")?;
        }
        child.kill()?;
        child.wait()?;
        while let Some(number) = hear(&mut output) {
            said = number;
        }
        let storage = open(dir.path(), mode);
        let last = whole_batch(&storage);
        assert!(
            last == said || last == said + 1,
            "{said} said, {last} there"
        );
        assert!(last > before);
        before = last;
        storage.close()?;
    }
    Ok(())
}

fn main() {
    if let (Some(dir), Ok(mode)) = (env::var_os(DIR), env::var(MODE)) {
        child(Path::new(&dir), &mode);
        return;
    }
    let trials = ["plain", "sealed"].map(|mode| {
        let name = format!("killed_between_and_within_commits_{mode}");
        Trial::test(name, move || rounds(mode))
    });
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit();
}
