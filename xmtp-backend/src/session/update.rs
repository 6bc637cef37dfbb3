//! Frames from the client, and the updates among them.

use std::collections::HashSet;

use tonic::Status;
use xmtp_proto::backend::v1::SubscribeRequest;
use xmtp_proto::backend::v1::subscribe_request::{Request, Update};
use xmtp_proto::id::{SequenceId, Topic};

use super::{Applying, Effect, End, Frame, Registration, Session, State, Tick};
use crate::limits::WAITING_UPDATES;
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
    /// - Updates that wait are bounded; a client that sends more is held back by the transport.
    pub(crate) fn wants_input(&self) -> bool {
        self.end.is_none() && self.waiting.len() < WAITING_UPDATES
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
        let targets: Vec<_> = added.into_iter().zip(heads).collect();
        self.queue_control(
            now,
            Frame::Applied {
                id,
                added: targets.clone(),
            },
        );
        if self.end.is_some() {
            return;
        }
        // Only now may the new registrations emit: their messages follow the acknowledgement.
        for (topic, head) in targets {
            self.target_known(topic, head);
        }
        self.pump(now);
    }

    /// Applies the next update: all of it or, with the stream failed, none.
    pub(super) fn apply(&mut self, now: Tick, update: Update) {
        let read = match self.read_update(&update) {
            Ok(read) => read,
            Err(status) => return self.finish(End::Refused(status)),
        };
        self.last_update_id = update.id;
        let removed: Vec<Topic> = read
            .removes
            .into_iter()
            .filter(|topic| self.registrations.remove(topic).is_some())
            .collect();
        if !removed.is_empty() {
            self.effects.push_back(Effect::Deregister(removed));
        }
        let mut added = Vec::new();
        for (topic, cursor) in read.adds {
            if !self.registrations.contains_key(&topic) {
                self.register(topic, cursor);
                added.push(topic);
            }
        }
        if added.is_empty() {
            return self.queue_control(
                now,
                Frame::Applied {
                    id: update.id,
                    added: Vec::new(),
                },
            );
        }
        self.effects.push_back(Effect::Register(added.clone()));
        self.effects.push_back(Effect::ReadHeads(added.clone()));
        self.applying = Some(Applying {
            id: update.id,
            added,
        });
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
