//! When each stream ends after a shutdown.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::limits::{ENDED_STREAMS_PER_SECOND, ENDING_PART};

/// Spreads the ends of streams over a part of the drain time.
///
/// - Few streams end almost at once; many end at a steady rate, within the part.
#[derive(Debug, Default)]
pub(super) struct Ending {
    open: AtomicUsize,
    asked: AtomicUsize,
}

impl Ending {
    pub(super) fn enter(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn leave(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns how long one more stream may go on, of those that are open.
    pub(super) fn place(&self, drain: Duration) -> Duration {
        let place = self.asked.fetch_add(1, Ordering::Relaxed);
        let streams = self.open.load(Ordering::Relaxed).max(place + 1);
        delay(place, streams, drain)
    }
}

/// Returns when the stream at `place` of `streams` ends.
fn delay(place: usize, streams: usize, drain: Duration) -> Duration {
    let rate = Duration::from_secs(1) / ENDED_STREAMS_PER_SECOND;
    let part = drain * ENDING_PART.0 / ENDING_PART.1;
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let window = rate.saturating_mul(count(streams)).min(part);
    window.mul_f64(f64::from(count(place)) / f64::from(count(streams).max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAIN: Duration = Duration::from_secs(20);

    /// covers: STR-035
    #[test]
    fn ends_are_spread_at_a_rate_and_never_beyond_the_part() {
        assert_eq!(delay(0, 1, DRAIN), Duration::ZERO);
        for streams in [10, 5_000, 1_000_000] {
            let delays: Vec<_> = (0..streams)
                .map(|place| delay(place, streams, DRAIN))
                .collect();
            assert!(delays.is_sorted() && delays[0].is_zero());
            assert!(delays[streams - 1] < DRAIN / 2);
            let second = delays.iter().filter(|delay| delay.as_secs() == 0).count();
            assert!(
                second <= streams.div_ceil(10).max(5_000),
                "{streams}: {second}"
            );
        }
        assert!(delay(4_999, 5_000, DRAIN) > Duration::from_millis(990));
    }

    #[test]
    fn every_stream_has_its_own_place() {
        let ending = Ending::default();
        (0..4).for_each(|_| ending.enter());
        let places: Vec<_> = (0..4).map(|_| ending.place(DRAIN)).collect();
        assert!(places.is_sorted_by(|a, b| a < b), "{places:?}");
        (0..4).for_each(|_| ending.leave());
        assert_eq!(ending.open.load(Ordering::Relaxed), 0);
    }
}
