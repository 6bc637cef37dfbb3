//! What streams delivered, against the log.

use std::collections::{HashMap, HashSet, VecDeque};

use tonic::Code;

use super::{Event, Found, History, Id, Log, Moment, Seen, TopicNumber, Violation, Visible};

/// The statuses with which a server may end a stream of a client that breaks no rule.
const LISTED: [Code; 4] = [
    Code::Ok,
    Code::Unavailable,
    Code::DeadlineExceeded,
    Code::ResourceExhausted,
];

pub(super) fn check(history: &History, log: &Log<'_>, mut visible: Visible, found: &mut Found) {
    for event in history.streams.iter().flatten() {
        if let Event::Applied { targets, at, .. } = event {
            for (topic, target) in targets {
                visible.add(*topic, *at, *target);
            }
        }
    }
    visible.settle();
    for (number, events) in history.streams.iter().enumerate() {
        let mut stream = Stream {
            number,
            log,
            visible: &visible,
            open: VecDeque::new(),
            active: HashMap::new(),
            found,
        };
        events.iter().for_each(|event| stream.take(event));
    }
}

/// An update that is not acknowledged.
struct Open<'h> {
    id: u64,
    adds: &'h [(TopicNumber, Id)],
    removes: &'h [TopicNumber],
    sent: Moment,
}

/// A registration that is acknowledged.
struct Active {
    /// The greatest id that was delivered, or the cursor.
    last: Id,
    /// Where in the topic the next row stands.
    next: usize,
}

/// One stream on its way through its events.
struct Stream<'h, 'f> {
    number: usize,
    log: &'f Log<'h>,
    visible: &'f Visible,
    open: VecDeque<Open<'f>>,
    active: HashMap<TopicNumber, Active>,
    found: &'f mut Found,
}

impl<'f> Stream<'_, 'f> {
    fn take(&mut self, event: &'f Event) {
        let stream = self.number;
        match event {
            Event::Update {
                id,
                adds,
                removes,
                at,
            } => self.open.push_back(Open {
                id: *id,
                adds,
                removes,
                sent: *at,
            }),
            Event::Applied { id, targets, .. } => match self.open.pop_front() {
                Some(open) if open.id == *id => self.apply(&open, targets),
                _ => {
                    let update = *id;
                    self.found
                        .add(Violation::AppliedOutOfOrder { stream, update });
                }
            },
            Event::Message(seen) => self.deliver(seen),
            Event::Ended(code) => {
                if !LISTED.contains(code) {
                    let code = i32::from(*code);
                    self.found.add(Violation::StatusIsUnlisted { stream, code });
                }
            }
            Event::Lost => {}
            Event::Settled => self.settle(),
        }
    }

    fn apply(&mut self, open: &Open<'_>, targets: &[(TopicNumber, Id)]) {
        let stream = self.number;
        for topic in open.removes {
            self.active.remove(topic);
        }
        let mut told = HashMap::new();
        let mut wrong = targets
            .iter()
            .any(|(topic, target)| told.insert(*topic, *target).is_some());
        let mut new = HashSet::new();
        for (topic, cursor) in open.adds {
            if self.active.contains_key(topic) {
                continue;
            }
            new.insert(*topic);
            match told.get(topic) {
                Some(target) => self.check_target(*topic, *target, open.sent),
                None => wrong = true,
            }
            let next = self.log.place_after(*topic, *cursor);
            self.active.insert(
                *topic,
                Active {
                    last: *cursor,
                    next,
                },
            );
            self.found.summary.registrations += 1;
        }
        if wrong || new.len() != told.len() {
            let update = open.id;
            self.found
                .add(Violation::TargetsAreWrong { stream, update });
        }
    }

    fn check_target(&mut self, topic: TopicNumber, target: Id, sent: Moment) {
        let stream = self.number;
        let rows = self.log.rows(topic);
        if target != 0 && rows.binary_search_by_key(&target, |row| row.id).is_err() {
            self.found.add(Violation::TargetIsNoRow { stream, target });
        }
        let visible = self.visible.before(topic, sent);
        if target < visible {
            self.found.add(Violation::TargetIsStale {
                stream,
                target,
                visible,
            });
        }
    }

    fn deliver(&mut self, seen: &Seen) {
        let (stream, id) = (self.number, seen.id);
        self.found.summary.deliveries += 1;
        let Some(active) = self.active.get_mut(&seen.topic) else {
            self.found.add(Violation::Unregistered { stream, seen: id });
            return;
        };
        if id <= active.last {
            self.found
                .add(Violation::RepeatedOrReordered { stream, seen: id });
            return;
        }
        let rows = self.log.rows(seen.topic);
        let skipped = |row: &&super::Logged| row.pruned && row.id < id;
        while rows.get(active.next).is_some_and(skipped) {
            active.next += 1;
        }
        active.last = id;
        match rows.get(active.next) {
            Some(row) if row.id == id && row.print == seen.print => active.next += 1,
            Some(row) if row.id < id => {
                let missing = row.id;
                active.next = self.log.place_after(seen.topic, id);
                self.found.add(Violation::Skipped { stream, missing });
            }
            _ => self
                .found
                .add(Violation::DeliveredIsNotLogged { stream, seen: id }),
        }
    }

    fn settle(&mut self) {
        let stream = self.number;
        for (topic, active) in &self.active {
            let rest = self.log.rows(*topic).get(active.next..).unwrap_or(&[]);
            if let Some(row) = rest.iter().find(|row| !row.pruned) {
                let missing = row.id;
                self.found.add(Violation::EndIsMissing { stream, missing });
            }
        }
    }
}
