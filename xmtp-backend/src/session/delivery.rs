//! Envelopes on their way out: notices, turns, and time.

use xmtp_proto::id::{SequenceId, Topic};

use super::{Effect, Session, State, Tick};
use crate::limits::TURN_TOPICS;
use crate::services::Failure;
use crate::store::{Envelope, Served, Turn, Want};

impl Session {
    /// Takes the news that an envelope became visible, with the envelope.
    pub(crate) fn told(&mut self, now: Tick, row: &Envelope) {
        let (topic, id) = (row.meta.key.topic, row.meta.sequence_id);
        let Some(registration) = self.registrations.get_mut(&topic) else {
            return;
        };
        if registration.state != State::Live {
            registration.needed = registration.needed.max(id);
            return;
        }
        if id <= registration.floor {
            return;
        }
        if self.outbound.push_live(now, row) {
            registration.floor = id;
            self.keepalive.admitted(now);
        } else {
            self.behind(now, topic, id);
        }
    }

    /// Takes the news that an envelope became visible, without the envelope.
    pub(crate) fn behind(&mut self, now: Tick, topic: Topic, id: SequenceId) {
        let Some(registration) = self.registrations.get_mut(&topic) else {
            return;
        };
        registration.needed = registration.needed.max(id);
        if registration.state == State::Live && registration.floor < registration.needed {
            registration.state = State::CatchingUp;
            self.ready.push_back((topic, registration.generation));
            self.pump(now);
        }
    }

    /// Sets the fixed target of a new registration and lets it emit.
    pub(super) fn target_known(&mut self, topic: Topic, head: SequenceId) {
        let Some(registration) = self.registrations.get_mut(&topic) else {
            return;
        };
        registration.needed = registration.needed.max(head);
        registration.state = State::Live;
        if registration.floor < registration.needed {
            registration.state = State::CatchingUp;
            self.ready.push_back((topic, registration.generation));
        }
    }

    /// Asks for the next turn, if none is outstanding and its rows will find room.
    pub(super) fn begin_turn(&mut self) {
        if self.fetching.is_some() || self.ready.is_empty() || !self.outbound.reserve_turn() {
            return;
        }
        let mut asked = Vec::new();
        while asked.len() < TURN_TOPICS {
            let Some((topic, generation)) = self.ready.pop_front() else {
                break;
            };
            // A registration that was removed meanwhile has no turn.
            let Some(found) = self.registrations.get(&topic) else {
                continue;
            };
            if found.generation == generation {
                let want = Want {
                    topic,
                    after: found.floor,
                    through: found.needed,
                };
                asked.push((want, generation));
            }
        }
        if asked.is_empty() {
            return self.outbound.release_turn();
        }
        self.effects
            .push_back(Effect::Fetch(asked.iter().map(|(want, _)| *want).collect()));
        self.fetching = Some(asked);
    }

    /// Takes the turn that was asked for.
    ///
    /// - Topics that it did not visit keep their place at the front.
    /// - Topics that were served and need more go to the back.
    pub(crate) fn fetched(&mut self, now: Tick, turn: Turn) {
        let Some(asked) = self.fetching.take() else {
            return;
        };
        self.outbound.release_turn();
        let unvisited = asked.get(turn.served.len()..).unwrap_or_default();
        for (want, generation) in unvisited.iter().rev() {
            self.ready.push_front((want.topic, *generation));
        }
        for ((want, generation), served) in asked.iter().zip(turn.served) {
            self.serve(now, want, *generation, served);
        }
        self.pump(now);
    }

    fn serve(&mut self, now: Tick, want: &Want, generation: u64, served: Served) {
        let registration = self.registrations.get_mut(&want.topic);
        let Some(registration) = registration.filter(|found| found.generation == generation) else {
            return;
        };
        if let Some(newest) = served.rows.last() {
            registration.floor = newest.meta.sequence_id;
            self.outbound.push_batch(now, served.rows);
            self.keepalive.admitted(now);
        }
        if served.complete {
            registration.floor = registration.floor.max(want.through);
        }
        if registration.floor >= registration.needed {
            registration.state = State::Live;
        } else {
            self.ready.push_back((want.topic, generation));
        }
    }

    /// Returns when [`Session::tick`] is next to be called.
    pub(crate) fn deadline(&self) -> Option<Tick> {
        let oldest = self
            .outbound
            .oldest()
            .map(|since| since + self.limits.max_pong_wait);
        let keepalive = self.keepalive.deadline().filter(|_| self.end.is_none());
        oldest.into_iter().chain(keepalive).min()
    }

    /// Lets time pass. Returns true if the client's answer is overdue: then the shell hands over
    /// what the client has already sent, and calls [`Session::expire_pong`].
    #[must_use]
    pub(crate) fn tick(&mut self, now: Tick) -> bool {
        let oldest = self.outbound.oldest();
        if oldest.is_some_and(|since| now >= since + self.limits.max_pong_wait) {
            self.give_up_queue();
            return false;
        }
        if self.end.is_some() {
            return false;
        }
        if let Some(nonce) = self.keepalive.challenge(now) {
            self.queue_control(now, super::Frame::Ping { nonce });
        }
        self.keepalive.is_overdue(now)
    }

    /// Ends the stream if the client's answer is still overdue.
    pub(crate) fn expire_pong(&mut self, now: Tick) {
        if self.keepalive.is_overdue(now) {
            self.fail(Failure::PongMissed.status("the client did not answer a ping"));
        }
    }

    /// Ends the stream because the transport takes no frame.
    fn give_up_queue(&mut self) {
        let status = Failure::SlowConsumer.status("the client reads too slowly");
        self.end = None;
        self.fail(status);
    }
}
