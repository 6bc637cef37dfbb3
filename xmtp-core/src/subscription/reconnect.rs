//! How long a subscription waits before it opens the next stream.

use std::time::Duration;

use crate::limits::{RECONNECT_FIRST_PAUSE, RECONNECT_LONGEST_PAUSE, RECONNECT_STABLE};

/// First pause after an answer that a repeat cannot change by itself.
pub const FAILED_FIRST_PAUSE: Duration = Duration::from_secs(5);
/// Longest pause after such an answer.
pub const FAILED_LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// Growing pauses with jitter.
///
/// # Behavior
/// - Pauses double from 100 ms to 30 s, or from 5 s to 300 s after a failure that a repeat
///   cannot change; up to as much again is added at random.
/// - No pause is shorter than the backend asks for.
/// - Only service that lasted resets them: a stream that opens and ends at once does not.
#[derive(Debug, Default)]
pub struct Backoff {
    /// Failures in a row.
    failures: u32,
    connected: Option<Duration>,
}

impl Backoff {
    /// Says that a stream serves since `now`.
    pub fn connected(&mut self, now: Duration) {
        self.connected = Some(now);
    }

    /// Answers the pause after a stream ended or did not open; `asked` is the least one that the
    /// backend asks for.
    pub fn pause(
        &mut self,
        now: Duration,
        is_retryable: bool,
        asked: Duration,
        random: [u8; 2],
    ) -> Duration {
        let served = self.connected.take().map(|since| now.saturating_sub(since));
        if served.is_some_and(|served| served >= RECONNECT_STABLE) {
            self.failures = 0;
        }
        let (first, longest) = if is_retryable {
            (RECONNECT_FIRST_PAUSE, RECONNECT_LONGEST_PAUSE)
        } else {
            (FAILED_FIRST_PAUSE, FAILED_LONGEST_PAUSE)
        };
        let base = first
            .saturating_mul(1 << self.failures.min(16))
            .min(longest);
        self.failures = self.failures.saturating_add(1);
        let share = u32::from(u16::from_be_bytes(random));
        (base + base * share / u32::from(u16::MAX)).max(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO: Duration = Duration::ZERO;

    /// Pauses grow with failures in a row, stay within their bounds, and start small again only
    /// after service that lasted.
    /// covers: STR-036
    #[test]
    fn pauses_grow_until_service_lasted() {
        let mut backoff = Backoff::default();
        let mut now = Duration::ZERO;
        let mut pauses = Vec::new();
        for _ in 0..12 {
            backoff.connected(now);
            pauses.push(backoff.pause(now, true, ZERO, [0, 0]));
            now += Duration::from_secs(1);
        }
        assert_eq!(pauses[0], RECONNECT_FIRST_PAUSE);
        assert_eq!(pauses[3], RECONNECT_FIRST_PAUSE * 8);
        assert_eq!(pauses[11], RECONNECT_LONGEST_PAUSE);
        assert_eq!(
            backoff.pause(now, true, ZERO, [255, 255]),
            RECONNECT_LONGEST_PAUSE * 2
        );
        backoff.connected(now);
        let later = now + RECONNECT_STABLE;
        assert_eq!(
            backoff.pause(later, true, ZERO, [0, 0]),
            RECONNECT_FIRST_PAUSE
        );
    }

    /// Answers that a repeat cannot change are tried slowly, and never given up.
    #[test]
    fn failures_that_stay_are_tried_slowly() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.pause(ZERO, false, ZERO, [0, 0]), FAILED_FIRST_PAUSE);
        for _ in 0..40 {
            let pause = backoff.pause(ZERO, false, ZERO, [255, 255]);
            assert!(pause <= FAILED_LONGEST_PAUSE * 2);
        }
    }

    /// What the backend asks for is the least, and a longer pause stays as it is.
    /// covers: STR-036
    #[test]
    fn no_pause_is_shorter_than_the_backend_asks_for() {
        let asked = RECONNECT_FIRST_PAUSE * 3;
        let mut backoff = Backoff::default();
        assert_eq!(backoff.pause(ZERO, true, asked, [0, 0]), asked);
        assert_eq!(backoff.pause(ZERO, true, asked, [0, 0]), asked);
        let longer = backoff.pause(ZERO, true, asked, [0, 0]);
        assert_eq!(longer, RECONNECT_FIRST_PAUSE * 4);
    }
}
