//! Panics and storage faults in the middle of a turn.

use super::{drain, joined, stored_ratchet};
use crate::engine::tests::play::{Act, failure};
use crate::engine::tests::world::topic;
use crate::processing::Left;
use crate::storage::StorageError;

/// A panic blocks its topic alone, wherever it comes: in a message, in a commit, or when state is
/// written. Nothing of the broken turn is kept but the reason.
/// covers: STR-072, STR-074
#[test]
fn a_panic_blocks_its_topic_alone() {
    for (head, act, kept) in [
        ("message", Act::Panics, 1),
        ("commit", Act::Panics, 1),
        ("message", Act::PanicsLater, 0),
    ] {
        let world = joined();
        world.join(2);
        world.play.always(head, act.clone());
        world.receive(1, &[(1, "before"), (2, head), (3, "after")]);
        world.receive(2, &[(4, "other")]);
        drain(&world, &topic(1));
        drain(&world, &topic(2));
        let state = world.head(&topic(1)).expect("blocked");
        assert_eq!(state.code, "panic", "{act:?}");
        assert_eq!(world.positions(1), (3, kept), "{act:?}");
        assert_eq!(stored_ratchet(&world), kept);
        assert_eq!(world.positions(2), (4, 4));
        world.play.always(head, None);
        world.try_turn(&topic(1), true).expect("an upgrade");
        drain(&world, &topic(1));
        assert_eq!(world.positions(1), (3, 3));
        world.verify();
    }
}

/// A storage fault at any operation of a turn undoes it whole: P stays, nothing is rejected, and
/// the next turn applies everything.
/// covers: STR-077, STR-074
#[test]
fn a_storage_fault_at_any_operation_undoes_the_turn() {
    let mut failed = 0;
    for operation in 1.. {
        let world = joined();
        world.play.looked();
        world.receive(1, &[(1, "a"), (2, "commit"), (3, "b"), (4, "remove")]);
        let before = world.rows();
        let at = world.faulty.operations() + operation;
        world.faulty.fail_operation(at, failure());
        let result = world.try_turn(&topic(1), false);
        if world.faulty.operations() < at {
            assert_eq!(result.expect("no fault was left").handled, 4);
            break;
        }
        failed += 1;
        result.expect_err("the fault is told");
        assert_eq!(world.rows(), before, "operation {operation}");
        if operation == 1 {
            assert!(
                world.play.looked().is_empty(),
                "the writer comes before any state"
            );
        }
        assert_eq!(world.turn(&topic(1)).handled, 4);
        assert_eq!(world.positions(1), (4, 4));
        assert_eq!(
            (world.messages().join(" "), stored_ratchet(&world)),
            ("a b".to_owned(), 2)
        );
        assert_eq!(world.rejection(&topic(1), 2), None);
        world.verify();
    }
    assert!(failed > 8, "only {failed} operations could fail");
}

/// A storage fault that a processor tells is no verdict either.
/// covers: STR-074, STR-070
#[test]
fn a_fault_that_a_processor_tells_is_no_verdict() {
    for head in ["a", "commit"] {
        let world = joined();
        world.play.on(head, [Act::Fails]);
        world.receive(1, &[(1, "before"), (2, head)]);
        let before = world.rows();
        assert_eq!(world.try_turn(&topic(1), false), Err(failure()));
        assert_eq!(world.rows(), before);
        drain(&world, &topic(1));
        assert_eq!(world.positions(1), (2, 2));
    }
}

/// The writer is taken before any state is read: a turn that cannot have it has looked at nothing,
/// and so have the other writers of state.
/// covers: STR-070
#[test]
fn the_writer_comes_before_any_state() {
    let world = joined();
    world.receive(1, &[(1, "a")]);
    world.play.looked();
    let busy = StorageError::Busy { waited_ms: 1 };
    let at = world.faulty.operations() + 1;
    world.faulty.fail_operation(at, busy.clone());
    assert_eq!(world.try_turn(&topic(1), true), Err(busy));
    assert_eq!(world.faulty.operations(), at, "nothing was read first");
    assert!(world.play.looked().is_empty());
    assert_eq!(world.turn(&topic(1)).left, Left::Nothing);
}
