//! Intents: what the application asked for, durable before anything happens to it.

use std::fmt;

use bytes::Bytes;
use thiserror::Error;
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::storage::v1::{IntentKind, IntentState};
use xmtp_proto::{GroupId, MessageId};

use super::store;
use crate::delivery;
use crate::error::{Class, Coded};
use crate::storage::{StorageError, WriteTxn};
use crate::welcome;

/// Most unfinished intents of one group; one local read holds them all.
pub const MAX_UNFINISHED_INTENTS: usize = crate::limits::MAX_LOCAL_READ_ROWS as usize;

/// A new intent.
#[derive(Clone)]
pub struct NewIntent {
    /// The group.
    pub group: GroupId,
    /// What it asks for.
    pub kind: IntentKind,
    /// What the processor needs to prepare it.
    pub body: Bytes,
    /// The stable message id, for a message.
    pub message_id: Option<MessageId>,
}

impl fmt::Debug for NewIntent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.body.len();
        write!(
            f,
            "NewIntent({:?} in {}, {bytes} bytes)",
            self.kind,
            self.group.short()
        )
    }
}

/// Where a queued intent stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queued {
    /// It is queued under this number, now or since an earlier call with the same message id.
    Intent(u64),
    /// A message with this id is published already, under this delivery number.
    Published(u64),
}

/// Why an intent is not queued. Nothing is stored then.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum QueueError {
    /// The group is unknown or inactive.
    #[error("this installation is not an active member of the group; wait for a new Welcome")]
    Inactive,
    /// The group's queue is full.
    #[error("the group has {max} unfinished sends; wait until some are confirmed")]
    Full {
        /// The bound.
        max: usize,
    },
    /// The content is larger than any envelope may be.
    #[error("the content has {bytes} bytes, an envelope may have {max}; send less")]
    TooLarge {
        /// Its size in bytes.
        bytes: usize,
        /// The bound in bytes.
        max: usize,
    },
    /// The database failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl Coded for QueueError {
    fn code(&self) -> &'static str {
        match self {
            Self::Inactive => "send.inactive",
            Self::Full { .. } => "send.queue_full",
            Self::TooLarge { .. } => "send.too_large",
            Self::Storage(error) => error.code(),
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Inactive | Self::Full { .. } => Class::Wait,
            Self::TooLarge { .. } => Class::UserAction,
            Self::Storage(error) => error.class(),
        }
    }
}

/// Queues an intent behind the others of its group.
///
/// # Behavior
/// - The same message id is queued once: a published one is not sent again, an unfinished one is
///   joined, a failed one gets a new intent.
pub fn queue(txn: &mut WriteTxn<'_>, new: &NewIntent) -> Result<Queued, QueueError> {
    let active = welcome::store::group(txn, &new.group)?.is_some_and(|group| group.active);
    if !active {
        return Err(QueueError::Inactive);
    }
    let max = xmtp_proto::limits::BACKEND_DEFAULT_MAX_ENVELOPE_BYTES as usize;
    if new.body.len() > max {
        let bytes = new.body.len();
        return Err(QueueError::TooLarge { bytes, max });
    }
    let unfinished = store::unfinished(txn, &new.group)?;
    if let Some(id) = &new.message_id {
        if let Some(number) = delivery::store::number_of(txn, &new.group, id)? {
            return Ok(Queued::Published(number));
        }
        let earlier = unfinished
            .iter()
            .find(|intent| intent.message_id[..] == id.as_bytes()[..]);
        if let Some(intent) = earlier {
            return Ok(Queued::Intent(intent.intent_id));
        }
    }
    if unfinished.len() >= MAX_UNFINISHED_INTENTS {
        let max = MAX_UNFINISHED_INTENTS;
        return Err(QueueError::Full { max });
    }
    let mut intent = stored::Intent {
        group_id: new.group.as_bytes().to_vec().into(),
        body: new.body.clone(),
        created_ns: txn.now_ns(),
        ..Default::default()
    };
    intent.set_kind(new.kind);
    intent.set_state(IntentState::ToPublish);
    if let Some(id) = &new.message_id {
        intent.message_id = id.as_bytes().to_vec().into();
    }
    Ok(Queued::Intent(store::insert(txn, &new.group, intent)?))
}
