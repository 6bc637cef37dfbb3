//! Receipts, echoes and replacements: what moves an attempt, and what does not.

use std::sync::Arc;

use xmtp_proto::SequenceId;
use xmtp_proto::backend::v1;
use xmtp_proto::backend::v1::message_hash::Hash;
use xmtp_proto::storage::v1::IntentState;

use super::{drive, driving, enqueue, joined, published, send, state, unavailable};
use crate::engine::Context;
use crate::engine::fetch::FetchError;
use crate::engine::tests::play::Act;
use crate::engine::tests::world::{SECOND, change, group, text, topic};
use crate::error::{Class, Coded};
use crate::processor::{Blocked, PrepareError, Rejected, Verdict};
use crate::send::{SendError, Sender, store};
use crate::testing::mock::MockTransport;
use crate::testing::scripted::{Call, Fault};
use crate::transport::TransportError;

fn stale() -> Act {
    Act::Is(Verdict::Rejected(Rejected::CommitStale))
}

/// A receipt proves neither order nor outcome: F and P stay, and at the deadline the result says
/// that it is published; the echo confirms it later, without anything sent again.
/// covers: STR-062, STR-114
#[test]
fn a_receipt_confirms_nothing() {
    let world = joined();
    world
        .play
        .always("stuck", Act::Is(Verdict::Blocked(Blocked::Unsupported)));
    world.store(1, &["stuck"]);
    let number = enqueue(&world, text(1, "hello"));
    assert!(drive(&world));
    assert_eq!(state(&world, number), IntentState::Receipted);
    assert_eq!(world.positions(1), (0, 0), "the receipt moves nothing");
    let error = send(&world, text(1, "hello")).expect_err("open at the deadline");
    assert_eq!(
        (error.code(), error.class()),
        ("send.published_unconfirmed", Class::Wait)
    );
    let SendError::PublishedUnconfirmed { sequence, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(
        world.positions(1),
        (sequence.get(), 0),
        "received, and not processed"
    );
    assert_eq!(
        state(&world, number),
        IntentState::Receipted,
        "it stays current"
    );
    let queries = world.backend.calls(Call::Query);
    world.play.always("stuck", None);
    world.try_turn(&topic(1), true).expect("a turn");
    assert_eq!(state(&world, number), IntentState::Processed);
    assert_eq!(published(&world).len(), 2);
    assert_eq!(
        world.backend.calls(Call::Query),
        queries + 1,
        "only this test asked"
    );
}

/// No answer at all is told as unknown, and the exact bytes go out again later.
/// covers: STR-114, STR-111
#[test]
fn no_answer_is_told_as_unknown() {
    let world = joined();
    world.backend.fail(Call::Publish, [Fault::Hang]);
    let error = send(&world, text(1, "hello")).expect_err("open at the deadline");
    assert_eq!(
        (error.code(), error.class()),
        ("send.outcome_unknown", Class::Wait)
    );
    let number = enqueue(&world, text(1, "hello"));
    let bytes = world.intent(number).attempt.expect("kept").envelopes;
    assert!(drive(&world));
    assert_eq!(published(&world), [bytes[0].to_vec()]);
    world.sync(1);
    assert_eq!(state(&world, number), IntentState::Processed);
}

/// With a healthy receiver the send waits for it first, and asks itself once that took too long, or
/// when waiting would reach the deadline.
/// covers: STR-114
#[test]
fn a_receiver_gets_its_time_first() {
    for (timeout, waits) in [(30 * SECOND, true), (SECOND, false)] {
        let world = joined();
        let covering = Sender::new(world.context.clone(), std::sync::Arc::new(|_| true));
        let started = world.context.runtime.monotonic();
        let sent = world.run(async move { covering.send(text(1, "hello"), timeout).await });
        sent.expect("confirmed");
        let took = world.context.runtime.monotonic() - started;
        assert_eq!(took >= SECOND, waits, "{took:?}");
        assert!(took < 2 * SECOND);
        assert_eq!(world.backend.calls(Call::Query), 1);
    }
}

/// An echo that comes before the reply confirms; the reply changes nothing any more.
/// covers: STR-113
#[test]
fn an_echo_may_come_before_its_reply() {
    let world = joined();
    let peer = world.another();
    let number = enqueue(&world, text(1, "hello"));
    world
        .backend
        .fail(Call::Publish, [Fault::DropReply, Fault::Delay(5 * SECOND)]);
    driving(&world);
    world.wait(SECOND);
    assert_eq!(state(&world, number), IntentState::SentUnknown);
    peer.sync(1);
    let confirmed = world.intent(number);
    assert_eq!(confirmed.state(), IntentState::Processed);
    world.wait(10 * SECOND);
    assert_eq!(published(&world).len(), 2, "the reply came");
    assert_eq!(world.intent(number), confirmed);
    world.verify();
}

/// A reply to bytes that were replaced meanwhile neither completes nor overwrites the new attempt.
/// covers: STR-113, STR-111
#[test]
fn a_late_reply_is_not_for_the_new_attempt() {
    let world = joined();
    let peer = world.another();
    let number = enqueue(&world, change(1, "commit mine"));
    world.backend.fail(
        Call::Publish,
        [Fault::DropReply, Fault::Delay(10 * SECOND), Fault::Hang],
    );
    world.store(1, &["commit other"]);
    world.play.on("commit mine", [stale()]);
    driving(&world);
    world.wait(SECOND);
    let old = world.intent(number).attempt.expect("an attempt");
    peer.sync(1);
    assert_eq!(
        state(&world, number),
        IntentState::ToPublish,
        "it lost its race"
    );
    driving(&peer);
    world.wait(SECOND);
    let new = world.intent(number).attempt.expect("another attempt");
    assert_ne!(new.payload_hash, old.payload_hash);
    assert_eq!(
        (new.base_epoch, world.intent(number).state()),
        (1, IntentState::Prepared)
    );
    world.wait(20 * SECOND);
    let now = world.intent(number);
    assert_eq!(
        now.state(),
        IntentState::Prepared,
        "the old reply says nothing of it"
    );
    assert_eq!(now.attempt, Some(new));
    world.verify();
}

/// An own commit that lost its race is prepared again from the new state and confirmed; one that is
/// rejected for another reason is told.
/// covers: STR-112, STR-111
#[test]
fn a_stale_commit_is_prepared_again() {
    let world = joined();
    world.store(1, &["commit other"]);
    world.play.on("commit mine", [stale()]);
    let sent = send(&world, change(1, "commit mine")).expect("confirmed");
    assert_eq!(
        published(&world).len(),
        3,
        "the other, the stale one, the new one"
    );
    assert_eq!(world.group(1).epoch, 2);
    assert_eq!(
        world.intent(sent.intent).attempt.expect("kept").base_epoch,
        1
    );
    world.play.on(
        "commit bad",
        [Act::Is(Verdict::Rejected(Rejected::PolicyDenied))],
    );
    let error = send(&world, change(1, "commit bad")).expect_err("rejected");
    let reason = "policy_denied".to_owned();
    assert_eq!(error, SendError::Rejected { reason });
    let superseded = Act::Unprepared(PrepareError::Superseded);
    world.play.on("prepare commit same", [superseded]);
    assert_eq!(
        send(&world, change(1, "commit same")),
        Err(SendError::Superseded)
    );
    world.verify();
}

/// A removal ends what the group still had to send, and refuses what comes after.
/// covers: STR-086, STR-114
#[test]
fn a_removal_ends_what_was_to_be_sent() {
    let world = joined();
    world.store(1, &["remove"]);
    let open = enqueue(&world, text(1, "published"));
    assert!(drive(&world));
    let queued = enqueue(&world, change(1, "commit a"));
    let behind = enqueue(&world, text(1, "behind"));
    world.sync(1);
    for number in [open, queued, behind] {
        let intent = world.intent(number);
        assert_eq!(
            (intent.state(), intent.rejection.as_str()),
            (IntentState::Rejected, "inactive")
        );
    }
    let error = send(&world, text(1, "after")).expect_err("no group");
    assert_eq!(error.code(), "send.inactive");
    world.verify();
}

/// Two processes over one database help one attempt: the second prepares nothing of its own and
/// sends the bytes of the first.
/// covers: STR-112, STR-110
#[test]
fn two_senders_help_one_attempt() {
    let world = joined();
    let peer = world.another();
    let number = enqueue(&world, change(1, "commit a"));
    let second = enqueue(&world, change(1, "commit b"));
    world.backend.fail(Call::Publish, vec![unavailable(); 5]);
    drive(&world);
    assert!(published(&world).is_empty());
    let bytes = world.intent(number).attempt.expect("prepared").envelopes;
    assert!(drive(&peer));
    assert_eq!(published(&world), [bytes[0].to_vec()]);
    assert_eq!(state(&world, number), IntentState::Receipted);
    assert_eq!(state(&world, second), IntentState::ToPublish);
    assert!(drive(&world) && drive(&peer));
    assert_eq!(published(&world).len(), 1);
    let looked = world.play.looked();
    let prepared = looked.iter().filter(|text| text.starts_with("prepare"));
    assert_eq!(prepared.count(), 1, "{looked:?}");
}

/// A receipt without a place in the order is no receipt, and one whose place P has passed without
/// meeting the attempt ends it: neither keeps the queue of the group for ever.
/// covers: STR-113
#[test]
fn a_broken_receipt_does_not_keep_the_queue() {
    let world = joined();
    let number = enqueue(&world, text(1, "hello"));
    world.store(1, &["other"]);
    world.sync(1);
    assert!(drive(&world));
    world.write(|txn| {
        let mut intent = store::intent(txn, number)?.unwrap_or_default();
        if let Some(attempt) = &mut intent.attempt {
            attempt.receipt_sequence_id = 1;
        }
        store::put(txn, &group(1), &intent)
    });
    drive(&world);
    let intent = world.intent(number);
    assert_eq!(intent.state(), IntentState::Rejected);
    assert_eq!(intent.rejection, "receipt_unmatched");
    assert_eq!(world.play.discarded(), 1);
}

/// Makes a wire on which every publish answers with this metadata.
fn answering(metas: Vec<v1::EnvelopeMeta>) -> MockTransport {
    let mut wire = MockTransport::new();
    let answer = metas.clone();
    wire.expect_publish().returning(move |_| {
        Ok(v1::PublishResponse {
            envelope_metas: answer.clone(),
        })
    });
    wire.expect_clone()
        .returning(move || answering(metas.clone()));
    wire
}

/// A receipt names a place in the order and a hash: an answer without one of them is told as a
/// broken protocol and moves nothing.
/// covers: STR-062, STR-113
#[test]
fn a_receipt_without_a_place_in_the_order_is_refused() {
    let meta = |sequence: Option<u64>, hash_bytes: Option<usize>| v1::EnvelopeMeta {
        cursor: sequence.map(|sequence_id| v1::Cursor { sequence_id }),
        message_hash: hash_bytes.map(|bytes| v1::MessageHash {
            hash: Some(Hash::Sha256(vec![1; bytes].into())),
        }),
        ..Default::default()
    };
    let beyond = SequenceId::MAX.get() + 1;
    let whole = meta(Some(9), Some(32));
    let broken = [
        vec![meta(None, Some(32))],
        vec![meta(Some(0), Some(32))],
        vec![meta(Some(beyond), Some(32))],
        vec![meta(Some(9), None)],
        vec![meta(Some(9), Some(31))],
        vec![],
        vec![whole.clone(), whole.clone()],
    ];
    for (metas, is_broken) in broken
        .into_iter()
        .map(|metas| (metas, true))
        .chain([(vec![whole], false)])
    {
        let world = joined();
        let number = enqueue(&world, text(1, "hello"));
        let context = Context {
            transport: Box::new(answering(metas.clone())),
            ..world.context.clone()
        };
        let sender = Sender::new(context, Arc::new(|_| false));
        let driven = world.run(async move { sender.drive(group(1)).await });
        let receipt = world
            .intent(number)
            .attempt
            .expect("kept")
            .receipt_sequence_id;
        if !is_broken {
            assert_eq!((driven, receipt), (Ok(()), 9));
            continue;
        }
        let told = driven.expect_err("a broken receipt");
        assert!(
            matches!(told, FetchError::Transport(TransportError::Protocol { .. })),
            "{metas:?}: {told}"
        );
        assert_eq!((state(&world, number), receipt), (IntentState::Prepared, 0));
    }
}
