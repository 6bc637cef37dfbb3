//! Typed access to deliverable messages, D and the lease.

use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{GroupId, MessageId};

use crate::processor::NewMessage;
use crate::storage::schema::{CounterName, MESSAGE, MESSAGE_BY_GROUP, MESSAGE_ID};
use crate::storage::{Raw, Read, StorageError, WriteTxn};

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
    if number_of(txn, &group, &id)?.is_some() {
        return Ok(None);
    }
    let number = txn.take_number(CounterName::Delivery)?;
    txn.put_new(MESSAGE, &number, message)?;
    txn.put_new(MESSAGE_BY_GROUP, &(group, number), &Raw::default())?;
    let key = (group, prefix(&id));
    let mut numbers: stored::MessageNumbers = txn.row(MESSAGE_ID, &key)?.unwrap_or_default();
    numbers.numbers.push(number);
    txn.put(MESSAGE_ID, &key, &numbers)?;
    Ok(Some(number))
}

/// Answers the delivery number of a message, if the group holds it.
pub(crate) fn number_of(
    snapshot: &(impl Read + ?Sized),
    group: &GroupId,
    id: &MessageId,
) -> Result<Option<u64>, StorageError> {
    let numbers = snapshot.row(MESSAGE_ID, &(*group, prefix(id)))?;
    for number in numbers.unwrap_or_default().numbers {
        let message = snapshot.row(MESSAGE, &number)?;
        if message.is_some_and(|message| message.message_id[..] == id.as_bytes()[..]) {
            return Ok(Some(number));
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
