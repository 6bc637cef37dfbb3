//! The uncommitted changes of one transaction, with the undo log of its savepoints.
//!
//! The overlay is the batch that the engine commits. A row put as new and deleted again leaves no
//! trace in it, so rows that are handled at once never reach the engine.

use std::collections::BTreeMap;

use super::batch::{Change, TableChanges, WriteBatch};
use super::{MAX_WRITE_SET_BYTES, StorageError, TableId, TableInfo};

type Range = (Vec<u8>, Option<Vec<u8>>);

/// What the overlay knows of a row.
pub(super) enum Known<'a> {
    /// The row was written.
    Value(&'a [u8]),
    /// The row was deleted.
    Absent,
    /// The overlay says nothing; ask the engine.
    Below,
}

/// Where a savepoint began.
pub(super) struct Mark {
    undo: usize,
    bytes: usize,
}

enum Undo {
    Row {
        table: TableId,
        key: Vec<u8>,
        before: Option<Change>,
    },
    Cleared {
        table: TableId,
        ranges: Vec<Range>,
        rows: BTreeMap<Vec<u8>, Change>,
    },
}

/// The uncommitted changes.
#[derive(Default)]
pub(super) struct Overlay {
    batch: WriteBatch,
    bytes: usize,
    undo: Vec<Undo>,
    depth: usize,
}

impl Overlay {
    /// Answers the changes of one table, if there are any.
    pub(super) fn table(&self, table: TableId) -> Option<&TableChanges> {
        let changes = self.batch.tables.get(&table)?;
        (!changes.cleared.is_empty() || !changes.rows.is_empty()).then_some(changes)
    }

    /// Looks a row up.
    pub(super) fn get(&self, table: TableId, key: &[u8]) -> Known<'_> {
        let Some(changes) = self.batch.tables.get(&table) else {
            return Known::Below;
        };
        match changes.rows.get(key) {
            Some(Change::Put(value) | Change::New(value)) => Known::Value(value),
            Some(Change::Delete) => Known::Absent,
            None if is_cleared(changes, key) => Known::Absent,
            None => Known::Below,
        }
    }

    /// Inserts or replaces a row.
    pub(super) fn put(
        &mut self,
        table: TableId,
        key: Vec<u8>,
        value: Vec<u8>,
    ) -> Result<(), StorageError> {
        let change = match self.row(table, &key) {
            Some(Change::New(_)) => Change::New(value),
            _ => Change::Put(value),
        };
        self.change(table, key, Some(change))
    }

    /// Inserts a row that is absent below.
    pub(super) fn put_new(
        &mut self,
        table: TableInfo,
        key: Vec<u8>,
        value: Vec<u8>,
    ) -> Result<(), StorageError> {
        let change = match self.row(table.id, &key) {
            Some(Change::Put(_) | Change::New(_)) => {
                return Err(StorageError::Exists { table: table.name });
            }
            // It may be present below, and is deleted there only by this batch.
            Some(Change::Delete) => Change::Put(value),
            None if self.covers(table.id, &key) => Change::Put(value),
            None => Change::New(value),
        };
        self.change(table.id, key, Some(change))
    }

    /// Deletes a row.
    pub(super) fn delete(&mut self, table: TableId, key: Vec<u8>) -> Result<(), StorageError> {
        let is_absent_below =
            matches!(self.row(table, &key), Some(Change::New(_))) || self.covers(table, &key);
        let change = (!is_absent_below).then_some(Change::Delete);
        self.change(table, key, change)
    }

    /// Deletes a half-open range of rows.
    pub(super) fn clear(
        &mut self,
        table: TableId,
        start: Vec<u8>,
        end: Option<Vec<u8>>,
    ) -> Result<(), StorageError> {
        let changes = self.batch.tables.entry(table).or_default();
        let removed = remove_range(&mut changes.rows, &start, end.as_deref());
        let ranges = changes.cleared.clone();
        let before: usize = ranges.iter().map(range_bytes).sum();
        merge(&mut changes.cleared, (start, end));
        let after: usize = changes.cleared.iter().map(range_bytes).sum();
        let rows: usize = removed.iter().map(|(key, row)| row_bytes(key, row)).sum();
        self.bytes = (self.bytes + after).saturating_sub(before + rows);
        if self.depth > 0 {
            self.undo.push(Undo::Cleared {
                table,
                ranges,
                rows: removed,
            });
        }
        within_bound(self.bytes)
    }

    /// Begins a savepoint.
    pub(super) fn mark(&mut self) -> Mark {
        self.depth += 1;
        Mark {
            undo: self.undo.len(),
            bytes: self.bytes,
        }
    }

    /// Ends the innermost savepoint and keeps its changes.
    pub(super) fn keep(&mut self) {
        self.depth -= 1;
        if self.depth == 0 {
            self.undo.clear();
        }
    }

    /// Ends the innermost savepoint, which began at `mark`, and undoes its changes.
    pub(super) fn roll_back(&mut self, mark: &Mark) {
        while self.undo.len() > mark.undo {
            let Some(undo) = self.undo.pop() else { break };
            self.revert(undo);
        }
        self.bytes = mark.bytes;
        self.depth -= 1;
    }

    /// Takes the batch, without tables that did not change.
    pub(super) fn into_batch(self) -> WriteBatch {
        let mut batch = self.batch;
        batch
            .tables
            .retain(|_, table| !table.cleared.is_empty() || !table.rows.is_empty());
        batch
    }

    fn row(&self, table: TableId, key: &[u8]) -> Option<&Change> {
        self.batch.tables.get(&table)?.rows.get(key)
    }

    fn covers(&self, table: TableId, key: &[u8]) -> bool {
        let changes = self.batch.tables.get(&table);
        changes.is_some_and(|changes| is_cleared(changes, key))
    }

    fn change(
        &mut self,
        table: TableId,
        key: Vec<u8>,
        change: Option<Change>,
    ) -> Result<(), StorageError> {
        let rows = &mut self.batch.tables.entry(table).or_default().rows;
        let before = rows.get(&key).map_or(0, |row| row_bytes(&key, row));
        let after = change.as_ref().map_or(0, |row| row_bytes(&key, row));
        let bytes = self.bytes - before + after;
        if after > before {
            within_bound(bytes)?;
        }
        let undo_key = (self.depth > 0).then(|| key.clone());
        let before = match change {
            Some(change) => rows.insert(key, change),
            None => rows.remove(&key),
        };
        self.bytes = bytes;
        if let Some(key) = undo_key {
            self.undo.push(Undo::Row { table, key, before });
        }
        Ok(())
    }

    fn revert(&mut self, undo: Undo) {
        match undo {
            Undo::Row { table, key, before } => {
                let rows = &mut self.batch.tables.entry(table).or_default().rows;
                match before {
                    Some(change) => rows.insert(key, change),
                    None => rows.remove(&key),
                };
            }
            Undo::Cleared {
                table,
                ranges,
                rows,
            } => {
                let changes = self.batch.tables.entry(table).or_default();
                changes.cleared = ranges;
                changes.rows.extend(rows);
            }
        }
    }
}

fn is_cleared(changes: &TableChanges, key: &[u8]) -> bool {
    let after = changes
        .cleared
        .partition_point(|(start, _)| start.as_slice() <= key);
    let Some((_, end)) = after.checked_sub(1).and_then(|at| changes.cleared.get(at)) else {
        return false;
    };
    end.as_deref().is_none_or(|end| key < end)
}

fn remove_range(
    rows: &mut BTreeMap<Vec<u8>, Change>,
    start: &[u8],
    end: Option<&[u8]>,
) -> BTreeMap<Vec<u8>, Change> {
    let mut removed = rows.split_off(start);
    if let Some(end) = end {
        rows.append(&mut removed.split_off(end));
    }
    removed
}

/// Adds a range and keeps the ranges sorted, disjoint and apart.
fn merge(ranges: &mut Vec<Range>, (mut start, mut end): Range) {
    let first = ranges.partition_point(|(_, to)| to.as_ref().is_some_and(|to| *to < start));
    let last = ranges.partition_point(|(from, _)| end.as_ref().is_none_or(|end| from <= end));
    for (from, to) in ranges.drain(first..last) {
        start = start.min(from);
        end = match (end, to) {
            (Some(end), Some(to)) => Some(end.max(to)),
            _ => None,
        };
    }
    ranges.insert(first, (start, end));
}

fn row_bytes(key: &[u8], change: &Change) -> usize {
    match change {
        Change::Put(value) | Change::New(value) => key.len() + value.len(),
        Change::Delete => key.len(),
    }
}

fn range_bytes((start, end): &Range) -> usize {
    start.len() + end.as_ref().map_or(0, Vec::len)
}

fn within_bound(bytes: usize) -> Result<(), StorageError> {
    if bytes <= MAX_WRITE_SET_BYTES {
        return Ok(());
    }
    Err(StorageError::TooLarge {
        what: "write set",
        bytes,
        max: MAX_WRITE_SET_BYTES,
    })
}
