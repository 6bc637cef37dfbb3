//! What clients saw of a server, and the rules that it must have kept.
//!
//! A [`Recorder`] writes down what many clients do and see, in one order of moments. Afterwards the
//! whole log is read from the server, and [`check`] holds everything against it: the log gives a
//! total order, so each rule is a comparison and nothing has to be searched for.
//!
//! The data is plain, so that a test can write a history by hand that breaks a rule.

#![allow(dead_code, reason = "each program uses a part of it")]

mod newest;
mod publishes;
mod queries;
mod record;
mod streams;

use std::collections::{BTreeMap, HashMap, HashSet};

use tonic::Code;
use xmtp_identity::{AssociationState, NoSmartContractWallets, apply};
use xmtp_proto::identity::IdentityUpdate;

pub(crate) use record::{Recorder, StreamRecorder};

/// The most violations that one check tells.
const MAX_VIOLATIONS: usize = 20;

/// A place in the order of everything that was recorded.
pub(crate) type Moment = u64;

/// A topic, numbered by the recorder.
pub(crate) type TopicNumber = u32;

/// A position in the log, as it is on the wire.
pub(crate) type Id = u64;

/// Everything that was seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// The whole log as it is in the end, each topic in the order in which it is read.
    pub(crate) log: Vec<Logged>,
    /// One record for each envelope of each attempt.
    pub(crate) publishes: Vec<Publish>,
    /// What happened on each stream, in order.
    pub(crate) streams: Vec<Vec<Event>>,
    /// Every page that was read.
    pub(crate) pages: Vec<Page>,
    /// Every look at the newest envelopes.
    pub(crate) newest: Vec<Newest>,
    /// Whether streams and newest reads are served by a copy that may be behind what is acknowledged.
    pub(crate) streams_lag: bool,
}

/// One row of the log.
#[derive(Clone, Debug)]
pub(crate) struct Logged {
    pub(crate) topic: TopicNumber,
    pub(crate) id: Id,
    /// The hash that the server says.
    pub(crate) hash: [u8; 32],
    /// The hash of the bytes that the server gives.
    pub(crate) hash_of_bytes: [u8; 32],
    pub(crate) print: Print,
    /// The update, if it is one.
    pub(crate) update: Option<IdentityUpdate>,
    /// Whether the row may have been deleted while it was read.
    pub(crate) pruned: bool,
}

/// Stands for all that is said about an envelope and for its bytes: equal prints, equal envelopes.
pub(crate) type Print = u32;

/// One envelope of one attempt to publish.
#[derive(Clone, Debug)]
pub(crate) struct Publish {
    /// The attempt; its envelopes are stored together or not at all.
    pub(crate) attempt: u64,
    pub(crate) topic: TopicNumber,
    pub(crate) hash: [u8; 32],
    pub(crate) began: Moment,
    pub(crate) ended: Moment,
    /// The greatest id that any client knew when the attempt began.
    pub(crate) known: Id,
    pub(crate) outcome: Outcome,
}

/// How an attempt ended for one envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is stored.
    Stored { id: Id, server_ns: u64 },
    /// It is refused for good, or the log of its inbox had moved.
    Refused,
    /// Nobody knows.
    Unknown,
}

/// What happened on a stream.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// The client sent an update.
    Update {
        id: u64,
        adds: Vec<(TopicNumber, Id)>,
        removes: Vec<TopicNumber>,
        at: Moment,
    },
    /// The server acknowledged one.
    Applied {
        id: u64,
        targets: Vec<(TopicNumber, Id)>,
        at: Moment,
    },
    /// The server delivered an envelope.
    Message(Seen),
    /// The server ended the stream with this status.
    Ended(Code),
    /// The client went away, or the connection was lost.
    Lost,
    /// The client has waited until it had everything, and nobody publishes any more.
    Settled,
}

/// An envelope as a client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) topic: TopicNumber,
    pub(crate) print: Print,
    pub(crate) id: Id,
}

/// A page that was read.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    pub(crate) sent: Moment,
    pub(crate) topics: Vec<(TopicNumber, Id)>,
    pub(crate) limit: usize,
    pub(crate) rows: Vec<Seen>,
    pub(crate) has_more: bool,
}

/// The newest envelopes of some topics, as they were read.
#[derive(Clone, Debug)]
pub(crate) struct Newest {
    pub(crate) sent: Moment,
    pub(crate) topics: Vec<TopicNumber>,
    pub(crate) rows: Vec<Seen>,
}

/// A rule that was broken, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// An acknowledged envelope is not in the log under its id.
    AcknowledgedIsMissing { topic: TopicNumber, id: Id },
    /// Two attempts with the same bytes were told different records.
    RetriesDisagree { topic: TopicNumber },
    /// A refused envelope is in the log.
    RefusedIsStored { topic: TopicNumber, id: Id },
    /// A part of an attempt is in the log and another part is not.
    AttemptIsTorn { attempt: u64 },
    /// The log has an envelope that nobody published.
    Invented { topic: TopicNumber, id: Id },
    /// The log has the same bytes twice on a topic.
    StoredTwice { topic: TopicNumber, id: Id },
    /// The ids of the log do not grow, or one is used twice.
    LogIsNotOrdered { topic: TopicNumber, id: Id },
    /// A hash is not the hash of the bytes.
    HashIsWrong { topic: TopicNumber, id: Id },
    /// An update does not apply to the ones before it.
    IdentityLogIsInvalid { topic: TopicNumber, id: Id },
    /// An envelope was published after a greater id was known.
    CauseIsAfterEffect { id: Id, known: Id },
    /// A message came without a registration that is acknowledged.
    Unregistered { stream: usize, seen: Id },
    /// A message is not in the log, or not as it was delivered.
    DeliveredIsNotLogged { stream: usize, seen: Id },
    /// A message came again, or after a greater one.
    RepeatedOrReordered { stream: usize, seen: Id },
    /// A row of the log was skipped.
    Skipped { stream: usize, missing: Id },
    /// A settled registration has not got the end of its topic.
    EndIsMissing { stream: usize, missing: Id },
    /// An acknowledgement is not of the oldest open update.
    AppliedOutOfOrder { stream: usize, update: u64 },
    /// An acknowledgement does not name each new topic once.
    TargetsAreWrong { stream: usize, update: u64 },
    /// A target is not a row of its topic.
    TargetIsNoRow { stream: usize, target: Id },
    /// A target is behind what was visible when the update was sent.
    TargetIsStale {
        stream: usize,
        target: Id,
        visible: Id,
    },
    /// A stream ended with a status that no server gives.
    StatusIsUnlisted { stream: usize, code: i32 },
    /// A page has more rows than it may, or rows that are not the next ones of the log.
    PageIsNoSlice { page: usize },
    /// A page without more leaves out what was acknowledged before.
    PageMissesOwnWrite { page: usize, missing: Id },
    /// A page says that there is more and there is nothing.
    MoreIsNothing { page: usize },
    /// A newest envelope is none of the log, was not asked for, or is told twice.
    NewestIsNoRow { read: usize, seen: Id },
    /// A newest envelope, or none (zero), is behind what was visible when it was asked for.
    NewestIsStale { read: usize, seen: Id, visible: Id },
}

/// How much was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) rows: usize,
    pub(crate) publishes: usize,
    pub(crate) registrations: usize,
    pub(crate) deliveries: usize,
    pub(crate) pages: usize,
    pub(crate) newest: usize,
}

/// Holds a history against every rule, in O(n log n).
///
/// - Fails with the first violations of each rule.
pub(crate) fn check(history: &History) -> Result<Summary, Vec<Violation>> {
    let mut found = Found::default();
    let log = Log::new(history, &mut found);
    let visible = publishes::check(history, &log, &mut found);
    queries::check(history, &log, &visible, &mut found);
    let visible = if history.streams_lag {
        Visible::default()
    } else {
        visible
    };
    newest::check(history, &log, &visible, &mut found);
    streams::check(history, &log, visible, &mut found);
    if found.violations.is_empty() {
        Ok(found.summary)
    } else {
        Err(found.violations)
    }
}

/// What a check has found so far.
#[derive(Debug, Default)]
struct Found {
    violations: Vec<Violation>,
    summary: Summary,
}

impl Found {
    fn add(&mut self, violation: Violation) {
        if self.violations.len() < MAX_VIOLATIONS {
            self.violations.push(violation);
        }
    }
}

/// The log, by topic and by content.
#[derive(Debug)]
struct Log<'h> {
    /// The rows of each topic, ascending.
    topics: BTreeMap<TopicNumber, Vec<&'h Logged>>,
    keys: HashMap<(TopicNumber, [u8; 32]), &'h Logged>,
}

impl<'h> Log<'h> {
    fn new(history: &'h History, found: &mut Found) -> Self {
        let mut log = Self {
            topics: BTreeMap::new(),
            keys: HashMap::with_capacity(history.log.len()),
        };
        let mut ids = HashSet::with_capacity(history.log.len());
        for row in &history.log {
            let (topic, id) = (row.topic, row.id);
            let rows = log.topics.entry(topic).or_default();
            let grows = rows.last().is_none_or(|last| last.id < id);
            if !grows || id == 0 || !ids.insert(id) {
                found.add(Violation::LogIsNotOrdered { topic, id });
            }
            if row.hash != row.hash_of_bytes {
                found.add(Violation::HashIsWrong { topic, id });
            }
            if log.keys.insert((topic, row.hash), row).is_some() {
                found.add(Violation::StoredTwice { topic, id });
            }
            rows.push(row);
        }
        log.topics
            .values_mut()
            .for_each(|rows| rows.sort_by_key(|row| row.id));
        log.check_identities(found);
        found.summary.rows = history.log.len();
        log
    }

    fn check_identities(&self, found: &mut Found) {
        for rows in self.topics.values() {
            let mut state: Option<AssociationState> = None;
            for row in rows {
                let Some(update) = &row.update else { break };
                match apply(state.as_ref(), update, &NoSmartContractWallets) {
                    Ok(after) => state = Some(after),
                    Err(_) => {
                        let (topic, id) = (row.topic, row.id);
                        found.add(Violation::IdentityLogIsInvalid { topic, id });
                        break;
                    }
                }
            }
        }
    }

    fn rows(&self, topic: TopicNumber) -> &[&'h Logged] {
        self.topics.get(&topic).map_or(&[], Vec::as_slice)
    }

    /// Answers where in its topic the first row above `after` stands.
    fn place_after(&self, topic: TopicNumber, after: Id) -> usize {
        self.rows(topic).partition_point(|row| row.id <= after)
    }
}

/// From which moment on which id of a topic was visible to clients.
#[derive(Debug, Default)]
struct Visible {
    /// Ascending by moment once [`Visible::settle`] has run; the id is the greatest so far.
    topics: HashMap<TopicNumber, Vec<(Moment, Id)>>,
}

impl Visible {
    fn add(&mut self, topic: TopicNumber, at: Moment, id: Id) {
        self.topics.entry(topic).or_default().push((at, id));
    }

    fn settle(&mut self) {
        for seen in self.topics.values_mut() {
            seen.sort_unstable();
            let mut greatest = 0;
            for (_, id) in seen {
                greatest = greatest.max(*id);
                *id = greatest;
            }
        }
    }

    /// Answers the greatest id that was visible before a moment.
    fn before(&self, topic: TopicNumber, moment: Moment) -> Id {
        let Some(seen) = self.topics.get(&topic) else {
            return 0;
        };
        let end = seen.partition_point(|(at, _)| *at < moment);
        end.checked_sub(1).map_or(0, |last| seen[last].1)
    }
}
