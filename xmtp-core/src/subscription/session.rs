//! One bidirectional stream as a state machine without I/O.
//!
//! It keeps the acknowledged view: which topics are registered after the last `Applied`, and how
//! far each registration was read. At most one update is under way, so `Applied` frames are the
//! only boundaries between registrations, and everything between two of them belongs to the view
//! between them (STR-006 to STR-008).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use xmtp_proto::backend::v1;
use xmtp_proto::backend::v1::subscribe_request::{Request, Update};
use xmtp_proto::backend::v1::subscribe_response::{Applied, Messages, Response, Started};
use xmtp_proto::limits::{
    BACKEND_DEFAULT_MAX_STREAM_TOPICS, BACKEND_DEFAULT_MAX_UPDATE_ADDS,
    BACKEND_DEFAULT_MAX_UPDATE_BURST, BACKEND_DEFAULT_MAX_UPDATE_FRAMES_PER_SECOND,
    BACKEND_DEFAULT_MAX_UPDATE_REMOVES,
};
use xmtp_proto::{SequenceId, Topic};

use crate::engine::fetch::by_topic;
use crate::limits::{DEFAULT_KEEPALIVE_INTERVAL, SILENT_INTERVALS, STANDARD_REQUEST_TIMEOUT};
use crate::receipt::{AdmissionError, Batch, check};
use crate::transport::TransportError;

/// Time that one update frame costs of the backend's sustained rate.
const UPDATE_SPACING: Duration =
    Duration::from_millis(1_000 / BACKEND_DEFAULT_MAX_UPDATE_FRAMES_PER_SECOND as u64);
/// Update frames that may go out at once: half of what the backend takes, so that a clock that
/// runs fast never exhausts the bucket (STR-032).
const UPDATE_BURST: u32 = BACKEND_DEFAULT_MAX_UPDATE_BURST / 2;

/// Bounds on updates, as the backend publishes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Most topics that one update adds.
    pub adds: usize,
    /// Most topics that one update removes.
    pub removes: usize,
    /// Most topics of one stream.
    pub topics: usize,
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self {
            adds: BACKEND_DEFAULT_MAX_UPDATE_ADDS as usize,
            removes: BACKEND_DEFAULT_MAX_UPDATE_REMOVES as usize,
            topics: BACKEND_DEFAULT_MAX_STREAM_TOPICS as usize,
        }
    }
}

/// What one frame means.
#[derive(Debug)]
pub enum Event {
    /// The stream is open.
    Started,
    /// An update is in force.
    Applied {
        /// New registrations with their fixed targets, in add order.
        added: Vec<(Topic, SequenceId)>,
        /// Registrations that ended.
        removed: Vec<Topic>,
    },
    /// Envelopes for the receive path, each batch after what its registration gave before.
    Messages(Vec<Batch>),
    /// A request to send in answer.
    Reply(v1::SubscribeRequest),
    /// Nothing but a sign of life.
    Alive,
}

/// A change of registrations that is not sent yet; its cursors are read when it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Topics to register.
    pub adds: Vec<Topic>,
    /// Topics to leave.
    pub removes: Vec<Topic>,
}

/// One registration in the acknowledged view.
#[derive(Clone, Copy, Debug)]
struct Registration {
    /// The last sequence id read on it; the cursor at first.
    last: SequenceId,
    /// Its fixed target H.
    target: SequenceId,
    /// Whether it is to end; what still arrives is dropped.
    is_ending: bool,
}

#[derive(Debug)]
struct SentUpdate {
    id: u64,
    adds: Vec<(Topic, SequenceId)>,
    removes: Vec<Topic>,
}

/// The client's side of one stream.
///
/// # Behavior
/// - Nothing is sent before `Started`, and any other first frame is an error.
/// - Update ids rise strictly from 1; a topic is at most once in an update; an active topic is
///   never added.
/// - A frame that breaks the contract is an error, after which the session is dropped; what was
///   handed out before stays valid.
#[derive(Debug)]
pub struct Session {
    limits: SessionLimits,
    is_started: bool,
    keepalive: Duration,
    /// When silence was last broken, or reading last began.
    heard: Duration,
    last_update_id: u64,
    sent: Option<SentUpdate>,
    registrations: BTreeMap<Topic, Registration>,
    /// When the update bucket is full again; the generic cell rate.
    paced_until: Duration,
}

impl Session {
    /// Makes the session of a stream that was opened at `now`.
    pub fn new(limits: SessionLimits, now: Duration) -> Self {
        Self {
            limits,
            is_started: false,
            keepalive: DEFAULT_KEEPALIVE_INTERVAL,
            heard: now,
            last_update_id: 0,
            sent: None,
            registrations: BTreeMap::new(),
            paced_until: Duration::ZERO,
        }
    }

    /// Answers what has to change so that `wanted` are registered; `None` when nothing may or
    /// needs to be sent now.
    ///
    /// A topic whose registration is ending and that is still wanted is removed first and added
    /// by the next update.
    pub fn plan(&self, wanted: &BTreeSet<Topic>) -> Option<Plan> {
        if !self.is_started || self.sent.is_some() {
            return None;
        }
        let removes: Vec<Topic> = self
            .registrations
            .iter()
            .filter(|(topic, registration)| registration.is_ending || !wanted.contains(topic))
            .map(|(topic, _)| *topic)
            .take(self.limits.removes)
            .collect();
        let kept = self.registrations.len() - removes.len();
        let room = self.limits.topics.saturating_sub(kept);
        let adds: Vec<Topic> = wanted
            .iter()
            .filter(|topic| !self.registrations.contains_key(topic))
            .take(room.min(self.limits.adds))
            .copied()
            .collect();
        (!adds.is_empty() || !removes.is_empty()).then_some(Plan { adds, removes })
    }

    /// Answers when the next update may go out.
    pub fn may_update_at(&self) -> Duration {
        self.paced_until
            .saturating_sub(UPDATE_SPACING * (UPDATE_BURST - 1))
    }

    /// Turns a plan into a request. `floors` are the durable F of its adds, in order.
    pub fn update(
        &mut self,
        plan: Plan,
        floors: &[SequenceId],
        now: Duration,
    ) -> v1::SubscribeRequest {
        assert_eq!(
            plan.adds.len(),
            floors.len(),
            "a cursor for each added topic"
        );
        debug_assert!(self.sent.is_none(), "one update at a time");
        self.last_update_id += 1;
        self.paced_until = self.paced_until.max(now) + UPDATE_SPACING;
        for topic in &plan.removes {
            if let Some(registration) = self.registrations.get_mut(topic) {
                registration.is_ending = true;
            }
        }
        let adds: Vec<(Topic, SequenceId)> =
            plan.adds.into_iter().zip(floors.iter().copied()).collect();
        let update = Update {
            id: self.last_update_id,
            adds: adds
                .iter()
                .map(|(topic, floor)| v1::TopicQuery {
                    topic: Some(topic.to_proto()),
                    cursor: Some(floor.to_cursor()),
                })
                .collect(),
            removes: plan.removes.iter().map(Topic::to_proto).collect(),
        };
        self.sent = Some(SentUpdate {
            id: self.last_update_id,
            adds,
            removes: plan.removes,
        });
        request(Request::Update(update))
    }

    /// Ends a registration: what still arrives for it is dropped, and while the topic stays
    /// wanted it is registered anew from durable F.
    pub fn withdraw(&mut self, topic: &Topic) {
        if let Some(registration) = self.registrations.get_mut(topic) {
            registration.is_ending = true;
        }
    }

    /// Answers the fixed target of an active registration.
    pub fn target(&self, topic: &Topic) -> Option<SequenceId> {
        let registration = self.registrations.get(topic)?;
        (!registration.is_ending).then_some(registration.target)
    }

    /// Answers the topics that are registered and not ending.
    pub fn active(&self) -> impl Iterator<Item = Topic> + '_ {
        self.registrations
            .iter()
            .filter(|(_, registration)| !registration.is_ending)
            .map(|(topic, _)| *topic)
    }

    /// Says that reading goes on at `now`: own backpressure is not silence.
    pub fn resume_reading(&mut self, now: Duration) {
        self.heard = self.heard.max(now);
    }

    /// Answers when the stream is dead unless a frame comes.
    pub fn silent_at(&self) -> Duration {
        let patience = if self.is_started {
            self.keepalive.saturating_mul(SILENT_INTERVALS)
        } else {
            STANDARD_REQUEST_TIMEOUT
        };
        self.heard.saturating_add(patience)
    }

    /// Takes the next frame.
    ///
    /// # Errors
    /// When it breaks the contract; the stream is to be dropped.
    pub fn frame(
        &mut self,
        frame: v1::SubscribeResponse,
        now: Duration,
    ) -> Result<Event, TransportError> {
        self.heard = now;
        let response = frame.response.ok_or(broken("a frame without content"))?;
        if let Response::Started(started) = response {
            return self.started(started);
        }
        if !self.is_started {
            return Err(broken("a first frame that is not Started"));
        }
        match response {
            Response::Started(_) | Response::Pong(_) => Ok(Event::Alive),
            Response::Applied(applied) => self.applied(applied),
            Response::Messages(messages) => self.messages(messages),
            Response::Ping(ping) => Ok(Event::Reply(request(Request::Pong(v1::Pong {
                nonce: ping.nonce,
            })))),
        }
    }

    fn started(&mut self, started: Started) -> Result<Event, TransportError> {
        if self.is_started {
            return Err(broken("a second Started"));
        }
        self.is_started = true;
        if started.keepalive_interval_ms > 0 {
            self.keepalive = Duration::from_millis(started.keepalive_interval_ms.into());
        }
        Ok(Event::Started)
    }

    fn applied(&mut self, applied: Applied) -> Result<Event, TransportError> {
        let sent = self.sent.take();
        let sent = sent
            .filter(|sent| sent.id == applied.id)
            .ok_or(broken("an Applied that answers no update"))?;
        if applied.added_targets.len() != sent.adds.len() {
            return Err(broken("an Applied without a target for each added topic"));
        }
        for topic in &sent.removes {
            self.registrations.remove(topic);
        }
        let mut added = Vec::with_capacity(sent.adds.len());
        for ((topic, floor), found) in sent.adds.into_iter().zip(applied.added_targets) {
            let name = found.topic.as_ref().map(|found| &found.topic[..]);
            if name != Some(topic.as_bytes()) {
                return Err(broken("targets out of the order of the adds"));
            }
            let target = SequenceId::checked(found.through_sequence_id)
                .map_err(|_| broken("a target out of range"))?;
            let registration = Registration {
                last: floor,
                target,
                is_ending: false,
            };
            self.registrations.insert(topic, registration);
            added.push((topic, target));
        }
        Ok(Event::Applied {
            added,
            removed: sent.removes,
        })
    }

    fn messages(&mut self, messages: Messages) -> Result<Event, TransportError> {
        let mut batches = Vec::new();
        for (topic, envelopes) in by_topic(messages.envelopes).map_err(shape)? {
            let registration = self
                .registrations
                .get_mut(&topic)
                .ok_or(broken("an envelope of a topic that is not registered"))?;
            let batch = check(topic, registration.last, envelopes).map_err(shape)?;
            if let Some(last) = batch.envelopes.last() {
                registration.last = last.sequence_id;
            }
            if !registration.is_ending {
                batches.push(batch);
            }
        }
        Ok(Event::Messages(batches))
    }
}

fn request(request: Request) -> v1::SubscribeRequest {
    v1::SubscribeRequest {
        request: Some(request),
    }
}

fn broken(rule: &'static str) -> TransportError {
    TransportError::Protocol { rule }
}

/// A frame refused whole in its shape.
fn shape(error: AdmissionError) -> TransportError {
    match error {
        AdmissionError::Shape { rule } => broken(rule),
        _ => broken("a frame of the wrong shape"),
    }
}
