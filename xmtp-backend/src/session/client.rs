//! The client's side of a schedule: what it asked for, what it may get next, and what is fair.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use xmtp_proto::id::{SequenceId, Topic};

use super::Row;

/// What is stored of each topic.
pub(super) type Logs = BTreeMap<Topic, Vec<u64>>;

/// An update that is not acknowledged yet.
#[derive(Debug)]
struct Sent {
    id: u64,
    adds: Vec<(Topic, u64)>,
    removes: Vec<Topic>,
}

/// The client's view: what it asked for and what it may get next.
#[derive(Debug, Default)]
pub(super) struct Client {
    sent: VecDeque<Sent>,
    /// The topics of a fixed stream that has not started.
    asked: Option<Vec<(Topic, u64)>>,
    active: HashMap<Topic, Active>,
    law: Law,
}

/// A topic that is registered.
#[derive(Clone, Copy, Debug)]
struct Active {
    position: u64,
    target: u64,
}

impl Active {
    fn owes(&self) -> bool {
        self.position < self.target
    }
}

/// Of two topics that both owe history, neither gets a second frame of it before the other has got
/// one.
#[derive(Debug, Default)]
struct Law {
    /// Pairs of which the first has got a frame since the second got one.
    ahead: HashSet<(Topic, Topic)>,
}

impl Client {
    /// Makes a client of a fixed stream.
    pub(super) fn of_fixed(topics: Vec<(Topic, u64)>) -> Self {
        Self {
            asked: Some(topics),
            ..Self::default()
        }
    }

    pub(super) fn sends(&mut self, id: u64, adds: Vec<(Topic, u64)>, removes: Vec<Topic>) {
        self.sent.push_back(Sent { id, adds, removes });
    }

    pub(super) fn started(&mut self, targets: &[(Topic, SequenceId)], logs: &Logs) {
        let asked = self.asked.take().unwrap_or_default();
        self.register(asked, targets, logs);
    }

    pub(super) fn applied(&mut self, id: u64, added: &[(Topic, SequenceId)], logs: &Logs) {
        let sent = self.sent.pop_front().expect("an update was sent");
        assert_eq!(id, sent.id);
        for topic in sent.removes {
            self.active.remove(&topic);
            self.law.forget(topic);
        }
        let mut adds = sent.adds;
        adds.retain(|(topic, _)| !self.active.contains_key(topic));
        self.register(adds, added, logs);
    }

    fn register(&mut self, adds: Vec<(Topic, u64)>, added: &[(Topic, SequenceId)], logs: &Logs) {
        let asked = adds.iter().map(|(topic, _)| topic);
        assert!(asked.eq(added.iter().map(|(topic, _)| topic)), "in order");
        for ((topic, position), (_, head)) in adds.into_iter().zip(added) {
            let log = logs.get(&topic).map_or(&[][..], Vec::as_slice);
            let target = head.get();
            assert!(
                target == 0 || log.contains(&target),
                "a head is an envelope"
            );
            self.active.insert(topic, Active { position, target });
        }
    }

    pub(super) fn received(&mut self, rows: &[Arc<Row>], logs: &Logs) {
        assert!(self.asked.is_none(), "the targets come first");
        // What the client has asked to leave is owed nothing any more.
        let leaving = |topic: &Topic| self.sent.iter().any(|sent| sent.removes.contains(topic));
        let owing = self.active.iter();
        let owing = owing.filter(|(topic, active)| active.owes() && !leaving(topic));
        let owing: HashSet<Topic> = owing.map(|(topic, _)| *topic).collect();
        let served: HashSet<Topic> = rows.iter().map(|row| row.topic).collect();
        for row in rows {
            let active = self.active.get_mut(&row.topic);
            let active = active.expect("the topic is registered");
            let next = logs[&row.topic].iter().find(|id| **id > active.position);
            let id = row.sequence_id.get();
            assert_eq!(Some(&id), next, "the next one of the list");
            active.position = id;
        }
        self.law.frame(&served, &owing);
        let owes = |topic: &Topic| self.active.get(topic).is_some_and(Active::owes);
        self.law
            .ahead
            .retain(|(one, other)| owes(one) && owes(other));
    }

    /// Checks that all is acknowledged and delivered.
    pub(super) fn lacks_nothing(&self, logs: &Logs) {
        assert!(self.sent.is_empty(), "every update is acknowledged");
        assert!(self.asked.is_none(), "a fixed stream has started");
        for (topic, active) in &self.active {
            let log = logs.get(topic).map_or(&[][..], Vec::as_slice);
            let left: Vec<_> = log.iter().filter(|id| **id > active.position).collect();
            assert!(left.is_empty(), "left out: {left:?}");
        }
    }
}

impl Law {
    fn frame(&mut self, served: &HashSet<Topic>, owing: &HashSet<Topic>) {
        for one in served.intersection(owing) {
            for other in owing.difference(served) {
                let first = self.ahead.insert((*one, *other));
                assert!(first, "a second frame of history before another's first");
            }
        }
        self.ahead.retain(|(_, other)| !served.contains(other));
    }

    fn forget(&mut self, topic: Topic) {
        let names = |(one, other): &(Topic, Topic)| *one == topic || *other == topic;
        self.ahead.retain(|pair| !names(pair));
    }
}
