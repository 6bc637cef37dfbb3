//! What an installed Welcome writes, and what its anchor may be.

use super::{id, join, rejection, retry, try_attempt, welcomes};
use crate::engine::tests::play::{failure, ratchet};
use crate::engine::tests::world::{World, group, topic};
use crate::processing::dependency::from_stored;
use crate::processor::{Dependency, Rejected};
use crate::welcome::{WelcomeOutcome, store};

/// The anchor is below the Welcome itself; zero stands only for the beginning; P starts there and F
/// never goes back.
/// covers: STR-083
#[test]
fn the_anchor_is_bounded_and_sets_p_and_f() {
    let wrong = WelcomeOutcome::Rejected(Rejected::WelcomeAnchor);
    let joined = WelcomeOutcome::Joined(group(1));
    for (text, expected, positions) in [
        ("1 1 10", wrong.clone(), (0, 0)),
        ("1 1 11", wrong.clone(), (0, 0)),
        ("1 1 0", wrong, (0, 0)),
        ("1 1 9", joined.clone(), (9, 9)),
        ("1 0 0", joined, (0, 0)),
    ] {
        let world = World::new();
        welcomes(&world, &[(10, text)]);
        assert_eq!(join(&world, 10), expected, "{text}");
        assert_eq!(world.positions(1), positions);
    }
    let world = World::new();
    world.receive(1, &[(3, "a"), (8, "b")]);
    welcomes(&world, &[(10, "1 1 5")]);
    join(&world, 10);
    assert_eq!(world.positions(1), (8, 5), "F stays where it is");
}

/// Group envelopes that came before the join are dropped up to the anchor and kept above it; group,
/// positions, transcript, discovery and completion are one commit.
/// covers: STR-084, STR-085, STR-083
#[test]
fn a_join_keeps_what_is_above_its_anchor() {
    let world = World::new();
    world.receive(1, &[(2, "old"), (5, "add"), (7, "new"), (9, "commit")]);
    assert_eq!(world.turn(&topic(1)).handled, 0, "no group, no turn");
    welcomes(&world, &[(10, "1 3 5")]);
    let commits = world.faulty.commits();
    assert_eq!(join(&world, 10), WelcomeOutcome::Joined(group(1)));
    assert_eq!(world.faulty.commits(), commits + 1);
    let record = world.group(1);
    assert!(record.active);
    assert_eq!(
        (record.epoch, record.anchor, record.welcome_sequence),
        (3, 5, 10)
    );
    assert_eq!(world.record(&topic(1)).pending_rows, 2);
    let found = world
        .read(|snapshot| store::discoveries(snapshot, id(0), 10))
        .0;
    assert_eq!(found, [(id(10), group(1))]);
    assert_eq!(world.turn(&topic(1)).handled, 2);
    assert_eq!(world.messages(), ["joined", "new"]);
    world.verify();
}

/// A fault at any operation of an installation leaves the group, its positions and the pending
/// Welcome as they were, and the next attempt joins.
/// covers: STR-084, STR-070
#[test]
fn a_fault_at_any_operation_leaves_the_welcome_pending() {
    for operation in 1.. {
        let world = World::new();
        world.receive(1, &[(2, "old"), (7, "new")]);
        welcomes(&world, &[(10, "1 3 5")]);
        let before = world.rows();
        let at = world.faulty.operations() + operation;
        world.faulty.fail_operation(at, failure());
        let result = try_attempt(&world, 10, false);
        if world.faulty.operations() < at {
            assert!(operation > 8, "only {operation} operations");
            break;
        }
        assert_eq!(result, Err(failure()), "operation {operation}");
        assert_eq!(world.rows(), before);
        if operation == 1 {
            assert!(
                world.play.looked().is_empty(),
                "the writer comes before any key"
            );
        }
        assert_eq!(join(&world, 10), WelcomeOutcome::Joined(group(1)));
        assert_eq!(world.positions(1), (7, 5));
    }
}

/// An active group at a lower epoch is processed through the anchor first. A removal there lets the
/// Welcome in; none rejects it as conflicting, and healthy state is never replaced (report B45).
/// covers: STR-082
#[test]
fn an_active_group_is_decided_on_its_own_prefix() {
    for (last, goes_on, expected) in [
        ("remove", true, None),
        ("commit", false, Some(Rejected::WelcomeConflicting)),
        ("commit", true, Some(Rejected::WelcomeSuperseded)),
    ] {
        let world = World::new();
        world.join(1);
        world.receive(1, &[(2, "a"), (5, last)]);
        if goes_on {
            world.receive(1, &[(7, "later")]);
        }
        welcomes(&world, &[(10, "1 9 5")]);
        assert_eq!(join(&world, 10), WelcomeOutcome::Kept);
        let prefix = Dependency::GroupPrefix {
            group: group(1),
            through: id(5),
        };
        let needed = retry(&world, 10).dependencies;
        let needed: Vec<_> = needed.iter().filter_map(from_stored).collect();
        assert_eq!(needed, [prefix]);
        world.turn(&topic(1));
        let outcome = try_attempt(&world, 10, true).expect("an attempt");
        match expected {
            None => {
                assert_eq!(outcome, WelcomeOutcome::Joined(group(1)));
                assert_eq!((world.group(1).epoch, world.positions(1)), (9, (7, 5)));
                assert_eq!(world.turn(&topic(1)).handled, 1, "processing goes on");
            }
            Some(reason) => {
                assert_eq!(outcome, WelcomeOutcome::Rejected(reason));
                assert_eq!(rejection(&world, 10).as_deref(), Some(reason.code()));
                assert!(world.group(1).active);
                assert_eq!(world.group(1).epoch, 1, "its state is its own");
            }
        }
        world.verify();
    }
}

/// Removed and added again three times over, with a restart between: one group, active, readable
/// (report B43). The same commit may remove and add.
/// covers: STR-082, STR-086
#[test]
fn removed_and_added_again_any_number_of_times() {
    let mut world = World::new();
    world.join(1);
    let mut next = 1;
    for round in 1..=3 {
        let (removal, welcome, text) = (next + 1, next + 2, next + 3);
        next += 3;
        world.receive(1, &[(removal, &format!("remove {round}"))]);
        world.turn(&topic(1));
        assert!(!world.group(1).active);
        world = world.another();
        welcomes(&world, &[(welcome, &format!("1 {} {removal}", round * 10))]);
        assert_eq!(join(&world, welcome), WelcomeOutcome::Joined(group(1)));
        world = world.another();
        world.receive(1, &[(text, &format!("text {round}"))]);
        assert_eq!(world.turn(&topic(1)).handled, 1);
        assert!(world.group(1).active);
    }
    let texts: Vec<String> = world.messages();
    let read = texts.iter().filter(|text| text.starts_with("text"));
    assert_eq!(read.count(), 3);
    let stored = world.read(|snapshot| ratchet(snapshot, &group(1)));
    assert_eq!(stored, 1, "the state of the last join");
    world.verify();
}
