//! What pending parents wait for, resolved by the worker on virtual time.

use std::time::Duration;

use xmtp_proto::{GroupId, SequenceId, Topic};

use super::play::{Act, destination, pointee_key};
use super::world::{SECOND, World, change, inbox, served, topic};
use crate::engine::depend::MAX_WAITING_PER_ROUND;
use crate::engine::fetch::fetch_page;
use crate::limits::{IDENTITY_REFERENCE_WAIT, WELCOME_POINTER_WINDOW};
use crate::processing::Left;
use crate::processor::{Blocked, Dependency, Joined, Rejected, Verdict};
use crate::receipt;
use crate::testing::scripted::{
    Call, Fault, INSTALLATION, group_envelope, identity_envelope, welcome_envelope,
};
use crate::transport::TransportError;
use crate::welcome::install_created;

pub(super) fn waits(name: u8, sequence: u64) -> Act {
    Act::Is(Verdict::Waits(vec![Dependency::Identity {
        inbox: inbox(name),
        sequence: SequenceId::saturating(sequence),
    }]))
}

fn unavailable() -> Fault {
    Fault::Refuse(TransportError::Unavailable {
        detail: "scripted".to_owned(),
        retry_after: None,
    })
}

/// A world with a group whose commit waits for an update of an inbox.
fn waiting(name: u8, sequence: u64) -> World {
    let world = World::new();
    world.join(1);
    world.play.always("commit waits", waits(name, sequence));
    let last = world.store(1, &["before", "commit waits", "after"])[2];
    world.receive_all(1);
    assert!(sequence < last);
    world
}

/// An update that exists is fetched through admission and processed as its own topic; the parent
/// applies then, once, and so does everything behind it.
/// covers: STR-073, STR-076
#[test]
fn a_needed_update_is_fetched_and_the_parent_applies() {
    let world = World::new();
    world.join(1);
    let sequence = world.backend.store([identity_envelope(&inbox(1), 1)])[0];
    world.play.on("commit waits", [waits(1, sequence)]);
    world.store(1, &["before", "commit waits", "after"]);
    world.receive_all(1);
    let engine = world.start();
    world.wait(2 * SECOND);
    assert_eq!(world.messages(), ["before", "after"]);
    let (received, processed) = world.positions(1);
    assert_eq!(received, processed);
    assert_eq!(
        world.record(&Topic::identity(&inbox(1))).processed,
        sequence
    );
    let looks = world.play.looked();
    let commits = looks.iter().filter(|text| *text == "commit waits");
    assert_eq!(commits.count(), 2, "one look that waits, one that applies");
    world.end(engine);
}

/// P beyond the update proves nothing: only the state at exactly that id does. What stays absent
/// for the whole wait of healthy reads is rejected, and what is behind it goes on.
/// covers: STR-076, STR-075
#[test]
fn an_absent_update_is_rejected_after_healthy_time() {
    let world = World::new();
    world.join(1);
    let updates = world
        .backend
        .store([1, 2].map(|time| identity_envelope(&inbox(1), time)));
    // Ids have gaps: nothing has the one between.
    assert!(updates[1] > updates[0] + 1);
    world.play.always("commit waits", waits(1, updates[0] + 1));
    let last = world.store(1, &["commit waits", "after"]);
    world.receive_all(1);
    let engine = world.start();
    world.wait(IDENTITY_REFERENCE_WAIT - SECOND);
    assert_eq!(
        world.record(&Topic::identity(&inbox(1))).processed,
        updates[1]
    );
    assert!(
        world.messages().is_empty(),
        "P beyond the update is no proof"
    );
    world.wait(4 * SECOND);
    assert_eq!(world.messages(), ["after"]);
    let rejected = world.rejection(&topic(1), last[0]);
    assert_eq!(rejected.as_deref(), Some("identity_ref_missing"));
    world.end(engine);
}

/// Time without answers counts for nothing, however long it lasts.
/// covers: STR-076
#[test]
fn an_outage_does_not_count_as_absence() {
    let world = waiting(1, 1);
    let outage = 200;
    let before = world.backend.calls(Call::Query);
    world
        .backend
        .fail(Call::Query, (0..outage).map(|_| unavailable()));
    let engine = world.start();
    let asked = || world.backend.calls(Call::Query) - before;
    world.wait(2 * IDENTITY_REFERENCE_WAIT);
    assert!(
        (60..=121).contains(&asked()),
        "{} calls: one each half second",
        asked()
    );
    while asked() <= outage {
        world.wait(SECOND / 10);
    }
    assert_eq!(world.messages(), ["before"]);
    world.wait(IDENTITY_REFERENCE_WAIT - SECOND);
    assert_eq!(
        world.messages(),
        ["before"],
        "the wait begins with the first answer"
    );
    world.wait(4 * SECOND);
    assert_eq!(world.messages(), ["before", "after"]);
    world.end(engine);
}

/// A device that sleeps between two reads was not healthy all the while.
/// covers: STR-076
#[test]
fn a_long_silence_counts_no_more_than_a_short_one() {
    let world = waiting(1, 1);
    let engine = world.start();
    world.wait(3 * SECOND);
    world.runtime.clock().advance(3_600 * SECOND);
    world.wait(3 * SECOND);
    assert_eq!(world.messages(), ["before"]);
    world.wait(IDENTITY_REFERENCE_WAIT);
    assert_eq!(world.messages(), ["before", "after"]);
    world.end(engine);
}

/// An update behind an invalid or a waiting one is not absent: its dependants wait with it, and
/// both go on together.
/// covers: STR-076, STR-074
#[test]
fn an_unsettled_prefix_is_not_absence() {
    let world = World::new();
    world.join(1);
    let updates = world
        .backend
        .store([1, 2].map(|time| identity_envelope(&inbox(1), time)));
    world.play.always(
        "identity 1",
        Act::Is(Verdict::Blocked(Blocked::IdentityInvalid)),
    );
    world.play.on("commit waits", vec![waits(1, updates[1]); 2]);
    world.store(1, &["commit waits", "after"]);
    world.receive_all(1);
    let engine = world.start();
    world.wait(10 * 60 * SECOND);
    let identity = Topic::identity(&inbox(1));
    assert_eq!(
        world.head(&identity).map(|head| head.code).as_deref(),
        Some("identity_invalid")
    );
    assert!(world.messages().is_empty());
    assert!(world.head(&topic(1)).is_some(), "it waits with it");
    world.end(engine);
    // A new process knows better: what was blocked is tried once.
    world.play.always("identity 1", None);
    let world = world.another();
    let engine = world.start();
    world.wait(2 * SECOND);
    assert_eq!(world.messages(), ["after"]);
    world.end(engine);
}

/// One dependency that fails, or one parent that cannot be settled, keeps no sibling; a restart
/// derives everything again from what is pending.
/// covers: STR-075, STR-073
#[test]
fn a_failing_sibling_keeps_no_other() {
    let world = World::new();
    let there = world.backend.store([identity_envelope(&inbox(9), 1)])[0];
    for name in 1..=3 {
        world.join(name);
        let text = format!("commit {name}");
        let needed = if name == 2 { 8 } else { 9 };
        let sequence = if name == 2 { 1 } else { there };
        world.play.on(&text, [waits(needed, sequence)]);
        world.store(name, &[&text, &format!("after {name}")]);
        world.receive_all(name);
    }
    // The first parent fails whenever it is looked at again.
    world.play.always("commit 1", Act::Fails);
    let engine = world.start();
    world.wait(3 * SECOND);
    assert_eq!(world.messages(), ["after 3"]);
    world.end(engine);
    world.play.always("commit 1", None);
    world.play.always("commit 2", waits(8, 1));
    let world = world.another();
    let engine = world.start();
    world.wait(3 * SECOND);
    assert_eq!(world.messages(), ["after 3", "after 1"]);
    world.wait(IDENTITY_REFERENCE_WAIT + 2 * SECOND);
    assert_eq!(world.messages().last().map(String::as_str), Some("after 2"));
    world.end(engine);
}

/// An own commit whose dependency never comes is told to its sender too.
/// covers: STR-074
#[test]
fn a_rejected_dependency_ends_the_own_attempt() {
    let world = World::new();
    world.join(1);
    world.play.always("commit mine", waits(1, 1));
    let (sender, intent) = (world.sender(), change(1, "commit mine"));
    world.store(2, &["so that the update would be earlier"]);
    let engine = world.start();
    let result = world.run(async move { sender.send(intent, 60 * SECOND).await });
    let reason = Rejected::IdentityReferenceMissing.code().to_owned();
    assert_eq!(result, Err(crate::send::SendError::Rejected { reason }));
    world.end(engine);
}

/// A world with a pointer that is read after its window, before its first attempt: its deadline is
/// in the past when it is written.
pub(super) fn expired_pointer() -> World {
    let world = World::new();
    world
        .backend
        .store([welcome_envelope(&INSTALLATION, "point 3")]);
    let context = world.context.clone();
    world.run(async move {
        let topics = [context.welcome_topic];
        fetch_page(&context, &topics).await.expect("a page");
    });
    let clock = world.runtime.clock();
    clock.advance(WELCOME_POINTER_WINDOW + SECOND);
    world
}

/// A pointer read long after its window, or opened again after it, is asked for once more before
/// its last attempt; without an answer it is kept.
/// covers: STR-081, STR-115
#[test]
fn an_expired_pointer_is_asked_for_before_its_last_attempt() {
    for pointee in [true, false] {
        let world = expired_pointer();
        if pointee {
            world
                .backend
                .store([welcome_envelope(&pointee_key(3), "1 0 0")]);
        }
        world
            .backend
            .fail(Call::Query, (0..20).map(|_| unavailable()));
        let engine = world.start();
        world.wait(5 * SECOND);
        assert_eq!(
            world.record(&world.context.welcome_topic).pending_rows,
            1,
            "no answer yet"
        );
        world.wait(20 * SECOND);
        assert_eq!(world.record(&world.context.welcome_topic).pending_rows, 0);
        let rejected = world.rejection(&world.context.welcome_topic, 1);
        match pointee {
            true => assert!(world.group(1).active && rejected.is_none(), "{rejected:?}"),
            false => assert_eq!(rejected.as_deref(), Some("welcome_expired")),
        }
        assert_eq!(world.record(&destination(3)).pending_rows, 0);
        world.end(engine);
    }
}

/// A Welcome that opens only after its deadline asks for its members then: their updates are
/// fetched before anything is concluded. One that stays absent ends it after its own wait.
/// covers: STR-076, STR-081, STR-115
#[test]
fn an_expired_welcome_still_waits_for_its_members() {
    for member in [true, false] {
        let world = expired_pointer();
        let pointee = welcome_envelope(&pointee_key(3), "1 0 0");
        let update = world
            .backend
            .store([pointee, identity_envelope(&inbox(1), 1)])[1];
        match member {
            true => world.play.on("1 0 0", [waits(1, update)]),
            false => world.play.always("1 0 0", waits(1, update + 1)),
        }
        let engine = world.start();
        world.wait(IDENTITY_REFERENCE_WAIT - SECOND);
        let topic = world.context.welcome_topic;
        assert_eq!(world.rejection(&topic, 1), None);
        assert_eq!(world.group(1).active, member);
        world.wait(4 * SECOND);
        let absent = (!member).then_some("identity_ref_missing");
        assert_eq!(world.rejection(&topic, 1).as_deref(), absent);
        for topic in [topic, destination(3)] {
            assert_eq!(world.record(&topic).pending_rows, 0);
        }
        world.end(engine);
    }
}

/// A pointee that comes while its pointer waits is found within the pause of the look, and a
/// Welcome that cannot go on is looked at no more often than its pauses say.
/// covers: STR-081, STR-080
#[test]
fn kept_welcomes_are_not_looked_at_in_a_loop() {
    let world = World::new();
    world
        .play
        .always("1 1 1", Act::Is(Verdict::Blocked(Blocked::Unsupported)));
    world.backend.store([
        welcome_envelope(&INSTALLATION, "point 3"),
        welcome_envelope(&INSTALLATION, "1 1 1"),
        welcome_envelope(&INSTALLATION, "2 1 1"),
    ]);
    let context = world.context.clone();
    world.run(async move {
        fetch_page(&context, &[context.welcome_topic])
            .await
            .expect("a page");
    });
    let engine = world.start();
    world.wait(SECOND);
    assert!(world.group(2).active, "it waits for none of the others");
    world
        .backend
        .store([welcome_envelope(&pointee_key(3), "1 1 1")]);
    world.wait(Duration::from_secs(600));
    assert_eq!(
        world.record(&destination(3)).pending_rows,
        1,
        "the pointee is there"
    );
    let looks = world.play.looked().len();
    assert!(
        looks < 20,
        "{looks} looks at two blocked Welcomes in ten minutes"
    );
    assert!(!world.group(1).active);
    world.end(engine);
}

/// More heads that wait than one round looks at keep no Welcome from what it waits for.
/// covers: STR-075, STR-080
#[test]
fn waiting_heads_do_not_hide_what_a_welcome_waits_for() {
    let world = World::new();
    let wait = Act::Is(Verdict::Waits(vec![Dependency::Identity {
        inbox: inbox(9),
        sequence: SequenceId::saturating(1),
    }]));
    world.play.always("commit waits", wait);
    for name in 0..=MAX_WAITING_PER_ROUND as u16 {
        let mut id = [0xcc; 16];
        id[..2].copy_from_slice(&name.to_be_bytes());
        let (group, topic) = (
            GroupId::from_bytes(id),
            Topic::group(&GroupId::from_bytes(id)),
        );
        let commit = served(&topic, 2, group_envelope(&group, "commit waits"));
        let batch = receipt::check(topic, SequenceId::ZERO, vec![commit]).expect("in order");
        world.write(|txn| {
            let joined = Joined {
                record: Default::default(),
                messages: Vec::new(),
            };
            install_created(txn, group, joined)
        });
        world.admit(&batch).expect("it fits");
        assert_eq!(world.turn(&topic).left, Left::Stopped);
    }
    world
        .backend
        .store([welcome_envelope(&INSTALLATION, "point 3")]);
    world
        .backend
        .store([welcome_envelope(&pointee_key(3), "1 0 0")]);
    let context = world.context.clone();
    world.run(async move {
        let topics = [context.welcome_topic];
        fetch_page(&context, &topics).await.expect("a page");
    });
    let engine = world.start();
    world.wait(IDENTITY_REFERENCE_WAIT / 2);
    assert!(world.group(1).active, "the pointee was not asked for");
    world.end(engine);
}
