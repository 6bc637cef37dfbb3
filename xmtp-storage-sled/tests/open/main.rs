//! Opening what does not open: each cause has its own error, and nothing on disk changes.
//!
//! Every fixture is tried twice: on a database that was closed, and on one whose process was
//! killed with a commit just acknowledged.

mod fixture;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use libtest_mimic::{Arguments, Failed, Trial};
use xmtp_core::storage::{OpenError, Storage};
use xmtp_storage_sled::{DatabaseKey, SledStorage};

use fixture::{CHILD, COMMITS, Fixture, TABLE, bytes, child, commit, key, open};

fn is_damaged(error: &OpenError) -> bool {
    matches!(error, OpenError::Damaged { .. })
}

fn is_damaged_or_truncated(error: &OpenError) -> bool {
    matches!(error, OpenError::Damaged { .. } | OpenError::Truncated)
}

/// covers: EXT-003
fn wrong_key(crashed: bool) {
    let fixture = Fixture::new(true, crashed);
    let wrong = Some(DatabaseKey::new([8; 32]));
    fixture.refused(wrong, |error| *error == OpenError::WrongKey);
    fixture.opens();
}

/// covers: EXT-003
fn malformed_key(crashed: bool) {
    let fixture = Fixture::new(true, crashed);
    let before = bytes(fixture.dir.path());
    for found in [0, 16, 31, 33, 64] {
        let refused = DatabaseKey::from_slice(&vec![7; found]);
        let expected = OpenError::MalformedKey {
            expected: 32,
            found,
        };
        assert_eq!(refused, Err(expected));
    }
    assert!(bytes(fixture.dir.path()) == before);
    fixture.opens();
}

/// covers: EXT-003
fn key_on_a_plain_database(crashed: bool) {
    let fixture = Fixture::new(false, crashed);
    fixture.refused(Some(key()), |error| *error == OpenError::NotEncrypted);
    fixture.opens();
}

/// covers: EXT-003
fn no_key_on_an_encrypted_database(crashed: bool) {
    let fixture = Fixture::new(true, crashed);
    fixture.refused(None, |error| *error == OpenError::KeyRequired);
    let before = bytes(fixture.dir.path());
    let unchosen = SledStorage::options(fixture.db()).open().map(drop);
    assert_eq!(unchosen, Err(OpenError::KeyRequired));
    assert!(bytes(fixture.dir.path()) == before);
    fixture.opens();
}

/// covers: EXT-003
fn damaged_header(crashed: bool) {
    for keyed in [false, true] {
        let fixture = Fixture::new(keyed, crashed);
        let header = fixture.db().join("xmtp.header");
        let good = fs::read(&header).expect("read");
        for at in [0, 5, 17, 24, 30, 60, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            fs::write(&header, bad).expect("write");
            fixture.refused(keyed.then(key), is_damaged);
        }
        fs::write(&header, b"").expect("write");
        fixture.refused(keyed.then(key), |error| *error == OpenError::Truncated);
        fs::write(&header, &good[..good.len() / 2]).expect("write");
        fixture.refused(keyed.then(key), |error| *error == OpenError::Truncated);
        fs::remove_file(&header).expect("remove");
        fixture.refused(keyed.then(key), is_damaged);
        fs::write(&header, good).expect("write");
        fixture.opens();
    }
}

/// covers: EXT-003
fn damaged_log(crashed: bool) {
    for keyed in [false, true] {
        let fixture = Fixture::new(keyed, crashed);
        let log = fixture.db().join("log").join("db");
        let good = fs::read(&log).expect("read");
        let used = good.iter().rposition(|byte| *byte != 0).expect("bytes");
        // Through the log, in steps that fall on headers, keys and values alike.
        for part in 1..12 {
            let at = used * part / 12;
            let mut bad = good.clone();
            bad[at..(at + 600).min(used)].fill(0xa5);
            fs::write(&log, bad).expect("write");
            fixture.refused(keyed.then(key), is_damaged_or_truncated);
        }
        fs::write(&log, good).expect("write");
        fixture.opens();
    }
}

/// A single changed byte is told and changes nothing, or falls where nothing is stored.
///
/// covers: EXT-003
fn a_changed_byte_of_the_log(crashed: bool) {
    let rounds = env::var("XMTP_ROUNDS").ok().and_then(|n| n.parse().ok());
    let fixture = Fixture::new(crashed, crashed);
    let log = fixture.db().join("log").join("db");
    let good = bytes(&fixture.db());
    let (mut told, mut seed) = (0, 1u64);
    for _ in 0..rounds.unwrap_or(30u64) {
        let mut bad = fs::read(&log).expect("read");
        let used = bad.iter().rposition(|byte| *byte != 0).expect("bytes");
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let at = (seed >> 20) as usize % used;
        bad[at] ^= 1 << (seed >> 60 & 7);
        fs::write(&log, bad).expect("write");
        let before = bytes(&fixture.db());
        match open(&fixture.db(), fixture.keyed.then(key)) {
            Ok(storage) => {
                storage.close().expect("close");
                fixture.opens();
            }
            Err(error) => {
                assert!(is_damaged_or_truncated(&error), "{error:?}");
                assert!(
                    bytes(&fixture.db()) == before,
                    "{error:?} changed the files"
                );
                told += 1;
            }
        }
        restore(&fixture.db(), &good);
    }
    assert!(told > 0, "no changed byte was told");
    fixture.opens();
}

fn restore(dir: &Path, good: &BTreeMap<PathBuf, Option<Vec<u8>>>) {
    fs::remove_dir_all(dir).expect("remove");
    for (path, content) in good {
        match content {
            Some(content) => fs::write(path, content).expect("write"),
            None => fs::create_dir(path).expect("create"),
        }
    }
}

/// covers: EXT-003
fn truncated_log(crashed: bool) {
    for keyed in [false, true] {
        let fixture = Fixture::new(keyed, crashed);
        let log = fixture.db().join("log").join("db");
        let good = fs::read(&log).expect("read");
        let used = good.iter().rposition(|byte| *byte != 0).expect("bytes");
        for len in [0, 1, 10, used / 3, used / 2, used - 2_000] {
            fs::write(&log, &good[..len]).expect("write");
            fixture.refused(keyed.then(key), is_damaged_or_truncated);
        }
        fs::write(&log, b"").expect("write");
        fixture.refused(keyed.then(key), |error| *error == OpenError::Truncated);
        fs::remove_file(&log).expect("remove");
        fixture.refused(keyed.then(key), is_damaged);
        fs::write(&log, good).expect("write");
        fixture.opens();
    }
}

/// covers: EXT-003
fn damaged_mark(crashed: bool) {
    let fixture = Fixture::new(true, crashed);
    let mark = fixture.db().join("xmtp.commits");
    let good = fs::read(&mark).expect("read");
    for bad in [
        &b""[..],
        &good[..9],
        &[0; 32],
        &[good.clone(), vec![0]].concat(),
    ] {
        fs::write(&mark, bad).expect("write");
        fixture.refused(Some(key()), is_damaged);
    }
    fs::remove_file(&mark).expect("remove");
    fixture.refused(Some(key()), is_damaged);
    fs::write(&mark, good).expect("write");
    fixture.opens();
}

/// covers: EXT-003
fn an_older_log_under_a_newer_mark(crashed: bool) {
    let fixture = Fixture::new(true, crashed);
    let older = tempfile::tempdir().expect("a temporary directory");
    copy(&fixture.db().join("log"), older.path());
    let storage = open(&fixture.db(), Some(key())).expect("open");
    commit(&storage, COMMITS + 1);
    storage.close().expect("close");
    fs::remove_dir_all(fixture.db().join("log")).expect("remove");
    copy(older.path(), &fixture.db().join("log"));
    fixture.refused(Some(key()), is_damaged_or_truncated);
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("create");
    for entry in fs::read_dir(from).expect("list") {
        let entry = entry.expect("entry");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("copy");
        }
    }
}

/// covers: EXT-003
fn not_a_database(_crashed: bool) {
    let fixture = Fixture::new(false, false);
    let db = fixture.db();
    fs::remove_dir_all(&db).expect("remove");
    fs::create_dir(&db).expect("create");
    fs::write(db.join("notes.txt"), b"not ours").expect("write");
    let is_foreign = |error: &OpenError| *error == OpenError::NotADatabase;
    fixture.refused(None, is_foreign);
    fixture.refused(Some(key()), is_foreign);
    fs::remove_dir_all(&db).expect("remove");
    for content in [&b""[..], b"short", &[b'x'; 1_000]] {
        fs::write(&db, content).expect("write");
        fixture.refused(None, is_foreign);
        fixture.refused(Some(key()), is_foreign);
    }
}

/// covers: EXT-003
fn another_engines(_crashed: bool) {
    let fixture = Fixture::new(false, false);
    let db = fixture.db();
    fs::remove_dir_all(&db).expect("remove");
    let sqlite = [&b"SQLite format 3\0"[..], &[0; 4_080]].concat();
    fs::write(&db, sqlite).expect("write");
    let is_sqlite = |error: &OpenError| {
        let (expected, found) = ("sled", "sqlite");
        *error == OpenError::OtherEngine { expected, found }
    };
    fixture.refused(None, is_sqlite);
    fixture.refused(Some(key()), is_sqlite);
    // An encrypted one looks like any random bytes.
    let random: Vec<u8> = (0..8_192u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    fs::write(&db, random).expect("write");
    let is_undecided = |error: &OpenError| matches!(error, OpenError::Undecided { .. });
    fixture.refused(None, is_undecided);
    fixture.refused(Some(key()), is_undecided);
}

/// covers: EXT-003
fn newer_schema(crashed: bool) {
    for keyed in [false, true] {
        let fixture = Fixture::new(keyed, crashed);
        let header = fixture.db().join("xmtp.header");
        let good = fs::read(&header).expect("read");
        let newer = [&good[..16], &9u32.to_be_bytes(), &NEWER_CHECK, &good[24..]].concat();
        fs::write(&header, newer).expect("write");
        fixture.refused(keyed.then(key), |error| {
            matches!(error, OpenError::NewerSchema { found: 9, .. })
        });
        fs::write(&header, good).expect("write");
        fixture.opens();
    }
}

/// The check of a header of schema 9.
const NEWER_CHECK: [u8; 4] = [185, 54, 135, 236];

/// covers: EXT-003
fn in_use(_crashed: bool) {
    let fixture = Fixture::new(true, false);
    let held = open(&fixture.db(), Some(key())).expect("open");
    let is_in_use = |error: &OpenError| *error == OpenError::InUse;
    fixture.refused(Some(key()), is_in_use);
    fixture.refused(Some(DatabaseKey::new([8; 32])), is_in_use);
    commit(&held, COMMITS);
    held.close().expect("close");
    fixture.opens();
}

/// A path that cannot be used creates nothing.
fn nothing_is_created(_crashed: bool) {
    let fixture = Fixture::new(false, false);
    fs::remove_dir_all(fixture.db()).expect("remove");
    let unchosen = SledStorage::options(fixture.db()).open().map(drop);
    assert_eq!(unchosen, Err(OpenError::KeyRequired));
    assert!(!fixture.db().exists());
    fs::write(fixture.db(), b"a file in the way").expect("write");
    let below = fixture.db().join("below");
    let before = bytes(fixture.dir.path());
    assert!(open(&below, None).is_err());
    assert!(bytes(fixture.dir.path()) == before);
}

/// A creation that was cut short is begun again.
fn unfinished_creation(_crashed: bool) {
    let fixture = Fixture::new(true, false);
    let db = fixture.db();
    fs::rename(db.join("xmtp.header"), db.join("xmtp.header.new")).expect("rename");
    let storage = open(&db, None).expect("a new database");
    let snapshot = storage.snapshot().expect("snapshot");
    assert_eq!(snapshot.get(TABLE, &1u64.to_be_bytes()), Ok(None));
    drop(snapshot);
    storage.close().expect("close");
    assert!(!db.join("xmtp.header.new").exists());
    assert!(open(&db, None).is_ok());
}

/// A name, and what is done to a closed (`false`) or crashed (`true`) database.
type Case = (&'static str, fn(bool));

const CASES: &[Case] = &[
    ("wrong_key", wrong_key),
    ("malformed_key", malformed_key),
    ("key_on_a_plain_database", key_on_a_plain_database),
    (
        "no_key_on_an_encrypted_database",
        no_key_on_an_encrypted_database,
    ),
    ("damaged_header", damaged_header),
    ("damaged_log", damaged_log),
    ("a_changed_byte_of_the_log", a_changed_byte_of_the_log),
    ("truncated_log", truncated_log),
    ("damaged_mark", damaged_mark),
    (
        "an_older_log_under_a_newer_mark",
        an_older_log_under_a_newer_mark,
    ),
    ("not_a_database", not_a_database),
    ("another_engines", another_engines),
    ("newer_schema", newer_schema),
    ("in_use", in_use),
    ("nothing_is_created", nothing_is_created),
    ("unfinished_creation", unfinished_creation),
];

fn main() {
    if let Some(dir) = env::var_os(CHILD) {
        child(Path::new(&dir));
        return;
    }
    let mut trials = Vec::new();
    for (name, case) in CASES {
        for (suffix, crashed) in [("closed", false), ("crashed", true)] {
            let run = move || -> Result<(), Failed> {
                case(crashed);
                Ok(())
            };
            trials.push(Trial::test(format!("{name}_{suffix}"), run));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
