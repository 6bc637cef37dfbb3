//! Waiting for locks: short random sleeps up to a deadline.
//!
//! SQLite's own busy wait sleeps ever longer and so starves a writer beside a process that
//! commits back to back. Every connection therefore has a busy timeout of zero, and waits here.

use std::time::{Duration, Instant};

/// Shortest sleep between two attempts.
const SHORTEST: Duration = Duration::from_micros(100);
/// What the sleep varies by.
const SPREAD_MICROS: u64 = 400;
/// No wait is longer, whatever the patience.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// A wait with its start and its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    start: Instant,
    end: Instant,
}

impl Wait {
    /// Starts to wait for at most `patience`.
    pub(crate) fn start(patience: Duration) -> Self {
        let start = Instant::now();
        let end = start + patience.min(LONGEST);
        Self { start, end }
    }

    /// Answers when the patience ends.
    pub(crate) fn end(&self) -> Instant {
        self.end
    }

    /// Answers how much of the patience is left.
    pub(crate) fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Answers how long the wait has lasted, in milliseconds.
    pub(crate) fn waited_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Sleeps for 0.1 to 0.5 ms at random; false, at once, when the patience has ended.
    pub(crate) fn pause(&self) -> bool {
        if Instant::now() >= self.end {
            return false;
        }
        std::thread::sleep(SHORTEST + Duration::from_micros(random() % SPREAD_MICROS));
        true
    }
}

/// Draws a number; a source that fails costs only the spread.
fn random() -> u64 {
    getrandom::u64().unwrap_or_default()
}
