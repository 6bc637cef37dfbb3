//! What is queued, what is refused before that, and what is kept afterwards.

use bytes::Bytes;
use xmtp_proto::storage::v1::IntentState;

use super::{drive, enqueue, joined, prepare, published, send, state};
use crate::engine::tests::play::Act;
use crate::engine::tests::world::{SECOND, World, change, group, inbox, text, topic};
use crate::error::Coded;
use crate::processor::{Dependency, PrepareError};
use crate::send::store::{self, KEPT_INTENTS};
use crate::send::{MAX_UNFINISHED_INTENTS, NewIntent, QueueError, Queued, attempt, queue};
use crate::storage::{Read, StorageError};
use crate::testing::scripted::identity_envelope;

fn try_queue(world: &World, intent: &NewIntent) -> Result<Queued, QueueError> {
    let database = &world.context.database;
    database.write(crate::storage::Durability::Flushed, |txn| {
        queue(txn, intent)
    })
}

/// Nothing is stored for a group that is not active, for content that no envelope holds, or behind
/// a full queue; each is refused with its own code.
/// covers: STR-110, STR-086
#[test]
fn what_cannot_be_sent_is_refused_before_anything_is_stored() {
    let world = World::new();
    let before = world.rows();
    let inactive = try_queue(&world, &text(1, "hello")).expect_err("no group");
    assert_eq!(inactive.code(), "send.inactive");
    assert_eq!(world.rows(), before);
    world.join(1);
    let large = NewIntent {
        body: Bytes::from(vec![0; (1 << 20) + 1]),
        ..text(1, "large")
    };
    assert_eq!(
        try_queue(&world, &large).expect_err("too large").code(),
        "send.too_large"
    );
    for number in 0..MAX_UNFINISHED_INTENTS {
        try_queue(&world, &text(1, &number.to_string())).expect("it fits");
    }
    let before = world.rows();
    assert_eq!(
        try_queue(&world, &text(1, "more"))
            .expect_err("full")
            .code(),
        "send.queue_full"
    );
    assert_eq!(world.rows(), before);
    let joined = try_queue(&world, &text(1, "7")).expect("the same message");
    assert_eq!(joined, Queued::Intent(state_of(&world, 7)));
    assert_eq!(world.rows(), before, "it is queued once");
}

fn state_of(world: &World, index: usize) -> u64 {
    world.read(|snapshot| store::unfinished(snapshot, &group(1)))[index].intent_id
}

/// A message that was published is not sent again; one that failed gets a new intent.
/// covers: STR-111
#[test]
fn a_message_id_is_sent_once() {
    let world = joined();
    let sent = send(&world, text(1, "hello")).expect("confirmed");
    let again = send(&world, text(1, "hello")).expect("published");
    assert_eq!((again.intent, again.sequence), (0, sent.sequence));
    assert_eq!(published(&world).len(), 1);
    let unsendable = Act::Unprepared(PrepareError::Unsendable { reason: "test" });
    world.play.on("prepare other", [unsendable]);
    let reason = send(&world, text(1, "other")).expect_err("unsendable");
    assert_eq!(reason.code(), "send.rejected");
    send(&world, text(1, "other")).expect("a new intent");
    assert_eq!(world.messages(), ["hello", "other"]);
}

/// Before anything is published the exact bytes, their payload identity and the state that they
/// were made for are durable; the identity is that of the inner bytes alone.
/// covers: STR-110, RVC-004
#[test]
fn an_attempt_is_durable_before_it_is_published() {
    let world = joined();
    let number = enqueue(&world, text(1, "hello"));
    assert_eq!(state(&world, number), IntentState::ToPublish);
    assert_eq!(prepare(&world), [number]);
    assert!(published(&world).is_empty());
    let attempt = world.intent(number).attempt.expect("an attempt");
    let world = world.another();
    assert!(drive(&world));
    assert_eq!(published(&world), [attempt.envelopes[0].to_vec()]);
    assert_eq!(
        (
            attempt.payload_hash.len(),
            attempt.base_epoch,
            &attempt.staged[..]
        ),
        (32, 0, &b"staged"[..])
    );
    let receipted = world.intent(number).attempt.expect("an attempt");
    assert_eq!(
        receipted.receipt_hash.len(),
        32,
        "the backend's hash is kept"
    );
    assert_ne!(receipted.receipt_hash, receipted.payload_hash);
    assert_eq!(state(&world, number), IntentState::Receipted);
}

/// The echo is found by its inner bytes, whatever the backend made of the envelope around them and
/// whatever hash it gives.
/// covers: RVC-004, STR-113
#[test]
fn an_echo_is_matched_by_its_inner_bytes() {
    use crate::engine::tests::world::served;
    use prost::Message;
    use xmtp_proto::backend::v1::ClientEnvelope;
    use xmtp_proto::backend::v1::client_envelope::Payload;
    let world = joined();
    let number = enqueue(&world, text(1, "hello"));
    prepare(&world);
    let bytes = world.intent(number).attempt.expect("an attempt").envelopes[0].clone();
    let mut envelope = ClientEnvelope::decode(bytes).expect("an envelope");
    if let Some(Payload::GroupMessage(message)) = &mut envelope.payload {
        message.sender_hmac = Bytes::from_static(b"of the backend");
        message.should_push = true;
    }
    let rows = vec![served(&topic(1), 9, envelope)];
    let batch = crate::receipt::check(topic(1), xmtp_proto::SequenceId::ZERO, rows);
    world.admit(&batch.expect("in order")).expect("it fits");
    world.turn(&topic(1));
    let intent = world.intent(number);
    assert_eq!(
        intent.state(),
        IntentState::Processed,
        "no receipt was needed"
    );
    assert_eq!(intent.attempt.expect("kept").receipt_sequence_id, 9);
    world.verify();
}

/// Queue order holds: an unresolved change of state keeps everything behind it, and messages in
/// flight keep a change; adjacent messages share a request.
/// covers: STR-110, STR-112
#[test]
fn a_change_keeps_what_is_behind_it() {
    let world = joined();
    let first = [
        text(1, "a"),
        text(1, "b"),
        change(1, "commit c"),
        text(1, "d"),
    ];
    let numbers = first.map(|intent| enqueue(&world, intent));
    let calls = || world.backend.calls(crate::testing::scripted::Call::Publish);
    assert!(drive(&world));
    assert_eq!(calls(), 1, "both messages in one request");
    let states = || numbers.map(|number| state(&world, number));
    use IntentState::{Processed, Receipted, ToPublish};
    assert_eq!(states(), [Receipted, Receipted, ToPublish, ToPublish]);
    assert!(drive(&world));
    assert_eq!(calls(), 1, "nothing more while they are open");
    world.sync(1);
    drive(&world);
    assert_eq!(states(), [Processed, Processed, Receipted, ToPublish]);
    world.sync(1);
    drive(&world);
    world.sync(1);
    assert_eq!(states(), [Processed; 4]);
    let base = world.intent(numbers[3]).attempt.expect("kept").base_epoch;
    assert_eq!(base, 1, "prepared after the change");
    assert_eq!(published(&world).len(), 4);
}

/// What a preparation lacks is fetched for it, as often as the pause allows, until it is there.
/// covers: STR-073, STR-110
#[test]
fn what_a_preparation_lacks_is_fetched() {
    let world = joined();
    let update = world.backend.store([identity_envelope(&inbox(3), 1)])[0];
    let needed = vec![Dependency::Identity {
        inbox: inbox(3),
        sequence: xmtp_proto::SequenceId::saturating(update),
    }];
    let lacks = Act::Unprepared(PrepareError::Waits(needed));
    world.play.on("prepare commit a", [lacks]);
    send(&world, change(1, "commit a")).expect("confirmed");
    assert_eq!(
        world
            .record(&xmtp_proto::Topic::identity(&inbox(3)))
            .processed,
        update
    );
    let absent = vec![Dependency::Identity {
        inbox: inbox(4),
        sequence: xmtp_proto::SequenceId::saturating(update + 1),
    }];
    world.play.always(
        "prepare commit b",
        Act::Unprepared(PrepareError::Waits(absent)),
    );
    let calls = world.backend.calls(crate::testing::scripted::Call::Query);
    let open = send(&world, change(1, "commit b")).expect_err("open at the deadline");
    assert_eq!(open.code(), "send.outcome_unknown");
    let calls = world.backend.calls(crate::testing::scripted::Call::Query) - calls;
    let most = 30 * SECOND.as_millis() / crate::limits::IDENTITY_RETRY_PAUSE.as_millis() + 1;
    assert!(calls > 20 && calls as u128 <= most, "{calls} calls");
}

/// A finished intent keeps what its outcome says and no content, and is forgotten when many newer
/// ones are there, also when it finished late.
/// covers: STR-110
#[test]
fn finished_intents_are_bounded() {
    let world = joined();
    let sent = send(&world, text(1, "first")).expect("confirmed");
    let kept = world.intent(sent.intent);
    assert!(kept.body.is_empty() && kept.attempt.is_some_and(|one| one.envelopes.is_empty()));
    let late = enqueue(&world, text(1, "late"));
    let finish = |count: u64| {
        for _ in 0..count / 64 {
            world.write(|txn| {
                for _ in 0..64 {
                    let intent = xmtp_proto::storage::v1::Intent {
                        group_id: group(1).as_bytes().to_vec().into(),
                        ..Default::default()
                    };
                    let number = store::insert(txn, &group(1), intent)?;
                    let mut intent = store::intent(txn, number)?.unwrap_or_default();
                    let state = IntentState::Superseded;
                    attempt::end(txn, &group(1), &mut intent, state, "test")?;
                }
                Ok(())
            });
        }
    };
    finish(KEPT_INTENTS + 128);
    let row = |number| world.read(|snapshot| store::intent(snapshot, number));
    assert_eq!(row(sent.intent), None);
    assert!(row(late).is_some(), "it is not finished");
    world.write(|txn| {
        let mut intent = store::intent(txn, late)?.unwrap_or_default();
        attempt::end(txn, &group(1), &mut intent, IntentState::Rejected, "test")
    });
    finish(KEPT_INTENTS + 128);
    assert_eq!(row(late), None);
    let page = crate::storage::Page {
        rows: 100_000,
        bytes: u32::MAX,
        order: crate::storage::Order::Ascending,
    };
    let all = world.read(|snapshot| {
        snapshot.page(
            crate::storage::schema::INTENT,
            &crate::storage::schema::All,
            None,
            page,
        )
    });
    assert!(
        all.rows.len() as u64 <= KEPT_INTENTS,
        "{} rows",
        all.rows.len()
    );
    world.verify();
}

/// Content is told by its size alone.
/// covers: STR-064
#[test]
fn no_content_is_told() {
    let told = format!("{:?}", text(1, "secret"));
    assert!(
        !told.contains("secret") && told.contains("6 bytes"),
        "{told}"
    );
    let body = Bytes::from_static(b"secret");
    assert!(!told.contains(&format!("{body:?}")));
    let error = QueueError::Storage(StorageError::Closed);
    assert!(!format!("{error}").contains("secret"));
}
