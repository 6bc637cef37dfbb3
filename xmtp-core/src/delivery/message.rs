//! A stored message as the application sees it.

use std::fmt;

use bytes::Bytes;
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::storage::v1::MessageKind;
use xmtp_proto::{DatabaseId, GroupId, MessageId, SequenceId};

use super::cursor::DeliveryCursor;
use crate::storage::StorageError;

/// A message of a group.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// The group it is of.
    pub group: GroupId,
    /// Its stable id: a repeated delivery carries the same one.
    pub id: MessageId,
    /// The sequence id of the envelope it came in; 0 for one that came in none.
    pub sequence: SequenceId,
    /// The inbox that sent it, as hex.
    pub sender_inbox: String,
    /// When the sender sent it, in nanoseconds since the Unix epoch.
    pub sent_ns: u64,
    /// When the backend stored it, in nanoseconds since the Unix epoch.
    pub server_ns: u64,
    /// Where it comes from.
    pub kind: MessageKind,
    /// The encoded `EncodedContent`, as carried.
    pub content: Bytes,
    /// Its local delivery number.
    pub number: u64,
    database: DatabaseId,
}

impl Message {
    /// Makes the public form of a stored message.
    pub(super) fn new(
        database: DatabaseId,
        number: u64,
        message: stored::StoredMessage,
    ) -> Result<Self, StorageError> {
        let kind = message.kind();
        let damaged = |what| StorageError::Corrupt {
            table: "message",
            what,
        };
        Ok(Self {
            group: group_of(&message)?,
            id: MessageId::try_from(&message.message_id[..]).map_err(|_| damaged("message id"))?,
            sequence: SequenceId::checked(message.sequence_id)
                .map_err(|_| damaged("sequence id"))?,
            sender_inbox: message.sender_inbox,
            sent_ns: message.sent_ns,
            server_ns: message.server_ns,
            kind,
            content: message.content,
            number,
            database,
        })
    }

    /// Answers the cursor that resumes strictly after this message.
    pub fn cursor(&self) -> DeliveryCursor {
        DeliveryCursor::new(self.database, self.number)
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("group", &self.group)
            .field("id", &self.id)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// Reads the group of a stored message.
pub(super) fn group_of(message: &stored::StoredMessage) -> Result<GroupId, StorageError> {
    GroupId::try_from(&message.group_id[..]).map_err(|_| StorageError::Corrupt {
        table: "message",
        what: "group id",
    })
}

/// Tells whether a stored message may be handed over at a time (STR-103).
pub(super) fn is_eligible(message: &stored::StoredMessage, now_ns: u64) -> bool {
    let is_shown = message.kind() != MessageKind::Unspecified;
    let has_expired = message.expires_ns != 0 && message.expires_ns <= now_ns;
    is_shown && !message.deleted && !has_expired
}
