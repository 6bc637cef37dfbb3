//! The two timers of a stream: silence towards the client, and the client's answer.
//!
//! The silence is counted from what the stream queues, not from what the client sends. The answer
//! is due from the moment the transport takes the ping, so that a ping behind a long queue does
//! not condemn a healthy client; a queue that does not move is another matter (`outbound.rs`).

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;

use super::Tick;

/// The timers of a stream.
#[derive(Debug)]
pub(super) struct Keepalive {
    interval: Duration,
    max_pong_wait: Duration,
    last_admitted: Tick,
    challenge: Option<Challenge>,
    nonces: RandomState,
    challenges: u64,
}

/// The one ping that is not answered yet.
#[derive(Clone, Copy, Debug)]
struct Challenge {
    nonce: u64,
    handed_over: Option<Tick>,
}

impl Keepalive {
    pub(super) fn new(interval: Duration, max_pong_wait: Duration) -> Self {
        Self {
            interval,
            max_pong_wait,
            last_admitted: Tick::ZERO,
            challenge: None,
            nonces: RandomState::new(),
            challenges: 0,
        }
    }

    /// Notes that a frame was queued.
    pub(super) fn admitted(&mut self, now: Tick) {
        self.last_admitted = self.last_admitted.max(now);
    }

    /// Notes that the transport took the ping.
    pub(super) fn handed_over(&mut self, now: Tick) {
        if let Some(challenge) = &mut self.challenge {
            challenge.handed_over.get_or_insert(now);
        }
    }

    /// Notes an answer; one with another nonce answers nothing.
    pub(super) fn answered(&mut self, nonce: u64) {
        self.challenge.take_if(|challenge| challenge.nonce == nonce);
    }

    /// Tells whether the silence has lasted.
    pub(super) fn is_silent(&self, now: Tick) -> bool {
        now >= self.last_admitted + self.interval
    }

    /// Begins a challenge if the silence has lasted, and returns its nonce.
    pub(super) fn challenge(&mut self, now: Tick) -> Option<u64> {
        if self.challenge.is_some() || !self.is_silent(now) {
            return None;
        }
        self.challenges += 1;
        let nonce = self.nonces.hash_one(self.challenges);
        self.challenge = Some(Challenge {
            nonce,
            handed_over: None,
        });
        Some(nonce)
    }

    /// Tells whether an answer is overdue.
    pub(super) fn is_overdue(&self, now: Tick) -> bool {
        self.pong_deadline().is_some_and(|deadline| now >= deadline)
    }

    /// Returns when something is next to do.
    pub(super) fn deadline(&self) -> Option<Tick> {
        match self.challenge {
            None => Some(self.last_admitted + self.interval),
            Some(_) => self.pong_deadline(),
        }
    }

    fn pong_deadline(&self) -> Option<Tick> {
        Some(self.challenge?.handed_over? + self.max_pong_wait)
    }
}
