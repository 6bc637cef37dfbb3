//! A token bucket in integers.

use super::Tick;

/// Lets a burst pass at once and a rate for ever.
#[derive(Debug)]
pub(super) struct Bucket {
    rate_per_second: u64,
    /// The most that can be saved up, in thousandths of a frame.
    capacity: u64,
    /// What is saved up, in thousandths of a frame.
    level: u64,
    /// Up to when the level is counted, in milliseconds.
    counted_ms: u64,
}

/// One frame, in thousandths of a frame.
const FRAME: u64 = 1000;

impl Bucket {
    /// Creates a full bucket.
    pub(super) fn new(rate_per_second: u32, burst: u32) -> Self {
        let capacity = u64::from(burst) * FRAME;
        Self {
            rate_per_second: rate_per_second.into(),
            capacity,
            level: capacity,
            counted_ms: 0,
        }
    }

    /// Takes one frame, or returns false if there is none.
    pub(super) fn take(&mut self, now: Tick) -> bool {
        let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let elapsed = now_ms.saturating_sub(self.counted_ms);
        self.counted_ms = now_ms;
        // A rate per second is as many thousandths per millisecond.
        let gained = elapsed.saturating_mul(self.rate_per_second);
        self.level = self.level.saturating_add(gained).min(self.capacity);
        match self.level.checked_sub(FRAME) {
            Some(rest) => {
                self.level = rest;
                true
            }
            None => false,
        }
    }
}
