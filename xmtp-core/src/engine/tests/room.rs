//! What cannot be taken in, because there is no room for it or its order went back, is not absent.

use xmtp_proto::{SequenceId, Topic, TopicKind};

use super::depend::{expired_pointer, waits};
use super::play::{Act, destination, pointee_key};
use super::world::{SECOND, World, inbox, served, topic};
use crate::engine::fetch::fetch_page;
use crate::limits::{
    BACKEND_FENCE_IDS, IDENTITY_REFERENCE_WAIT, MAX_ADMISSION_ROWS, MAX_PENDING_ROWS_PER_TOPIC,
    WELCOME_POINTER_FIRST_PAUSE, WELCOME_RETENTION, WELCOME_ROOM_WAIT, max_pending_rows,
};
use crate::processor::{Blocked, Verdict};
use crate::receipt::check;
use crate::testing::scripted::{INSTALLATION, identity_envelope, welcome_envelope};

/// Admits `rows` envelopes of a topic behind F, without a turn.
fn fill(
    world: &World,
    topic: Topic,
    rows: u64,
    envelope: &xmtp_proto::backend::v1::ClientEnvelope,
) {
    let first = world.record(&topic).received + 1;
    let all: Vec<u64> = (first..first + rows).collect();
    for part in all.chunks(MAX_ADMISSION_ROWS) {
        let envelopes = part
            .iter()
            .map(|sequence| served(&topic, *sequence, envelope.clone()));
        let after = SequenceId::saturating(part[0] - 1);
        let batch = check(topic, after, envelopes.collect()).expect("in order");
        let admitted = world.admit(&batch).expect("it fits");
        assert_eq!((admitted.new, admitted.left_out), (part.len(), None));
    }
}

/// While the budget of identity logs is full, an update may be there: nothing is rejected for it,
/// and once there is room it is fetched and the commit applies.
/// covers: STR-076, STR-066, RVC-003
#[test]
fn an_update_without_room_is_not_absent() {
    let world = World::new();
    world.join(1);
    let update = world.backend.store([identity_envelope(&inbox(1), 1)])[0];
    let invalid = Act::Is(Verdict::Blocked(Blocked::IdentityInvalid));
    world.play.always("identity 7", invalid);
    for name in 0..(max_pending_rows(TopicKind::Identity) / MAX_PENDING_ROWS_PER_TOPIC) as u8 {
        let inbox = inbox(100 + name);
        let envelope = identity_envelope(&inbox, 7);
        let identity = Topic::identity(&inbox);
        fill(&world, identity, MAX_PENDING_ROWS_PER_TOPIC, &envelope);
    }
    world.play.on("commit waits", vec![waits(1, update); 2]);
    world.store(1, &["commit waits", "after"]);
    world.receive_all(1);
    let engine = world.start();
    world.wait(2 * IDENTITY_REFERENCE_WAIT);
    let identity = Topic::identity(&inbox(1));
    assert_eq!(world.record(&identity).received, 0, "there is no room");
    assert!(world.head(&topic(1)).is_some(), "it waits");
    assert!(world.messages().is_empty());
    world.end(engine);
    // A new process can read what fills the budget.
    world.play.always("identity 7", None);
    let world = world.another();
    let engine = world.start();
    world.wait(30 * SECOND);
    assert_eq!(world.messages(), ["after"]);
    assert_eq!(world.positions(1).0, world.positions(1).1);
    assert_eq!(world.record(&identity).processed, update);
    world.end(engine);
}

/// A log whose order went back says nothing of what was in it: nothing is rejected for it.
/// covers: STR-076, EXT-002
#[test]
fn an_update_of_a_log_that_went_back_is_not_absent() {
    let world = World::new();
    world.join(1);
    let identity = Topic::identity(&inbox(1));
    let updates = world
        .backend
        .store([1, 2].map(|time| identity_envelope(&inbox(1), time)));
    let context = world.context.clone();
    world.run(async move { fetch_page(&context, &[identity]).await.expect("a page") });
    assert_eq!(world.record(&identity).processed, updates[1]);
    world.backend.put_back(updates[0], 2 * BACKEND_FENCE_IDS);
    world.backend.store([identity_envelope(&inbox(1), 3)]);
    world.play.always("commit waits", waits(1, updates[1] + 1));
    world.receive(1, &[(updates[1] + 2, "commit waits")]);
    let engine = world.start();
    world.wait(2 * IDENTITY_REFERENCE_WAIT);
    assert_eq!(world.record(&identity).received, updates[1]);
    assert_eq!(world.rejection(&topic(1), updates[1] + 2), None);
    assert!(world.head(&topic(1)).is_some(), "it waits");
    world.end(engine);
}

/// A pointee that there is no room for is not given up at the deadline of its pointer: room comes
/// when what nobody can open ends after its day. A budget that stays full is not waited for
/// without end, so that pointers that fill it make room for one another.
/// covers: STR-081, STR-115, STR-066, RVC-003
#[test]
fn a_pointee_without_room_is_waited_for() {
    for (cause, joins) in [(Blocked::Unsupported, true), (Blocked::VersionFloor, false)] {
        let world = expired_pointer();
        let topic = world.context.welcome_topic;
        world
            .play
            .always("90 0 0", Act::Is(Verdict::Blocked(cause)));
        let noise = welcome_envelope(&INSTALLATION, "90 0 0");
        let full = max_pending_rows(TopicKind::Welcome);
        fill(&world, topic, full - 1, &noise);
        world
            .backend
            .store([welcome_envelope(&pointee_key(3), "1 0 0")]);
        let engine = world.start();
        world.wait(5 * SECOND);
        assert_eq!(u64::from(world.record(&topic).pending_rows), full);
        let later = |time| {
            world.runtime.clock().advance(time);
            world.wait(5 * SECOND);
            world.runtime.clock().advance(WELCOME_POINTER_FIRST_PAUSE);
            world.wait(5 * SECOND);
        };
        later(WELCOME_RETENTION);
        assert_eq!(world.group(1).active, joins);
        assert_eq!(world.rejection(&topic, 1), None);
        later(WELCOME_ROOM_WAIT - WELCOME_RETENTION);
        assert_eq!(world.group(1).active, joins);
        let expired = (!joins).then_some("welcome_expired");
        assert_eq!(world.rejection(&topic, 1).as_deref(), expired);
        assert_eq!(world.record(&destination(3)).pending_rows, 0);
        world.end(engine);
    }
}
