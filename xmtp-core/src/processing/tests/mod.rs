//! Turns: each verdict with what it leaves behind, and what a fault leaves.

mod faults;
mod rounds;

use xmtp_proto::storage::v1::HeadKind;
use xmtp_proto::{SequenceId, Topic};

use super::dependency::{Place, waiting};
use super::{Left, retry_pause};
use crate::engine::tests::play::{Act, ratchet};
use crate::engine::tests::world::{World, group, inbox, served, topic};
use crate::processor::{Blocked, Dependency, Rejected, RetryCause, Verdict, identity_state};
use crate::receipt::check;
use crate::testing::scripted::identity_envelope;

/// The verdicts that keep an envelope at the head.
fn staying() -> Vec<Verdict> {
    let mut all = vec![
        Verdict::Retry(RetryCause::Local { what: "test" }),
        Verdict::Retry(RetryCause::Verifier),
        Verdict::Waits(vec![Dependency::Identity {
            inbox: inbox(1),
            sequence: SequenceId::saturating(3),
        }]),
    ];
    all.extend(BLOCKED.map(Verdict::Blocked));
    all
}

/// The causes that end by an upgrade or a repair; the other one sets its group aside.
const BLOCKED: [Blocked; 5] = [
    Blocked::Unsupported,
    Blocked::StorageMissing,
    Blocked::IdentityInvalid,
    Blocked::VersionFloor,
    Blocked::Panic,
];

fn joined() -> World {
    let world = World::new();
    world.join(1);
    world
}

fn stored_ratchet(world: &World) -> u64 {
    world.read(|snapshot| ratchet(snapshot, &group(1)))
}

/// Turns until a topic has nothing that can go on.
fn drain(world: &World, topic: &Topic) {
    while world.turn(topic).left == Left::More {}
}

/// Every reason to reject, a future epoch and an absent proposal among them: it is recorded with
/// P, keeps nothing that is valid behind it, and goes with its row.
/// covers: STR-074, RVC-001, RVC-002
#[test]
fn a_rejection_is_recorded_and_keeps_nothing_behind_it() {
    for reason in Rejected::ALL {
        for head in ["bad", "commit bad"] {
            let world = joined();
            world.play.on(head, [Act::Is(Verdict::Rejected(*reason))]);
            world.receive(1, &[(2, head), (5, "good")]);
            drain(&world, &topic(1));
            assert_eq!(
                world.rejection(&topic(1), 2).as_deref(),
                Some(reason.code())
            );
            assert_eq!(world.rejection(&topic(1), 5), None);
            assert_eq!(world.positions(1), (5, 5));
            assert_eq!(world.messages(), ["good"]);
            assert_eq!(world.record(&topic(1)).pending_rows, 0);
            world.verify();
        }
    }
}

/// Whatever is not settled keeps P before it and everything behind it, records nothing, and goes on
/// by itself later: what is blocked, missing or failing is never skipped.
/// covers: STR-074, STR-020, RVC-001, RVC-002
#[test]
fn what_is_not_settled_keeps_p_before_it() {
    for verdict in staying() {
        for head in ["stuck", "commit stuck"] {
            let world = joined();
            world
                .play
                .on(head, [Act::Is(verdict.clone()), Act::Is(verdict.clone())]);
            world.receive(1, &[(1, "before"), (2, head), (5, "after")]);
            drain(&world, &topic(1));
            assert_eq!(world.positions(1), (5, 1), "{verdict:?}");
            assert_eq!(world.messages(), ["before"]);
            assert_eq!(world.rejection(&topic(1), 2), None);
            let state = world.head(&topic(1)).expect("a head state");
            let (kind, code) = match &verdict {
                Verdict::Retry(cause) => (HeadKind::Retry, cause.code()),
                Verdict::Blocked(cause) => (HeadKind::Blocked, cause.code()),
                _ => (HeadKind::Waits, "dependency"),
            };
            assert_eq!(
                (state.kind(), state.code.as_str(), state.sequence_id),
                (kind, code, 2)
            );
            assert_eq!(
                stored_ratchet(&world),
                1,
                "no trace of what was only looked at"
            );
            // Two looks at an application message, one at anything else; then it is over.
            for _ in 0..2 {
                world.try_turn(&topic(1), true).expect("a turn");
            }
            drain(&world, &topic(1));
            assert_eq!(world.positions(1), (5, 5), "{verdict:?}");
            assert_eq!(world.head(&topic(1)), None);
            world.verify();
        }
    }
}

/// A message that blocks reruns the turn up to it: the prefix commits, and no more.
/// covers: STR-077, STR-020
#[test]
fn a_message_that_stops_commits_its_prefix() {
    let world = joined();
    world
        .play
        .always("stuck", Act::Is(Verdict::Blocked(Blocked::Unsupported)));
    world.receive(
        1,
        &[(1, "a"), (2, "commit"), (3, "b"), (4, "stuck"), (6, "c")],
    );
    let first = world.turn(&topic(1));
    assert_eq!(
        (first.handled, first.processed.get(), first.left),
        (3, 3, Left::More)
    );
    assert_eq!(
        world.play.looked(),
        ["a", "commit", "b", "stuck", "a", "commit", "b"]
    );
    assert_eq!(
        (world.messages().join(" "), world.group(1).epoch),
        ("a b".to_owned(), 1)
    );
    assert_eq!(stored_ratchet(&world), 2);
    let second = world.turn(&topic(1));
    assert_eq!((second.handled, second.left), (0, Left::Stopped));
    assert_eq!(
        world.head(&topic(1)).map(|head| head.kind()),
        Some(HeadKind::Blocked)
    );
    world.play.looked();
    world.turn(&topic(1));
    assert!(
        world.play.looked().is_empty(),
        "a blocked head is left alone"
    );
    world.verify();
}

/// A commit that waits leaves no trace but the reason why it waits.
/// covers: STR-073, STR-071
#[test]
fn what_waits_leaves_no_trace() {
    let world = joined();
    let needed = Dependency::Identity {
        inbox: inbox(1),
        sequence: SequenceId::saturating(3),
    };
    world
        .play
        .always("commit", Act::Is(Verdict::Waits(vec![needed])));
    world.receive(1, &[(4, "commit")]);
    let before = world.rows();
    world.turn(&topic(1));
    let mut after = world.rows();
    after.retain(|(table, _, _)| *table != "head");
    assert_eq!(after, before);
    let waits = world.read(|snapshot| waiting(snapshot, None, &mut Place::default(), 10));
    assert_eq!(
        waits
            .iter()
            .map(|parent| parent.dependency)
            .collect::<Vec<_>>(),
        [needed]
    );
}

/// A local failure is tried again after a pause that doubles, and not before it ends.
/// covers: STR-020
#[test]
fn a_local_failure_is_retried_after_its_pause() {
    let world = joined();
    let retry = Act::Is(Verdict::Retry(RetryCause::Local { what: "test" }));
    world.play.on("commit", vec![retry; 4]);
    world.receive(1, &[(1, "commit")]);
    for attempts in 1..=4 {
        world.turn(&topic(1));
        assert_eq!(world.play.looked().len(), 1);
        let state = world.head(&topic(1)).expect("it stays");
        let pause = retry_pause(attempts);
        let due = world.context.runtime.now_ns() + pause.as_nanos() as u64;
        assert_eq!((state.attempts, state.not_before_ns), (attempts, due));
        world
            .runtime
            .clock()
            .advance(pause - std::time::Duration::from_nanos(1));
        world.turn(&topic(1));
        assert!(world.play.looked().is_empty(), "before its pause ends");
        world
            .runtime
            .clock()
            .advance(std::time::Duration::from_nanos(1));
    }
    world.turn(&topic(1));
    assert_eq!(world.positions(1), (1, 1));
}

/// An invalid identity history blocks its topic and never becomes verified state, whatever the
/// processor calls it.
/// covers: STR-074, STR-076
#[test]
fn an_invalid_identity_history_blocks() {
    let world = World::new();
    let identity = Topic::identity(&inbox(1));
    let envelopes =
        [1, 2, 3].map(|time| served(&identity, time, identity_envelope(&inbox(1), time)));
    let batch = check(identity, SequenceId::ZERO, envelopes.to_vec()).expect("in order");
    world.admit(&batch).expect("it fits");
    world.play.always(
        "identity 2",
        Act::Is(Verdict::Rejected(Rejected::Unauthenticated)),
    );
    let report = world.turn(&identity);
    assert_eq!((report.processed.get(), report.left), (1, Left::Stopped));
    assert_eq!(
        world.head(&identity).expect("blocked").code,
        "identity_invalid"
    );
    assert_eq!(world.rejection(&identity, 2), None);
    for (sequence, is_there) in [(1, true), (2, false), (3, false)] {
        let state = world
            .read(|snapshot| identity_state(snapshot, &inbox(1), SequenceId::saturating(sequence)));
        assert_eq!(state.is_some(), is_there, "at {sequence}");
    }
}

/// A commit that removes this installation ends processing there: later envelopes stay, later
/// turns do nothing, and only a Welcome would go on.
/// covers: STR-086
#[test]
fn a_removal_stops_the_topic_at_its_commit() {
    let world = joined();
    world.receive(1, &[(1, "a"), (4, "remove"), (6, "later"), (7, "commit")]);
    let report = world.turn(&topic(1));
    assert_eq!(
        (report.handled, report.processed.get(), report.left),
        (2, 4, Left::Nothing)
    );
    let record = world.group(1);
    assert!(!record.active);
    assert_eq!(record.inactive_cause, "removed");
    assert_eq!(world.record(&topic(1)).pending_rows, 2);
    world.play.looked();
    for force in [false, true] {
        world.try_turn(&topic(1), force).expect("nothing to do");
    }
    assert!(world.play.looked().is_empty());
    assert_eq!(world.positions(1), (7, 4));
    world.verify();
}

/// What is decided is decided under the writer: a process that has finished the head is not
/// repeated by another that saw it pending.
/// covers: STR-070, STR-073
#[test]
fn a_finished_head_is_not_applied_twice() {
    let world = joined();
    let peer = world.another();
    world.receive(1, &[(1, "a"), (2, "commit")]);
    assert_eq!(
        peer.record(&topic(1)).pending_rows,
        2,
        "the peer sees them pending"
    );
    assert_eq!(world.turn(&topic(1)).handled, 2);
    assert_eq!(peer.turn(&topic(1)).handled, 0);
    assert_eq!(world.play.looked(), ["a", "commit"]);
    let rejected = peer.write(|txn| {
        super::reject_head(
            txn,
            &topic(1),
            SequenceId::saturating(2),
            Rejected::Malformed,
        )
    });
    assert!(!rejected, "nor rejected afterwards");
}
