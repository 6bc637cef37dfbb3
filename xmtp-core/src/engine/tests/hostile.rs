//! Whoever writes to topics without end keeps nobody else from their turns: counted in looks and
//! attempts, on virtual time.

use super::play::Act;
use super::world::{SECOND, World, topic};
use crate::limits::{MAX_ADMISSION_ROWS, TURN_TARGET_BYTES, max_pending_rows};
use crate::processor::{Blocked, Rejected, Verdict};
use crate::testing::scripted::{INSTALLATION, group_envelope, welcome_envelope};
use xmtp_proto::{GroupId, TopicKind};

/// The bytes of an envelope that is nearly as large as the backend takes.
const LARGE: usize = 1024 * 1024 - 1024;
/// As many of them as one topic may hold.
const MOST_LARGE: usize = 30;
/// Groups of honest people.
const HONEST: std::ops::Range<u8> = 10..18;

/// Fills three topics, whose places in the ring are the first, with what hostile members send.
fn beset(world: &World) {
    for name in [1, 2, 3] {
        world.join(name);
    }
    let invalid = Act::Is(Verdict::Rejected(Rejected::InvalidCommit));
    world.play.always("commit invalid", invalid);
    let blocked = Act::Is(Verdict::Blocked(Blocked::Unsupported));
    world.play.always("commit later", blocked);
    for page in 0..4u64 {
        let rows: Vec<(u64, &str)> = (1..=MAX_ADMISSION_ROWS as u64)
            .map(|row| (page * 1_000 + row, "commit invalid"))
            .collect();
        world.receive(1, &rows);
    }
    world.receive(2, &[(1, "commit later"), (2, "behind"), (3, "behind")]);
    let large: Vec<String> = (1..=MOST_LARGE)
        .map(|row| format!("large\n{row}{}", "x".repeat(LARGE)))
        .collect();
    let rows: Vec<(u64, &str)> = (1..)
        .zip(&large)
        .map(|(row, text)| (row, text.as_str()))
        .collect();
    world.receive(3, &rows);
}

/// Endless invalid commits, a blocked head and the largest envelopes each take one bounded turn
/// before everybody else has had one, and again before everybody has had the next.
/// covers: STR-072, STR-074
#[test]
fn a_hostile_topic_has_one_turn_between_those_of_all_others() {
    let world = World::new();
    beset(&world);
    for name in HONEST {
        world.join(name);
        let first = format!("first {name}");
        world.receive(name, &[(1, &first)]);
    }
    let engine = world.start();
    world.wait(10 * SECOND);
    let looked = world.play.looked();
    let place = |text: &str| {
        let found = looked.iter().position(|looked| looked == text);
        found.unwrap_or_else(|| panic!("{text} was never looked at"))
    };
    let large_turn = TURN_TARGET_BYTES as usize / LARGE + 1;
    let one_turn_each = MAX_ADMISSION_ROWS + 1 + large_turn;
    for (ahead, name) in HONEST.enumerate() {
        let at = place(&format!("first {name}"));
        assert!(at <= one_turn_each + ahead, "{name} was looked at as {at}");
    }
    let count = |text: &str| looked.iter().filter(|looked| *looked == text).count();
    assert_eq!(count("commit invalid"), 4 * MAX_ADMISSION_ROWS);
    assert_eq!(count("commit later"), 1, "a blocked head is left alone");
    assert_eq!(count("behind"), 0);
    assert_eq!(count("large"), MOST_LARGE);
    let (received, processed) = world.positions(2);
    assert_eq!((received, processed), (3, 0));
    let last = 3_000 + MAX_ADMISSION_ROWS as u64;
    assert_eq!(world.positions(1), (last, last));
    assert_eq!(
        world.rejection(&topic(1), last).as_deref(),
        Some("invalid_commit")
    );
    world.end(engine);
}

/// Sends so many Welcomes that nobody can read yet.
fn crowd(world: &World, count: usize) {
    let blocked = Act::Is(Verdict::Blocked(Blocked::Unsupported));
    let hostile = (0..count).map(|number| {
        let text = format!("90 0 {number}");
        world.play.always(&text, blocked.clone());
        welcome_envelope(&INSTALLATION, &text)
    });
    world.backend.store(hostile);
}

/// A sender that fills the budget of Welcomes with what nobody can read yet keeps no group and no
/// identity from being received and processed, and each of its Welcomes is tried once.
/// covers: STR-080, STR-066, RVC-003
#[test]
fn a_hostile_sender_of_welcomes_fills_its_own_budget_alone() {
    let world = World::new();
    let most = max_pending_rows(TopicKind::Welcome) as usize;
    crowd(&world, most);
    for name in HONEST {
        world.join(name);
    }
    let engine = world.start();
    engine.go_live(Vec::new());
    world.wait(30 * SECOND);
    let welcomes = world.context.welcome_topic;
    assert_eq!(world.record(&welcomes).pending_rows as usize, most);
    let tried = world.play.looked().len();
    assert_eq!(tried, most, "each was tried once");
    world
        .backend
        .store([welcome_envelope(&INSTALLATION, "7 0 0")]);
    for name in HONEST {
        let group = GroupId::from_bytes([name; 16]);
        world.backend.store([group_envelope(&group, "flows")]);
    }
    world.wait(30 * SECOND);
    let looked = world.play.looked();
    assert_eq!(looked, vec!["flows"; HONEST.len()]);
    assert_eq!(world.messages().len(), HONEST.len());
    let record = world.record(&welcomes);
    assert_eq!(
        record.pending_rows as usize, most,
        "F stays before the next"
    );
    world.end(engine);
}

/// One Welcome that is sound joins although as many as nearly fill the budget are before it, after
/// one attempt of each at most.
/// covers: STR-080
#[test]
fn a_sound_welcome_joins_behind_a_hostile_crowd() {
    let world = World::new();
    let most = max_pending_rows(TopicKind::Welcome) as usize - 1;
    crowd(&world, most);
    world
        .backend
        .store([welcome_envelope(&INSTALLATION, "7 0 0")]);
    let engine = world.start();
    engine.go_live(Vec::new());
    world.wait(60 * SECOND);
    assert!(world.group(7).active);
    let looked = world.play.looked();
    let before = looked.iter().position(|text| text == "7 0 0");
    assert!(before.is_some_and(|before| before <= most), "{before:?}");
    world.end(engine);
}
