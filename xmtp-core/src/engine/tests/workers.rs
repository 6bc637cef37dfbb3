//! The workers on virtual time: fairness, failures, fresh looks, and what they do with memory.

use super::play::Act;
use super::world::{SECOND, World, text, topic};
use crate::limits::{ACTIVE_DATABASE_POLL_INTERVAL, MAX_ADMISSION_ROWS};
use crate::processor::{Blocked, Verdict};
use crate::testing::scripted::{Call, Fault, INSTALLATION, welcome_envelope};

/// A topic with a long backlog gives way after one bounded turn: whatever else is ready is next.
/// covers: STR-072
#[test]
fn a_backlog_gives_way_after_one_turn() {
    let world = World::new();
    world.join(1);
    world.join(2);
    let mut after = 0;
    for _ in 0..3 {
        let texts: Vec<String> = (1..=MAX_ADMISSION_ROWS as u64)
            .map(|number| format!("long {}", after + number))
            .collect();
        let rows: Vec<(u64, &str)> = texts
            .iter()
            .enumerate()
            .map(|(index, text)| (after + 1 + index as u64, text.as_str()))
            .collect();
        world.receive(1, &rows);
        after += MAX_ADMISSION_ROWS as u64;
    }
    world.receive(2, &[(5_000, "short")]);
    let engine = world.start();
    world.wait(SECOND);
    let looked = world.play.looked();
    let short = looked.iter().position(|text| text == "short");
    assert_eq!(
        short,
        Some(MAX_ADMISSION_ROWS),
        "after one turn of the other"
    );
    assert_eq!(looked.len(), 3 * MAX_ADMISSION_ROWS + 1);
    world.end(engine);
}

/// Topics whose turns fail are tried again at each poll, keep no other topic, and are not spun on.
/// covers: STR-072, STR-078
#[test]
fn failing_topics_keep_no_other_and_no_processor() {
    let world = World::new();
    (1..=3).for_each(|name| world.join(name));
    world.play.always("bad", Act::Fails);
    world.receive(1, &[(1, "bad")]);
    world.receive(2, &[(2, "bad")]);
    world.receive(3, &[(3, "good")]);
    let engine = world.start();
    world.wait(10 * SECOND);
    assert_eq!(world.messages(), ["good"]);
    let polls = 10 * SECOND.as_millis() / ACTIVE_DATABASE_POLL_INTERVAL.as_millis();
    let looks = world.play.looked().len() as u128;
    assert!(
        looks > polls && looks < 4 * polls,
        "{looks} looks in {polls} polls"
    );
    world.play.always("bad", None);
    world.wait(SECOND);
    assert_eq!(world.messages().len(), 3);
    world.end(engine);
}

/// What another process received or joined is found within the poll interval, with no wake and no
/// message from the network.
/// covers: STR-078, STR-085
#[test]
fn what_another_process_wrote_is_found_by_a_fresh_look() {
    let world = World::new();
    let engine = world.start();
    engine.go_live(Vec::new());
    world.wait(SECOND);
    let peer = world.another();
    peer.join(1);
    peer.receive(1, &[(1, "a")]);
    let calls = world.backend.calls(Call::Query);
    world.wait(ACTIVE_DATABASE_POLL_INTERVAL * 2);
    assert_eq!(world.messages(), ["a"]);
    assert_eq!(world.backend.calls(Call::Query), calls);
    let wanted = world.context.interests.wanted();
    assert!(
        wanted.contains(&topic(1)),
        "interest follows the stored groups"
    );
    peer.receive(1, &[(2, "remove")]);
    world.wait(ACTIVE_DATABASE_POLL_INTERVAL * 3);
    assert!(!world.group(1).active);
    let wanted = world.context.interests.wanted();
    assert!(
        !wanted.contains(&topic(1)),
        "a group that was left is not wanted"
    );
    world.end(engine);
}

/// A Welcome whose attempt fails in the database keeps no later one.
/// covers: STR-080
#[test]
fn a_failing_welcome_keeps_no_later_one() {
    let world = World::new();
    world.play.always("1 0 0", Act::Fails);
    world.backend.store([
        welcome_envelope(&INSTALLATION, "1 0 0"),
        welcome_envelope(&INSTALLATION, "2 0 0"),
    ]);
    let engine = world.start();
    engine.go_live(Vec::new());
    world.wait(5 * SECOND);
    assert!(world.group(2).active && !world.group(1).active);
    let looks = world.play.looked().len();
    assert!(looks < 200, "{looks} looks");
    world.play.always("1 0 0", None);
    world.wait(SECOND);
    assert!(world.group(1).active);
    world.end(engine);
}

/// A blocked topic is told as blocked and left alone while others flow; a new process, which may
/// know more, tries it once.
/// covers: STR-074, STR-072
#[test]
fn a_new_process_tries_a_blocked_head_once() {
    let world = World::new();
    world.join(1);
    world.join(2);
    world
        .play
        .always("new", Act::Is(Verdict::Blocked(Blocked::Unsupported)));
    world.receive(1, &[(1, "new"), (2, "after")]);
    world.receive(2, &[(3, "flows")]);
    let engine = world.start();
    world.wait(10 * SECOND);
    let looked = world.play.looked();
    assert_eq!(looked.iter().filter(|text| *text == "new").count(), 1);
    assert_eq!(world.messages(), ["flows"]);
    world.end(engine);
    let world = world.another();
    let engine = world.start();
    world.wait(10 * SECOND);
    assert_eq!(world.play.looked(), ["new"], "once, in vain");
    world.end(engine);
    world.play.always("new", None);
    let world = world.another();
    let engine = world.start();
    world.wait(SECOND);
    assert_eq!(world.messages(), ["flows", "new", "after"]);
    world.end(engine);
}

/// An engine that starts over what an earlier process left sends it on, and reads why something
/// was rejected.
/// covers: STR-111, STR-074
#[test]
fn a_new_process_sends_what_is_left() {
    let world = World::new();
    world.join(1);
    world.backend.fail(Call::Publish, [Fault::Hang]);
    let (sender, intent) = (world.sender(), text(1, "left"));
    let result = world.run(async move { sender.send(intent, SECOND).await });
    assert!(result.is_err());
    world.play.always(
        "bad",
        Act::Is(Verdict::Rejected(crate::processor::Rejected::EpochFuture)),
    );
    let bad = world.store(1, &["bad"])[0];
    let world = world.another();
    let engine = world.start();
    engine.go_live(Vec::new());
    world.wait(5 * SECOND);
    assert_eq!(world.messages(), ["left"]);
    let reading = engine.clone();
    let at = xmtp_proto::SequenceId::saturating(bad);
    let reason = world.run(async move { reading.rejection(topic(1), at).await });
    assert_eq!(reason.expect("read").as_deref(), Some("epoch_future"));
    world.end(engine);
}

/// A group whose sends fail again and again is tried ever less often, and delays no other group's.
#[test]
fn a_group_that_cannot_send_delays_no_other() {
    let world = World::new();
    world.join(1);
    world.join(2);
    world.play.always("prepare broken", Act::Fails);
    let engine = world.start();
    engine.go_live(Vec::new());
    let enqueue = |new| {
        let sender = world.sender();
        let queued = world.run(async move { sender.enqueue(new).await });
        queued.expect("it is queued");
    };
    enqueue(text(1, "broken"));
    world.wait(60 * SECOND);
    let tries = world.play.looked();
    let tries = tries.iter().filter(|text| *text == "prepare broken");
    let tries = tries.count();
    assert!((5..20).contains(&tries), "{tries} tries in a minute");
    for body in ["fine", "as fine"] {
        enqueue(text(2, body));
        world.wait(2 * SECOND);
        assert_eq!(world.messages().last().map(String::as_str), Some(body));
    }
    world.end(engine);
}
