//! Topics that go on behind a fence and that the primary could not prove yet (EXT-002).
//!
//! Such a topic has no registration until its time has come; nothing of it is dropped, because it is
//! registered again from durable F. The others go on over the same stream.

use std::collections::BTreeMap;
use std::time::Duration;

use xmtp_proto::Topic;

use crate::limits::{RECONNECT_FIRST_PAUSE, RECONNECT_LONGEST_PAUSE};

/// Topics that wait for another proof, and how long the primary is left alone.
#[derive(Debug, Default)]
pub(super) struct Unproven {
    /// When each is registered again. No topic is here that nobody wants.
    until: BTreeMap<Topic, Duration>,
    /// The pause after the last answer that the primary did not give; zero once it gave one.
    pause: Duration,
    /// When the primary may be asked again.
    asks_from: Duration,
}

impl Unproven {
    /// Tells whether the primary may be asked for a proof.
    pub(super) fn may_ask(&self, now: Duration) -> bool {
        now >= self.asks_from
    }

    /// Notes that the primary answered.
    pub(super) fn answered(&mut self) {
        self.pause = Duration::ZERO;
    }

    /// Leaves the primary alone, longer after each failure; `asked` is the least pause that it asks
    /// for.
    pub(super) fn failed(&mut self, now: Duration, asked: Duration) {
        self.pause = (self.pause * 2).clamp(RECONNECT_FIRST_PAUSE, RECONNECT_LONGEST_PAUSE);
        self.asks_from = now + self.pause.max(asked);
    }

    /// Holds a topic until the primary may be asked again.
    pub(super) fn hold(&mut self, topic: Topic) {
        self.until.insert(topic, self.asks_from);
    }

    /// Holds a topic whose page was refused for the longest pause.
    pub(super) fn refused(&mut self, topic: Topic, now: Duration) {
        self.until.insert(topic, now + RECONNECT_LONGEST_PAUSE);
    }

    /// Tells whether a topic is held.
    pub(super) fn holds(&self, topic: &Topic) -> bool {
        self.until.contains_key(topic)
    }

    /// Answers when the next topic is registered again.
    pub(super) fn next(&self) -> Option<Duration> {
        self.until.values().min().copied()
    }

    /// Lets go the topics whose time has come and those that are not wanted; answers whether there
    /// were any.
    pub(super) fn let_go(&mut self, now: Duration, is_wanted: impl Fn(&Topic) -> bool) -> bool {
        let before = self.until.len();
        self.until
            .retain(|topic, until| now < *until && is_wanted(topic));
        self.until.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The primary is left alone ever longer until it answers; a topic whose page is refused waits
    /// the longest, and one that nobody wants is forgotten.
    #[test]
    fn topics_are_held_for_a_while() {
        let topic = |number| Topic::group(&xmtp_proto::GroupId::from_bytes([number; 16]));
        let mut unproven = Unproven::default();
        let mut now = Duration::ZERO;
        for _ in 0..12 {
            unproven.failed(now, Duration::ZERO);
            unproven.hold(topic(1));
            let next = unproven.next().expect("it is held");
            assert!(!unproven.may_ask(now) && unproven.may_ask(next));
            assert!(!unproven.let_go(now, |_| true) && unproven.let_go(next, |_| true));
            now = next;
        }
        assert_eq!(unproven.pause, RECONNECT_LONGEST_PAUSE);
        unproven.answered();
        unproven.failed(now, Duration::ZERO);
        assert_eq!(unproven.asks_from, now + RECONNECT_FIRST_PAUSE);
        unproven.failed(now, RECONNECT_LONGEST_PAUSE * 2);
        assert_eq!(unproven.asks_from, now + RECONNECT_LONGEST_PAUSE * 2);
        unproven.refused(topic(2), now);
        assert_eq!(unproven.next(), Some(now + RECONNECT_LONGEST_PAUSE));
        assert!(unproven.let_go(now, |_| false));
        assert!(!unproven.holds(&topic(2)));
    }
}
