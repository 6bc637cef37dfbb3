//! The write transaction: typed changes over one writer, seen by its own reads.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use xmtp_proto::storage::v1::Counter;

use super::batch::WriteBatch;
use super::key::prefix_end;
use super::overlay::{Known, Mark, Overlay};
use super::schema::{self, CounterName};
use super::{
    Key, KeyRange, MAX_VALUE_BYTES, Page, PrefixOf, Read, Rows, Snapshot, StorageError, Table,
    TableId, Value, merge,
};
use crate::runtime::Runtime;

/// A state-write attempt: synchronous, atomic, alone (STR-070, STR-071).
///
/// # Behavior
/// - It reads its own changes, in every read of [`Snapshot`] and [`Read`].
/// - It exists only inside the closure of `Database::write` and cannot leave it.
pub struct WriteTxn<'w> {
    base: &'w dyn Snapshot,
    runtime: Arc<dyn Runtime>,
    now_ns: u64,
    max_value_bytes: usize,
    overlay: Overlay,
    domains: BTreeMap<TableId, u64>,
    is_held_back: bool,
}

impl fmt::Debug for WriteTxn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WriteTxn")
    }
}

impl<'w> WriteTxn<'w> {
    /// Begins over the newest committed version.
    pub(super) fn new(
        base: &'w dyn Snapshot,
        runtime: Arc<dyn Runtime>,
        max_value_bytes: usize,
    ) -> Self {
        Self {
            base,
            now_ns: runtime.now_ns(),
            runtime,
            max_value_bytes: max_value_bytes.min(MAX_VALUE_BYTES),
            overlay: Overlay::default(),
            domains: BTreeMap::new(),
            is_held_back: false,
        }
    }

    /// Inserts or replaces a row.
    ///
    /// Fails with `TooLarge` when the value or the write set passes its bound; nothing changes.
    pub fn put<K: Key, V: Value>(
        &mut self,
        table: Table<K, V>,
        key: &K,
        value: &V,
    ) -> Result<(), StorageError> {
        let value = self.checked(value)?;
        self.touch(table);
        self.overlay.put(table.info.id, key.to_bytes(), value)
    }

    /// Inserts a row that is known to be absent; cheaper for the engine than [`WriteTxn::put`].
    ///
    /// Deleting it in the same transaction leaves no trace. A row that is present after all fails
    /// with `Exists`, here or at commit, and panics in debug builds.
    pub fn put_new<K: Key, V: Value>(
        &mut self,
        table: Table<K, V>,
        key: &K,
        value: &V,
    ) -> Result<(), StorageError> {
        let value = self.checked(value)?;
        let key = key.to_bytes();
        if cfg!(debug_assertions) {
            let present = self.get(table.info.id, &key)?.is_some();
            debug_assert!(!present, "a row of {table:?} is new and present");
        }
        self.touch(table);
        self.overlay.put_new(table.info, key, value)
    }

    /// Deletes a row, if it is present.
    pub fn delete<K: Key, V>(&mut self, table: Table<K, V>, key: &K) -> Result<(), StorageError> {
        self.touch(table);
        self.overlay.delete(table.info.id, key.to_bytes())
    }

    /// Deletes every row whose key starts with `prefix`.
    pub fn clear<K, V, P: PrefixOf<K>>(
        &mut self,
        table: Table<K, V>,
        prefix: &P,
    ) -> Result<(), StorageError> {
        self.touch(table);
        let start = prefix.prefix_bytes();
        let end = prefix_end(&start);
        self.overlay.clear(table.info.id, start, end)
    }

    /// Runs `f` and undoes its changes when it fails or panics; nests.
    ///
    /// The held-back mark goes back with them. State in memory does not: drop it (STR-071).
    pub fn savepoint<T, E>(&mut self, f: impl FnOnce(&mut Self) -> Result<T, E>) -> Result<T, E> {
        let mut savepoint = Savepoint::begin(self);
        let outcome = f(savepoint.txn);
        savepoint.is_kept = outcome.is_ok();
        outcome
    }

    /// Answers the wall clock at the begin of the transaction, in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Answers the runtime: the source of randomness inside a transaction.
    pub fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.runtime
    }

    /// Marks that a write is held back in memory; commit is refused until it is released.
    pub fn hold_back(&mut self) {
        self.is_held_back = true;
    }

    /// Marks that what was held back is now written.
    pub fn release_held_back(&mut self) {
        self.is_held_back = false;
    }

    /// Tells whether a write is held back.
    pub fn is_held_back(&self) -> bool {
        self.is_held_back
    }

    /// Takes the next number of a counter; no number is given twice, and gaps are legal.
    ///
    /// Fails with `TooLarge` when one transaction takes more than the numbers in reserve.
    pub fn take_number(&mut self, name: CounterName) -> Result<u64, StorageError> {
        let key = name as u8;
        let counter = self.row(schema::COUNTER, &key)?.unwrap_or_default();
        let (number, ceiling) = (counter.next, counter.ceiling);
        if number >= ceiling {
            return Err(StorageError::TooLarge {
                what: "number block",
                bytes: usize::try_from(number).unwrap_or(usize::MAX),
                max: usize::try_from(ceiling).unwrap_or(usize::MAX),
            });
        }
        let next = number + 1;
        self.put(schema::COUNTER, &key, &Counter { next, ceiling })?;
        Ok(number)
    }

    /// Ends the transaction: the batch and the domains it changes.
    pub(super) fn finish(self) -> Result<(WriteBatch, u64), StorageError> {
        if self.is_held_back {
            return Err(StorageError::HeldBack);
        }
        let batch = self.overlay.into_batch();
        let domains = batch
            .tables
            .keys()
            .filter_map(|table| self.domains.get(table));
        let domains = domains.fold(0, |all, bit| all | bit);
        Ok((batch, domains))
    }

    fn checked<V: Value>(&self, value: &V) -> Result<Vec<u8>, StorageError> {
        let value = value.encode_value();
        if value.len() <= self.max_value_bytes {
            return Ok(value);
        }
        Err(StorageError::TooLarge {
            what: "value",
            bytes: value.len(),
            max: self.max_value_bytes,
        })
    }

    fn touch<K, V>(&mut self, table: Table<K, V>) {
        self.domains.insert(table.info.id, table.domain.bit());
    }
}

impl Snapshot for WriteTxn<'_> {
    fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        match self.overlay.get(table, key) {
            Known::Value(value) => Ok(Some(value.to_vec())),
            Known::Absent => Ok(None),
            Known::Below => self.base.get(table, key),
        }
    }

    fn get_many(
        &self,
        table: TableId,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
        if self.overlay.table(table).is_none() {
            return self.base.get_many(table, keys);
        }
        let mut values = Vec::with_capacity(keys.len());
        let mut below = Vec::new();
        for (at, key) in keys.iter().enumerate() {
            values.push(match self.overlay.get(table, key) {
                Known::Value(value) => Some(value.to_vec()),
                Known::Absent => None,
                Known::Below => {
                    below.push((at, *key));
                    None
                }
            });
        }
        if !below.is_empty() {
            let keys: Vec<&[u8]> = below.iter().map(|(_, key)| *key).collect();
            let found = self.base.get_many(table, &keys)?;
            for ((at, _), value) in below.into_iter().zip(found) {
                values[at] = value;
            }
        }
        Ok(values)
    }

    fn scan(&self, table: TableId, range: KeyRange<'_>, page: Page) -> Result<Rows, StorageError> {
        match self.overlay.table(table) {
            Some(changes) => merge::scan(self.base, table, changes, range, page),
            None => self.base.scan(table, range, page),
        }
    }
}

/// Rolls back when it is dropped before it is kept, which a panic does too.
struct Savepoint<'a, 'w> {
    txn: &'a mut WriteTxn<'w>,
    mark: Mark,
    was_held_back: bool,
    is_kept: bool,
}

impl<'a, 'w> Savepoint<'a, 'w> {
    fn begin(txn: &'a mut WriteTxn<'w>) -> Self {
        let mark = txn.overlay.mark();
        Self {
            was_held_back: txn.is_held_back,
            txn,
            mark,
            is_kept: false,
        }
    }
}

impl Drop for Savepoint<'_, '_> {
    fn drop(&mut self) {
        if self.is_kept {
            self.txn.overlay.keep();
        } else {
            self.txn.overlay.roll_back(&self.mark);
            self.txn.is_held_back = self.was_held_back;
        }
    }
}
