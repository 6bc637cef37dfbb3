//! The races of a stream: what may cross what, the rule that makes it safe, and the test that sees
//! the rule broken.
//!
//! Each row names its tests. Each rule of a session can be broken on purpose ([`Deviation`]), and
//! here stands what notices it: the schedules, the histories, or a script of its own.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tonic::{Code, Status};

use super::deviation::Deviation;
use super::fixture::{group, limits, pong, row, update};
use super::model::{TOPICS, World, fixed_schedules, run_all, schedules};
use super::{Effect, End, Frame, Session, SessionLimits, Tick, fairness};

/// One race.
struct Race {
    number: u8,
    what: &'static str,
    seen: Seen,
}

/// Tests, each a file of this crate and a function in it.
type Seen = &'static [(&'static str, &'static str)];

const MODEL: (&str, &str) = (
    "src/session/model.rs",
    "every_registration_gets_exactly_its_slice",
);
const PUBLISH_RACES_REGISTRATION: (&str, &str) = (
    "tests/stream_races.rs",
    "a_publish_that_races_a_registration_is_delivered_once",
);
const BOUNDARY: &str = "src/store/postgres/tests/boundary.rs";
const MUTANTS: &str = "tests/models/mutants.rs";

const fn race(number: u8, what: &'static str, seen: Seen) -> Race {
    Race { number, what, seen }
}

#[rustfmt::skip] // one race a line
const RACES: &[Race] = &[
    race(1, "a commit before its topic is registered", &[PUBLISH_RACES_REGISTRATION, MODEL]),
    race(2, "a commit between registering and reading the head", &[PUBLISH_RACES_REGISTRATION, MODEL]),
    race(3, "a commit between reading the head and the acknowledgement", &[PUBLISH_RACES_REGISTRATION, MODEL]),
    race(4, "a commit after the acknowledgement", &[PUBLISH_RACES_REGISTRATION, MODEL]),
    race(5, "heads from a database behind the one that tells", &[("src/session/races.rs", "heads_behind_the_tail_lose_envelopes"), (MUTANTS, "heads_and_tail_are_of_one_replica")]),
    race(6, "a removal, then the result of a fetch", &[("tests/stream_races.rs", "a_fetch_for_a_removed_registration_is_dropped")]),
    race(7, "a removal and an add while a fetch runs", &[("tests/stream_races.rs", "a_fetch_for_a_removed_registration_is_dropped"), MODEL]),
    race(8, "queued messages, then a removal", &[MODEL]),
    race(9, "a fetch that overlaps what is told", &[MODEL]),
    race(10, "the switch to live with a notice in the mailbox", &[MODEL]),
    race(11, "an overflow while live", &[MODEL, ("src/stream/mailbox.rs", "a_full_mailbox_keeps_positions_in_order"), ("src/session/tests.rs", "live_envelopes_without_room_are_fetched_later")]),
    race(12, "a late low id on another topic", &[(BOUNDARY, "a_late_low_id_is_given_out_when_it_comes"), (MUTANTS, "the_tailer_keeps_gaps")]),
    race(13, "a late low id and a later row of one topic in two snapshots", &[(BOUNDARY, "a_poll_reads_one_snapshot"), (MUTANTS, "gaps_and_new_rows_are_read_in_one_snapshot")]),
    race(14, "an absent gap that is retired early", &[(BOUNDARY, "an_undone_id_is_forgotten_by_a_boundary"), (MUTANTS, "the_boundary_is_read_under_the_exclusive_lock")]),
    race(15, "a boundary that a replica shows before an older commit", &[("src/store/postgres/tests/following.rs", "a_boundary_is_seen_on_a_replica_no_sooner_than_what_it_speaks_of"), (MUTANTS, "the_boundary_is_not_derived_on_a_replica")]),
    race(16, "an add of an active topic with another cursor", &[("tests/streams.rs", "adding_an_active_topic_changes_nothing"), MODEL]),
    race(17, "an update while the one before it reads heads", &[("src/session/tests.rs", "nothing_of_a_topic_is_sent_before_its_acknowledgement"), MODEL]),
    race(18, "a tail that is lost during catch-up", &[("src/stream/tests.rs", "a_tail_lost_during_catch_up_ends_the_stream_and_its_fetch")]),
    race(19, "a row that is pruned while it is needed", &[("src/stream/pruned.rs", "what_is_pruned_while_it_is_needed_is_waited_for_by_nobody"), ("src/session/tests.rs", "only_a_scan_that_ended_moves_the_floor_without_rows")]),
    race(20, "a gap in a fetch that an abort left", &[(BOUNDARY, "an_undone_id_is_forgotten_by_a_boundary")]),
    race(21, "a retry while the first attempt is under way", &[("src/store/postgres/tests/publishing.rs", "a_retry_waits_for_the_first_attempt_and_finds_its_row")]),
    race(22, "an answer that is unread behind updates", &[("src/session/tests.rs", "an_answer_that_was_sent_in_time_counts_before_the_end"), ("src/stream/tests.rs", "an_answer_behind_updates_is_read_before_the_end")]),
    race(23, "a ping behind a closed window of the transport", &[("src/session/tests.rs", "a_queue_that_stands_still_ends_the_stream")]),
    race(24, "a shutdown during an update", &[("src/stream/tests.rs", "a_shutdown_during_an_update_ends_the_stream")]),
];

#[test]
fn every_race_names_tests_that_exist() {
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let numbers: Vec<u8> = RACES.iter().map(|race| race.number).collect();
    assert!(numbers.into_iter().eq(1..=24), "every race once, in order");
    for race in RACES {
        assert!(!race.seen.is_empty(), "{}", race.what);
        for (file, test) in race.seen {
            let source = fs::read_to_string(crate_root.join(file)).expect("a source file");
            let is_there = source.contains(&format!("fn {test}("));
            assert!(is_there, "{}: {file} has no test {test}", race.what);
        }
    }
}

/// What notices that a rule is broken; it panics if it does.
type Check = fn(Option<Deviation>);

/// Says what notices that a rule is broken.
fn check_of(rule: Deviation) -> Check {
    match rule {
        Deviation::RegistersAfterHeads
        | Deviation::EmitsBeforeApplied
        | Deviation::ForgetsNoticesOfPending
        | Deviation::ForgetsNoticesOfCatchUp
        | Deviation::IgnoresGenerations
        | Deviation::AppliedOvertakes
        | Deviation::IgnoresFloor
        | Deviation::IgnoresOverflow
        | Deviation::CutScanMovesFloor
        | Deviation::AddSeeks
        | Deviation::UpdatesOverlap => changing_schedules,
        Deviation::ServedFirst | Deviation::UnvisitedLast => long_histories,
        Deviation::StartsWithoutTargets => fixed_streams,
        Deviation::DropsWithoutRoom => more_than_the_queue_holds,
        Deviation::ExpiresUnread => an_answer_in_time,
        Deviation::IgnoresQueueAge => a_queue_that_stands,
        Deviation::FailureWaits => a_failure_during_an_update,
    }
}

const ALL: [Deviation; 18] = [
    Deviation::RegistersAfterHeads,
    Deviation::EmitsBeforeApplied,
    Deviation::ForgetsNoticesOfPending,
    Deviation::ForgetsNoticesOfCatchUp,
    Deviation::IgnoresGenerations,
    Deviation::AppliedOvertakes,
    Deviation::IgnoresFloor,
    Deviation::DropsWithoutRoom,
    Deviation::IgnoresOverflow,
    Deviation::CutScanMovesFloor,
    Deviation::AddSeeks,
    Deviation::UpdatesOverlap,
    Deviation::ServedFirst,
    Deviation::UnvisitedLast,
    Deviation::ExpiresUnread,
    Deviation::IgnoresQueueAge,
    Deviation::FailureWaits,
    Deviation::StartsWithoutTargets,
];

#[test]
fn every_broken_rule_is_noticed() {
    let names: BTreeSet<String> = ALL.iter().map(|rule| format!("{rule:?}")).collect();
    assert_eq!(names.len(), ALL.len(), "each rule once");
    for rule in ALL {
        let check = check_of(rule);
        let noticed = catch_unwind(AssertUnwindSafe(|| check(Some(rule)))).is_err();
        assert!(noticed, "nothing notices {rule:?}");
    }
}

#[test]
fn what_notices_broken_rules_passes_while_they_hold() {
    let checks: [Check; 7] = [
        changing_schedules,
        long_histories,
        fixed_streams,
        more_than_the_queue_holds,
        an_answer_in_time,
        a_queue_that_stands,
        a_failure_during_an_update,
    ];
    checks.into_iter().for_each(|check| check(None));
}

/// Runs cases of a fixed seed until one fails, and then panics.
fn seeded<T: std::fmt::Debug>(cases: u32, inputs: impl Strategy<Value = T>, run: impl Fn(T)) {
    let config = Config {
        cases,
        max_shrink_iters: 0,
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let result = runner.run(&inputs, |input| {
        run(input);
        Ok(())
    });
    assert!(result.is_ok(), "a case failed");
}

fn changing_schedules(broken: Option<Deviation>) {
    seeded(400, schedules(), |steps| {
        run_all(World::changing(broken, TOPICS), steps);
    });
}

fn fixed_streams(broken: Option<Deviation>) {
    seeded(20, fixed_schedules(), |(topics, steps)| {
        run_all(World::fixed(broken, &topics), steps);
    });
}

fn long_histories(broken: Option<Deviation>) {
    seeded(60, fairness::histories(), |case| {
        fairness::run(broken, case)
    });
}

#[test]
fn heads_behind_the_tail_lose_envelopes() {
    let stale = || {
        seeded(200, schedules(), |steps| {
            run_all(World::changing(None, TOPICS).with_stale_heads(), steps);
        });
    };
    let noticed = catch_unwind(AssertUnwindSafe(stale)).is_err();
    assert!(noticed, "heads must be read where the tail reads");
}

const fn at(millis: u64) -> Tick {
    Duration::from_millis(millis)
}

fn opened(broken: Option<Deviation>) -> Session {
    let mut session = Session::new(SessionLimits {
        deviation: broken,
        ..limits()
    });
    session.take_frame(at(0)).expect("the start");
    session
}

fn code(session: &Session) -> Option<Code> {
    match session.end()? {
        End::HalfClosed => Some(Code::Ok),
        End::Failed(status) | End::Refused(status) => Some(status.code()),
    }
}

fn more_than_the_queue_holds(broken: Option<Deviation>) {
    let mut session = opened(broken);
    session.receive(at(0), update(1, &[(group(1), 0)], &[]));
    session.heads_read(at(0), vec![0_u32.into()]);
    (1..=20).for_each(|id| session.told(at(0), &row(group(1), id, 1 << 20)));
    while session.take_frame(at(0)).is_some() {}
    let fetches = std::iter::from_fn(|| session.next_effect());
    let fetched = fetches
        .into_iter()
        .any(|effect| matches!(effect, Effect::Fetch(_)));
    assert!(fetched, "what found no room is fetched");
}

fn an_answer_in_time(broken: Option<Deviation>) {
    let mut session = opened(broken);
    let _ = session.tick(at(30_000));
    let Some(Frame::Ping { nonce }) = session.take_frame(at(30_000)) else {
        panic!("no ping");
    };
    assert!(session.tick(at(120_000)), "the answer is overdue");
    session.receive(at(120_000), pong(nonce));
    session.expire_pong(at(120_000));
    assert_eq!(code(&session), None, "it was there");
}

fn a_queue_that_stands(broken: Option<Deviation>) {
    let mut session = opened(broken);
    let _ = session.tick(at(30_000));
    let _ = session.tick(at(120_000));
    assert_eq!(code(&session), Some(Code::ResourceExhausted));
}

fn a_failure_during_an_update(broken: Option<Deviation>) {
    let mut session = opened(broken);
    session.receive(at(0), update(1, &[(group(1), 0)], &[]));
    session.fail(Status::unavailable("a shutdown"));
    assert_eq!(code(&session), Some(Code::Unavailable));
    let last = std::iter::from_fn(|| session.next_effect()).last();
    assert_eq!(last, Some(Effect::Deregister(vec![group(1)])));
}
