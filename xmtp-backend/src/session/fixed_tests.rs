//! Rules of streams whose topics are fixed, and of what goes before what.

use std::time::Duration;

use tonic::Code;

use super::fixture::{group, limits, ping, row, update};
use super::{Effect, End, Frame, Session, Tick};
use crate::store::Want;

const fn at(millis: u64) -> Tick {
    Duration::from_millis(millis)
}

fn effects(session: &mut Session) -> Vec<Effect> {
    std::iter::from_fn(|| session.next_effect()).collect()
}

fn frames(session: &mut Session, now: Tick) -> Vec<Frame> {
    std::iter::from_fn(|| session.take_frame(now)).collect()
}

/// covers: STR-051, STR-052
#[test]
fn the_start_of_a_fixed_stream_has_the_targets_and_comes_before_every_message() {
    let topics = [
        (group(2), 0.into()),
        (group(1), 3.into()),
        (group(3), 0.into()),
    ];
    let mut session = Session::fixed(limits(), topics.to_vec());
    let names = vec![group(2), group(1), group(3)];
    let asked = [Effect::Register(names.clone()), Effect::ReadHeads(names)];
    assert_eq!(effects(&mut session), asked);
    session.told(at(0), &row(group(1), 9, 1));
    assert!(
        !session.tick(at(60_000)),
        "no keepalive goes before the start"
    );
    assert_eq!(frames(&mut session, at(60_000)), []);

    session.heads_read(at(60_000), vec![4_u32.into(), 7_u32.into(), 0_u32.into()]);
    let start = Frame::Started {
        keepalive_interval_ms: 30_000,
        targets: vec![
            (group(2), 4_u32.into()),
            (group(1), 7_u32.into()),
            (group(3), 0_u32.into()),
        ],
    };
    assert_eq!(session.take_frame(at(60_000)), Some(start));
    let want = |topic, after: u32, through: u32| Want {
        topic,
        after: after.into(),
        through: through.into(),
    };
    let wants = vec![want(group(2), 0, 4), want(group(1), 3, 9)];
    assert_eq!(effects(&mut session), [Effect::Fetch(wants)]);
    session.told(at(60_000), &row(group(3), 10, 1));
    let sent = frames(&mut session, at(60_000));
    assert!(matches!(&sent[..], [Frame::Messages(rows)] if rows[0].topic == group(3)));
}

/// covers: STR-051
#[test]
fn a_fixed_stream_breaks_its_silence_and_asks_for_no_answer() {
    let mut session = Session::fixed(limits(), vec![(group(1), 0.into())]);
    session.heads_read(at(500), vec![0_u32.into()]);
    frames(&mut session, at(500));
    assert_eq!(session.deadline(), Some(at(30_500)));
    assert!(!session.tick(at(30_499)));
    assert_eq!(frames(&mut session, at(30_499)), []);
    for beat in 1..=20 {
        let now = at(500 + beat * 30_000);
        assert!(!session.tick(now), "no answer is ever overdue");
        assert_eq!(frames(&mut session, now), [Frame::Keepalive]);
        assert_eq!(session.deadline(), Some(now + at(30_000)));
    }
    session.told(at(610_000), &row(group(1), 1, 1));
    assert_eq!(
        session.deadline(),
        Some(at(640_000)),
        "a message breaks it too"
    );
}

/// covers: STR-052
#[test]
fn a_fixed_stream_that_is_not_read_ends_like_any_other() {
    let mut session = Session::fixed(limits(), vec![(group(1), 0.into())]);
    session.heads_read(at(0), vec![0_u32.into()]);
    for now in [30_000, 60_000, 89_999] {
        assert!(!session.tick(at(now)));
    }
    assert!(session.end().is_none());
    assert!(!session.tick(at(90_000)));
    let Some(End::Failed(status)) = session.end() else {
        panic!("it goes on");
    };
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(frames(&mut session, at(90_000)), []);
}

/// covers: STR-033
#[test]
fn answers_go_before_a_backlog_and_acknowledgements_in_their_place() {
    let mut session = Session::new(limits());
    session.receive(at(0), ping(1));
    let first = frames(&mut session, at(0));
    assert!(
        matches!(first[0], Frame::Started { .. }),
        "nothing goes before the start"
    );
    assert_eq!(first[1..], [Frame::Pong { nonce: 1 }]);

    session.receive(at(0), update(1, &[(group(1), 0)], &[]));
    session.heads_read(at(0), vec![0_u32.into()]);
    frames(&mut session, at(0));
    session.told(at(0), &row(group(1), 1, 1));
    session.receive(at(0), update(2, &[], &[group(1)]));
    session.receive(at(0), ping(2));
    session.receive(at(0), ping(3));
    let sent = frames(&mut session, at(0));
    assert_eq!(
        sent[..2],
        [Frame::Pong { nonce: 2 }, Frame::Pong { nonce: 3 }]
    );
    assert!(matches!(sent[2], Frame::Messages(_)));
    assert!(matches!(sent[3], Frame::Applied { id: 2, .. }));
}

/// covers: STR-030
#[test]
fn adding_and_removing_under_a_full_queue_keeps_no_places() {
    let mut session = Session::new(super::SessionLimits {
        update_burst: 1_000,
        ..limits()
    });
    frames(&mut session, at(0));
    let mut id = 0;
    let mut update_with = |session: &mut Session, adds: &[_], removes: &[_]| {
        id += 1;
        session.receive(at(0), update(id, adds, removes));
        if !adds.is_empty() {
            session.heads_read(at(0), vec![5_u32.into(); adds.len()]);
        }
        frames(session, at(0));
    };
    for _ in 0..100 {
        update_with(&mut session, &[(group(1), 0), (group(2), 0)], &[]);
        update_with(&mut session, &[], &[group(1), group(2)]);
    }
    assert!(session.ready.len() <= 2, "{}", session.ready.len());
}

/// covers: STR-002, STR-030
#[test]
fn a_stream_with_many_waiting_topics_is_not_read() {
    let mut session = Session::new(limits());
    session.receive(at(0), update(1, &[(group(1), 0)], &[]));
    let adds: Vec<_> = (0..100).map(|number| (group(number), 0)).collect();
    for id in 2..=10 {
        session.receive(at(0), update(id, &adds, &[]));
        assert!(session.wants_input());
    }
    session.receive(at(0), update(11, &adds, &[]));
    assert!(!session.wants_input());
    session.heads_read(at(0), vec![0_u32.into()]);
    assert!(session.wants_input(), "one of them is being applied");
}
