//! The session alone: the wire's order rules, and a model of random streams.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use proptest::prelude::*;
use xmtp_proto::backend::v1;
use xmtp_proto::backend::v1::message_hash::Hash;
use xmtp_proto::backend::v1::subscribe_request::{Request, Update};
use xmtp_proto::backend::v1::subscribe_response::{Applied, Messages, Response, Started};
use xmtp_proto::{GroupId, SequenceId, Topic};

use super::session::{Event, Session, SessionLimits};
use crate::limits::{DEFAULT_KEEPALIVE_INTERVAL, SILENT_INTERVALS};
use crate::receipt::Batch;
use crate::transport::TransportError;

const NOW: Duration = Duration::ZERO;

fn topic(number: u8) -> Topic {
    Topic::group(&GroupId::from_bytes([number; 16]))
}

fn sequence(number: u64) -> SequenceId {
    SequenceId::saturating(number)
}

fn frame(response: Response) -> v1::SubscribeResponse {
    v1::SubscribeResponse {
        response: Some(response),
    }
}

fn started() -> v1::SubscribeResponse {
    frame(Response::Started(Started::default()))
}

fn messages(envelopes: &[(u8, u64)]) -> v1::SubscribeResponse {
    let envelopes = envelopes.iter().map(|(number, sequence_id)| {
        let meta = v1::EnvelopeMeta {
            cursor: Some(v1::Cursor {
                sequence_id: *sequence_id,
            }),
            message_hash: Some(v1::MessageHash {
                hash: Some(Hash::Sha256(vec![0; 32].into())),
            }),
            topic: Some(topic(*number).to_proto()),
            ..Default::default()
        };
        v1::ServerEnvelope {
            meta: Some(meta),
            envelope: None,
        }
    });
    frame(Response::Messages(Messages {
        envelopes: envelopes.collect(),
    }))
}

fn applied(id: u64, targets: &[(u8, u64)]) -> v1::SubscribeResponse {
    let targets = targets.iter().map(|(number, target)| v1::CatchupTarget {
        topic: Some(topic(*number).to_proto()),
        through_sequence_id: *target,
    });
    frame(Response::Applied(Applied {
        id,
        added_targets: targets.collect(),
    }))
}

fn wanted(numbers: &[u8]) -> BTreeSet<Topic> {
    numbers.iter().map(|number| topic(*number)).collect()
}

/// Sends the update that makes `numbers` wanted, from floor zero.
fn update(session: &mut Session, numbers: &[u8]) -> Update {
    let plan = session.plan(&wanted(numbers)).expect("something changes");
    let floors = vec![SequenceId::ZERO; plan.adds.len()];
    match session.update(plan, &floors, NOW).request {
        Some(Request::Update(update)) => update,
        other => panic!("not an update: {other:?}"),
    }
}

fn open(numbers: &[u8], target: u64) -> Session {
    let mut session = Session::new(SessionLimits::default(), NOW);
    session.frame(started(), NOW).expect("started");
    let update = update(&mut session, numbers);
    let targets: Vec<(u8, u64)> = numbers.iter().map(|number| (*number, target)).collect();
    session
        .frame(applied(update.id, &targets), NOW)
        .expect("applied");
    session
}

fn batches(event: Event) -> Vec<(Topic, u64, Vec<u64>)> {
    let Event::Messages(batches) = event else {
        panic!("not messages: {event:?}");
    };
    let ids = |batch: &Batch| {
        batch
            .envelopes
            .iter()
            .map(|one| one.sequence_id.get())
            .collect()
    };
    batches
        .iter()
        .map(|batch| (batch.topic, batch.after.get(), ids(batch)))
        .collect()
}

fn broken(result: Result<Event, TransportError>) -> &'static str {
    match result {
        Err(TransportError::Protocol { rule }) => rule,
        other => panic!("not refused: {other:?}"),
    }
}

/// Nothing is sent before Started, and no other frame may come first.
/// covers: STR-001
#[test]
fn a_stream_begins_with_started() {
    let mut session = Session::new(SessionLimits::default(), NOW);
    assert_eq!(session.plan(&wanted(&[1])), None);
    assert!(broken(session.frame(messages(&[]), NOW)).contains("not Started"));
    let mut session = Session::new(SessionLimits::default(), NOW);
    session.frame(started(), NOW).expect("started");
    assert_eq!(session.plan(&wanted(&[])), None, "an empty set is legal");
    assert_eq!(
        session.silent_at(),
        DEFAULT_KEEPALIVE_INTERVAL * SILENT_INTERVALS,
        "an interval of zero is the default"
    );
    assert!(broken(session.frame(started(), NOW)).contains("second Started"));
}

/// An Applied answers its update, with one target for each add, in add order.
/// covers: STR-006
#[test]
fn an_applied_answers_its_update() {
    for (answer, rule) in [
        (applied(2, &[(1, 5), (2, 5)]), "no update"),
        (applied(1, &[(1, 5)]), "each added topic"),
        (applied(1, &[(2, 5), (1, 5)]), "order of the adds"),
    ] {
        let mut session = Session::new(SessionLimits::default(), NOW);
        session.frame(started(), NOW).expect("started");
        assert_eq!(update(&mut session, &[1, 2]).id, 1);
        assert!(broken(session.frame(answer, NOW)).contains(rule));
    }
    let mut session = open(&[1, 2], 5);
    assert!(broken(session.frame(applied(1, &[]), NOW)).contains("no update"));
}

/// Update ids rise, one update is under way at a time, and each keeps its caps.
#[test]
fn updates_are_bounded_and_numbered() {
    let limits = SessionLimits {
        adds: 2,
        removes: 1,
        topics: 3,
    };
    let mut session = Session::new(limits, NOW);
    session.frame(started(), NOW).expect("started");
    let first = update(&mut session, &[1, 2, 3, 4]);
    assert_eq!((first.id, first.adds.len()), (1, 2));
    assert_eq!(session.plan(&wanted(&[1, 2, 3, 4])), None, "one at a time");
    session
        .frame(applied(1, &[(1, 0), (2, 0)]), NOW)
        .expect("applied");
    let second = update(&mut session, &[1, 2, 3, 4]);
    assert_eq!((second.id, second.adds.len()), (2, 1), "a stream is full");
    session.frame(applied(2, &[(3, 0)]), NOW).expect("applied");
    let third = update(&mut session, &[3]);
    assert_eq!((third.id, third.removes.len()), (3, 1));
}

/// What still arrives for a registration that is ending is dropped, up to the answer; after it,
/// an envelope of that topic breaks the contract.
/// covers: STR-007
#[test]
fn an_ending_registration_is_read_no_further() {
    let mut session = open(&[1, 2], 0);
    let removal = update(&mut session, &[2]);
    let event = session.frame(messages(&[(1, 4), (2, 5)]), NOW);
    assert_eq!(batches(event.expect("legal")), [(topic(2), 0, vec![5])]);
    let event = session.frame(applied(removal.id, &[]), NOW);
    let Ok(Event::Applied { removed, .. }) = event else {
        panic!("not applied: {event:?}");
    };
    assert_eq!(removed, [topic(1)]);
    assert!(broken(session.frame(messages(&[(1, 6)]), NOW)).contains("not registered"));
}

/// A topic that is registered again starts from the cursor of that registration alone.
/// covers: STR-008
#[test]
fn a_registration_starts_from_its_own_cursor() {
    let mut session = open(&[1], 0);
    session.frame(messages(&[(1, 9)]), NOW).expect("legal");
    session.withdraw(&topic(1));
    assert_eq!(session.target(&topic(1)), None);
    let removal = update(&mut session, &[1]);
    assert_eq!((removal.adds.len(), removal.removes.len()), (0, 1));
    session.frame(messages(&[(1, 10)]), NOW).expect("dropped");
    session
        .frame(applied(removal.id, &[]), NOW)
        .expect("applied");
    let plan = session.plan(&wanted(&[1])).expect("it is still wanted");
    session.update(plan, &[sequence(3)], NOW);
    session.frame(applied(3, &[(1, 20)]), NOW).expect("applied");
    assert_eq!(session.target(&topic(1)), Some(sequence(20)));
    let event = session.frame(messages(&[(1, 4), (1, 10)]), NOW);
    assert_eq!(batches(event.expect("legal")), [(topic(1), 3, vec![4, 10])]);
}

/// Gaps are legal, order is not: 5, 6, 8 is read and 7 after it ends the stream (report B34).
#[test]
fn ids_rise_across_the_frames_of_a_registration() {
    let mut session = open(&[1], 0);
    session
        .frame(messages(&[(1, 5), (1, 6)]), NOW)
        .expect("rising");
    let event = session.frame(messages(&[(1, 8)]), NOW).expect("a gap");
    assert_eq!(batches(event), [(topic(1), 6, vec![8])]);
    assert!(broken(session.frame(messages(&[(1, 7)]), NOW)).contains("do not rise"));
    let mut session = open(&[1], 0);
    let falling = messages(&[(1, 5), (1, 6), (1, 8), (1, 7)]);
    assert!(broken(session.frame(falling, NOW)).contains("do not rise"));
}

/// A Ping is answered with its nonce.
#[test]
fn a_ping_is_answered() {
    let mut session = open(&[1], 0);
    let ping = frame(Response::Ping(v1::Ping { nonce: 77 }));
    let Ok(Event::Reply(reply)) = session.frame(ping, NOW) else {
        panic!("no reply");
    };
    assert_eq!(reply.request, Some(Request::Pong(v1::Pong { nonce: 77 })));
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Publish(u8),
    Want(u8, bool),
    Withdraw(u8),
    Sync,
    Deliver(usize),
    Serve,
    Reconnect,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..4u8).prop_map(Op::Publish),
        2 => (0..4u8, any::<bool>()).prop_map(|(number, wants)| Op::Want(number, wants)),
        1 => (0..4u8).prop_map(Op::Withdraw),
        3 => Just(Op::Sync),
        4 => (1..4usize).prop_map(Op::Deliver),
        3 => Just(Op::Serve),
        1 => Just(Op::Reconnect),
    ]
}

/// A backend, a durable F and a session, all in one thread.
struct World {
    session: Session,
    wanted: BTreeSet<Topic>,
    stored: BTreeMap<u8, Vec<u64>>,
    last: u64,
    /// Durable F and everything admitted below it.
    durable: BTreeMap<Topic, Vec<u64>>,
    /// The server's registrations: the sequence id sent last.
    registered: BTreeMap<u8, u64>,
    unread: VecDeque<Update>,
    frames: VecDeque<v1::SubscribeResponse>,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            session: Session::new(SessionLimits::default(), NOW),
            wanted: BTreeSet::new(),
            stored: BTreeMap::new(),
            last: 0,
            durable: BTreeMap::new(),
            registered: BTreeMap::new(),
            unread: VecDeque::new(),
            frames: VecDeque::new(),
        };
        world.reconnect();
        world
    }

    fn reconnect(&mut self) {
        self.session = Session::new(SessionLimits::default(), NOW);
        self.registered.clear();
        self.unread.clear();
        self.frames = VecDeque::from([started()]);
    }

    fn floor(&self, topic: &Topic) -> u64 {
        let admitted = self.durable.get(topic);
        admitted.and_then(|ids| ids.last().copied()).unwrap_or(0)
    }

    fn plan(&mut self) {
        let Some(plan) = self.session.plan(&self.wanted) else {
            return;
        };
        let floors = plan.adds.iter().map(|topic| sequence(self.floor(topic)));
        let floors: Vec<SequenceId> = floors.collect();
        if let Some(Request::Update(update)) = self.session.update(plan, &floors, NOW).request {
            self.unread.push_back(update);
        }
    }

    /// The server reads one update and sends what is due.
    fn serve(&mut self) {
        let number = |topic: &v1::Topic| topic.topic[1];
        if let Some(update) = self.unread.pop_front() {
            for removed in &update.removes {
                self.registered.remove(&number(removed));
            }
            let mut targets = Vec::new();
            for add in &update.adds {
                let number = number(add.topic.as_ref().expect("a topic"));
                let cursor = add.cursor.map_or(0, |cursor| cursor.sequence_id);
                assert_eq!(self.registered.insert(number, cursor), None, "no seek");
                let head = self.stored.get(&number).and_then(|ids| ids.last());
                targets.push((number, head.copied().unwrap_or(0)));
            }
            self.frames.push_back(applied(update.id, &targets));
        }
        let mut due = Vec::new();
        for (number, sent) in &mut self.registered {
            for id in self.stored.get(number).into_iter().flatten() {
                if id > sent {
                    due.push((*number, *id));
                    *sent = *id;
                }
            }
        }
        due.chunks(2)
            .for_each(|chunk| self.frames.push_back(messages(chunk)));
    }

    /// The client reads frames; admission is what `receipt::admit` does.
    fn deliver(&mut self, count: usize) {
        for _ in 0..count {
            let Some(frame) = self.frames.pop_front() else {
                return;
            };
            let event = self
                .session
                .frame(frame, NOW)
                .expect("the server is honest");
            let Event::Messages(batches) = event else {
                continue;
            };
            for batch in batches {
                let floor = self.floor(&batch.topic);
                assert!(batch.after.get() <= floor, "a gap would be admitted");
                let admitted = self.durable.entry(batch.topic).or_default();
                let ids = batch.envelopes.iter().map(|one| one.sequence_id.get());
                admitted.extend(ids.filter(|id| *id > floor));
            }
        }
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Publish(number) => {
                self.last += 1 + self.last % 2;
                self.stored.entry(number).or_default().push(self.last);
            }
            Op::Want(number, true) => drop(self.wanted.insert(topic(number))),
            Op::Want(number, false) => drop(self.wanted.remove(&topic(number))),
            Op::Withdraw(number) => self.session.withdraw(&topic(number)),
            Op::Sync => self.plan(),
            Op::Deliver(count) => self.deliver(count),
            Op::Serve => self.serve(),
            Op::Reconnect => self.reconnect(),
        }
    }
}

fn config() -> ProptestConfig {
    let rounds = std::env::var("XMTP_ROUNDS").ok();
    let rounds: u32 = rounds.and_then(|text| text.parse().ok()).unwrap_or(1);
    ProptestConfig {
        cases: 256 * rounds,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    /// Whatever is published, wanted, withdrawn and cut: what is admitted is a prefix of what is
    /// stored, nothing twice, and in the end all of what is wanted.
    /// covers: STR-036, STR-008
    #[test]
    fn nothing_is_skipped_or_admitted_twice(ops in proptest::collection::vec(op(), 0..120)) {
        let mut world = World::new();
        for op in ops {
            world.run(op);
            for (number, stored) in &world.stored {
                let admitted = world.durable.get(&topic(*number)).cloned().unwrap_or_default();
                prop_assert!(stored.starts_with(&admitted));
            }
        }
        for _ in 0..8 {
            world.deliver(usize::MAX);
            world.plan();
            world.serve();
        }
        for number in 0..4u8 {
            if world.wanted.contains(&topic(number)) {
                let stored = world.stored.get(&number).cloned().unwrap_or_default();
                let admitted = world.durable.get(&topic(number)).cloned().unwrap_or_default();
                prop_assert_eq!(stored, admitted);
            }
        }
    }
}
