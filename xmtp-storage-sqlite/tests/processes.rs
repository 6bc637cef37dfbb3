//! Several processes on one database: creation, fair turns, and death at any moment.

mod common;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::*;
use tempfile::TempDir;
use xmtp_core::storage::{Change, Durability, Storage, StorageError, WriteBatch};

/// Runs as a child process when a test asks for it.
#[test]
fn child() {
    let Some((task, dir)) = task() else {
        return;
    };
    let dir = Path::new(&dir);
    match task.as_str() {
        "create" => create(dir),
        "hold" => {
            let storage = open(dir, Some(key())).expect("open");
            let writer = storage
                .writer(PATIENCE, Durability::Ordered)
                .expect("writer");
            say("held");
            told();
            drop(writer);
        }
        "numbered" => number_batches(dir),
        kind => loop_without_pause(dir, kind),
    }
}

/// Opens a new database each time it is told the folder's number, and says how that went.
fn create(dir: &Path) {
    let mut round = 0;
    while say("ready") && told() {
        let made = open(&dir.join(round.to_string()), Some(key()));
        let counted = made.map(|storage| {
            let number = increment(&*storage, Durability::Ordered);
            storage.close().expect("close");
            number
        });
        say(&format!("{counted:?}"));
        round += 1;
    }
}

fn loop_without_pause(dir: &Path, kind: &str) {
    let storage = open(dir, Some(key())).expect("open");
    let durability = match kind {
        "flushed" => Durability::Flushed,
        _ => Durability::Ordered,
    };
    let rows = if kind == "large" { 200 } else { 0 };
    let mut next = 1;
    loop {
        let writer = storage.writer(PATIENCE, durability).expect("writer");
        writer.commit(&numbered(next, rows)).expect("commit");
        if next == 1 {
            say("ready");
        }
        next += 1;
    }
}

/// Commits numbered batches, and says each number after its commit.
fn number_batches(dir: &Path) {
    let storage = open(dir, Some(key())).expect("open");
    let snapshot = storage.snapshot().expect("snapshot");
    let mut next = number(&*snapshot, b"number") + 1;
    drop(snapshot);
    loop {
        commit(&*storage, Durability::Ordered, &numbered(next, 40)).expect("commit");
        if !say(&next.to_string()) {
            return;
        }
        next += 1;
    }
}

/// Makes batch `number`: it stands in a small row and in so many large ones.
fn numbered(number: u64, rows: u64) -> WriteBatch {
    let mut batch = put(SMALL, b"number", &number.to_be_bytes());
    let changes = batch.tables.entry(LARGE).or_default();
    for row in 0..rows {
        let value = [&number.to_be_bytes()[..], &[row as u8; 1000]].concat();
        changes
            .rows
            .insert(row.to_be_bytes().to_vec(), Change::Put(value));
    }
    batch
}

/// A process that commits without pause lets another in before 20 more of its own commits.
///
/// The one that loops counts its commits in the database, and the operating system shows when the
/// other began to wait, so the counts then and within the other's writer differ by exactly those
/// that came between. A try in which nobody was seen to wait was let in at once.
///
/// covers: STR-070
#[cfg(target_os = "linux")]
#[test]
fn a_process_without_pause_lets_the_other_in() {
    /// Commits a process may make while another waits.
    const MOST_COMMITS: u64 = 20;
    /// Tries that the bound has to hold for.
    const TRIES: u64 = 500;
    // What a loop without pause commits each time.
    for kind in ["small", "flushed", "large"] {
        let dir = TempDir::new().expect("a folder");
        let storage = open(dir.path(), Some(key())).expect("open");
        let mut child = Helper::start(kind, &dir.path().display().to_string());
        assert_eq!(child.hear(), "ready");
        let (mut waited, mut tried) = (0, 0);
        while waited < TRIES {
            tried += 1;
            assert!(tried < 20 * TRIES, "hardly a try is seen to wait");
            if let Some(between) = commits_while_waiting(&*storage, dir.path()) {
                assert!(
                    between <= MOST_COMMITS,
                    "{between} commits before try {tried}, {kind}"
                );
                waited += 1;
            }
        }
    }
}

/// Takes the writer on a thread; answers how many commits of the other came while it waited.
#[cfg(target_os = "linux")]
fn commits_while_waiting(storage: &dyn Storage, dir: &Path) -> Option<u64> {
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let writer = storage
                .writer(PATIENCE, Durability::Ordered)
                .expect("writer");
            let within = number(&*writer, b"number");
            writer.commit(&put(SMALL, b"mine", b"")).expect("commit");
            within
        });
        while !waits(dir) {
            if asking.is_finished() {
                asking.join().expect("a writer");
                return None;
            }
        }
        let snapshot = storage.snapshot().expect("snapshot");
        let before = number(&*snapshot, b"number");
        let within = asking.join().expect("a writer");
        Some(within.saturating_sub(before))
    })
}

/// Tells whether this process shows that it waits: it holds the turn file of a folder shared.
#[cfg(target_os = "linux")]
fn waits(dir: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let files = fs::read_dir(dir).expect("the folder").flatten();
    let turn = files
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|ending| ending == "turn"));
    let inode = fs::metadata(turn.expect("the turn file")).expect("its metadata");
    let inode = format!(":{}", inode.ino());
    let process = std::process::id().to_string();
    let locks = fs::read_to_string("/proc/locks").expect("the locks of the system");
    locks.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_shared = fields.contains(&"FLOCK") && fields.contains(&"READ");
        is_shared
            && fields.contains(&process.as_str())
            && fields.iter().any(|field| field.ends_with(&inode))
    })
}

/// Threads and processes wait, however many and short their transactions are: no lock error
/// comes up, and no commit is lost (B62, B64).
///
/// covers: STR-070
#[test]
fn crowded_writers_wait_and_do_not_fail() {
    let dir = TempDir::new().expect("a folder");
    let storage = open(dir.path(), Some(key())).expect("open");
    let mut child = Helper::start("large", &dir.path().display().to_string());
    assert_eq!(child.hear(), "ready");
    let rounds = rounds(50);
    let counter = |thread: u64| [b"thread".to_vec(), thread.to_be_bytes().to_vec()].concat();
    let count = |thread: u64| -> Result<(), StorageError> {
        for round in 1..=rounds {
            let snapshot = storage.snapshot()?;
            let before = number(&*snapshot, &counter(thread));
            let writer = storage.writer(PATIENCE, Durability::Ordered)?;
            assert_eq!(before, round - 1);
            assert_eq!(number(&*writer, &counter(thread)), before);
            writer.commit(&put(SMALL, &counter(thread), &round.to_be_bytes()))?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| scope.spawn(move || count(thread)))
            .collect();
        for thread in threads {
            thread.join().expect("join").expect("no lock error");
        }
    });
}

/// A writer takes the write lock before it reads: what it has read cannot be overtaken, and its
/// commit is never refused for having read first (B64).
///
/// covers: STR-070, STR-071
#[test]
fn a_writer_is_immediate() {
    let dir = TempDir::new().expect("a folder");
    let one = open(dir.path(), Some(key())).expect("open");
    let two = open(dir.path(), Some(key())).expect("open again");
    for round in 1..=20 {
        let writer = one.writer(PATIENCE, Durability::Ordered).expect("writer");
        let other = two
            .writer(std::time::Duration::ZERO, Durability::Ordered)
            .map(drop);
        assert!(matches!(other, Err(StorageError::Busy { .. })), "{other:?}");
        let next = number(&*writer, b"number") + 1;
        writer
            .commit(&put(SMALL, b"number", &next.to_be_bytes()))
            .expect("commit");
        assert_eq!(increment(&*two, Durability::Ordered), Ok(2 * round));
    }
}

/// Two processes that create one database at the same time both get it (B67).
///
/// covers: EXT-003
#[test]
fn two_processes_create_one_database() {
    let dir = TempDir::new().expect("a folder");
    let path = dir.path().display().to_string();
    let mut children = [
        Helper::start("create", &path),
        Helper::start("create", &path),
    ];
    for round in 0..rounds(20) {
        fs::create_dir(dir.path().join(round.to_string())).expect("a folder");
        for child in &mut children {
            assert_eq!(child.hear(), "ready");
        }
        children.iter_mut().for_each(Helper::tell);
        let mut said: Vec<String> = children.iter_mut().map(Helper::hear).collect();
        said.sort();
        assert_eq!(said, ["Ok(Ok(1))", "Ok(Ok(2))"], "round {round}");
    }
}

/// A process killed with the writer out blocks nobody, and leaves nothing of its own (B63).
///
/// covers: STR-070, STR-077
#[test]
fn a_killed_writer_blocks_nobody() {
    let dir = TempDir::new().expect("a folder");
    let storage = open(dir.path(), Some(key())).expect("open");
    for round in 1..=rounds(5) {
        let mut child = Helper::start("hold", &dir.path().display().to_string());
        assert_eq!(child.hear(), "held");
        let busy = storage
            .writer(std::time::Duration::ZERO, Durability::Ordered)
            .map(drop);
        assert!(matches!(busy, Err(StorageError::Busy { .. })), "{busy:?}");
        child.kill();
        assert_eq!(increment(&*storage, Durability::Ordered), Ok(round));
        let again = open(dir.path(), Some(key())).expect("open after a kill");
        again.close().expect("close");
    }
}

/// SIGKILL in the middle of commits leaves whole batches, up to the last that was acknowledged.
///
/// covers: STR-077
#[test]
fn a_kill_in_the_middle_of_commits_tears_nothing() {
    let dir = TempDir::new().expect("a folder");
    let mut last = 0;
    for round in 0..rounds(6) {
        let mut child = Helper::start("numbered", &dir.path().display().to_string());
        for _ in 0..=(round * 5) % 23 {
            last = child.hear().parse().expect("a number");
        }
        child.kill();
        while let Some(said) = child.try_hear() {
            last = said.parse().expect("a number");
        }
        let storage = open(dir.path(), Some(key())).expect("open after a kill");
        let snapshot = storage.snapshot().expect("snapshot");
        let found = number(&*snapshot, b"number");
        assert!(
            found == last || found == last + 1,
            "{last} was acknowledged, {found} is there"
        );
        for row in 0..40u64 {
            let value = snapshot
                .get(LARGE, &row.to_be_bytes())
                .expect("get")
                .expect("a row");
            assert_eq!(value[..8], found.to_be_bytes(), "a torn batch");
        }
        last = found;
    }
}

/// The log stays within its bound while there is a reader at every moment, if none stays.
#[test]
fn the_log_is_bounded_under_readers() {
    const CHECKPOINT_PAGES: u32 = 100;
    let dir = TempDir::new().expect("a folder");
    let options = options(dir.path(), None).checkpoint_pages(CHECKPOINT_PAGES);
    let storage = options.open().expect("open");
    storage.open_tables(TABLES).expect("open tables");
    let log = dir.path().join("x.db-wal");
    let stop = AtomicBool::new(false);
    let mut largest = 0;
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| overlap_snapshots(&*storage, &stop));
        }
        for number in 1..=rounds(100) {
            let batch = numbered(number, 200);
            commit(&*storage, Durability::Ordered, &batch).expect("commit");
            largest = largest.max(fs::metadata(&log).expect("the log").len());
        }
        stop.store(true, Ordering::Release);
    });
    // Commits insist from four times the checkpoint size on, and may have to try again.
    let bound = 4120 * 16 * u64::from(CHECKPOINT_PAGES);
    assert!(largest <= bound, "{largest} bytes, the bound is {bound}");
}

/// Takes each snapshot before it lets the last one go.
fn overlap_snapshots(storage: &dyn Storage, stop: &AtomicBool) {
    let mut last = storage.snapshot().expect("snapshot");
    while !stop.load(Ordering::Acquire) {
        assert!(
            number(&*last, b"number") <= number(&*storage.snapshot().expect("snapshot"), b"number")
        );
        last = storage.snapshot().expect("snapshot");
    }
}
