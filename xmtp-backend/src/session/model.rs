//! A session against a list per topic, over random schedules.
//!
//! The schedule decides when envelopes are committed, when the store's tail tells of them, when
//! heads and turns are read and when their results arrive, when the mailbox is looked at and
//! whether it overflowed, and when the client takes frames. The client checks that every envelope
//! it gets is exactly the next one of its topic's list, within the span of a registration; in the
//! end nothing may be left out.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use futures_util::FutureExt;
use proptest::prelude::*;
use xmtp_proto::id::{SequenceId, Topic};

use super::fixture::{TURN, group, limits, update, zeros};
use super::{Effect, Frame, Session, Tick};
use crate::hooks::SystemClock;
use crate::store::{
    Envelope, EnvelopeKey, Hash, MemoryStore, PreparedEnvelope, Store, Tail, Turn, Want,
};

const TOPICS: u8 = 4;

#[derive(Clone, Debug)]
enum Step {
    Commit {
        topic: u8,
        bytes: usize,
    },
    Tell,
    LookAtMail {
        overflow: bool,
    },
    Update {
        adds: Vec<(u8, u64)>,
        removes: Vec<u8>,
    },
    ReadHeads,
    HeadsArrive,
    ReadTurn,
    TurnArrives,
    TakeFrames {
        count: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let topic = 0..TOPICS;
    let bytes =
        prop_oneof![4 => 1..2000_usize, 1 => Just((1 << 20) - 256), 1 => 60_000..200_000_usize];
    let adds = prop::collection::btree_map(topic.clone(), 0..12_u64, 0..3);
    let removes = prop::collection::btree_set(topic.clone(), 0..2);
    prop_oneof![
        8 => (topic, bytes).prop_map(|(topic, bytes)| Step::Commit { topic, bytes }),
        6 => Just(Step::Tell),
        4 => prop::bool::weighted(0.2).prop_map(|overflow| Step::LookAtMail { overflow }),
        3 => (adds, removes).prop_map(|(adds, removes)| {
            let removes = removes.into_iter().filter(|topic| !adds.contains_key(topic)).collect();
            Step::Update { adds: adds.into_iter().collect(), removes }
        }),
        3 => Just(Step::ReadHeads),
        3 => Just(Step::HeadsArrive),
        3 => Just(Step::ReadTurn),
        3 => Just(Step::TurnArrives),
        3 => (1..4_usize).prop_map(|count| Step::TakeFrames { count }),
    ]
}

/// An update that is not acknowledged yet: its id, adds and removes.
type Sent = (u64, Vec<(Topic, u64)>, Vec<Topic>);

/// The client's view: what it asked for and what it may get next.
#[derive(Debug, Default)]
struct Client {
    sent: VecDeque<Sent>,
    active: HashMap<Topic, u64>,
}

/// Everything around the session.
struct World {
    session: Session,
    store: MemoryStore,
    tail: Box<dyn Tail>,
    /// Committed and not yet told.
    untold: VecDeque<Envelope>,
    logs: BTreeMap<Topic, Vec<u64>>,
    registry: HashSet<Topic>,
    mail: Vec<Envelope>,
    heads_wanted: Option<Vec<Topic>>,
    heads_read: Option<Vec<SequenceId>>,
    turn_wanted: Option<Vec<Want>>,
    turn_read: Option<Turn>,
    client: Client,
    next_update: u64,
}

const NOW: Tick = Tick::ZERO;

impl World {
    fn new() -> Self {
        let store = MemoryStore::new(Arc::new(SystemClock));
        let tail = store.tail().now_or_never().unwrap().unwrap();
        let mut limits = limits();
        (limits.update_burst, limits.max_stream_topics) = (10_000, usize::from(TOPICS));
        let mut session = Session::new(limits);
        assert!(matches!(
            session.take_frame(NOW),
            Some(Frame::Started { .. })
        ));
        Self {
            session,
            store,
            tail,
            untold: VecDeque::new(),
            logs: BTreeMap::new(),
            registry: HashSet::new(),
            mail: Vec::new(),
            heads_wanted: None,
            heads_read: None,
            turn_wanted: None,
            turn_read: None,
            client: Client::default(),
            next_update: 1,
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Commit { topic, bytes } => self.commit(group(topic), bytes),
            Step::Tell => self.tell(),
            Step::LookAtMail { overflow } => self.look_at_mail(overflow),
            Step::Update { adds, removes } => self.update(&adds, &removes),
            Step::ReadHeads => self.read_heads(),
            Step::HeadsArrive => {
                if let Some(heads) = self.heads_read.take() {
                    self.session.heads_read(NOW, heads);
                }
            }
            Step::ReadTurn => self.read_turn(),
            Step::TurnArrives => {
                if let Some(turn) = self.turn_read.take() {
                    self.session.fetched(NOW, turn);
                }
            }
            Step::TakeFrames { count } => self.take_frames(count),
        }
        self.perform();
        assert!(self.session.end().is_none(), "{:?}", self.session.end());
    }

    fn perform(&mut self) {
        while let Some(effect) = self.session.next_effect() {
            match effect {
                Effect::Register(topics) => self.registry.extend(topics),
                Effect::Deregister(topics) => {
                    for topic in topics {
                        assert!(self.registry.remove(&topic));
                    }
                }
                Effect::ReadHeads(topics) => {
                    assert!(
                        self.heads_wanted.replace(topics).is_none() && self.heads_read.is_none()
                    );
                }
                Effect::Fetch(wants) => {
                    assert!(self.turn_wanted.replace(wants).is_none() && self.turn_read.is_none());
                }
            }
        }
    }

    fn commit(&mut self, topic: Topic, bytes: usize) {
        let log = self.logs.entry(topic).or_default();
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&(log.len() as u64).to_be_bytes());
        let envelope = PreparedEnvelope {
            key: EnvelopeKey {
                topic,
                hash: Hash(hash),
            },
            payload: zeros(bytes),
            is_commit_or_proposal: false,
            retention_ns: None,
            identity: None,
            refused: None,
        };
        let metas = self
            .store
            .publish(vec![envelope])
            .now_or_never()
            .unwrap()
            .unwrap();
        log.push(metas[0].sequence_id.get());
    }

    fn tell(&mut self) {
        if self.untold.is_empty() {
            self.untold.extend(
                self.tail
                    .next()
                    .now_or_never()
                    .into_iter()
                    .flat_map(Result::unwrap),
            );
        }
        if let Some(row) = self.untold.pop_front()
            && self.registry.contains(&row.meta.key.topic)
        {
            self.mail.push(row);
        }
    }

    fn look_at_mail(&mut self, overflow: bool) {
        for row in std::mem::take(&mut self.mail) {
            match overflow {
                true => self
                    .session
                    .behind(NOW, row.meta.key.topic, row.meta.sequence_id),
                false => self.session.told(NOW, &row),
            }
        }
    }

    fn update(&mut self, adds: &[(u8, u64)], removes: &[u8]) {
        // A stream reads no further while too many updates wait.
        if !self.session.wants_input() {
            return;
        }
        let adds: Vec<_> = adds
            .iter()
            .map(|(topic, after)| (group(*topic), *after))
            .collect();
        let removes: Vec<_> = removes.iter().copied().map(group).collect();
        self.session
            .receive(NOW, update(self.next_update, &adds, &removes));
        self.client
            .sent
            .push_back((self.next_update, adds, removes));
        self.next_update += 1;
    }

    fn read_heads(&mut self) {
        if let Some(topics) = self.heads_wanted.take() {
            self.heads_read = Some(self.store.heads(topics).now_or_never().unwrap().unwrap());
        }
    }

    fn read_turn(&mut self) {
        if let Some(wants) = self.turn_wanted.take() {
            let turn = self.store.fetch_turn(wants, TURN).now_or_never().unwrap();
            self.turn_read = Some(turn.unwrap());
        }
    }

    fn take_frames(&mut self, count: usize) {
        for _ in 0..count {
            let Some(frame) = self.session.take_frame(NOW) else {
                return;
            };
            match frame {
                Frame::Applied { id, added } => self.client.applied(id, &added, &self.logs),
                Frame::Messages(rows) => {
                    rows.iter()
                        .for_each(|row| self.client.received(row, &self.logs));
                }
                other => panic!("unexpected: {other:?}"),
            }
        }
    }

    /// Lets everything that is under way arrive, then checks that nothing is missing.
    fn settle(&mut self) {
        let rounds =
            200 + 20 * self.logs.values().map(Vec::len).sum::<usize>() + self.client.sent.len();
        for _ in 0..rounds {
            for step in [
                Step::Tell,
                Step::LookAtMail { overflow: false },
                Step::ReadHeads,
                Step::HeadsArrive,
                Step::ReadTurn,
                Step::TurnArrives,
                Step::TakeFrames { count: 4 },
            ] {
                self.run(step);
            }
        }
        assert!(self.client.sent.is_empty(), "every update is acknowledged");
        for (topic, position) in &self.client.active {
            let log = self.logs.get(topic).map_or(&[][..], Vec::as_slice);
            let left: Vec<_> = log.iter().filter(|id| *id > position).collect();
            assert!(left.is_empty(), "left out: {left:?}");
        }
    }
}

impl Client {
    fn applied(
        &mut self,
        id: u64,
        added: &[(Topic, SequenceId)],
        logs: &BTreeMap<Topic, Vec<u64>>,
    ) {
        let (sent, adds, removes) = self.sent.pop_front().expect("an update was sent");
        assert_eq!(id, sent);
        for topic in removes {
            self.active.remove(&topic);
        }
        let new: Vec<_> = adds
            .into_iter()
            .filter(|(topic, _)| !self.active.contains_key(topic))
            .collect();
        assert!(
            new.iter()
                .map(|(topic, _)| topic)
                .eq(added.iter().map(|(topic, _)| topic))
        );
        self.active.extend(new);
        for (topic, head) in added {
            let log = logs.get(topic).map_or(&[][..], Vec::as_slice);
            assert!(
                *head == SequenceId::ZERO || log.contains(&head.get()),
                "a head is an envelope"
            );
        }
    }

    fn received(&mut self, row: &Envelope, logs: &BTreeMap<Topic, Vec<u64>>) {
        let topic = row.meta.key.topic;
        let position = self
            .active
            .get_mut(&topic)
            .expect("the topic is registered");
        let next = logs[&topic].iter().find(|id| *id > position).copied();
        assert_eq!(
            Some(row.meta.sequence_id.get()),
            next,
            "the next one of the list"
        );
        *position = row.meta.sequence_id.get();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: rounds(), ..ProptestConfig::default() })]

    /// covers: STR-004, STR-007, STR-008, STR-010
    #[test]
    fn every_registration_gets_exactly_its_slice(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        for step in steps {
            world.run(step);
        }
        world.settle();
    }
}

/// How many schedules are tried; `XMTP_ROUNDS` asks for more.
fn rounds() -> u32 {
    std::env::var("XMTP_ROUNDS")
        .ok()
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(200)
}
