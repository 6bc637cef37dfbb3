//! How long Welcomes are kept, and how often they are looked at, on virtual time.

use std::time::Duration;

use super::{id, is_unresolved, join, rejection, retry, welcomes};
use crate::engine::tests::play::{Act, destination};
use crate::engine::tests::world::{SECOND, World, group};
use crate::limits::{
    WELCOME_POINTER_LONGEST_PAUSE, WELCOME_POINTER_WINDOW, WELCOME_RECHECK_INTERVAL,
    WELCOME_RETENTION, WELCOME_UPGRADE_RETENTION,
};
use crate::processor::{Blocked, Rejected, RetryCause, Verdict};
use crate::welcome::{WelcomeOutcome, pointer_pause, store};

const MINUTE: Duration = Duration::from_secs(60);
const TEXT: &str = "1 1 4";

fn blocked(cause: Blocked) -> Act {
    Act::Is(Verdict::Blocked(cause))
}

fn rejected_as(reason: Rejected) -> WelcomeOutcome {
    WelcomeOutcome::Rejected(reason)
}

/// One that opens and asks for a newer version is kept for a week, any other for a day, each from
/// its first read.
///
/// covers: STR-115
#[test]
fn one_that_asks_for_a_newer_version_is_kept_for_a_week() {
    for (cause, kept) in [
        (Blocked::VersionFloor, WELCOME_UPGRADE_RETENTION),
        (Blocked::Unsupported, WELCOME_RETENTION),
        (Blocked::StorageMissing, WELCOME_RETENTION),
        (Blocked::Panic, WELCOME_RETENTION),
    ] {
        let world = World::new();
        world.play.always(TEXT, blocked(cause));
        welcomes(&world, &[(10, TEXT)]);
        let first = world.context.runtime.now_ns();
        assert_eq!(join(&world, 10), WelcomeOutcome::Kept);
        let deadline = first + kept.as_nanos() as u64;
        assert_eq!(retry(&world, 10).deadline_ns, deadline, "{cause:?}");
        // What it is blocked by later moves nothing.
        world.play.always(TEXT, blocked(Blocked::VersionFloor));
        world.runtime.clock().advance(WELCOME_RECHECK_INTERVAL);
        assert_eq!(join(&world, 10), WelcomeOutcome::Kept);
        assert_eq!(retry(&world, 10).deadline_ns, deadline, "{cause:?}");
        world
            .runtime
            .clock()
            .advance(kept - WELCOME_RECHECK_INTERVAL - SECOND);
        assert_eq!(join(&world, 10), WelcomeOutcome::Kept);
        world.runtime.clock().advance(SECOND);
        let expired = rejected_as(Rejected::WelcomeExpired);
        assert_eq!(join(&world, 10), expired, "{cause:?}");
    }
}

/// The attempt at the deadline that a local failure ends has decided nothing: it is repeated after
/// its pause, and only an attempt that was decided completes the Welcome.
///
/// covers: STR-115, STR-080
#[test]
fn a_local_failure_at_the_deadline_decides_nothing() {
    for heals in [false, true] {
        let world = World::new();
        world.play.always(TEXT, blocked(Blocked::Unsupported));
        welcomes(&world, &[(10, TEXT)]);
        assert_eq!(join(&world, 10), WelcomeOutcome::Kept);
        let deadline = retry(&world, 10).deadline_ns;
        world.runtime.clock().advance(WELCOME_RETENTION);
        let local = Act::Is(Verdict::Retry(RetryCause::Local { what: "test" }));
        world.play.on(TEXT, [local]);
        if heals {
            world.play.always(TEXT, None);
        }
        assert_eq!(join(&world, 10), WelcomeOutcome::Kept);
        assert!(is_unresolved(&world));
        let state = retry(&world, 10);
        assert_eq!(
            (state.deadline_ns, state.code.as_str()),
            (deadline, "local")
        );
        assert_eq!(join(&world, 10), WelcomeOutcome::NotDue, "no loop");
        let pause = state.not_before_ns - world.context.runtime.now_ns();
        world.runtime.clock().advance(Duration::from_nanos(pause));
        let expected = match heals {
            true => WelcomeOutcome::Joined(group(1)),
            false => rejected_as(Rejected::WelcomeExpired),
        };
        assert_eq!(join(&world, 10), expected);
    }
}

/// A client that stays running looks at a blocked Welcome each hour, and reaches its deadline.
///
/// covers: STR-115, STR-080
#[test]
fn a_running_client_reaches_the_deadline() {
    let world = World::new();
    world.play.always(TEXT, blocked(Blocked::Unsupported));
    welcomes(&world, &[(10, TEXT)]);
    let engine = world.start();
    world.wait(SECOND);
    let looks = || {
        let looked = world.play.looked();
        looked.iter().filter(|text| *text == TEXT).count()
    };
    assert_eq!(looks(), 1, "at the start");
    let deadline = retry(&world, 10).deadline_ns;
    for hour in 1..24 {
        world
            .runtime
            .clock()
            .advance(WELCOME_RECHECK_INTERVAL - SECOND);
        world.wait(SECOND);
        assert_eq!(looks(), 1, "in hour {hour}");
        assert_eq!(retry(&world, 10).deadline_ns, deadline);
    }
    // A restart looks at once, and moves nothing.
    let again = world.another();
    let second = again.start();
    again.wait(SECOND);
    assert!(looks() >= 1);
    assert_eq!(retry(&world, 10).deadline_ns, deadline);
    world.runtime.clock().advance(WELCOME_RECHECK_INTERVAL);
    world.wait(SECOND);
    assert_eq!(looks(), 1, "one last attempt");
    assert_eq!(rejection(&world, 10).as_deref(), Some("welcome_expired"));
    assert!(!is_unresolved(&world));
    world.runtime.clock().advance(WELCOME_RECHECK_INTERVAL);
    world.wait(SECOND);
    assert_eq!(looks(), 0);
    world.end(engine);
    world.end(second);
}

/// Counts how often the backend was asked for the pointee.
fn asked(world: &World) -> usize {
    let queries = world.backend.queries();
    let asks = queries
        .iter()
        .filter(|topics| topics.contains_key(&destination(3)));
    asks.count()
}

/// A pointee is asked for at once, then after five minutes and half as long again each time, up to
/// two hours; a restart asks once and goes on at the same pace; its window ends with one last look.
///
/// covers: STR-081, STR-115
#[test]
fn a_pointee_is_asked_for_at_the_pace_of_its_pointer() {
    let world = World::new();
    let mut process = world.another();
    let start = world.runtime.clock().now();
    welcomes(&world, &[(10, "point 3")]);
    let mut engine = process.start();
    world.wait(SECOND);
    assert_eq!(asked(&world), 1, "at once");
    let deadline = retry(&world, 10).deadline_ns;
    let mut last = start;
    let mut gaps = Vec::new();
    let mut is_restarted = false;
    while is_unresolved(&world) {
        let before = asked(&world);
        world.runtime.clock().advance(MINUTE - SECOND);
        world.wait(SECOND);
        let now = world.runtime.clock().now();
        assert!(
            now - start <= WELCOME_POINTER_WINDOW + 2 * MINUTE,
            "it is kept on"
        );
        match asked(&world) - before {
            0 => continue,
            1 => gaps.push(now - last),
            more => panic!("{more} asks in a minute"),
        }
        last = now;
        if !is_restarted && gaps.len() == 8 {
            is_restarted = true;
            process.end(engine);
            process = world.another();
            let before = asked(&world);
            engine = process.start();
            world.wait(SECOND);
            assert_eq!(asked(&world), before + 1, "a restart asks once");
            last = world.runtime.clock().now();
        }
        if is_unresolved(&world) {
            let state = world.read(|snapshot| store::retry(snapshot, id(10)));
            assert_eq!(state.expect("retry state").deadline_ns, deadline);
        }
    }
    assert_eq!(rejection(&world, 10).as_deref(), Some("welcome_expired"));
    // The last one ends at the deadline, and so may come sooner.
    gaps.pop();
    for (index, gap) in gaps.iter().enumerate() {
        let (least, most) = (pointer_pause(index as u32), pointer_pause(index as u32 + 3));
        assert!(
            *gap + MINUTE >= least && *gap <= most + 2 * MINUTE,
            "gap {index} of {gap:?}, not {least:?} to {most:?}: {gaps:?}"
        );
    }
    let longest = gaps.iter().max().expect("gaps");
    assert!(
        *longest + MINUTE >= WELCOME_POINTER_LONGEST_PAUSE,
        "{gaps:?}"
    );
    process.end(engine);
}
