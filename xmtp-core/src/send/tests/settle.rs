//! Refusals and lost replies: what is definite, and what only the ordered topic can say.

use xmtp_proto::storage::v1::IntentState;

use super::{drive, enqueue, joined, published, refusal, send, state, unavailable};
use crate::engine::tests::world::{SECOND, change, text, topic};
use crate::error::Coded;
use crate::send::SendError;
use crate::testing::scripted::{Call, Fault};
use crate::transport::TransportError;

fn refused() -> SendError {
    SendError::Rejected {
        reason: "refused".to_owned(),
    }
}

/// A lost reply sends the very same bytes again, and the message is confirmed once.
/// covers: STR-111, STR-113
#[test]
fn a_lost_reply_sends_the_same_bytes_again() {
    for lost in 1..=4 {
        let world = joined();
        world
            .backend
            .fail(Call::Publish, vec![Fault::DropReply; lost]);
        let sent = send(&world, text(1, "hello")).expect("confirmed");
        let copies = published(&world);
        assert_eq!(copies.len(), lost + 1);
        assert!(
            copies.iter().all(|copy| *copy == copies[0]),
            "no new encryption"
        );
        world.sync(1);
        assert_eq!(world.messages(), ["hello"]);
        assert_eq!(sent.sequence.get(), 1, "the first in the order is the one");
        let prepared = world.play.looked();
        let prepared = prepared.iter().filter(|text| text.starts_with("prepare"));
        assert_eq!(prepared.count(), 1);
        world.verify();
    }
}

/// A refusal on the first try proves that nothing was stored: it is told at once, staged state is
/// discarded, the epoch stays and what is behind it goes on (report B40).
/// covers: STR-111, STR-112
#[test]
fn a_first_refusal_is_definite() {
    for index in [None, Some(0)] {
        let world = joined();
        world.backend.fail(Call::Publish, [refusal(index)]);
        assert_eq!(send(&world, change(1, "commit a")), Err(refused()));
        assert_eq!(world.backend.calls(Call::Query), 0, "nothing to read");
        assert_eq!(world.play.discarded(), 1);
        assert_eq!(world.group(1).epoch, 0);
        send(&world, text(1, "next")).expect("confirmed");
        world.verify();
    }
}

/// A refusal after a try without an answer settles nothing by itself: the topic is read to its
/// head, where the message is or is not.
/// covers: STR-111, STR-113
#[test]
fn a_later_refusal_is_settled_by_reading() {
    for (first, is_stored) in [(Fault::DropReply, true), (unavailable(), false)] {
        let world = joined();
        world.backend.fail(Call::Publish, [first, refusal(Some(0))]);
        let result = send(&world, text(1, "hello"));
        assert!(world.backend.calls(Call::Query) > 0);
        match is_stored {
            true => assert_eq!(result.expect("confirmed").sequence.get(), 1),
            false => assert_eq!(result, Err(refused())),
        }
        assert_eq!(world.messages().len(), usize::from(is_stored));
        assert_eq!(world.play.discarded(), usize::from(!is_stored));
        world.verify();
    }
}

/// While processing has not passed the head, a refused attempt is neither ended nor sent anew.
/// covers: STR-111, STR-114
#[test]
fn nothing_is_settled_before_processing_passed_the_head() {
    use crate::engine::tests::play::Act;
    use crate::processor::{Blocked, Verdict};
    let world = joined();
    world
        .play
        .always("stuck", Act::Is(Verdict::Blocked(Blocked::Unsupported)));
    world.store(1, &["stuck"]);
    let number = enqueue(&world, text(1, "hello"));
    world
        .backend
        .fail(Call::Publish, [unavailable(), refusal(Some(0))]);
    assert!(!drive(&world), "told as open, so that the caller pauses");
    assert_eq!(state(&world, number), IntentState::SentUnknown);
    assert!(
        world
            .intent(number)
            .attempt
            .is_some_and(|attempt| attempt.ambiguous)
    );
    world.play.always("stuck", None);
    world.try_turn(&topic(1), true).expect("a turn");
    world.backend.fail(Call::Publish, [refusal(Some(0))]);
    assert!(drive(&world));
    assert_eq!(state(&world, number), IntentState::Rejected);
}

/// Only the envelope that a refusal names is refused: what shares its request is sent again.
/// covers: STR-111
#[test]
fn a_refusal_ends_no_neighbour() {
    for first in [None, Some(unavailable())] {
        let world = joined();
        let numbers = ["a", "b", "c"].map(|body| enqueue(&world, text(1, body)));
        world
            .backend
            .fail(Call::Publish, first.into_iter().chain([refusal(Some(1))]));
        drive(&world);
        assert_eq!(state(&world, numbers[1]), IntentState::Rejected);
        drive(&world);
        world.sync(1);
        assert_eq!(world.messages(), ["a", "c"]);
        world.verify();
    }
}

/// A refusal of the request as a whole names no envelope: each goes alone, and only the one that is
/// refused alone ends.
/// covers: STR-111
#[test]
fn a_refused_request_is_split() {
    for first in [None, Some(unavailable())] {
        let world = joined();
        let numbers = ["a", "b", "c"].map(|body| enqueue(&world, text(1, body)));
        let go = Fault::Delay(SECOND / 1_000);
        let faults = [refusal(None), go, refusal(None)];
        world
            .backend
            .fail(Call::Publish, first.into_iter().chain(faults));
        drive(&world);
        world.sync(1);
        assert_eq!(world.messages(), ["a", "c"]);
        assert_eq!(state(&world, numbers[1]), IntentState::Rejected);
        world.verify();
    }
}

/// An answer that is over the size limit may hide a commit: the topic is read, and the same request
/// is never sent again.
/// covers: STR-111
#[test]
fn over_the_size_limit_is_read_and_never_resent() {
    let over = || Fault::Refuse(TransportError::OutOfRange);
    let world = joined();
    world.backend.fail(Call::Publish, [over()]);
    assert_eq!(send(&world, text(1, "alone")), Err(refused()));
    assert_eq!(world.backend.calls(Call::Publish), 1);
    world
        .backend
        .fail(Call::Publish, [Fault::DropReply, over()]);
    send(&world, text(1, "stored")).expect("read in the topic");
    let calls = world.backend.calls(Call::Publish);
    let numbers = ["a", "b"].map(|body| enqueue(&world, text(1, body)));
    world.backend.fail(Call::Publish, [over()]);
    drive(&world);
    assert_eq!(
        world.backend.calls(Call::Publish),
        calls + 3,
        "together, then each alone"
    );
    world.sync(1);
    assert_eq!(
        numbers.map(|number| state(&world, number)),
        [IntentState::Processed; 2]
    );
    assert_eq!(world.messages(), ["stored", "a", "b"]);
}

/// Errors that need a person are told and keep the attempt; it is sent when they are gone.
/// covers: STR-111
#[test]
fn a_rejected_credential_keeps_the_attempt() {
    let world = joined();
    let number = enqueue(&world, text(1, "hello"));
    world.backend.fail(
        Call::Publish,
        [Fault::Refuse(TransportError::Unauthenticated)],
    );
    assert!(!drive(&world));
    assert_eq!(state(&world, number), IntentState::Prepared);
    assert!(drive(&world));
    assert_eq!(state(&world, number), IntentState::Receipted);
    assert_eq!(refused().code(), "send.rejected");
}
