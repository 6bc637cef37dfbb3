//! What a batch and a key must be, checked before anything changes.

use super::{Handle, Version, refusal};
use crate::storage::{
    Change, Layout, MAX_VALUE_BYTES, MAX_WRITE_SET_BYTES, StorageError, TableChanges, TableInfo,
    WriteBatch,
};

pub(super) fn batch(
    handle: &Handle,
    version: &Version,
    batch: &WriteBatch,
) -> Result<(), StorageError> {
    let mut total = 0;
    for (id, changes) in &batch.tables {
        let info = handle.table(*id)?;
        cleared(&changes.cleared)?;
        let rows = version.tables.get(id).map(|table| &table.rows);
        for (key, change) in &changes.rows {
            self::key(info, key)?;
            let value = match change {
                Change::Put(value) | Change::New(value) => value.len(),
                Change::Delete => 0,
            };
            within_bound("value", value, MAX_VALUE_BYTES)?;
            total += key.len() + value;
            let is_present = rows.is_some_and(|rows| rows.contains_key(key.as_slice()));
            if matches!(change, Change::New(_)) && is_present && !is_cleared(changes, key) {
                return Err(StorageError::Exists { table: info.name });
            }
        }
    }
    within_bound("write set", total, MAX_WRITE_SET_BYTES)
}

fn is_cleared(changes: &TableChanges, key: &[u8]) -> bool {
    changes.cleared.iter().any(|(start, end)| {
        start.as_slice() <= key && end.as_ref().is_none_or(|end| key < end.as_slice())
    })
}

fn cleared(ranges: &[(Vec<u8>, Option<Vec<u8>>)]) -> Result<(), StorageError> {
    let is_proper = ranges
        .iter()
        .all(|(start, end)| end.as_ref().is_none_or(|end| start < end));
    let is_sorted = ranges
        .windows(2)
        .all(|pair| pair[0].1.as_ref().is_some_and(|end| *end <= pair[1].0));
    if is_proper && is_sorted {
        return Ok(());
    }
    Err(refusal(
        "clear ranges",
        "they are empty, unsorted or overlap",
    ))
}

pub(super) fn key(info: TableInfo, key: &[u8]) -> Result<(), StorageError> {
    if info.layout != Layout::Numbered {
        return Ok(());
    }
    match <[u8; 8]>::try_from(key).map(u64::from_be_bytes) {
        Ok(number) if number < 1 << 63 => Ok(()),
        _ => Err(refusal(
            "use a key",
            "a numbered table takes numbers below 2^63",
        )),
    }
}

fn within_bound(what: &'static str, bytes: usize, max: usize) -> Result<(), StorageError> {
    if bytes > max {
        return Err(StorageError::TooLarge { what, bytes, max });
    }
    Ok(())
}
