//! Single rules of a session, with a clock that the test moves.

use std::sync::Arc;
use std::time::Duration;

use tonic::Code;
use xmtp_proto::backend::v1::subscribe_request::Request;
use xmtp_proto::id::{SequenceId, Topic};

use super::fixture::{group, limits, ping, pong, row, update};
use super::{Batch, Effect, End, Fetched, Frame, Row, Session, SessionLimits, Tick};
use crate::limits::{OUTBOUND_FRAMES, TURN_TOPICS};
use crate::store::Want;

const LARGE: usize = (1 << 20) - 256;

const fn at(millis: u64) -> Tick {
    Duration::from_millis(millis)
}

fn code(session: &Session) -> Option<Code> {
    match session.end()? {
        End::HalfClosed => Some(Code::Ok),
        End::Failed(status) | End::Refused(status) => Some(status.code()),
    }
}

/// Opens a stream and takes its first frame.
fn opened(limits: SessionLimits) -> Session {
    let mut session = Session::new(limits);
    assert!(matches!(
        session.take_frame(at(0)),
        Some(Frame::Started { .. })
    ));
    session
}

fn effects(session: &mut Session) -> Vec<Effect> {
    std::iter::from_fn(|| session.next_effect()).collect()
}

fn frames(session: &mut Session, now: Tick) -> Vec<Frame> {
    std::iter::from_fn(|| session.take_frame(now)).collect()
}

/// Registers topics whose heads are all `head`, and takes the acknowledgement.
fn registered(session: &mut Session, id: u64, topics: &[Topic], head: u32) {
    let adds: Vec<_> = topics.iter().map(|topic| (*topic, 0)).collect();
    session.receive(at(0), update(id, &adds, &[]));
    let asked = effects(session);
    assert!(
        asked.contains(&Effect::ReadHeads(topics.to_vec())),
        "{asked:?}"
    );
    session.heads_read(at(0), vec![head.into(); topics.len()]);
    assert!(matches!(
        session.take_frame(at(0)),
        Some(Frame::Applied { .. })
    ));
}

fn fetch(session: &mut Session) -> Option<Vec<Want>> {
    let mut fetches = effects(session)
        .into_iter()
        .filter_map(|effect| match effect {
            Effect::Fetch(wants) => Some(wants),
            _ => None,
        });
    let fetch = fetches.next();
    assert!(fetches.next().is_none(), "one turn at a time");
    fetch
}

fn served(rows: Vec<Arc<Row>>, complete: bool) -> Batch {
    Batch { rows, complete }
}

fn ids(frames: &[Frame]) -> Vec<u64> {
    let rows = frames.iter().flat_map(|frame| match frame {
        Frame::Messages(rows) => rows.as_slice(),
        other => panic!("not messages: {other:?}"),
    });
    rows.map(|row| row.sequence_id.get()).collect()
}

/// covers: STR-032
#[test]
fn buckets_pass_a_burst_and_then_the_rate() {
    type Make = fn(u64) -> xmtp_proto::backend::v1::SubscribeRequest;
    let kinds: [Make; 2] = [|id| update(id, &[], &[]), ping];
    for make in kinds {
        let mut session = opened(limits());
        for id in 1..=100 {
            session.receive(at(0), make(id));
            session.take_frame(at(0));
        }
        assert_eq!(code(&session), None);
        session.receive(at(100), make(101));
        session.take_frame(at(100));
        assert_eq!(code(&session), None, "a tenth of a second is one frame");
        session.receive(at(199), make(102));
        assert_eq!(code(&session), Some(Code::ResourceExhausted));
    }
}

/// What arrives while the heads of an update are read is acknowledged as the client takes frames,
/// however few the queue holds.
#[test]
fn a_burst_behind_a_read_of_heads_is_acknowledged_as_frames_are_taken() {
    let mut session = opened(limits());
    session.receive(at(0), update(1, &[(group(1), 0)], &[]));
    effects(&mut session);
    for id in 2..=100 {
        session.receive(at(0), update(id, &[], &[group(2)]));
    }
    session.heads_read(at(0), vec![0.into()]);
    assert_eq!(code(&session), None);
    let taken = frames(&mut session, at(0));
    assert_eq!(taken.len(), 100);
    assert_eq!(code(&session), None);
}

/// A client whose answers wait to be taken is held back, and loses nothing.
#[test]
fn pings_are_held_back_while_answers_wait() {
    let mut session = opened(limits());
    let mut sent = 0;
    while session.wants_input() {
        session.receive(at(0), ping(sent));
        sent += 1;
    }
    assert_eq!(sent, OUTBOUND_FRAMES as u64);
    assert_eq!(code(&session), None);
    assert_eq!(frames(&mut session, at(0)).len(), OUTBOUND_FRAMES);
    assert!(session.wants_input());
}

/// An update waits by its bytes too: one that names a topic of a megabyte leaves room for no other.
#[test]
fn waiting_updates_are_bounded_in_bytes() {
    let mut session = opened(limits());
    session.receive(at(0), update(1, &[(group(1), 0)], &[]));
    effects(&mut session);
    let mut large = update(2, &[], &[group(2)]);
    if let Some(Request::Update(update)) = &mut large.request {
        update.removes[0].topic = vec![0; 1 << 20].into();
    }
    assert!(session.wants_input());
    session.receive(at(0), large);
    assert!(!session.wants_input());
}

/// covers: STR-032
#[test]
fn buckets_are_separate_and_answers_are_free() {
    let mut session = opened(limits());
    for nonce in 1..=100 {
        session.receive(at(0), ping(nonce));
        session.receive(at(0), update(nonce, &[], &[]));
        session.receive(at(0), pong(nonce));
        session.receive(at(0), pong(nonce));
        frames(&mut session, at(0));
    }
    assert_eq!(code(&session), None);
}

/// covers: STR-033
#[test]
fn a_ping_is_answered_with_its_nonce() {
    let mut session = opened(limits());
    session.receive(at(0), ping(u64::MAX));
    assert_eq!(
        session.take_frame(at(0)),
        Some(Frame::Pong { nonce: u64::MAX })
    );
}

/// covers: STR-033, STR-034
#[test]
fn one_challenge_at_a_time_and_only_its_nonce_answers_it() {
    let mut session = opened(limits());
    assert_eq!(session.deadline(), Some(at(30_000)));
    assert!(!session.tick(at(29_999)));
    assert_eq!(session.take_frame(at(29_999)), None);
    assert!(!session.tick(at(30_000)));
    assert!(!session.tick(at(30_000)));
    let Some(Frame::Ping { nonce }) = session.take_frame(at(31_000)) else {
        panic!("no ping")
    };
    assert_eq!(session.take_frame(at(31_000)), None, "never two unanswered");
    assert_eq!(
        session.deadline(),
        Some(at(121_000)),
        "counted from the handoff"
    );
    session.receive(at(40_000), pong(nonce.wrapping_add(1)));
    session.receive(at(40_000), ping(1));
    session.receive(at(40_000), update(1, &[], &[]));
    frames(&mut session, at(40_000));
    assert!(!session.tick(at(120_999)), "no second ping, no end");
    assert_eq!(session.take_frame(at(120_999)), None);
    assert!(session.tick(at(121_000)));
    session.expire_pong(at(121_000));
    assert_eq!(code(&session), Some(Code::DeadlineExceeded));
}

/// covers: STR-034
#[test]
fn an_answer_that_was_sent_in_time_counts_before_the_end() {
    let mut session = opened(limits());
    assert!(!session.tick(at(30_000)));
    let Some(Frame::Ping { nonce }) = session.take_frame(at(30_000)) else {
        panic!("no ping")
    };
    assert!(
        session.tick(at(120_000)),
        "the shell now hands over what is there"
    );
    session.receive(at(120_000), pong(nonce));
    session.expire_pong(at(120_000));
    assert_eq!(code(&session), None);
}

/// covers: STR-034
#[test]
fn only_what_is_sent_counts_against_silence() {
    let mut session = opened(limits());
    registered(&mut session, 1, &[group(1)], 0);
    session.receive(at(20_000), pong(1));
    assert_eq!(
        session.deadline(),
        Some(at(30_000)),
        "what the client sends is no noise of ours"
    );
    session.told(at(25_000), &row(group(1), 1, 9));
    frames(&mut session, at(28_000));
    assert_eq!(
        session.deadline(),
        Some(at(55_000)),
        "admission counts, not handoff"
    );
}

/// covers: STR-030, STR-034
#[test]
fn a_queue_that_stands_still_ends_the_stream() {
    let mut session = opened(limits());
    assert!(!session.tick(at(30_000)));
    assert_eq!(
        session.deadline(),
        Some(at(120_000)),
        "the ping was not handed over"
    );
    assert!(!session.tick(at(119_999)));
    assert_eq!(code(&session), None);
    assert!(!session.tick(at(120_000)));
    assert_eq!(code(&session), Some(Code::ResourceExhausted));
}

/// covers: STR-030
#[test]
fn control_frames_without_room_end_the_stream() {
    let mut session = Session::new(limits());
    for nonce in 1..OUTBOUND_FRAMES as u64 {
        session.receive(at(0), ping(nonce));
        assert_eq!(code(&session), None);
    }
    session.receive(at(0), ping(0));
    assert_eq!(code(&session), Some(Code::ResourceExhausted));
    assert_eq!(session.take_frame(at(0)), None);
}

/// covers: STR-030, STR-031
#[test]
fn live_envelopes_without_room_are_fetched_later() {
    let mut session = opened(limits());
    registered(&mut session, 1, &[group(1)], 0);
    let news: Vec<_> = (1..=20).map(|id| row(group(1), id, LARGE)).collect();
    news.iter().for_each(|row| session.told(at(0), row));
    assert_eq!(code(&session), None, "a slow reader is not ended for it");
    assert_eq!(fetch(&mut session), None, "there is no room for a turn");
    let sent = frames(&mut session, at(1));
    assert_eq!(ids(&sent), (1..=10).collect::<Vec<_>>());
    let want = |after: u32, through: u32| {
        vec![Want {
            topic: group(1),
            after: after.into(),
            through: through.into(),
        }]
    };
    assert_eq!(fetch(&mut session), Some(want(10, 20)));
    let turn = |session: &mut Session, rows: &[Arc<Row>], complete| {
        session.fetched(
            at(2),
            Fetched {
                batches: vec![served(rows.to_vec(), complete)],
            },
        );
    };
    turn(&mut session, &news[10..14], false);
    assert_eq!(fetch(&mut session), Some(want(14, 20)));
    session.told(at(2), &row(group(1), 30, 9));
    turn(&mut session, &news[14..18], false);
    assert_eq!(
        fetch(&mut session),
        None,
        "there is no room for a third turn"
    );
    assert_eq!(
        ids(&frames(&mut session, at(2))),
        (11..=18).collect::<Vec<_>>()
    );
    assert_eq!(
        fetch(&mut session),
        Some(want(18, 30)),
        "what was told meanwhile is needed"
    );
    let rest = [news[18].clone(), news[19].clone(), row(group(1), 30, 9)];
    turn(&mut session, &rest, true);
    session.told(at(2), &row(group(1), 31, 9));
    assert_eq!(ids(&frames(&mut session, at(2))), [19, 20, 30, 31]);
}

/// covers: STR-016
#[test]
fn turns_are_fair() {
    let mut session = opened(limits());
    let topics: Vec<Topic> = (1..=4).map(group).collect();
    registered(&mut session, 1, &topics, 100);
    let order = |wants: Vec<Want>| wants.iter().map(|want| want.topic).collect::<Vec<_>>();
    assert_eq!(order(fetch(&mut session).unwrap()), topics);

    registered(&mut session, 2, &[group(9)], 100);
    // Of four, two were visited; one of them needs more.
    let first = served(vec![row(group(1), 5, 9)], false);
    let second = served(vec![row(group(2), 100, 9)], true);
    session.fetched(
        at(0),
        Fetched {
            batches: vec![first, second],
        },
    );
    let expected = [group(3), group(4), group(9), group(1)];
    assert_eq!(order(fetch(&mut session).unwrap()), expected);
}

/// covers: STR-016
#[test]
fn a_turn_asks_for_a_bounded_number_of_topics_and_then_for_the_others() {
    let many = SessionLimits {
        max_update_adds: 1000,
        max_stream_topics: 1000,
        ..limits()
    };
    let mut session = opened(many);
    let topic = |number: u16| {
        let mut id = [0; 32];
        id[..2].copy_from_slice(&number.to_be_bytes());
        Topic::welcome_destination(id)
    };
    let topics: Vec<Topic> = (0..300).map(topic).collect();
    registered(&mut session, 1, &topics, 1);
    let wants = fetch(&mut session).unwrap();
    assert_eq!(wants.len(), TURN_TOPICS);
    let first = wants
        .iter()
        .map(|want| served(vec![row(want.topic, 1, 9)], true))
        .collect();
    session.fetched(at(0), Fetched { batches: first });
    let rest: Vec<Topic> = fetch(&mut session)
        .unwrap()
        .iter()
        .map(|want| want.topic)
        .collect();
    assert_eq!(rest, topics[TURN_TOPICS..]);
}

/// covers: STR-030
#[test]
fn only_a_scan_that_ended_moves_the_floor_without_rows() {
    let mut session = opened(limits());
    registered(&mut session, 1, &[group(1)], 10);
    fetch(&mut session).unwrap();
    // The rows above 4 are gone, which is legal; the scan says so by having ended.
    session.fetched(
        at(0),
        Fetched {
            batches: vec![served(vec![row(group(1), 4, 9)], true)],
        },
    );
    assert_eq!(fetch(&mut session), None);
    session.told(at(0), &row(group(1), 10, 9));
    session.told(at(0), &row(group(1), 11, 9));
    assert_eq!(ids(&frames(&mut session, at(0))), [4, 11]);
}

/// covers: STR-016
#[test]
fn a_topics_batch_stays_in_one_frame() {
    let mut session = opened(limits());
    registered(&mut session, 1, &[group(1), group(2), group(3)], 2);
    fetch(&mut session).unwrap();
    let batch = |number: u8, id: u32| served(vec![row(group(number), id, LARGE)], true);
    let turn = vec![batch(1, 2), batch(2, 2), batch(3, 2)];
    session.fetched(at(0), Fetched { batches: turn });
    let sizes: Vec<usize> = frames(&mut session, at(0))
        .iter()
        .map(|frame| match frame {
            Frame::Messages(rows) => rows.len(),
            other => panic!("not messages: {other:?}"),
        })
        .collect();
    assert_eq!(sizes, [2, 1], "two of a mebibyte fill a frame");
}

/// covers: STR-004, STR-006
#[test]
fn nothing_of_a_topic_is_sent_before_its_acknowledgement() {
    let mut session = opened(limits());
    session.receive(at(0), update(1, &[(group(1), 0)], &[]));
    session.receive(at(0), update(2, &[(group(2), 0)], &[]));
    let asked = effects(&mut session);
    let topics = vec![group(1)];
    assert_eq!(
        asked,
        [Effect::Register(topics.clone()), Effect::ReadHeads(topics)]
    );
    session.told(at(0), &row(group(1), 5, 9));
    assert_eq!(session.take_frame(at(0)), None);
    session.heads_read(at(0), vec![SequenceId::from(3)]);
    let added = vec![(group(1), SequenceId::from(3))];
    assert_eq!(
        session.take_frame(at(0)),
        Some(Frame::Applied { id: 1, added })
    );
    let asked = effects(&mut session);
    let want = Want {
        topic: group(1),
        after: SequenceId::ZERO,
        through: 5.into(),
    };
    assert!(
        asked.contains(&Effect::Fetch(vec![want])),
        "what was told while pending is needed"
    );
    assert!(
        asked.contains(&Effect::ReadHeads(vec![group(2)])),
        "the next update follows"
    );
}

/// covers: STR-002
#[test]
fn a_refused_update_changes_nothing_and_earlier_frames_still_go_out() {
    let mut session = opened(limits());
    registered(&mut session, 1, &[group(1)], 0);
    session.told(at(0), &row(group(1), 1, 9));
    session.receive(
        at(0),
        update(2, &[(group(2), 0), (group(2), 1)], &[group(1)]),
    );
    assert_eq!(code(&session), Some(Code::InvalidArgument));
    assert_eq!(
        effects(&mut session),
        [Effect::Deregister(vec![group(1)])],
        "the stream ends, and nothing else happens"
    );
    assert_eq!(ids(&frames(&mut session, at(0))), [1]);
    session.receive(at(0), update(3, &[], &[]));
    assert_eq!(session.take_frame(at(0)), None);
}
