//! A fair ring of topics: every ready topic is tried once before any is tried twice.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use xmtp_proto::Topic;

use crate::limits::{RETRY_FIRST_PAUSE, RETRY_LONGEST_PAUSE};

/// Most topics that wait in the ring; the rest stay in the database, where the next look finds
/// them.
pub const MAX_READY_TOPICS: usize = 4_096;

/// Topics that are ready for a turn, first come first served.
///
/// # Behavior
/// - A topic is in the ring at most once.
/// - A topic that is offered again while it waits keeps its place (STR-072).
#[derive(Debug, Default)]
pub struct Schedule {
    ready: VecDeque<Topic>,
    queued: HashSet<Topic>,
}

impl Schedule {
    /// Offers a topic; it joins the back unless it waits already or the ring is full.
    pub fn offer(&mut self, topic: Topic) -> bool {
        if self.ready.len() >= MAX_READY_TOPICS || !self.queued.insert(topic) {
            return false;
        }
        self.ready.push_back(topic);
        true
    }

    /// Takes the topic whose turn it is.
    pub fn take(&mut self) -> Option<Topic> {
        let topic = self.ready.pop_front()?;
        self.queued.remove(&topic);
        Some(topic)
    }

    /// Counts the topics that wait.
    pub fn len(&self) -> usize {
        self.ready.len()
    }

    /// Tells whether no topic waits.
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }
}

/// Answers the pause before attempt `attempts + 1` of a head: doubling, bounded.
pub(crate) fn retry_pause(attempts: u32) -> Duration {
    let doublings = attempts.saturating_sub(1).min(31);
    RETRY_FIRST_PAUSE
        .saturating_mul(1 << doublings)
        .min(RETRY_LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use xmtp_proto::GroupId;

    fn topic(number: u8) -> Topic {
        Topic::group(&GroupId::from_bytes([number; 16]))
    }

    proptest! {
        /// A ready topic gets its turn after at most as many turns as topics waited before it,
        /// whatever is offered meanwhile.
        /// covers: STR-072
        #[test]
        fn every_ready_topic_gets_its_turn(offers in proptest::collection::vec(0u8..12, 1..200)) {
            let mut schedule = Schedule::default();
            let mut waits = std::collections::HashMap::new();
            for number in offers {
                let before = schedule.len();
                if schedule.offer(topic(number)) {
                    waits.insert(topic(number), before);
                }
                if number % 3 == 0 && let Some(turn) = schedule.take() {
                    prop_assert_eq!(waits.remove(&turn), Some(0));
                    for ahead in waits.values_mut() {
                        *ahead -= 1;
                    }
                }
            }
        }
    }

    #[test]
    fn pauses_double_up_to_their_bound() {
        assert_eq!(retry_pause(1), RETRY_FIRST_PAUSE);
        assert_eq!(retry_pause(2), RETRY_FIRST_PAUSE * 2);
        assert_eq!(retry_pause(u32::MAX), RETRY_LONGEST_PAUSE);
    }
}
