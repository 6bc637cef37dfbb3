//! Groups that were set aside, and the Welcome that brings one back.

use super::{id, join, welcomes};
use crate::engine::tests::play::Act;
use crate::engine::tests::world::{SECOND, World, group, text, topic};
use crate::processing::Left;
use crate::processor::{Blocked, Verdict};
use crate::send::QueueError;
use crate::subscription::progress::Position;
use crate::sync::{Cause, Reason, SyncError, SyncRequest, sync};
use crate::welcome::WelcomeOutcome;

/// A group whose second envelope is a commit that can never be applied here; answers its ids.
fn received() -> (World, Vec<u64>) {
    let world = World::new();
    world.join(1);
    let late = Act::Is(Verdict::Blocked(Blocked::Lifetime));
    world.play.always("commit late", late);
    let ids = world.store(1, &["before", "commit late", "after"]);
    world.receive_all(1);
    (world, ids)
}

/// A commit whose package has expired by the clock sets its group aside in the transaction that
/// finds it: inactive at its P, everything kept, nothing rejected, and the request to be added again
/// noted. No turn, process or send goes on there, and a sync tells it as blocked, not as complete.
///
/// covers: STR-074, STR-043, STR-077
#[test]
fn a_commit_that_expired_sets_its_group_aside() {
    let (world, ids) = received();
    let commits = world.faulty.commits();
    let report = world.turn(&topic(1));
    assert_eq!((report.handled, report.left), (1, Left::Stopped));
    assert_eq!(world.faulty.commits(), commits + 1);
    let record = world.group(1);
    assert!(!record.active);
    assert_eq!(record.inactive_cause, "quarantined");
    let now = world.context.runtime.now_ns();
    assert_eq!(
        (record.readd_commit_sequence, record.readd_requested_ns),
        (ids[1], now)
    );
    assert_eq!(world.positions(1), (ids[2], ids[0]));
    assert_eq!(world.record(&topic(1)).pending_rows, 2);
    assert_eq!(world.rejection(&topic(1), ids[1]), None);
    assert_eq!(world.messages(), ["before"]);
    assert_eq!(world.head(&topic(1)).expect("a head").code, "lifetime");
    world.verify();

    // Another process, which tries what is blocked, leaves it alone.
    world.play.looked();
    let world = world.another();
    let engine = world.start();
    engine.go_live(Vec::new());
    world.wait(5 * SECOND);
    assert!(world.play.looked().is_empty());
    assert!(!world.context.interests.wanted().contains(&topic(1)));
    let (sender, new) = (engine.sender().clone(), text(1, "refused"));
    let queued = world.run(async move { sender.enqueue(new).await });
    assert_eq!(queued, Err(QueueError::Inactive));
    let context = world.context.clone();
    let request = SyncRequest::new([topic(1)]);
    let Err(SyncError::Incomplete(told)) = world.run(async move { sync(&context, request).await })
    else {
        panic!("a group that was set aside is not complete");
    };
    assert_eq!(told.reason, Reason::Blocked);
    let code = "quarantined".to_owned();
    assert_eq!(told.obligations[0].cause, Cause::Blocked { code });
    let position = Position::Processed {
        processed: id(ids[0]),
        is_left: false,
    };
    assert_eq!(told.obligations[0].progress, position);
    world.end(engine);
}

/// A Welcome whose anchor lies above P replaces the state of a group that was set aside, as after a
/// removal; the request to be added again ends with it, and processing goes on behind its anchor.
///
/// covers: STR-082
#[test]
fn a_welcome_brings_back_what_was_set_aside() {
    let (world, ids) = received();
    world.turn(&topic(1));
    let welcome = ids[2] + 10;
    welcomes(&world, &[(welcome, &format!("1 9 {}", ids[1]))]);
    assert_eq!(join(&world, welcome), WelcomeOutcome::Joined(group(1)));
    let record = world.group(1);
    assert!(record.active && record.inactive_cause.is_empty());
    assert_eq!((record.epoch, record.anchor), (9, ids[1]));
    assert_eq!(
        (record.readd_commit_sequence, record.readd_requested_ns),
        (0, 0)
    );
    assert_eq!(world.head(&topic(1)), None);
    assert_eq!(world.turn(&topic(1)).handled, 1);
    assert_eq!(world.messages(), ["before", "joined", "after"]);
    assert_eq!(world.positions(1), (ids[2], ids[2]));
    world.verify();
}

/// A Welcome that came before the group was set aside waits for the prefix, and is decided anew as
/// soon as the group is inactive.
///
/// covers: STR-082, STR-073
#[test]
fn a_waiting_welcome_installs_once_its_group_is_set_aside() {
    let (world, ids) = received();
    let welcome = ids[2] + 10;
    welcomes(&world, &[(welcome, &format!("1 9 {}", ids[1]))]);
    assert_eq!(join(&world, welcome), WelcomeOutcome::Kept);
    let engine = world.start();
    world.wait(2 * SECOND);
    assert!(world.group(1).active);
    assert_eq!(world.group(1).epoch, 9);
    assert_eq!(world.messages(), ["before", "joined", "after"]);
    world.end(engine);
}
