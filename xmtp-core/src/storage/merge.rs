//! One page over the engine's rows and the changes of a transaction, merged.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ops::Bound;

use super::batch::{Change, TableChanges};
use super::{KeyRange, Order, Page, Rows, Snapshot, StorageError, TableId};

/// Largest number of rows asked of the engine at once while deleted rows are skipped.
const MAX_SKIP_ROWS: u32 = 1_024;

type Range = (Vec<u8>, Option<Vec<u8>>);

/// Scans `base` as if `changes` were committed.
pub(super) fn scan(
    base: &dyn Snapshot,
    table: TableId,
    changes: &TableChanges,
    range: KeyRange<'_>,
    page: Page,
) -> Result<Rows, StorageError> {
    let mut out = Rows::new();
    if range.end.is_some_and(|end| end <= range.start) {
        return Ok(out);
    }
    let mut below = Below::new(base, table, changes, range, page);
    let mut above = above(&changes.rows, range, page.order);
    loop {
        let is_below = below.settle()?;
        let takes_below = match (is_below, above.peek()) {
            (false, None) => return Ok(out),
            (true, None) => true,
            (false, Some(_)) => false,
            (true, Some((key, _))) => comes_first(below.row().0, key, page.order),
        };
        let row = if takes_below {
            Some(below.row())
        } else {
            above.peek().copied()
        };
        let Some((key, value)) = row else {
            return Ok(out);
        };
        if is_full(&out, page, key.len() + value.len()) {
            out.more = true;
            return Ok(out);
        }
        out.push(key, value);
        if takes_below {
            below.next += 1;
        } else {
            above.next();
        }
    }
}

fn is_full(out: &Rows, page: Page, bytes: usize) -> bool {
    !out.is_empty()
        && (out.len() >= page.rows as usize || out.bytes() + bytes > page.bytes as usize)
}

fn comes_first(left: &[u8], right: &[u8], order: Order) -> bool {
    match order {
        Order::Ascending => left.cmp(right) == Ordering::Less,
        Order::Descending => left.cmp(right) == Ordering::Greater,
    }
}

type Above<'a> = Peekable<Box<dyn Iterator<Item = (&'a [u8], &'a [u8])> + 'a>>;

/// The written rows of the range, in the order of the page.
fn above<'a>(rows: &'a BTreeMap<Vec<u8>, Change>, range: KeyRange<'_>, order: Order) -> Above<'a> {
    let end = range.end.map_or(Bound::Unbounded, Bound::Excluded);
    let rows = rows.range::<[u8], _>((Bound::Included(range.start), end));
    let written = rows.filter_map(|(key, change)| match change {
        Change::Put(value) | Change::New(value) => Some((key.as_slice(), value.as_slice())),
        Change::Delete => None,
    });
    let ordered: Box<dyn Iterator<Item = _> + 'a> = match order {
        Order::Ascending => Box::new(written),
        Order::Descending => Box::new(written.rev()),
    };
    ordered.peekable()
}

/// The engine's rows that are neither cleared nor overwritten.
struct Below<'a> {
    base: &'a dyn Snapshot,
    table: TableId,
    hidden: &'a BTreeMap<Vec<u8>, Change>,
    /// The ranges still to read; the next one last.
    segments: Vec<Range>,
    page: Page,
    rows: Rows,
    next: usize,
}

impl<'a> Below<'a> {
    fn new(
        base: &'a dyn Snapshot,
        table: TableId,
        changes: &'a TableChanges,
        range: KeyRange<'_>,
        page: Page,
    ) -> Self {
        let mut segments = uncleared(&changes.cleared, range);
        if page.order == Order::Ascending {
            segments.reverse();
        }
        Self {
            base,
            table,
            hidden: &changes.rows,
            segments,
            // One more than asked tells whether there is more.
            page: Page {
                rows: page.rows.saturating_add(1),
                ..page
            },
            rows: Rows::new(),
            next: 0,
        }
    }

    /// Moves to the next visible row; answers whether there is one.
    fn settle(&mut self) -> Result<bool, StorageError> {
        loop {
            while self.next < self.rows.len() {
                if !self.hidden.contains_key(self.row().0) {
                    return Ok(true);
                }
                self.next += 1;
            }
            let Some((start, end)) = self.segments.last() else {
                return Ok(false);
            };
            let range = KeyRange {
                start,
                end: end.as_deref(),
            };
            self.rows = self.base.scan(self.table, range, self.page)?;
            self.next = 0;
            self.shrink_segment();
            self.page.rows = self
                .page
                .rows
                .saturating_mul(2)
                .min(MAX_SKIP_ROWS.max(self.page.rows));
        }
    }

    /// Takes what was just read off the segment.
    fn shrink_segment(&mut self) {
        let last = self
            .rows
            .len()
            .checked_sub(1)
            .map(|last| self.rows.row(last).0);
        let Some(segment) = self.segments.last_mut() else {
            return;
        };
        match (self.rows.more, last) {
            (true, Some(last)) if self.page.order == Order::Ascending => {
                segment.0 = last.to_vec();
                segment.0.push(0);
            }
            (true, Some(last)) => segment.1 = Some(last.to_vec()),
            _ => {
                self.segments.pop();
            }
        }
    }

    fn row(&self) -> (&[u8], &[u8]) {
        self.rows.row(self.next)
    }
}

/// The parts of `range` that no cleared range covers, in key order.
fn uncleared(cleared: &[Range], range: KeyRange<'_>) -> Vec<Range> {
    let mut parts = Vec::new();
    let mut start = range.start;
    for (from, to) in cleared {
        if range.end.is_some_and(|end| from.as_slice() >= end) {
            break;
        }
        if from.as_slice() > start {
            parts.push((start.to_vec(), Some(from.clone())));
        }
        match to {
            Some(to) => start = start.max(to),
            None => return parts,
        }
    }
    if range.end.is_none_or(|end| start < end) {
        parts.push((start.to_vec(), range.end.map(<[u8]>::to_vec)));
    }
    parts
}
