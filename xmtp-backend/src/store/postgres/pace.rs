//! How often a tail looks: more often while there is something to find, so that what other servers
//! store is told sooner, and seldom while there is not, so that many servers cost an idle database
//! little.

use std::time::Duration;

use tokio::time::Instant;

use crate::limits::{ACTIVE_POLLS, ACTIVE_TIME};

/// The pause between polls.
#[derive(Debug)]
pub(super) struct Pace {
    interval: Duration,
    found: Option<Instant>,
}

impl Pace {
    /// Starts with the longest pause, `interval`.
    pub(super) fn new(interval: Duration) -> Self {
        let found = None;
        Self { interval, found }
    }

    /// Learns that a poll found something.
    pub(super) fn found(&mut self, now: Instant) {
        self.found = Some(now);
    }

    /// Returns the pause before the next poll.
    pub(super) fn pause(&self, now: Instant) -> Duration {
        let since = self.found.map(|found| now.duration_since(found));
        match since.is_some_and(|since| since < ACTIVE_TIME) {
            true => self.interval / ACTIVE_POLLS,
            false => self.interval,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_are_more_frequent_while_they_find_something() {
        let (interval, start) = (Duration::from_millis(100), Instant::now());
        let mut pace = Pace::new(interval);
        assert_eq!(pace.pause(start), interval);
        pace.found(start);
        assert_eq!(pace.pause(start + ACTIVE_TIME / 2), interval / ACTIVE_POLLS);
        assert_eq!(pace.pause(start + ACTIVE_TIME), interval);
        pace.found(start + ACTIVE_TIME);
        assert_eq!(pace.pause(start + ACTIVE_TIME), interval / ACTIVE_POLLS);
    }
}
