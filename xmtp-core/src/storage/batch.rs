//! The write set. The overlay of a transaction *is* the batch that the engine commits.

use std::collections::BTreeMap;

use super::TableId;

/// The changes of one transaction, by table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteBatch {
    /// Changes by table, in table order.
    pub tables: BTreeMap<TableId, TableChanges>,
}

/// The changes of one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableChanges {
    /// Deleted half-open ranges, disjoint and sorted; applied before `rows`.
    pub cleared: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Changed rows by key.
    pub rows: BTreeMap<Vec<u8>, Change>,
}

/// What happens to one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Inserts or replaces.
    Put(Vec<u8>),
    /// Inserts a row that is absent below; a plain insert for the engine.
    New(Vec<u8>),
    /// Deletes, if present.
    Delete,
}

impl WriteBatch {
    /// Tells whether the batch changes nothing.
    pub fn is_empty(&self) -> bool {
        self.tables
            .values()
            .all(|table| table.cleared.is_empty() && table.rows.is_empty())
    }
}
