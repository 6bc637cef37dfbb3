//! Rules of messages, their indexes, delivery numbers and D.

use xmtp_proto::{GroupId, MessageId};

use super::{Faults, each};
use crate::storage::schema::{
    COUNTER, CounterName, DELIVERED, MESSAGE, MESSAGE_BY_GROUP, MESSAGE_ID,
};
use crate::storage::{Read, Snapshot, StorageError};

pub(super) fn check(snapshot: &dyn Snapshot, faults: &mut Faults) -> Result<(), StorageError> {
    each(snapshot, COUNTER, |name, counter| {
        let (next, ceiling) = (counter.next, counter.ceiling);
        faults.expect(
            next <= ceiling,
            "next <= ceiling",
            format_args!("counter {name}: next {next}, ceiling {ceiling}"),
        );
        Ok(())
    })?;
    let next = next(snapshot)?;
    messages(snapshot, faults, next)?;
    indexes(snapshot, faults)?;
    each(snapshot, DELIVERED, |group, delivered| {
        let number = delivered.number;
        faults.expect(
            number < next || number == 0,
            "D < next",
            format_args!("{group:?} at {number}, next {next}"),
        );
        Ok(())
    })
}

fn next(snapshot: &dyn Snapshot) -> Result<u64, StorageError> {
    let counter = snapshot.row(COUNTER, &(CounterName::Delivery as u8))?;
    Ok(counter.unwrap_or_default().next)
}

fn messages(snapshot: &dyn Snapshot, faults: &mut Faults, next: u64) -> Result<(), StorageError> {
    each(snapshot, MESSAGE, |number, message| {
        faults.expect(
            number != 0 && number < next,
            "message number < next",
            format_args!("message {number}, next {next}"),
        );
        let group = GroupId::try_from(message.group_id.as_ref());
        let id = MessageId::try_from(message.message_id.as_ref());
        let (Ok(group), Ok(id)) = (group, id) else {
            faults.add("message has ids", format_args!("message {number}"));
            return Ok(());
        };
        let by_group = snapshot.row(MESSAGE_BY_GROUP, &(group, number))?;
        faults.expect(
            by_group.is_some(),
            "message is in its group's index",
            format_args!("message {number}"),
        );
        let by_id = snapshot.row(MESSAGE_ID, &(group, prefix(&id)))?;
        faults.expect(
            by_id.is_some_and(|entry| entry.numbers.contains(&number)),
            "message is in the id index",
            format_args!("message {number}"),
        );
        Ok(())
    })
}

fn indexes(snapshot: &dyn Snapshot, faults: &mut Faults) -> Result<(), StorageError> {
    each(snapshot, MESSAGE_BY_GROUP, |(group, number), _| {
        let message = snapshot.row(MESSAGE, &number)?;
        faults.expect(
            message.is_some_and(|message| message.group_id[..] == group.as_bytes()[..]),
            "group index has a message",
            format_args!("message {number}"),
        );
        Ok(())
    })?;
    each(snapshot, MESSAGE_ID, |(group, id), entry| {
        faults.expect(
            !entry.numbers.is_empty(),
            "id index has a message",
            "no number",
        );
        let mut ids = Vec::new();
        for number in entry.numbers {
            let message = snapshot.row(MESSAGE, &number)?.unwrap_or_default();
            faults.expect(
                message.group_id[..] == group.as_bytes()[..] && message.message_id.starts_with(&id),
                "id index has a message",
                format_args!("message {number}"),
            );
            ids.push(message.message_id);
        }
        let count = ids.len();
        ids.sort();
        ids.dedup();
        faults.expect(
            ids.len() == count,
            "one number for a message id",
            format_args!("{count} numbers for {} ids", ids.len()),
        );
        Ok(())
    })
}

fn prefix(id: &MessageId) -> [u8; 8] {
    let [a, b, c, d, e, f, g, h, ..] = *id.as_bytes();
    [a, b, c, d, e, f, g, h]
}
