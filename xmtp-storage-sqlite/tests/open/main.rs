//! A failed open says why, and has touched nothing: each cause from its own fixture, with and
//! without the log of a crash beside it.

#[path = "../common/mod.rs"]
mod common;
mod fixture;

use std::fs;
use std::path::Path;

use common::*;
use fixture::*;
use rusqlite::Connection;
use xmtp_core::storage::schema::SCHEMA_VERSION;
use xmtp_core::storage::{Durability, OpenError, Storage};
use xmtp_storage_sqlite::DatabaseKey;

/// Runs as a child process when a test asks for it.
#[test]
fn child() {
    let Some((task, argument)) = task() else {
        return;
    };
    let (mode, dir) = argument.split_once(' ').expect("a mode and a folder");
    let (key, dir) = ((mode == "encrypted").then(key), Path::new(dir));
    match task.as_str() {
        "fill" => {
            let storage = open(dir, key).expect("open");
            fill(&*storage);
            say_and_wait();
        }
        "touch" => {
            let storage = open(dir, key).expect("open");
            increment(&*storage, Durability::Ordered).expect("increment");
            say_and_wait();
        }
        "newer" => {
            let connection = raw(&dir.join("x.db"), mode == "encrypted");
            upgrade(&connection);
            say_and_wait();
        }
        "exclude" => {
            let connection = raw(&dir.join("x.db"), mode == "encrypted");
            let exclude = "PRAGMA locking_mode = EXCLUSIVE; BEGIN IMMEDIATE; COMMIT";
            connection.execute_batch(exclude).expect("exclude others");
            say_and_wait();
        }
        other => panic!("no task {other}"),
    }
}

fn say_and_wait() {
    say("done");
    told();
}

/// covers: EXT-003
#[test]
fn a_whole_database_opens_after_a_crash_or_none() {
    for fixture in Fixture::all() {
        fixture.opens();
        fixture.opens();
    }
}

/// covers: EXT-003
#[test]
fn a_wrong_key_is_told_and_touches_nothing() {
    for fixture in Fixture::of(true) {
        let wrong = DatabaseKey::new([0x12; 32]);
        let refused = fixture.refusal_with(Some(wrong));
        assert_eq!(refused, OpenError::WrongKey, "{}", fixture.describe());
        fixture.opens();
    }
}

/// covers: EXT-003
#[test]
fn a_key_on_a_plain_database_is_told_and_touches_nothing() {
    for fixture in Fixture::of(false) {
        let refused = fixture.refusal_with(Some(key()));
        assert_eq!(refused, OpenError::NotEncrypted, "{}", fixture.describe());
        fixture.opens();
    }
}

/// covers: EXT-003
#[test]
fn no_key_on_an_encrypted_database_is_told_and_touches_nothing() {
    for fixture in Fixture::of(true) {
        let refused = fixture.refusal_with(None);
        assert_eq!(refused, OpenError::KeyRequired, "{}", fixture.describe());
        fixture.opens();
    }
}

/// covers: EXT-003
#[test]
fn a_second_open_in_this_process_is_checked_against_the_first() {
    for encrypted in MODES {
        let fixture = Fixture::new(encrypted, State::Closed);
        let first = open(fixture.path(), fixture.key()).expect("open");
        let wrong = Some(DatabaseKey::new([0x12; 32]));
        let refused = [
            fixture.refusal_with(wrong),
            fixture.refusal_with((!encrypted).then(key)),
        ];
        let expected = match encrypted {
            true => [OpenError::WrongKey, OpenError::KeyRequired],
            false => [OpenError::NotEncrypted, OpenError::NotEncrypted],
        };
        assert_eq!(refused, expected);
        let second = open(fixture.path(), fixture.key()).expect("open again");
        first.close().expect("close");
        assert_eq!(count(&*second, NUMBERED), ROWS as usize);
    }
}

type Damage = fn(&mut [u8]);

/// What may happen to a first page.
fn damages() -> [(&'static str, Damage); 5] {
    [
        ("zeros", |page| page.fill(0)),
        ("noise", noise),
        ("its header is noise", |page| noise(&mut page[..100])),
        ("its header is text", |page| page[..100].fill(b'#')),
        ("one bit each", |page| {
            page.iter_mut().step_by(64).for_each(|byte| *byte ^= 1)
        }),
    ]
}

/// Fills with bytes that look random.
fn noise(bytes: &mut [u8]) {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for byte in bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = (state >> 32) as u8;
    }
}

/// With the log of everything beside it, the first page of the file is not the one that counts.
///
/// covers: EXT-003
#[test]
fn a_damaged_first_page_is_told_unless_the_log_has_another() {
    for (what, damage) in damages() {
        for fixture in Fixture::all() {
            fixture.edit(|bytes| damage(&mut bytes[..4096]));
            if fixture.state == State::Unsettled {
                fixture.opens();
                continue;
            }
            let refused = fixture.refusal();
            let told = matches!(refused, OpenError::Damaged { .. });
            assert!(told, "{refused:?}: {what}, {}", fixture.describe());
        }
    }
}

/// covers: EXT-003
#[test]
fn a_damaged_first_page_without_its_key_is_not_called_a_wrong_key() {
    for fixture in Fixture::of(true) {
        fixture.edit(|bytes| noise(&mut bytes[..4096]));
        let refused = fixture.refusal_with(None);
        if fixture.state == State::Unsettled {
            assert_eq!(refused, OpenError::KeyRequired);
            continue;
        }
        let told = matches!(refused, OpenError::Undecided { .. });
        assert!(told, "{refused:?}: {}", fixture.describe());
        let refused = fixture.refusal_with(Some(DatabaseKey::new([0x12; 32])));
        assert!(
            matches!(refused, OpenError::Undecided { .. }),
            "{refused:?}"
        );
    }
}

/// covers: EXT-003
#[test]
fn a_truncated_file_is_told() {
    for fixture in Fixture::all() {
        let whole = fs::metadata(fixture.file()).expect("metadata").len() as usize;
        let cuts = [
            0,
            1,
            100,
            3000,
            4096,
            4097,
            whole / 8192 * 4096,
            whole - 4096,
            whole - 1,
        ];
        for cut in cuts.into_iter().filter(|&cut| cut < whole) {
            if fixture.state == State::Unsettled && cut > 0 {
                continue; // everything is in the log
            }
            let bytes = fs::read(fixture.file()).expect("read");
            fixture.edit(|bytes| bytes.truncate(cut));
            let refused = fixture.refusal();
            let place = format!("{refused:?} at {cut} of {whole}, {}", fixture.describe());
            assert_eq!(refused, OpenError::Truncated, "{place}");
            fs::write(fixture.file(), bytes).expect("restore");
        }
        fixture.opens();
    }
}

/// covers: EXT-003
#[test]
fn a_log_without_its_file_is_damage_and_no_new_database() {
    for encrypted in MODES {
        let fixture = Fixture::new(encrypted, State::Settled);
        fs::remove_file(fixture.file()).expect("remove");
        let refused = fixture.refusal();
        assert!(matches!(refused, OpenError::Damaged { .. }), "{refused:?}");
    }
}

/// covers: EXT-003
#[test]
fn what_is_not_a_database_is_told() {
    let mut random = vec![0; 65_536];
    noise(&mut random);
    let text = "The quick brown fox. ".repeat(2000).into_bytes();
    let files = [
        text[..20].to_vec(),
        text[..8192].to_vec(),
        text,
        random[..5000].to_vec(),
    ];
    for bytes in files {
        for key in [None, Some(key())] {
            let fixture = empty();
            fs::write(fixture.file(), &bytes).expect("write");
            assert_eq!(fixture.refusal_with(key), OpenError::NotADatabase);
        }
    }
    for key in [None, Some(key())] {
        let fixture = empty();
        fs::write(fixture.file(), &random).expect("write");
        let refused = fixture.refusal_with(key);
        assert!(
            matches!(refused, OpenError::Undecided { .. }),
            "{refused:?}"
        );
    }
    let fixture = empty();
    let foreign = Connection::open(fixture.file()).expect("create");
    foreign
        .execute_batch("CREATE TABLE theirs (x)")
        .expect("fill");
    foreign.close().expect("close");
    assert_eq!(fixture.refusal_with(None), OpenError::NotADatabase);
    let fixture = empty();
    fs::create_dir(fixture.file()).expect("a folder");
    assert_eq!(fixture.refusal_with(None), OpenError::NotADatabase);
}

/// covers: EXT-003
#[test]
fn a_database_of_the_other_engine_is_told() {
    for files in [
        &["xmtp.header"][..],
        &["conf", "db"],
        &["conf", "db", "xmtp.header"],
    ] {
        for key in [None, Some(key())] {
            let fixture = empty();
            fs::create_dir(fixture.file()).expect("a folder");
            for file in files {
                fs::write(fixture.file().join(file), b"theirs").expect("write");
            }
            let other = OpenError::OtherEngine {
                expected: "sqlite",
                found: "sled",
            };
            assert_eq!(fixture.refusal_with(key), other);
        }
    }
}

/// covers: EXT-003
#[test]
fn a_newer_schema_is_told_also_when_only_the_log_has_it() {
    for fixture in Fixture::all() {
        if fixture.state == State::Closed {
            let connection = raw(&fixture.file(), fixture.encrypted);
            upgrade(&connection);
            connection.close().expect("close");
        } else {
            let mode = if fixture.encrypted {
                "encrypted"
            } else {
                "plain"
            };
            crash("newer", &format!("{mode} {}", fixture.path().display()));
        }
        let newer = OpenError::NewerSchema {
            found: SCHEMA_VERSION + 1,
            supported: SCHEMA_VERSION,
        };
        assert_eq!(fixture.refusal(), newer, "{}", fixture.describe());
    }
}

/// covers: EXT-003
#[test]
fn a_database_in_exclusive_use_is_told() {
    for fixture in Fixture::all() {
        let mode = if fixture.encrypted {
            "encrypted"
        } else {
            "plain"
        };
        let mut child = Helper::start("exclude", &format!("{mode} {}", fixture.path().display()));
        assert_eq!(child.hear(), "done");
        assert_eq!(
            fixture.refusal(),
            OpenError::InUse,
            "{}",
            fixture.describe()
        );
        child.kill();
        fixture.opens();
    }
}

/// covers: EXT-003
#[test]
fn a_missing_folder_is_told_and_not_made() {
    let fixture = empty();
    let path = fixture.path().join("no").join("x.db");
    let refused = xmtp_storage_sqlite::SqliteStorage::options(path)
        .open()
        .map(drop);
    assert!(matches!(refused, Err(OpenError::Io { .. })), "{refused:?}");
    assert!(picture(fixture.path()).is_empty());
}

/// covers: EXT-003
#[test]
fn a_draft_left_by_a_crash_is_no_obstacle() {
    for encrypted in MODES {
        let fixture = Fixture {
            encrypted,
            ..empty()
        };
        fs::write(fixture.path().join("x.db.new"), b"half").expect("write");
        let storage = open(fixture.path(), fixture.key()).expect("open");
        fill(&*storage);
        storage.close().expect("close");
        fixture.opens();
        let names = [fixture.file(), fixture.path().join("x.db.turn")];
        let names: Vec<_> = names
            .iter()
            .map(|name| name.display().to_string())
            .collect();
        assert!(picture(fixture.path()).into_keys().eq(names));
    }
}
