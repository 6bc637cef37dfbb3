//! Envelopes on their way out: notices and turns.
//!
//! Turns are a round robin over topics with a quantum of bytes: while two topics both owe history,
//! each gets one batch before the other gets its second, however large their envelopes are. A topic
//! whose single envelope exceeds the quantum is not made to wait for it later, since a topic that
//! waits for two rounds would see the others served twice.

use std::sync::Arc;

use xmtp_proto::id::{SequenceId, Topic};

use super::deviation::Deviation;
use super::{Batch, Effect, Fetched, Row, Session, State, Tick};
use crate::limits::TURN_TOPICS;
use crate::store::Want;

impl Session {
    /// Takes the news that an envelope became visible, with the envelope.
    pub(crate) fn told(&mut self, now: Tick, row: &Arc<Row>) {
        let (topic, id) = (row.topic, row.sequence_id);
        let Some(state) = self.registrations.get(&topic).map(|found| found.state) else {
            return;
        };
        let early = state == State::Pending && self.deviates(Deviation::EmitsBeforeApplied);
        if state != State::Live && !early {
            return self.note(topic, id);
        }
        let any = self.deviates(Deviation::IgnoresFloor);
        let Some(registration) = self.registrations.get_mut(&topic) else {
            return;
        };
        if id <= registration.floor && !any {
            return;
        }
        if self.outbound.push_live(now, row) {
            registration.floor = id;
            self.keepalive.admitted(now);
        } else if !self.deviates(Deviation::DropsWithoutRoom) {
            self.behind(now, topic, id);
        }
    }

    /// Notes how far a topic reaches that can not be handed on as it is told.
    fn note(&mut self, topic: Topic, id: SequenceId) {
        let forgets = self.deviates(Deviation::ForgetsNoticesOfCatchUp);
        if let Some(registration) = self.registrations.get_mut(&topic)
            && !(forgets && registration.state == State::CatchingUp)
        {
            registration.needed = registration.needed.max(id);
        }
    }

    /// Takes the news that an envelope became visible, without the envelope.
    pub(crate) fn behind(&mut self, now: Tick, topic: Topic, id: SequenceId) {
        if self.deviates(Deviation::IgnoresOverflow) {
            return;
        }
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
        let forgets = self.deviates(Deviation::ForgetsNoticesOfPending);
        let Some(registration) = self.registrations.get_mut(&topic) else {
            return;
        };
        if forgets {
            registration.needed = SequenceId::ZERO;
        }
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
    pub(crate) fn fetched(&mut self, now: Tick, turn: Fetched) {
        let Some(asked) = self.fetching.take() else {
            return;
        };
        self.outbound.release_turn();
        let unvisited = asked.get(turn.batches.len()..).unwrap_or_default();
        let unvisited = unvisited
            .iter()
            .map(|(want, generation)| (want.topic, *generation));
        let last = self.deviates(Deviation::UnvisitedLast);
        if !last {
            let places = unvisited.clone().rev();
            places.for_each(|place| self.ready.push_front(place));
        }
        for ((want, generation), batch) in asked.iter().zip(turn.batches) {
            self.serve(now, want, *generation, batch);
        }
        if last {
            self.ready.extend(unvisited);
        }
        self.pump(now);
    }

    fn serve(&mut self, now: Tick, want: &Want, generation: u64, batch: Batch) {
        let any = self.deviates(Deviation::IgnoresGenerations);
        let cut_is_whole = self.deviates(Deviation::CutScanMovesFloor);
        let first = self.deviates(Deviation::ServedFirst);
        let registration = self.registrations.get_mut(&want.topic);
        let Some(registration) = registration.filter(|found| found.generation == generation || any)
        else {
            return;
        };
        if let Some(newest) = batch.rows.last() {
            registration.floor = newest.sequence_id;
            self.outbound.push_batch(now, batch.rows);
            self.keepalive.admitted(now);
        }
        if batch.complete || cut_is_whole {
            registration.floor = registration.floor.max(want.through);
        }
        if registration.floor >= registration.needed {
            registration.state = State::Live;
        } else if first {
            self.ready.push_front((want.topic, generation));
        } else {
            self.ready.push_back((want.topic, generation));
        }
    }

    /// Forgets the places of registrations that are gone, once there are more of them than of
    /// those that are left; so the queue is bounded by the topics of the stream.
    pub(super) fn tidy_ready(&mut self) {
        if self.ready.len() > 2 * self.registrations.len() {
            let registrations = &self.registrations;
            self.ready.retain(|(topic, generation)| {
                let found = registrations.get(topic);
                found.is_some_and(|found| found.generation == *generation)
            });
        }
    }
}
