//! Typed reads over messages, for the report.

use xmtp_proto::GroupId;

use crate::limits::MAX_LOCAL_READ_BYTES;
use crate::storage::schema::{COUNTER, CounterName, MESSAGE_BY_GROUP};
use crate::storage::{Order, Page, Read, StorageError};

/// Numbers counted in one page.
const PAGE_ROWS: u32 = 1_024;

/// Answers the delivery number that the next message gets.
pub(super) fn next_number(snapshot: &(impl Read + ?Sized)) -> Result<u64, StorageError> {
    let counter = snapshot.row(COUNTER, &(CounterName::Delivery as u8))?;
    Ok(counter.map_or(0, |counter| counter.next))
}

/// Counts a group's messages from a delivery number on.
pub(super) fn count_messages(
    snapshot: &(impl Read + ?Sized),
    group: &GroupId,
    from: u64,
) -> Result<u64, StorageError> {
    let page = Page {
        rows: PAGE_ROWS,
        bytes: MAX_LOCAL_READ_BYTES,
        order: Order::Ascending,
    };
    let mut after = from.checked_sub(1).map(|before| (*group, before));
    let mut count = 0;
    loop {
        let found = snapshot.page(MESSAGE_BY_GROUP, group, after.as_ref(), page)?;
        count += found.rows.len() as u64;
        match found.rows.last() {
            Some((last, _)) if found.more => after = Some(*last),
            _ => return Ok(count),
        }
    }
}
