//! Frames from the client, and the updates among them.

use std::collections::HashSet;

use prost::Message;
use tonic::Status;
use xmtp_proto::backend::v1::SubscribeRequest;
use xmtp_proto::backend::v1::subscribe_request::{Request, Update};
use xmtp_proto::id::{SequenceId, Topic};

use super::deviation::Deviation;
use super::outbound::TARGET_BYTES;
use super::{Applying, Effect, End, Frame, Interest, Registration, Session, State, Tick};
use crate::limits::{WAITING_TOPICS, WAITING_UPDATES};
use crate::services::{Failure, decode_topic, decode_topic_query};

/// An update whose structure holds.
#[derive(Debug)]
struct Read {
    adds: Vec<(Topic, SequenceId)>,
    removes: Vec<Topic>,
}

impl Session {
    /// Tells whether the next frame of the client may be read.
    ///
    /// - Updates that wait are bounded, and so are answers that wait to be taken; a client that sends
    ///   more is held back by the transport.
    pub(crate) fn wants_input(&self) -> bool {
        let room = self.waiting.len() < WAITING_UPDATES && self.waiting_topics < WAITING_TOPICS;
        self.end.is_none() && room && self.outbound.has_control_room()
    }

    /// Takes one frame of the client.
    ///
    /// - An update or a ping is charged before anything else is looked at.
    pub(crate) fn receive(&mut self, now: Tick, request: SubscribeRequest) {
        if self.end.is_some() {
            return;
        }
        match request.request {
            None => self.refuse("a frame has no request"),
            Some(Request::Update(_)) if !self.updates.take(now) => {
                self.too_fast("the client sends updates too fast");
            }
            Some(Request::Update(update)) => {
                self.waiting_topics += topics_of(&update);
                self.waiting.push_back(update);
                self.pump(now);
            }
            Some(Request::Ping(_)) if !self.pings.take(now) => {
                self.too_fast("the client sends pings too fast");
            }
            Some(Request::Ping(ping)) => self.queue_control(now, Frame::Pong { nonce: ping.nonce }),
            Some(Request::Pong(pong)) => self.keepalive.answered(pong.nonce),
        }
    }

    /// Takes the heads that were asked for, in order.
    pub(crate) fn heads_read(&mut self, now: Tick, heads: Vec<SequenceId>) {
        let Some(Applying { id, added }) = self.applying.take() else {
            return;
        };
        if self.deviates(Deviation::RegistersAfterHeads) {
            self.effects.push_back(Effect::Register(added.clone()));
        }
        let targets: Vec<_> = added.into_iter().zip(heads).collect();
        for (topic, head) in &targets {
            self.target_known(*topic, *head);
        }
        // What the new registrations owe is fetched after this: it follows the acknowledgement.
        match self.interest {
            Interest::Fixed if self.started => {}
            Interest::Fixed => self.start(now, targets),
            Interest::Changing => self.acknowledge(now, id, targets),
        }
        self.pump(now);
    }

    fn acknowledge(&mut self, now: Tick, id: u64, added: Vec<(Topic, SequenceId)>) {
        self.queue_control(now, Frame::Applied { id, added });
        #[cfg(test)]
        if self.deviates(Deviation::AppliedOvertakes) {
            self.outbound.overtake();
        }
    }

    /// Tells whether the next update may be applied.
    pub(super) fn may_apply(&self) -> bool {
        let is_next = self.applying.is_none() && self.outbound.has_control_room();
        is_next || self.deviates(Deviation::UpdatesOverlap)
    }

    /// Applies the next update: all of it or, with the stream failed, none.
    pub(super) fn apply(&mut self, now: Tick, update: Update) {
        let read = match self.read_update(&update) {
            Ok(read) => read,
            Err(status) => return self.finish(End::Refused(status)),
        };
        self.last_update_id = update.id;
        let (adds, removes) = (read.adds.len(), read.removes.len());
        tracing::info!(adds, removes, "a stream accepts an update");
        let removed: Vec<Topic> = read
            .removes
            .into_iter()
            .filter(|topic| self.registrations.remove(topic).is_some())
            .collect();
        if !removed.is_empty() {
            self.effects.push_back(Effect::Deregister(removed));
            self.tidy_ready();
        }
        let mut adds = read.adds;
        #[cfg(test)]
        if self.deviates(Deviation::AddSeeks) {
            self.seek(&adds);
        }
        adds.retain(|(topic, _)| !self.registrations.contains_key(topic));
        if adds.is_empty() {
            self.acknowledge(now, update.id, Vec::new());
        } else {
            self.begin(update.id, adds);
        }
    }

    /// Registers topics and has their heads read.
    pub(super) fn begin(&mut self, id: u64, adds: Vec<(Topic, SequenceId)>) {
        let added: Vec<Topic> = adds.iter().map(|(topic, _)| *topic).collect();
        for (topic, cursor) in adds {
            self.register(topic, cursor);
        }
        if !self.deviates(Deviation::RegistersAfterHeads) {
            self.effects.push_back(Effect::Register(added.clone()));
        }
        self.effects.push_back(Effect::ReadHeads(added.clone()));
        self.applying = Some(Applying { id, added });
        if self.interest == Interest::Fixed && self.deviates(Deviation::StartsWithoutTargets) {
            self.start(Tick::ZERO, Vec::new());
        }
    }

    /// Moves the floors of active topics, which the contract forbids.
    #[cfg(test)]
    fn seek(&mut self, adds: &[(Topic, SequenceId)]) {
        for (topic, cursor) in adds {
            if let Some(registration) = self.registrations.get_mut(topic) {
                registration.floor = *cursor;
            }
        }
    }

    fn register(&mut self, topic: Topic, cursor: SequenceId) {
        self.next_generation += 1;
        let registration = Registration {
            generation: self.next_generation,
            state: State::Pending,
            floor: cursor,
            needed: SequenceId::ZERO,
        };
        self.registrations.insert(topic, registration);
    }

    /// Checks an update against the contract and the topics that are registered now.
    fn read_update(&self, update: &Update) -> Result<Read, Status> {
        let invalid = |message: &'static str| Err(Failure::Malformed.status(message));
        let too_many = |message: &'static str| Err(Failure::TooMany.status(message));
        if update.id <= self.last_update_id {
            return invalid("an update id is not greater than the one before it");
        }
        if update.adds.len() > self.limits.max_update_adds {
            return too_many("an update adds too many topics");
        }
        if update.removes.len() > self.limits.max_update_removes {
            return too_many("an update removes too many topics");
        }
        let adds = update
            .adds
            .iter()
            .map(decode_topic_query)
            .collect::<Result<Vec<_>, _>>()?;
        let removes = update
            .removes
            .iter()
            .map(decode_topic)
            .collect::<Result<Vec<_>, _>>()?;
        let named = adds.iter().map(|(topic, _)| topic).chain(&removes);
        let mut seen = HashSet::with_capacity(adds.len() + removes.len());
        if !named.into_iter().all(|topic| seen.insert(*topic)) {
            return invalid("an update names a topic twice");
        }
        let active = |topic: &Topic| self.registrations.contains_key(topic);
        let removed = removes.iter().filter(|topic| active(topic)).count();
        let added = adds.iter().filter(|(topic, _)| !active(topic)).count();
        if self.registrations.len() - removed + added > self.limits.max_stream_topics {
            return too_many("the stream has too many topics");
        }
        Ok(Read { adds, removes })
    }
}

/// Counts the topics that an update names, or that would fill as many bytes as it has: what it names
/// is not looked at before it is applied.
pub(super) fn topics_of(update: &Update) -> usize {
    let topics = update.adds.len() + update.removes.len();
    topics.max(update.encoded_len() / TARGET_BYTES)
}
