//! Counters that never give a number twice, not even after a power loss (STR-090).
//!
//! A number is taken in a row under the writer, so the commit that uses it may be one that a
//! power loss undoes. Numbers are therefore taken only below a ceiling that a flushed commit
//! raised before, and every open starts again at the ceiling. Gaps are legal, reuse is not.

use xmtp_proto::storage::v1::Counter;

use super::schema::{COUNTER, CounterName};
use super::{Read, Snapshot, StorageError, WriteTxn};

/// Numbers left below each ceiling when a transaction begins: the most that one may take.
pub(super) const NUMBER_RESERVE: u64 = 4_096;
/// Numbers by which a ceiling is raised.
pub(super) const NUMBER_BLOCK: u64 = 65_536;
/// The first number of a counter; 0 stands for "none yet".
const FIRST_NUMBER: u64 = 1;
/// Keys of numbered tables stay below it.
const NUMBER_LIMIT: u64 = 1 << 63;

const NAMES: [CounterName; 2] = [CounterName::Delivery, CounterName::Intent];

/// Tells whether every counter has its reserve.
pub(super) fn has_reserve(snapshot: &dyn Snapshot) -> Result<bool, StorageError> {
    let counters = snapshot.rows(COUNTER, &NAMES.map(|name| name as u8))?;
    Ok(counters.into_iter().all(|counter| {
        let counter = counter.unwrap_or_default();
        counter.ceiling.saturating_sub(counter.next) >= NUMBER_RESERVE
    }))
}

/// Raises the ceilings that are low; the commit must be flushed before a number is taken.
pub(super) fn raise(txn: &mut WriteTxn<'_>) -> Result<(), StorageError> {
    for key in NAMES.map(|name| name as u8) {
        let counter = txn.row(COUNTER, &key)?.unwrap_or_default();
        if counter.ceiling.saturating_sub(counter.next) < NUMBER_RESERVE {
            put(txn, key, counter.next, counter.ceiling)?;
        }
    }
    Ok(())
}

/// Lifts every counter to its ceiling, above whatever a power loss may have undone.
pub(super) fn lift(txn: &mut WriteTxn<'_>) -> Result<(), StorageError> {
    for key in NAMES.map(|name| name as u8) {
        let counter = txn.row(COUNTER, &key)?.unwrap_or_default();
        put(txn, key, counter.ceiling, counter.ceiling)?;
    }
    Ok(())
}

fn put(txn: &mut WriteTxn<'_>, key: u8, next: u64, ceiling: u64) -> Result<(), StorageError> {
    let next = next.max(FIRST_NUMBER);
    let ceiling = ceiling.max(next) + NUMBER_BLOCK;
    if ceiling > NUMBER_LIMIT {
        return Err(StorageError::Corrupt {
            table: COUNTER.info.name,
            what: "ceiling",
        });
    }
    txn.put(COUNTER, &key, &Counter { next, ceiling })
}
