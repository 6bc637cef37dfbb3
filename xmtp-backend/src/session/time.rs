//! The passing of time: silence, overdue answers, and a queue that stands still.

use super::deviation::Deviation;
use super::{Frame, Interest, Session, Tick};
use crate::services::Failure;

impl Session {
    /// Returns when [`Session::tick`] is next to be called.
    pub(crate) fn deadline(&self) -> Option<Tick> {
        let oldest = self
            .outbound
            .oldest()
            .map(|since| since + self.limits.max_pong_wait);
        let runs = self.end.is_none() && self.started;
        let keepalive = self.keepalive.deadline().filter(|_| runs);
        oldest.into_iter().chain(keepalive).min()
    }

    /// Lets time pass. Returns true if the client's answer is overdue: then the shell hands over
    /// what the client has already sent, and calls [`Session::expire_pong`].
    #[must_use]
    pub(crate) fn tick(&mut self, now: Tick) -> bool {
        let oldest = self.outbound.oldest();
        let stands = oldest.is_some_and(|since| now >= since + self.limits.max_pong_wait);
        if stands && !self.deviates(Deviation::IgnoresQueueAge) {
            self.give_up_queue();
            return false;
        }
        if self.end.is_some() || !self.started {
            return false;
        }
        match self.interest {
            Interest::Changing => {
                if let Some(nonce) = self.keepalive.challenge(now) {
                    self.queue_control(now, Frame::Ping { nonce });
                }
            }
            Interest::Fixed => {
                if self.keepalive.is_silent(now) {
                    self.queue_control(now, Frame::Keepalive);
                }
            }
        }
        if self.deviates(Deviation::ExpiresUnread) {
            self.expire_pong(now);
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
    pub(crate) fn give_up_queue(&mut self) {
        let status = Failure::SlowConsumer.status("the client reads too slowly");
        self.end = None;
        self.fail(status);
    }
}
