//! Lets new registrations in at the rate of the database.

use std::time::Duration;

use parking_lot::Mutex;

use crate::session::Tick;

/// A bucket of topics that all streams share.
///
/// - Each caller gets the moment at which its topics are due, in the order of the calls.
/// - A caller that gives up leaves its place unused.
#[derive(Debug)]
pub(super) struct Admission {
    /// What one topic takes, in nanoseconds.
    topic_ns: u64,
    /// How far ahead of time topics may be let in.
    burst: Duration,
    /// When everything that was let in is paid for.
    paid: Mutex<Tick>,
}

impl Admission {
    pub(super) fn new(topics_per_second: u32, burst_topics: u32) -> Self {
        let topic_ns = 1_000_000_000 / u64::from(topics_per_second.max(1));
        Self {
            topic_ns,
            burst: Duration::from_nanos(topic_ns.saturating_mul(burst_topics.into())),
            paid: Mutex::new(Tick::ZERO),
        }
    }

    /// Takes room for so many topics and returns when they may go on.
    ///
    /// - The clock counts from any one moment and is the same for all callers.
    pub(super) fn due(&self, now: Tick, topics: usize) -> Tick {
        let cost = Duration::from_nanos(self.topic_ns.saturating_mul(topics as u64));
        let mut paid = self.paid.lock();
        *paid = (*paid).max(now) + cost;
        paid.saturating_sub(self.burst).max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> Tick {
        Duration::from_millis(millis)
    }

    /// covers: STR-030
    #[test]
    fn a_burst_passes_at_once_and_then_the_rate_holds_in_the_order_of_the_calls() {
        let admission = Admission::new(1_000, 500);
        assert_eq!(admission.due(at(10), 300), at(10));
        assert_eq!(admission.due(at(10), 200), at(10), "the burst is used up");
        assert_eq!(admission.due(at(10), 100), at(110));
        assert_eq!(admission.due(at(10), 1), at(111));
        assert_eq!(
            admission.due(at(60), 9),
            at(120),
            "it waits behind the others"
        );
        assert_eq!(
            admission.due(at(10_000), 500),
            at(10_000),
            "no more than the burst is saved"
        );
        assert_eq!(admission.due(at(10_000), 1), at(10_001));
    }

    #[test]
    fn a_whole_storm_takes_its_topics_through_the_rate() {
        let admission = Admission::new(200_000, 100_000);
        let dues: Vec<Tick> = (0..100_000).map(|_| admission.due(at(0), 50)).collect();
        assert!(dues.is_sorted());
        assert_eq!(dues[1_999], at(0));
        assert_eq!(dues[99_999], at(24_500), "5,000,000 topics less the burst");
    }
}
