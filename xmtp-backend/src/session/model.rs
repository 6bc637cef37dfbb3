//! A session against a list per topic, over random schedules.
//!
//! The schedule decides when envelopes are committed, when the store's tail tells of them, when
//! heads and turns are read and when their results arrive, when the mailbox is looked at and
//! whether it overflowed, and when the client takes frames. The client (`client.rs`) checks that
//! every envelope it gets is exactly the next one of its topic's list, within the span of a
//! registration, and that turns are fair; in the end nothing may be left out.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use futures_util::FutureExt;
use proptest::prelude::*;
use xmtp_proto::id::{SequenceId, Topic};

use super::client::Client;
use super::deviation::Deviation;
use super::fixture::{TURN, group, limits, update, zeros};
use super::{Batch, Effect, Fetched, Frame, Held, Row, Session, SessionLimits, Tick};
use crate::hooks::SystemClock;
use crate::store::{Envelope, EnvelopeKey, Hash, MemoryStore, PreparedEnvelope, Store, Tail, Want};

/// The most topics of a schedule.
pub(super) const TOPICS: u8 = 4;

#[derive(Clone, Debug)]
pub(super) enum Step {
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

pub(super) fn step() -> impl Strategy<Value = Step> {
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

/// Everything around the session.
pub(super) struct World {
    session: Session,
    store: MemoryStore,
    tail: Box<dyn Tail>,
    /// Committed and not yet told.
    untold: VecDeque<Envelope>,
    logs: BTreeMap<Topic, Vec<u64>>,
    registry: HashSet<Topic>,
    mail: Vec<Arc<Row>>,
    heads_wanted: Option<Vec<Topic>>,
    heads_read: Option<Vec<SequenceId>>,
    turn_wanted: Option<Vec<Want>>,
    turn_read: Option<Fetched>,
    client: Client,
    next_update: u64,
    /// The store behind the heads is one that has nothing yet of what the tail told.
    stale_heads: bool,
}

const NOW: Tick = Tick::ZERO;

impl World {
    /// Makes a world around a stream whose interest changes.
    pub(super) fn changing(broken: Option<Deviation>, topics: u8) -> Self {
        let limits = bounds(broken, topics);
        Self::around(Session::new(limits), Client::default())
    }

    /// Makes a world around a stream whose topics are fixed.
    pub(super) fn fixed(broken: Option<Deviation>, topics: &[(u8, u64)]) -> Self {
        let topics: Vec<_> = topics
            .iter()
            .map(|(topic, after)| (group(*topic), *after))
            .collect();
        let wants = topics.iter().map(|(topic, after)| {
            let after = SequenceId::checked(*after).expect("a cursor");
            (*topic, after)
        });
        let session = Session::fixed(bounds(broken, TOPICS), wants.collect());
        Self::around(session, Client::of_fixed(topics))
    }

    fn around(session: Session, client: Client) -> Self {
        let store = MemoryStore::new(Arc::new(SystemClock));
        let tail = store.tail().now_or_never().unwrap().unwrap();
        let mut world = Self {
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
            client,
            next_update: 1,
            stale_heads: false,
        };
        world.perform();
        world
    }

    /// Has heads read from a store that is behind the one that tells.
    pub(super) fn with_stale_heads(mut self) -> Self {
        self.stale_heads = true;
        self
    }

    pub(super) fn run(&mut self, step: Step) {
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

    pub(super) fn commit(&mut self, topic: Topic, bytes: usize) {
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
            self.mail.push(Row::encode(&row, Held::Shared));
        }
    }

    fn look_at_mail(&mut self, overflow: bool) {
        for row in std::mem::take(&mut self.mail) {
            match overflow {
                true => self.session.behind(NOW, row.topic, row.sequence_id),
                false => self.session.told(NOW, &row),
            }
        }
    }

    pub(super) fn update(&mut self, adds: &[(u8, u64)], removes: &[u8]) {
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
        self.client.sends(self.next_update, adds, removes);
        self.next_update += 1;
    }

    fn read_heads(&mut self) {
        if let Some(topics) = self.heads_wanted.take() {
            if self.stale_heads {
                self.heads_read = Some(vec![SequenceId::ZERO; topics.len()]);
                return;
            }
            self.heads_read = Some(self.store.heads(topics).now_or_never().unwrap().unwrap());
        }
    }

    fn read_turn(&mut self) {
        if let Some(wants) = self.turn_wanted.take() {
            let turn = self.store.fetch_turn(wants, TURN).now_or_never().unwrap();
            let batches = turn.unwrap().served.into_iter().map(|served| Batch {
                rows: served
                    .rows
                    .iter()
                    .map(|row| Row::encode(row, Held::Alone))
                    .collect(),
                complete: served.complete,
            });
            self.turn_read = Some(Fetched {
                batches: batches.collect(),
            });
        }
    }

    fn take_frames(&mut self, count: usize) {
        for _ in 0..count {
            let Some(frame) = self.session.take_frame(NOW) else {
                return;
            };
            match frame {
                Frame::Started { targets, .. } => self.client.started(&targets, &self.logs),
                Frame::Applied { id, added } => self.client.applied(id, &added, &self.logs),
                Frame::Messages(rows) => self.client.received(&rows, &self.logs),
                other => panic!("unexpected: {other:?}"),
            }
        }
    }

    /// Lets everything that is under way arrive, then checks that nothing is missing.
    pub(super) fn settle(&mut self) {
        let rounds = 200 + 20 * self.logs.values().map(Vec::len).sum::<usize>();
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
        self.client.lacks_nothing(&self.logs);
    }
}

fn bounds(broken: Option<Deviation>, topics: u8) -> SessionLimits {
    SessionLimits {
        update_burst: 10_000,
        max_stream_topics: topics.into(),
        deviation: broken,
        ..limits()
    }
}

/// Makes schedules of a stream whose interest changes.
pub(super) fn schedules() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..120)
}

/// Makes the topics of a fixed stream and a schedule.
pub(super) fn fixed_schedules() -> impl Strategy<Value = (Vec<(u8, u64)>, Vec<Step>)> {
    let topics = prop::collection::btree_map(0..TOPICS, 0..12_u64, 1..=usize::from(TOPICS));
    let step = step().prop_filter("nobody updates it", |step| {
        !matches!(step, Step::Update { .. })
    });
    let steps = prop::collection::vec(step, 1..120);
    (
        topics.prop_map(|topics| topics.into_iter().collect()),
        steps,
    )
}

/// Runs a schedule to its end.
pub(super) fn run_all(mut world: World, steps: Vec<Step>) {
    steps.into_iter().for_each(|step| world.run(step));
    world.settle();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: rounds(), ..ProptestConfig::default() })]

    /// covers: STR-004, STR-007, STR-008, STR-010
    #[test]
    fn every_registration_gets_exactly_its_slice(steps in schedules()) {
        run_all(World::changing(None, TOPICS), steps);
    }

    /// covers: STR-051, STR-052
    #[test]
    fn a_fixed_stream_gets_exactly_its_slices_after_its_targets(
        (topics, steps) in fixed_schedules(),
    ) {
        run_all(World::fixed(None, &topics), steps);
    }
}

/// How many schedules are tried; `XMTP_ROUNDS` asks for more.
pub(super) fn rounds() -> u32 {
    std::env::var("XMTP_ROUNDS")
        .ok()
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(200)
}
