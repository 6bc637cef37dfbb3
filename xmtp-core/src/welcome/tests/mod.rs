//! Single Welcomes: retry state, pointers, anchors, installation and retention.

mod install;
mod quarantine;
mod retention;

use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{SequenceId, Topic};

use super::{WelcomeOutcome, attempt, has_unresolved, pointer_pause, store};
use crate::engine::tests::play::{Act, destination, failure};
use crate::engine::tests::world::{World, group, served};
use crate::limits::{
    WELCOME_POINTER_FIRST_PAUSE, WELCOME_POINTER_LONGEST_PAUSE, WELCOME_POINTER_WINDOW,
    WELCOME_RECHECK_INTERVAL, WELCOME_RETENTION,
};
use crate::processor::{Blocked, Rejected, RetryCause, Verdict};
use crate::receipt::check;
use crate::storage::{Durability, StorageError, WriteTxn};
use crate::testing::scripted::{INSTALLATION, welcome_envelope};

fn id(sequence: u64) -> SequenceId {
    SequenceId::saturating(sequence)
}

/// Receives envelopes of a Welcome topic, each at its sequence id.
fn receive(world: &World, topic: Topic, rows: &[(u64, &str)]) {
    let after = id(world.record(&topic).received);
    let envelopes = rows.iter().map(|(sequence, text)| {
        let mut envelope = served(&topic, *sequence, welcome_envelope(&INSTALLATION, text));
        if let Some(meta) = &mut envelope.meta {
            meta.server_ns = world.context.runtime.now_ns();
        }
        envelope
    });
    let batch = check(topic, after, envelopes.collect()).expect("in order");
    assert_eq!(world.admit(&batch).expect("it fits").left_out, None);
}

fn welcomes(world: &World, rows: &[(u64, &str)]) {
    receive(world, world.context.welcome_topic, rows);
}

fn try_attempt(world: &World, sequence: u64, force: bool) -> Result<WelcomeOutcome, StorageError> {
    let (topic, processors) = (world.context.welcome_topic, &world.context.processors);
    let run = |txn: &mut WriteTxn<'_>| attempt(txn, &topic, id(sequence), processors, force);
    world.context.database.write(Durability::Ordered, run)
}

fn join(world: &World, sequence: u64) -> WelcomeOutcome {
    let outcome = try_attempt(world, sequence, false).expect("an attempt");
    world.verify();
    outcome
}

fn retry(world: &World, sequence: u64) -> stored::WelcomeRetry {
    world
        .read(|snapshot| store::retry(snapshot, id(sequence)))
        .expect("retry state")
}

fn is_unresolved(world: &World) -> bool {
    world.read(|snapshot| has_unresolved(snapshot, &world.context.welcome_topic))
}

fn rejection(world: &World, sequence: u64) -> Option<String> {
    world.rejection(&world.context.welcome_topic, sequence)
}

/// A Welcome that fails keeps its row and retry state, and a later one completes meanwhile without
/// hiding it.
/// covers: STR-080
#[test]
fn a_failing_welcome_keeps_no_other() {
    let world = World::new();
    welcomes(&world, &[(10, "1 1 4"), (11, "2 1 5")]);
    let fails = Act::Is(Verdict::Retry(RetryCause::Local { what: "test" }));
    world.play.on("1 1 4", [fails]);
    assert_eq!(join(&world, 10), WelcomeOutcome::Kept);
    assert_eq!(join(&world, 11), WelcomeOutcome::Joined(group(2)));
    assert!(is_unresolved(&world), "the earlier one is still owed");
    let state = retry(&world, 10);
    assert_eq!(
        (state.attempts, state.code.as_str(), state.deadline_ns),
        (1, "local", 0)
    );
    assert_eq!(join(&world, 10), WelcomeOutcome::NotDue);
    let pause = state.not_before_ns - world.context.runtime.now_ns();
    world
        .runtime
        .clock()
        .advance(std::time::Duration::from_nanos(pause));
    assert_eq!(join(&world, 10), WelcomeOutcome::Joined(group(1)));
    assert_eq!(join(&world, 10), WelcomeOutcome::Gone);
    assert!(!is_unresolved(&world));
}

/// A pointer waits for its pointee with one deadline that neither retries nor a restart move, then
/// joins from the lowest envelope at its destination.
/// covers: STR-081
#[test]
fn a_pointer_waits_with_one_deadline() {
    let world = World::new();
    welcomes(&world, &[(10, "point 3")]);
    let window = WELCOME_POINTER_WINDOW.as_nanos() as u64;
    let deadline = world.context.runtime.now_ns() + window;
    for attempts in 1..4 {
        assert_eq!(join(&world, 10), WelcomeOutcome::Kept);
        let state = retry(&world, 10);
        assert_eq!((state.attempts, state.deadline_ns), (attempts, deadline));
        assert_eq!(join(&world, 10), WelcomeOutcome::NotDue);
        world.runtime.clock().advance(pointer_pause(attempts));
    }
    let fresh = world.another();
    assert_eq!(join(&fresh, 10), WelcomeOutcome::Kept);
    assert_eq!(
        retry(&fresh, 10).deadline_ns,
        deadline,
        "a restart moves nothing"
    );
    receive(&fresh, destination(3), &[(12, "1 1 4"), (13, "2 1 5")]);
    let outcome = try_attempt(&fresh, 10, true).expect("an attempt");
    assert_eq!(outcome, WelcomeOutcome::Joined(group(1)));
    assert_eq!(
        fresh.record(&destination(3)).pending_rows,
        0,
        "its capacity is free"
    );
    fresh.verify();
}

/// A pointee of another form completes its pointer at once, and waits no longer itself.
/// covers: STR-081, STR-115
#[test]
fn a_wrong_pointee_completes_its_pointer() {
    let world = World::new();
    welcomes(&world, &[(10, "point 3")]);
    receive(&world, destination(3), &[(12, "nonsense"), (13, "1 1 4")]);
    let expected = WelcomeOutcome::Rejected(Rejected::WelcomeMalformed);
    assert_eq!(join(&world, 10), expected);
    assert_eq!(rejection(&world, 10).as_deref(), Some("welcome_malformed"));
    assert_eq!(world.record(&destination(3)).pending_rows, 0);
    assert!(!is_unresolved(&world));
}

/// An opened pointer that is blocked lists nothing that is already there, or each look would ask
/// for the next one.
/// covers: STR-081, STR-080
#[test]
fn a_blocked_pointer_waits_for_its_recheck() {
    let world = World::new();
    world
        .play
        .always("1 1 4", Act::Is(Verdict::Blocked(Blocked::Unsupported)));
    welcomes(&world, &[(10, "point 3")]);
    assert_eq!(join(&world, 10), WelcomeOutcome::Kept);
    receive(&world, destination(3), &[(12, "1 1 4")]);
    let forced = try_attempt(&world, 10, true).expect("an attempt");
    assert_eq!(forced, WelcomeOutcome::Kept);
    let state = retry(&world, 10);
    assert!(state.blocked && state.dependencies.is_empty(), "{state:?}");
    let recheck = WELCOME_RECHECK_INTERVAL.as_nanos() as u64;
    assert_eq!(
        state.not_before_ns,
        world.context.runtime.now_ns() + recheck
    );
    world.play.always("1 1 4", None);
    world.runtime.clock().advance(WELCOME_RECHECK_INTERVAL);
    assert_eq!(join(&world, 10), WelcomeOutcome::Joined(group(1)));
}

/// A blocked Welcome is kept for one day from its first read, looked at each hour, and gets one
/// last attempt at its deadline; what is invalid is rejected at once.
/// covers: STR-115, STR-080
#[test]
fn a_blocked_welcome_expires_after_one_last_attempt() {
    for heals in [false, true] {
        let world = World::new();
        let text = "1 1 4";
        world
            .play
            .always(text, Act::Is(Verdict::Blocked(Blocked::Unsupported)));
        welcomes(&world, &[(10, text), (11, "nonsense")]);
        assert_eq!(join(&world, 10), WelcomeOutcome::Kept);
        let malformed = WelcomeOutcome::Rejected(Rejected::WelcomeMalformed);
        assert_eq!(join(&world, 11), malformed);
        let deadline = retry(&world, 10).deadline_ns;
        let retention = WELCOME_RETENTION.as_nanos() as u64;
        assert_eq!(deadline, world.context.runtime.now_ns() + retention);
        let mut looks = 0;
        let world = world.another();
        while world.context.runtime.now_ns() + WELCOME_RECHECK_INTERVAL.as_nanos() as u64 * 2
            <= deadline
        {
            world.runtime.clock().advance(WELCOME_RECHECK_INTERVAL);
            assert_eq!(join(&world, 10), WelcomeOutcome::Kept);
            assert_eq!(join(&world, 10), WelcomeOutcome::NotDue);
            assert_eq!(retry(&world, 10).deadline_ns, deadline, "never extended");
            looks += 1;
        }
        assert_eq!(looks, 23);
        if heals {
            world.play.always(text, None);
        }
        world.play.looked();
        world.runtime.clock().advance(WELCOME_RECHECK_INTERVAL);
        let expected = match heals {
            true => WelcomeOutcome::Joined(group(1)),
            false => WelcomeOutcome::Rejected(Rejected::WelcomeExpired),
        };
        assert_eq!(join(&world, 10), expected);
        assert_eq!(world.play.looked()[0], text, "one last attempt");
        assert!(!is_unresolved(&world), "it holds nothing any longer");
        assert_eq!(rejection(&world, 10).is_some(), !heals);
    }
}

/// A panic while a Welcome is opened or installed blocks it alone, with nothing written.
/// covers: STR-084, STR-080
#[test]
fn a_panic_blocks_its_welcome_alone() {
    for at in ["1 1 4", "install"] {
        let world = World::new();
        welcomes(&world, &[(10, "1 1 4"), (11, "2 1 5")]);
        world.play.on(at, [Act::Panics]);
        let before = world.rows();
        assert_eq!(join(&world, 10), WelcomeOutcome::Kept);
        assert_eq!(retry(&world, 10).code, "panic");
        let mut after = world.rows();
        after.retain(|(table, _, _)| *table != "welcome");
        assert_eq!(after, before);
        assert_eq!(join(&world, 11), WelcomeOutcome::Joined(group(2)));
    }
}

/// A fault of the database is told, and neither keeps nor completes anything.
/// covers: STR-084
#[test]
fn a_fault_is_no_outcome() {
    for at in ["1 1 4", "install"] {
        let world = World::new();
        welcomes(&world, &[(10, "1 1 4")]);
        world.play.on(at, [Act::Fails]);
        let before = world.rows();
        assert_eq!(try_attempt(&world, 10, false), Err(failure()));
        assert_eq!(world.rows(), before);
        assert_eq!(join(&world, 10), WelcomeOutcome::Joined(group(1)));
    }
}

#[test]
fn pointers_are_asked_for_half_as_often_each_time() {
    assert_eq!(pointer_pause(1), WELCOME_POINTER_FIRST_PAUSE);
    assert_eq!(pointer_pause(2), WELCOME_POINTER_FIRST_PAUSE * 3 / 2);
    assert_eq!(pointer_pause(u32::MAX), WELCOME_POINTER_LONGEST_PAUSE);
}
