//! One subscription stream as a state machine without I/O.
//!
//! Invariant: a registration's floor moves only when an envelope is admitted to the outbound
//! queue, in order, or when a scan that ran to its end in one snapshot found nothing more. So
//! nothing is ever skipped, whatever arrives in which order.
//!
//! The machine is told what happened and when (frames from the client, heads, fetched rows,
//! notices of new envelopes, frames taken by the transport, time), and says what to do: the
//! [`Effect`]s. Everything that waits is in the shell (`crate::stream`). A registration is
//! `Pending` until its head is read, `CatchingUp` while rows it needs are in the store only, and
//! `Live` when each new envelope can be handed on as it is told.
//!
//! A stream whose topics are fixed is the same machine: its one update is there from the start, and
//! what acknowledges it is the first frame.

mod bucket;
mod delivery;
mod deviation;
mod keepalive;
mod outbound;
mod row;
mod time;
mod update;

#[cfg(test)]
mod client;
#[cfg(test)]
mod fairness;
#[cfg(test)]
mod fixed_tests;
#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod model;
#[cfg(test)]
mod races;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tonic::{Code, Status};
use xmtp_proto::backend::v1::subscribe_request::Update;
use xmtp_proto::id::{SequenceId, Topic};

use self::bucket::Bucket;
use self::deviation::Deviation;
use self::keepalive::Keepalive;
use self::outbound::Outbound;
use crate::services::Failure;
use crate::store::Want;

pub(crate) use self::outbound::Frame;
pub(crate) use self::row::{Held, Row, begin_field};

/// Time since the stream was opened.
pub(crate) type Tick = Duration;

/// The bounds of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionLimits {
    pub(crate) keepalive_interval: Duration,
    pub(crate) max_pong_wait: Duration,
    pub(crate) max_update_adds: usize,
    pub(crate) max_update_removes: usize,
    pub(crate) max_stream_topics: usize,
    pub(crate) update_rate: u32,
    pub(crate) update_burst: u32,
    pub(crate) ping_rate: u32,
    pub(crate) ping_burst: u32,
    /// The largest frame, in bytes.
    pub(crate) max_frame_bytes: usize,
    /// A rule that the session breaks, to see that a test notices.
    #[cfg(test)]
    pub(crate) deviation: Option<Deviation>,
}

/// One fetch turn in the form in which it goes out.
#[derive(Debug, Default)]
pub(crate) struct Fetched {
    /// One entry for each want that was visited, in order.
    pub(crate) batches: Vec<Batch>,
}

/// What one fetch turn brought for one want.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// The rows, ascending.
    pub(crate) rows: Vec<Arc<Row>>,
    /// Whether the range holds no further row.
    pub(crate) complete: bool,
}

/// What the shell is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Have the session told about new envelopes of these topics.
    Register(Vec<Topic>),
    /// Have the session told no longer.
    Deregister(Vec<Topic>),
    /// Read the heads of these topics, after all registrations before it.
    ReadHeads(Vec<Topic>),
    /// Read one turn.
    Fetch(Vec<Want>),
}

/// Who decides which topics a stream has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interest {
    /// The client, as it goes.
    Changing,
    /// The request that opened the stream.
    Fixed,
}

/// How a stream ended.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// By the client's half-close; what is queued is not sent any more.
    HalfClosed,
    /// By a failure; what is queued is not sent any more.
    Failed(Status),
    /// By a fault of the client's; what is queued goes out before it.
    Refused(Status),
}

impl End {
    /// Returns the code that the client gets.
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::HalfClosed => Code::Ok,
            Self::Failed(status) | Self::Refused(status) => status.code(),
        }
    }
}

/// One topic of a stream.
#[derive(Debug)]
struct Registration {
    /// Tells this registration from an earlier one of the same topic.
    generation: u64,
    state: State,
    /// Everything at or below is delivered or not owed.
    floor: SequenceId,
    /// The greatest id that is known to be visible.
    needed: SequenceId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Pending,
    CatchingUp,
    Live,
}

/// An update whose heads are being read.
#[derive(Debug)]
struct Applying {
    id: u64,
    /// The new registrations, in the order of the adds.
    added: Vec<Topic>,
}

/// The state of one stream.
#[derive(Debug)]
pub(crate) struct Session {
    limits: SessionLimits,
    interest: Interest,
    /// Whether the first frame is queued.
    started: bool,
    registrations: HashMap<Topic, Registration>,
    next_generation: u64,
    /// Topics that are catching up, each once, in the order of their turns.
    ready: VecDeque<(Topic, u64)>,
    /// What the outstanding fetch asked for, with generations.
    fetching: Option<Vec<(Want, u64)>>,
    last_update_id: u64,
    applying: Option<Applying>,
    /// Updates that wait for the one before them.
    waiting: VecDeque<Update>,
    /// The topics that those name, in topics.
    waiting_topics: usize,
    outbound: Outbound,
    keepalive: Keepalive,
    updates: Bucket,
    pings: Bucket,
    effects: VecDeque<Effect>,
    /// How long the frame that was taken last has waited.
    last_wait: Tick,
    end: Option<End>,
}

impl Session {
    /// Opens a stream whose interest changes; its first frame is queued at once.
    pub(crate) fn new(limits: SessionLimits) -> Self {
        let mut session = Self::silent(limits, Interest::Changing);
        session.start(Tick::ZERO, Vec::new());
        session
    }

    /// Opens a stream whose topics are fixed; its first frame is queued when their heads are read.
    ///
    /// - The topics are distinct.
    pub(crate) fn fixed(limits: SessionLimits, topics: Vec<(Topic, SequenceId)>) -> Self {
        let mut session = Self::silent(limits, Interest::Fixed);
        session.begin(0, topics);
        session
    }

    fn silent(limits: SessionLimits, interest: Interest) -> Self {
        Self {
            limits,
            interest,
            started: false,
            registrations: HashMap::new(),
            next_generation: 0,
            ready: VecDeque::new(),
            fetching: None,
            last_update_id: 0,
            applying: None,
            waiting: VecDeque::new(),
            waiting_topics: 0,
            outbound: Outbound::new(limits.max_frame_bytes),
            keepalive: Keepalive::new(limits.keepalive_interval, limits.max_pong_wait),
            updates: Bucket::new(limits.update_rate, limits.update_burst),
            pings: Bucket::new(limits.ping_rate, limits.ping_burst),
            effects: VecDeque::new(),
            last_wait: Tick::ZERO,
            end: None,
        }
    }

    /// Queues the first frame.
    fn start(&mut self, now: Tick, targets: Vec<(Topic, SequenceId)>) {
        let interval = self.limits.keepalive_interval.as_millis();
        let keepalive_interval_ms = u32::try_from(interval).unwrap_or(u32::MAX);
        self.started = true;
        self.queue_control(
            now,
            Frame::Started {
                keepalive_interval_ms,
                targets,
            },
        );
    }

    /// Returns the next thing to do.
    pub(crate) fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns the bytes of queued rows that no other stream holds.
    pub(crate) fn held_alone(&self) -> usize {
        self.outbound.alone()
    }

    /// Returns how long the frame that was taken last has waited.
    pub(crate) fn last_wait(&self) -> Tick {
        self.last_wait
    }

    /// Returns the name of its kind of stream.
    pub(crate) fn kind(&self) -> &'static str {
        match self.interest {
            Interest::Changing => "subscribe",
            Interest::Fixed => "static",
        }
    }

    /// Tells how the stream ended, once it has.
    pub(crate) fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// Hands the next frame to the transport.
    pub(crate) fn take_frame(&mut self, now: Tick) -> Option<Frame> {
        if !matches!(self.end, None | Some(End::Refused(_))) {
            return None;
        }
        let (frame, since) = self.outbound.take()?;
        self.last_wait = now.saturating_sub(since);
        if matches!(frame, Frame::Ping { .. }) {
            self.keepalive.handed_over(now);
        }
        self.pump(now);
        Some(frame)
    }

    /// Ends the stream on the client's half-close.
    pub(crate) fn half_closed(&mut self) {
        self.finish(End::HalfClosed);
    }

    /// Ends the stream for a reason outside it.
    pub(crate) fn fail(&mut self, status: Status) {
        if self.applying.is_some() && self.deviates(Deviation::FailureWaits) {
            return;
        }
        self.finish(End::Failed(status));
    }

    fn refuse(&mut self, message: &'static str) {
        self.finish(End::Refused(Failure::Malformed.status(message)));
    }

    fn too_fast(&mut self, message: &'static str) {
        self.finish(End::Failed(Failure::RateExceeded.status(message)));
    }

    /// Ends the stream; only the first reason counts. Its topics are to be let go of.
    fn finish(&mut self, end: End) {
        if self.end.is_some() {
            return;
        }
        if !matches!(end, End::Refused(_)) {
            self.outbound.clear();
        }
        self.end = Some(end);
        self.ready = VecDeque::new();
        self.waiting = VecDeque::new();
        self.applying = None;
        self.fetching = None;
        // What was removed before is still to be let go of.
        let kept = |effect: &Effect| matches!(effect, Effect::Deregister(_));
        self.effects.retain(kept);
        let topics = std::mem::take(&mut self.registrations).into_keys();
        self.effects.push_back(Effect::Deregister(topics.collect()));
    }

    /// Begins whatever can begin: the next update, the next turn.
    fn pump(&mut self, now: Tick) {
        while self.end.is_none() && self.may_apply() {
            let Some(update) = self.waiting.pop_front() else {
                break;
            };
            self.waiting_topics -= update::topics_of(&update);
            self.apply(now, update);
        }
        if self.end.is_none() {
            self.begin_turn();
        }
    }

    /// Queues a frame that is not a message; a stream that has no room for one is too slow.
    fn queue_control(&mut self, now: Tick, frame: Frame) {
        match self.outbound.push_control(now, frame) {
            Ok(()) => self.keepalive.admitted(now),
            Err(status) => self.fail(status),
        }
    }
}
