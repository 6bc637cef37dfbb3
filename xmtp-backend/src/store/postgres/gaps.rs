//! Ids that a tail skipped because they were absent when it passed them.

use std::collections::BTreeMap;

use tokio::time::Instant;

/// Ranges of skipped ids, apart from each other.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    /// From the first id of a range to the rest of it.
    ranges: BTreeMap<i64, Range>,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    last: i64,
    /// When the range was first skipped.
    since: Instant,
}

impl Gaps {
    /// Returns the number of ranges.
    pub(super) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Remembers the ids from `first` through `last`, if there are any.
    pub(super) fn skip(&mut self, first: i64, last: i64, since: Instant) {
        if first <= last {
            self.ranges.insert(first, Range { last, since });
        }
    }

    /// Forgets an id that was found.
    pub(super) fn found(&mut self, id: i64) {
        let Some((&first, &range)) = self.ranges.range(..=id).next_back() else {
            return;
        };
        if range.last < id {
            return;
        }
        self.ranges.remove(&first);
        self.skip(first, id - 1, range.since);
        self.skip(id + 1, range.last, range.since);
    }

    /// Forgets the ids up to the boundary: who was absent beside it stays absent.
    pub(super) fn close(&mut self, boundary: i64) {
        while let Some((&first, &range)) = self.ranges.first_key_value() {
            if first > boundary {
                return;
            }
            self.ranges.remove(&first);
            self.skip(boundary.saturating_add(1), range.last, range.since);
        }
    }

    /// Returns the first and the last id of each range, in order.
    pub(super) fn bounds(&self) -> (Vec<i64>, Vec<i64>) {
        let bounds = self.ranges.iter();
        bounds.map(|(first, range)| (*first, range.last)).unzip()
    }

    /// Returns the greatest id that was skipped at `since` or before and is still absent.
    pub(super) fn last_of(&self, since: Instant) -> Option<i64> {
        let mut ranges = self.ranges.values().rev();
        ranges
            .find(|range| range.since <= since)
            .map(|range| range.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(gaps: &Gaps) -> Vec<(i64, i64)> {
        let (first, last) = gaps.bounds();
        first.into_iter().zip(last).collect()
    }

    #[test]
    fn found_ids_split_their_range() {
        let mut gaps = Gaps::default();
        let now = Instant::now();
        gaps.skip(5, 9, now);
        gaps.skip(12, 12, now);
        gaps.skip(14, 13, now);
        for absent in [4, 10, 11, 13] {
            gaps.found(absent);
        }
        assert_eq!(bounds(&gaps), [(5, 9), (12, 12)]);
        gaps.found(7);
        assert_eq!(bounds(&gaps), [(5, 6), (8, 9), (12, 12)]);
        gaps.found(5);
        gaps.found(9);
        gaps.found(12);
        assert_eq!(bounds(&gaps), [(6, 6), (8, 8)]);
    }

    #[test]
    fn a_boundary_closes_what_it_reaches_and_no_more() {
        let mut gaps = Gaps::default();
        let old = Instant::now();
        let young = old + std::time::Duration::from_secs(1);
        gaps.skip(2, 3, old);
        gaps.skip(5, 9, young);
        gaps.close(1);
        assert_eq!(
            (bounds(&gaps), gaps.last_of(old), gaps.last_of(young)),
            (vec![(2, 3), (5, 9)], Some(3), Some(9))
        );
        gaps.close(6);
        assert_eq!(
            (bounds(&gaps), gaps.last_of(old), gaps.last_of(young)),
            (vec![(7, 9)], None, Some(9))
        );
        gaps.close(i64::MAX);
        assert_eq!((gaps.len(), gaps.last_of(young)), (0, None));
    }
}
