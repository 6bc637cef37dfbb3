//! Typed access to deliverable messages, D and the lease.

use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{GroupId, MessageId};

use crate::limits::{MAX_LOCAL_READ_BYTES, MAX_LOCAL_READ_ROWS};
use crate::processor::NewMessage;
use crate::storage::schema::{
    All, COUNTER, CounterName, DELIVERED, LEASE, MESSAGE, MESSAGE_BY_GROUP, MESSAGE_ID,
};
use crate::storage::{Order, Page, Raw, Read, StorageError, TypedPage, WriteTxn};

/// Makes a message deliverable: gives it the next delivery number, once (STR-090).
///
/// Answers the number, or `None` when the group holds a message with this id already.
pub(crate) fn insert_message(
    txn: &mut WriteTxn<'_>,
    new: &NewMessage,
) -> Result<Option<u64>, StorageError> {
    let message = &new.message;
    let damaged = |what| StorageError::Corrupt {
        table: MESSAGE.info.name,
        what,
    };
    let group = GroupId::try_from(&message.group_id[..]).map_err(|_| damaged("group id"))?;
    let id = MessageId::try_from(&message.message_id[..]).map_err(|_| damaged("message id"))?;
    let key = (group, prefix(&id));
    let known: Option<stored::MessageNumbers> = txn.row(MESSAGE_ID, &key)?;
    if let Some(known) = &known
        && among(txn, &known.numbers, &id)?.is_some()
    {
        return Ok(None);
    }
    let number = txn.take_number(CounterName::Delivery)?;
    txn.put_new(MESSAGE, &number, message)?;
    txn.put_new(MESSAGE_BY_GROUP, &(group, number), &Raw::default())?;
    match known {
        None => {
            let numbers = vec![number];
            txn.put_new(MESSAGE_ID, &key, &stored::MessageNumbers { numbers })?;
        }
        Some(mut known) => {
            known.numbers.push(number);
            txn.put(MESSAGE_ID, &key, &known)?;
        }
    }
    Ok(Some(number))
}

/// Answers the delivery number of a message, if the group holds it.
pub(crate) fn number_of(
    snapshot: &(impl Read + ?Sized),
    group: &GroupId,
    id: &MessageId,
) -> Result<Option<u64>, StorageError> {
    let numbers = snapshot.row(MESSAGE_ID, &(*group, prefix(id)))?;
    among(snapshot, &numbers.unwrap_or_default().numbers, id)
}

/// Answers which of these delivery numbers is the message's.
fn among(
    snapshot: &(impl Read + ?Sized),
    numbers: &[u64],
    id: &MessageId,
) -> Result<Option<u64>, StorageError> {
    for number in numbers {
        let message = snapshot.row(MESSAGE, number)?;
        if message.is_some_and(|message| message.message_id[..] == id.as_bytes()[..]) {
            return Ok(Some(*number));
        }
    }
    Ok(None)
}

/// The part of a message id that is indexed; the row itself settles collisions.
fn prefix(id: &MessageId) -> [u8; 8] {
    let mut prefix = [0; 8];
    prefix.copy_from_slice(&id.as_bytes()[..8]);
    prefix
}

/// Answers the backend's sequence id of a deliverable message; zero when it is gone.
pub(crate) fn sequence_of(
    snapshot: &(impl Read + ?Sized),
    number: u64,
) -> Result<xmtp_proto::SequenceId, StorageError> {
    let message = snapshot.row(MESSAGE, &number)?;
    let sequence = message.map_or(0, |message| message.sequence_id);
    Ok(xmtp_proto::SequenceId::saturating(sequence))
}

/// Reads a message by its delivery number.
pub(crate) fn message(
    snapshot: &(impl Read + ?Sized),
    number: u64,
) -> Result<Option<stored::StoredMessage>, StorageError> {
    snapshot.row(MESSAGE, &number)
}

/// Reads one page of messages with greater numbers, in order.
pub(crate) fn messages_above(
    snapshot: &(impl Read + ?Sized),
    number: u64,
) -> Result<TypedPage<u64, stored::StoredMessage>, StorageError> {
    snapshot.page(MESSAGE, &All, Some(&number), page(Order::Ascending))
}

/// Reads one page of messages with smaller numbers, newest first.
pub(crate) fn messages_below(
    snapshot: &(impl Read + ?Sized),
    number: u64,
) -> Result<TypedPage<u64, stored::StoredMessage>, StorageError> {
    snapshot.page(MESSAGE, &All, Some(&number), page(Order::Descending))
}

/// Answers the greatest delivery number given so far.
pub(crate) fn newest_number(snapshot: &(impl Read + ?Sized)) -> Result<u64, StorageError> {
    let counter = snapshot.row(COUNTER, &(CounterName::Delivery as u8))?;
    Ok(counter.unwrap_or_default().next.saturating_sub(1))
}

/// Answers the number next to `number` in a group: the first above it or the last below it, by
/// the order.
pub(crate) fn number_beside(
    snapshot: &(impl Read + ?Sized),
    group: &GroupId,
    number: u64,
    order: Order,
) -> Result<Option<u64>, StorageError> {
    let from = Some(&(*group, number));
    let found = snapshot.page(MESSAGE_BY_GROUP, group, from, one(order))?;
    Ok(found.rows.first().map(|((_, number), _)| *number))
}

/// Answers the next group that holds messages.
pub(crate) fn group_after(
    snapshot: &(impl Read + ?Sized),
    after: Option<&GroupId>,
) -> Result<Option<GroupId>, StorageError> {
    let after = after.map(|group| (*group, u64::MAX));
    let found = snapshot.page(
        MESSAGE_BY_GROUP,
        &All,
        after.as_ref(),
        one(Order::Ascending),
    )?;
    Ok(found.rows.first().map(|((group, _), _)| *group))
}

/// Answers D of a group; zero when it has none (STR-091).
pub(crate) fn delivered(
    snapshot: &(impl Read + ?Sized),
    group: &GroupId,
) -> Result<u64, StorageError> {
    Ok(snapshot.row(DELIVERED, group)?.unwrap_or_default().number)
}

/// Moves D of a group; the caller has checked the lease in the same transaction.
pub(crate) fn put_delivered(
    txn: &mut WriteTxn<'_>,
    group: &GroupId,
    number: u64,
) -> Result<(), StorageError> {
    txn.put(DELIVERED, group, &stored::Delivered { number })
}

/// Reads the lease of the default consumer.
pub(crate) fn lease(snapshot: &(impl Read + ?Sized)) -> Result<stored::Lease, StorageError> {
    Ok(snapshot.row(LEASE, &())?.unwrap_or_default())
}

/// Writes the lease of the default consumer.
pub(crate) fn put_lease(txn: &mut WriteTxn<'_>, lease: &stored::Lease) -> Result<(), StorageError> {
    txn.put(LEASE, &(), lease)
}

fn page(order: Order) -> Page {
    Page {
        rows: MAX_LOCAL_READ_ROWS,
        bytes: MAX_LOCAL_READ_BYTES,
        order,
    }
}

fn one(order: Order) -> Page {
    Page {
        rows: 1,
        ..page(order)
    }
}
