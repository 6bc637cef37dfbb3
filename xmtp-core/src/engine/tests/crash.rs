//! Every commit, read and call of a small life fails once, and the end is the same.

use std::collections::BTreeMap;

use xmtp_proto::{MessageId, Topic};

use super::play::Act;
use super::world::{SECOND, World, change, group, inbox, text, topic};
use crate::processor::{Rejected, Verdict};
use crate::send::SendError;
use crate::storage::StorageError;
use crate::sync::SyncRequest;
use crate::testing::faulty::Side;
use crate::testing::scripted::{
    Call, Fault, INSTALLATION, group_envelope, identity_envelope, welcome_envelope,
};
use crate::transport::TransportError;

/// A life that receives, processes, joins, waits for an identity and sends. Each step may have been
/// taken before: that is what a restart finds.
fn prepare() -> World {
    let world = World::new();
    world.join(1);
    world.backend.store([identity_envelope(&inbox(1), 1)]);
    world.store(1, &["one", "bad", "commit"]);
    let anchor = world.store(2, &["add", "in two"])[0];
    let welcome = format!("2 1 {anchor}");
    world
        .backend
        .store([welcome_envelope(&INSTALLATION, &welcome)]);
    world.backend.store([group_envelope(&group(1), "two")]);
    world
        .play
        .always("bad", Act::Is(Verdict::Rejected(Rejected::Unauthenticated)));
    world
}

/// Lives until everything is done or the process dies; answers whether it is done.
fn live(world: &World) -> bool {
    let engine = world.start();
    let sender = engine.sender().clone();
    let (syncing, closing) = (engine.clone(), engine);
    let welcomes = world.context.welcome_topic;
    let is_done = world.run(async move {
        let topics = vec![welcomes, topic(1), Topic::identity(&inbox(1))];
        let request = SyncRequest {
            include_discovered: true,
            timeout: 10 * SECOND,
            ..SyncRequest::new(topics)
        };
        if syncing.sync(request).await.is_err() {
            return false;
        }
        for intent in [
            text(1, "mine"),
            change(1, "commit mine"),
            text(2, "mine too"),
        ] {
            // A change has no id: it is queued once more only when no earlier one is left.
            let sent = sender.send(intent, 60 * SECOND).await;
            if !matches!(sent, Ok(_) | Err(SendError::Superseded)) {
                return false;
            }
        }
        true
    });
    let _ = world.run(async move { closing.close().await });
    is_done
}

/// What the end is: content by group, positions, reasons, and nothing that waits.
#[derive(Debug, PartialEq)]
struct End {
    messages: Vec<String>,
    positions: BTreeMap<&'static str, (bool, u32)>,
    rejected: Option<String>,
    groups: Vec<(bool, bool)>,
    mine: bool,
}

fn end(world: &World) -> End {
    world.verify();
    let mut messages = world.messages();
    messages.sort();
    let positions = [
        ("one", topic(1)),
        ("two", topic(2)),
        ("identity", Topic::identity(&inbox(1))),
        ("welcomes", world.context.welcome_topic),
    ];
    let positions = positions.map(|(name, topic)| {
        let record = world.record(&topic);
        let is_even = record.received == record.processed || name == "welcomes";
        (name, (is_even, record.pending_rows))
    });
    // The ids that the backend gives are the same each time.
    let bad = 4;
    let groups = [1, 2].map(|name| (world.group(name).active, world.group(name).epoch > 0));
    let id = MessageId::derive(&group(1), "mine", b"mine");
    let mine = world.read(|read| crate::delivery::store::number_of(read, &group(1), &id));
    End {
        messages,
        positions: positions.into(),
        rejected: world.rejection(&topic(1), bad),
        groups: groups.to_vec(),
        mine: mine.is_some(),
    }
}

/// Lives again and again, as a user opens an application again, until it is done.
fn restarts(mut world: World, done: bool) -> End {
    let mut is_done = done;
    for _ in 0..5 {
        if is_done {
            break;
        }
        world = world.another();
        is_done = live(&world);
    }
    assert!(is_done, "it never ends");
    end(&world.another())
}

fn calm() -> (End, u64, u64) {
    let world = prepare();
    let (commits, operations) = (world.faulty.commits(), world.faulty.operations());
    assert!(live(&world));
    let commits = world.faulty.commits() - commits;
    let operations = world.faulty.operations() - operations;
    (end(&world.another()), commits, operations)
}

/// The process dies before and after each commit: a restart reaches the same end.
/// covers: EXT-006, STR-077, STR-111, STR-020
#[test]
fn a_crash_at_any_commit_ends_the_same() {
    let (expected, commits, _) = calm();
    assert!(commits > 10, "{commits} commits");
    assert_eq!(
        expected.messages,
        ["in two", "joined", "mine", "mine too", "one", "two"]
    );
    for commit in 1..=commits {
        for side in [Side::Before, Side::After] {
            let world = prepare();
            let at = world.faulty.commits() + commit;
            world.faulty.crash_at_commit(at, side);
            let is_done = live(&world);
            assert_eq!(
                restarts(world, is_done),
                expected,
                "{side:?} commit {commit}"
            );
        }
    }
}

/// Power fails after each commit and takes what was not flushed with it.
/// covers: EXT-006, STR-110
#[test]
fn a_power_loss_after_any_commit_ends_the_same() {
    let (expected, commits, _) = calm();
    for commit in 1..=commits {
        let world = prepare();
        let at = world.faulty.commits() + commit;
        world.faulty.crash_at_commit(at, Side::After);
        let is_done = live(&world);
        if !is_done {
            world.disk.lose_unflushed(0);
        }
        assert_eq!(restarts(world, is_done), expected, "commit {commit}");
    }
}

/// One operation of the engine fails and the process lives on: it reaches the same end.
/// covers: EXT-006, STR-077
#[test]
fn a_fault_at_any_operation_ends_the_same() {
    let (expected, _, operations) = calm();
    // A sample is enough to meet each kind: the turn and the join have tests of their own.
    for operation in (1..=operations).step_by(operations as usize / 80) {
        let world = prepare();
        let at = world.faulty.operations() + operation;
        let error = StorageError::Busy { waited_ms: 1 };
        world.faulty.fail_operation(at, error);
        let is_done = live(&world);
        assert_eq!(restarts(world, is_done), expected, "operation {operation}");
    }
}

/// Each call is refused or loses its reply once: the same end, every message exactly once.
/// covers: EXT-006, STR-111
#[test]
fn a_fault_of_any_call_ends_the_same() {
    let (expected, _, _) = calm();
    let unavailable = TransportError::Unavailable {
        detail: "scripted".to_owned(),
        retry_after: None,
    };
    for call in [Call::Publish, Call::Query, Call::QueryNewest] {
        for at in 0..6 {
            for fault in [Fault::DropReply, Fault::Refuse(unavailable.clone())] {
                let world = prepare();
                let calm = (0..at).map(|_| Fault::Delay(std::time::Duration::ZERO));
                let faults: Vec<Fault> = calm.chain([fault.clone()]).collect();
                world.backend.fail(call, faults);
                let is_done = live(&world);
                let end = restarts(world, is_done);
                assert_eq!(end, expected, "{fault:?} at {call:?} {at}");
            }
        }
    }
}
