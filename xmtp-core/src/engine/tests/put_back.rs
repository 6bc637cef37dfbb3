//! A backend that was put back to an earlier state, with a fence and without.

use xmtp_proto::SequenceId;
use xmtp_proto::backend::v1;

use super::play::Act;
use super::world::{SECOND, World, group, served, text, topic};
use crate::engine::fetch::{Fetched, fetch_page};
use crate::error::{Class, Coded};
use crate::limits::{BACKEND_FENCE_IDS, EXPIRY_MARGIN, MAX_PENDING_ROWS_PER_TOPIC};
use crate::processor::{Blocked, Verdict};
use crate::receipt::{AdmissionError, CapacityScope, check};
use crate::send::SendError;
use crate::sync::{Cause, SyncError, SyncRequest, sync};
use crate::testing::scripted::{Call, Fault, group_envelope};
use crate::transport::TransportError;

/// Two groups that have received everything; answers the ids of the first one's envelopes.
fn caught_up() -> (World, Vec<u64>) {
    let world = World::new();
    world.join(1);
    world.join(2);
    world.store(2, &["two a"]);
    let ids = world.store(1, &["one a", "one b", "one c"]);
    world.sync(1);
    world.sync(2);
    (world, ids)
}

fn page(world: &World, names: &[u8]) -> Fetched {
    let context = world.context.clone();
    let topics: Vec<_> = names.iter().map(|name| topic(*name)).collect();
    let page = world.run(async move { fetch_page(&context, &topics).await });
    page.expect("a page")
}

/// A page from behind the fence shows that the last envelope that was received is gone: that topic
/// alone stops, nothing of it moves, a sync and a live receiver tell it, and every other topic goes
/// on over both.
///
/// covers: EXT-002
#[test]
fn what_was_lost_stops_its_topic_alone() {
    let (world, ids) = caught_up();
    world.backend.put_back(ids[1], 2 * BACKEND_FENCE_IDS);
    world.store(1, &["one d"]);
    world.store(2, &["two b"]);
    let (positions, messages) = (world.positions(1), world.messages());
    let fetched = page(&world, &[1, 2]);
    assert_eq!((fetched.gone_back, fetched.new), (vec![topic(1)], 1));
    assert_eq!(world.positions(1), positions);
    assert_eq!(
        world.messages(),
        [messages, vec!["two b".to_owned()]].concat()
    );

    let context = world.context.clone();
    let request = SyncRequest::new([topic(1), topic(2)]);
    let Err(SyncError::Incomplete(told)) = world.run(async move { sync(&context, request).await })
    else {
        panic!("a topic that was lost is not complete");
    };
    assert_eq!(told.completed, 1);
    assert_eq!(told.obligations.len(), 1);
    assert_eq!(told.obligations[0].topic, topic(1));
    assert_eq!(told.obligations[0].cause, Cause::GoneBack);

    let engine = world.start();
    engine.go_live(Vec::new());
    world.wait(2 * SECOND);
    world.store(1, &["one e"]);
    world.store(2, &["two c"]);
    world.wait(2 * SECOND);
    assert!(engine.subscriptions().has_gone_back(&topic(1)));
    assert!(!engine.subscriptions().has_gone_back(&topic(2)));
    assert_eq!(world.messages().last().map(String::as_str), Some("two c"));
    assert_eq!(world.positions(1), positions);
    let sending = engine.sender().clone();
    let sent = world.run(async move { sending.send(text(1, "mine"), 10 * SECOND).await });
    let received = positions.0;
    assert_eq!(sent, Err(SendError::WentBack { received }));
    assert_eq!(world.positions(1), positions);
    world.end(engine);
}

/// A stream that is first to bring what lies behind the fence stops nothing by itself: the primary
/// is asked, and shows that the order goes on, or that it does not.
///
/// covers: EXT-002
#[test]
fn a_stream_from_behind_the_fence_is_proved_by_the_primary() {
    for is_lost in [false, true] {
        let (world, ids) = caught_up();
        let engine = world.start();
        engine.go_live(Vec::new());
        world.wait(2 * SECOND);
        let through = if is_lost { ids[1] } else { ids[2] };
        world.backend.put_back(through, 2 * BACKEND_FENCE_IDS);
        world.wait(2 * SECOND);
        let positions = world.positions(1);
        let last = world.store(1, &["one d"])[0];
        world.wait(2 * SECOND);
        assert_eq!(engine.subscriptions().has_gone_back(&topic(1)), is_lost);
        if is_lost {
            assert_eq!(world.positions(1), positions);
        } else {
            assert_eq!(world.positions(1), (last, last));
            // From here on the order is that of the later block.
            let queries = world.backend.queries().len();
            world.store(1, &["one e"]);
            world.wait(2 * SECOND);
            assert_eq!(world.messages().last().map(String::as_str), Some("one e"));
            assert_eq!(world.backend.queries().len(), queries);
        }
        world.end(engine);
    }
}

/// A topic at its bound that goes on behind the fence is paused by it, as it is before one: the same
/// is not asked for again and again, and everything arrives once processing makes room.
///
/// covers: EXT-002, STR-063
#[test]
fn a_full_topic_behind_the_fence_is_paused() {
    let world = World::new();
    world.join(1);
    let stuck = Act::Is(Verdict::Blocked(Blocked::Unsupported));
    world.play.always("stuck", stuck);
    let texts: Vec<String> = (1..MAX_PENDING_ROWS_PER_TOPIC)
        .map(|number| number.to_string())
        .collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    world.store(1, &["stuck"]);
    let full = *world.store(1, &texts).last().expect("ids");
    let engine = world.start();
    engine.go_live(Vec::new());
    world.wait(5 * SECOND);
    assert_eq!(world.positions(1), (full, 0));
    world.backend.put_back(full, 2 * BACKEND_FENCE_IDS);
    let last = world.store(1, &["after"])[0];
    world.wait(5 * SECOND);
    let paused = engine.subscriptions().paused(&topic(1));
    assert_eq!(paused.map(|bound| bound.scope), Some(CapacityScope::Topic));
    let (asked, handed_out) = (world.backend.calls(Call::Query), world.backend.handed_out());
    world.wait(20 * SECOND);
    assert_eq!(world.backend.calls(Call::Query), asked);
    assert_eq!(world.backend.handed_out(), handed_out);
    world.play.always("stuck", None);
    world.try_turn(&topic(1), true).expect("a turn");
    world.wait(10 * SECOND);
    assert_eq!(world.positions(1), (last, last));
    assert_eq!(world.messages().last().map(String::as_str), Some("after"));
    world.end(engine);
}

/// While the primary does not answer, a topic that goes on behind the fence waits by itself: the
/// stream stays, the others go on over it, and the primary is asked ever less often.
///
/// covers: EXT-002
#[test]
fn a_primary_that_does_not_answer_stops_no_other_topic() {
    const REFUSALS: usize = 6;
    let (world, ids) = caught_up();
    let engine = world.start();
    engine.go_live(Vec::new());
    world.wait(2 * SECOND);
    world.backend.put_back(ids[2], 2 * BACKEND_FENCE_IDS);
    world.store(2, &["two b"]);
    world.wait(2 * SECOND);
    let refusal = Fault::Refuse(TransportError::Unavailable {
        detail: "scripted".to_owned(),
        retry_after: None,
    });
    let refusals = std::iter::repeat_n(refusal, REFUSALS);
    world.backend.fail(Call::Query, refusals);
    let (asked, positions) = (world.backend.calls(Call::Query), world.positions(1));
    let streams = world.backend.opened();
    let last = world.store(1, &["one d"])[0];
    world.wait(SECOND);
    world.store(2, &["two c"]);
    world.wait(SECOND);
    assert_eq!(world.positions(1), positions);
    assert_eq!(world.messages().last().map(String::as_str), Some("two c"));
    assert_eq!(world.backend.opened(), streams, "the stream stays");
    world.wait(20 * SECOND);
    assert_eq!(world.positions(1), (last, last));
    assert_eq!(world.backend.opened(), streams);
    // The last answer came in two parts: the page, and the page with the envelope at F.
    assert_eq!(world.backend.calls(Call::Query), asked + REFUSALS + 2);
    world.end(engine);
}

/// Without a fence the same ids are given out again. A receipt for a place that was given before
/// ends the send with a typed error: the attempt is kept, and neither F nor P moves.
///
/// covers: EXT-002, STR-062
#[test]
fn a_receipt_below_what_is_received_is_told() {
    let (world, ids) = caught_up();
    world.backend.put_back(ids[0], ids[0]);
    let positions = world.positions(1);
    let (sender, new) = (world.sender(), text(1, "mine"));
    let sent = world.run(async move { sender.send(new, 10 * SECOND).await });
    let error = sent.expect_err("its place was given before");
    let received = positions.0;
    assert_eq!(error, SendError::WentBack { received });
    assert_eq!(
        (error.code(), error.class()),
        ("send.went_back", Class::UserAction)
    );
    assert_eq!(world.positions(1), positions);
    let intent = world.intent(1);
    let attempt = intent.attempt.expect("it is kept");
    assert!(attempt.ambiguous && attempt.receipt_sequence_id == 0);
    world.verify();
}

/// An envelope of group 1 as the backend would serve it.
fn one(sequence: u64, hash: u8, expiry_ns: u64) -> v1::ServerEnvelope {
    let mut envelope = served(&topic(1), sequence, group_envelope(&group(1), "text"));
    if let Some(meta) = &mut envelope.meta {
        meta.expiry_ns = expiry_ns;
        meta.message_hash = Some(v1::MessageHash {
            hash: Some(v1::message_hash::Hash::Sha256(vec![hash; 32].into())),
        });
    }
    envelope
}

/// How many envelopes were new, or why none was admitted.
type Found = Result<usize, AdmissionError>;

/// Where a source started, its envelopes with their hashes, and what is to be found.
type Case = (u64, &'static [(u64, u8)], Found);

fn admit(world: &World, after: u64, rows: &[(u64, u8)]) -> Found {
    let envelopes = rows.iter().map(|(sequence, hash)| one(*sequence, *hash, 0));
    let batch = check(topic(1), SequenceId::saturating(after), envelopes.collect());
    let admitted = world.admit(&batch.expect("in order"))?;
    Ok(admitted.new)
}

/// What a source shows of the envelope at F decides: the same one, another one, none where it was
/// read past it, and none because it was not read.
///
/// covers: EXT-002, STR-061
#[test]
fn the_envelope_at_f_decides() {
    const FENCE: u64 = BACKEND_FENCE_IDS;
    let went_back = Err(AdmissionError::WentBack { received: 5 });
    let unproven = Err(AdmissionError::Unproven { received: 5 });
    let cases: [Case; 9] = [
        (5, &[(6, 6)], Ok(1)),
        (5, &[], Ok(0)),
        (3, &[(5, 5), (6, 6)], Ok(1)),
        (3, &[(5, 5), (FENCE + 1, 6)], Ok(1)),
        (3, &[(4, 4)], Ok(0)),
        (3, &[(5, 9), (6, 6)], went_back.clone()),
        (3, &[(4, 4), (6, 6)], went_back.clone()),
        (4, &[(FENCE + 1, 6)], went_back),
        (5, &[(FENCE + 1, 6)], unproven),
    ];
    for (after, batch, expected) in cases {
        let world = World::new();
        world.join(1);
        admit(&world, 0, &[(3, 3), (5, 5)]).expect("they fit");
        let before = world.rows();
        let found = admit(&world, after, batch);
        assert_eq!(found, expected, "after {after}: {batch:?}");
        if expected.is_err() || expected == Ok(0) {
            assert_eq!(world.rows(), before, "after {after}: {batch:?}");
        }
        let error = found.err().map(|error| (error.code(), error.class()));
        if let Some((code, class)) = error {
            let is_final = code == "receipt.went_back";
            assert!(is_final || code == "receipt.unproven", "{code}");
            assert_eq!(class == Class::UserAction, is_final);
        }
    }
}

/// An envelope that may have expired at the backend is no proof, by whichever clock is ahead.
///
/// covers: EXT-002
#[test]
fn what_may_have_expired_proves_nothing() {
    let margin = EXPIRY_MARGIN.as_nanos() as u64;
    for (is_past, lead) in [(true, 0), (true, margin), (false, margin + 1)] {
        let world = World::new();
        world.join(1);
        let expiry_ns = world.context.runtime.now_ns() + lead;
        let received = check(topic(1), SequenceId::ZERO, vec![one(5, 5, expiry_ns)]);
        world.admit(&received.expect("in order")).expect("it fits");
        let found = admit(&world, 4, &[(BACKEND_FENCE_IDS + 1, 6)]);
        assert_eq!(
            found.is_ok(),
            is_past,
            "{lead} ns before its expiry: {found:?}"
        );
    }
}
