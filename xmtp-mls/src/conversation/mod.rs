//! Conversations: groups as the application sees them.

mod members;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use xmtp_core::engine::Engine;
use xmtp_core::limits::DEFAULT_BARRIER_TIMEOUT;
use xmtp_core::processor::Joined;
use xmtp_core::send::{NewIntent, Queued, Sent};
use xmtp_core::storage::{Priority, StorageError};
use xmtp_core::sync::{SyncError, SyncReport, SyncRequest};
use xmtp_core::welcome::{CREATED_DURABILITY, install_created};
use xmtp_proto::content::EncodedContent;
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::storage::v1::IntentKind;
use xmtp_proto::{GroupId, InboxId, MessageId, Topic};

use crate::Installation;
use crate::client::ClientError;
use crate::client::inbox;
use crate::content::{encode_payload, encode_text};
use crate::group::{GroupFault, NewConversation, NewGroup, Preset, create_group};

/// The conversations of a client.
#[derive(Clone, Debug)]
pub struct Conversations {
    engine: Engine,
    installation: Arc<Installation>,
}

impl Conversations {
    pub(crate) fn new(engine: Engine, installation: Arc<Installation>) -> Self {
        Self {
            engine,
            installation,
        }
    }

    /// Creates a group with a name and members; answers once the members' Welcomes are published.
    ///
    /// # Errors
    /// When a member cannot be added or a step fails. A group that exists already when a later
    /// step fails is listed, and [`Group::add_members`] goes on.
    pub async fn new_group(&self, name: &str, members: &[InboxId]) -> Result<Group, ClientError> {
        let context = self.engine.context();
        let own = inbox::newest_state(context, self.installation.inbox()).await?;
        let (sequence, _) = own.ok_or(ClientError::UnknownInbox)?;
        let additions = members::additions(context, members).await?;
        let new = NewGroup {
            conversation: NewConversation::Group(Preset::AllMembers),
            creator_sequence: sequence,
            name: name.to_owned(),
            description: String::new(),
            image_url: String::new(),
            app_data: String::new(),
            disappearing: None,
        };
        let installation = self.installation.clone();
        let id = context
            .database
            .write_queued(Priority::Foreground, CREATED_DURABILITY, move |txn| {
                create(txn, &installation, &new)
            })
            .await
            .map_err(local)?;
        let group = self.group(id);
        if !additions.is_empty() {
            group.change_members(additions, &[]).await?;
        }
        Ok(group)
    }

    /// Processes the Welcomes that the backend has now, so that the groups they lead to are
    /// listed. It fetches no messages; [`Group::sync`] does.
    ///
    /// # Errors
    /// A typed incomplete result; calling it again resumes.
    pub async fn sync(&self) -> Result<SyncReport, SyncError> {
        let topic = Topic::welcome(&self.installation.id());
        self.engine.sync(SyncRequest::new([topic])).await
    }

    /// Answers a group by its id, known or not.
    pub fn group(&self, id: GroupId) -> Group {
        Group {
            engine: self.engine.clone(),
            id,
        }
    }

    /// Lists the groups of this installation in id order.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn list(&self) -> Result<Vec<Group>, StorageError> {
        let mut found = Vec::new();
        let mut after = None;
        loop {
            let (groups, more) = self.engine.groups(after).await?;
            after = groups.last().map(|(group, _)| *group);
            found.extend(groups.into_iter().map(|(id, _)| self.group(id)));
            if !more {
                return Ok(found);
            }
        }
    }
}

fn create(
    txn: &mut xmtp_core::storage::WriteTxn<'_>,
    installation: &Installation,
    new: &NewGroup,
) -> Result<GroupId, GroupFault> {
    let (id, group) = create_group(txn, installation, new)?;
    let record = stored::GroupRecord {
        conversation_type: xmtp_proto::content::ConversationType::Group as u32,
        added_by_inbox: installation.inbox().to_hex(),
        created_ns: txn.now_ns(),
        epoch: group.epoch().as_u64(),
        name: new.name.clone(),
        epoch_authenticator: group.epoch_authenticator().as_slice().to_vec().into(),
        ..Default::default()
    };
    let joined = Joined {
        record,
        messages: Vec::new(),
    };
    install_created(txn, id, joined)?;
    Ok(id)
}

fn local(fault: GroupFault) -> ClientError {
    match fault {
        GroupFault::Storage(error) => ClientError::Storage(error),
        other => ClientError::Local {
            code: xmtp_core::error::Coded::code(&other),
        },
    }
}

/// One group.
#[derive(Clone, Debug)]
pub struct Group {
    engine: Engine,
    id: GroupId,
}

impl Group {
    /// Answers the group's id.
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// Answers the group's name.
    ///
    /// # Errors
    /// When the group is unknown or the database fails.
    pub async fn name(&self) -> Result<String, ClientError> {
        Ok(self.record().await?.name)
    }

    /// Tells whether this installation is an active member.
    ///
    /// # Errors
    /// When the group is unknown or the database fails.
    pub async fn is_active(&self) -> Result<bool, ClientError> {
        Ok(self.record().await?.active)
    }

    /// Answers the group's epoch as ordered processing has left it.
    ///
    /// # Errors
    /// When the group is unknown or the database fails.
    pub async fn epoch(&self) -> Result<u64, ClientError> {
        Ok(self.record().await?.epoch)
    }

    /// Answers the epoch authenticator: equal on two installations that agree on the group.
    ///
    /// # Errors
    /// When the group is unknown or the database fails.
    pub async fn epoch_authenticator(&self) -> Result<Bytes, ClientError> {
        Ok(self.record().await?.epoch_authenticator)
    }

    /// Processes the group through the head that the backend has now.
    ///
    /// # Errors
    /// A typed incomplete result; calling it again resumes.
    pub async fn sync(&self) -> Result<SyncReport, SyncError> {
        let topic = Topic::group(&self.id);
        self.engine.sync(SyncRequest::new([topic])).await
    }

    /// Sends text, and answers once ordered processing has confirmed it.
    ///
    /// # Errors
    /// When it is refused or rejected, or when its outcome is open at the deadline; do not resend
    /// what is published or unknown.
    pub async fn send_text(&self, text: &str) -> Result<Sent, ClientError> {
        self.send(&encode_text(text)).await
    }

    /// Sends content, and answers once ordered processing has confirmed it.
    ///
    /// # Errors
    /// As [`Group::send_text`].
    pub async fn send(&self, content: &EncodedContent) -> Result<Sent, ClientError> {
        self.send_within(content, DEFAULT_BARRIER_TIMEOUT).await
    }

    /// Does the same within a time.
    ///
    /// # Errors
    /// As [`Group::send_text`].
    pub async fn send_within(
        &self,
        content: &EncodedContent,
        timeout: Duration,
    ) -> Result<Sent, ClientError> {
        let (_, intent) = self.message(content, &self.fresh_key());
        Ok(self.engine.sender().send(intent, timeout).await?)
    }

    /// Sends content under an idempotency key of the application's: the same key and content in
    /// the same group are one message, however often this is called.
    ///
    /// # Errors
    /// As [`Group::send_text`].
    pub async fn send_with_key(
        &self,
        content: &EncodedContent,
        idempotency_key: &str,
    ) -> Result<Sent, ClientError> {
        let (_, intent) = self.message(content, idempotency_key);
        let sender = self.engine.sender();
        Ok(sender.send(intent, DEFAULT_BARRIER_TIMEOUT).await?)
    }

    /// Queues content and answers once that is durable; a worker sends it.
    ///
    /// # Errors
    /// When it is refused; nothing is stored then.
    pub async fn enqueue(&self, content: &EncodedContent) -> Result<MessageId, ClientError> {
        let (id, intent) = self.message(content, &self.fresh_key());
        match self.engine.sender().enqueue(intent).await? {
            Queued::Intent(_) | Queued::Published(_) => Ok(id),
        }
    }

    /// Adds members by inbox id, with every installation that can be added.
    ///
    /// # Errors
    /// When an inbox is unknown, none of its installations can be added, or sending fails.
    pub async fn add_members(&self, inboxes: &[InboxId]) -> Result<Sent, ClientError> {
        let additions = members::additions(self.engine.context(), inboxes).await?;
        self.change_members(additions, &[]).await
    }

    /// Removes members by inbox id.
    ///
    /// # Errors
    /// When sending fails.
    pub async fn remove_members(&self, inboxes: &[InboxId]) -> Result<Sent, ClientError> {
        self.change_members(Vec::new(), inboxes).await
    }

    /// Renames the group.
    ///
    /// # Errors
    /// When sending fails.
    pub async fn rename(&self, name: &str) -> Result<Sent, ClientError> {
        let attribute = crate::group::Attribute::Name.name().to_owned();
        let body = stored::MetadataIntent {
            attributes: [(attribute, name.to_owned())].into(),
        };
        self.intend(IntentKind::ChangeMetadata, body.encode_to_vec())
            .await
    }

    /// Renews this installation's keys in the group.
    ///
    /// # Errors
    /// When sending fails.
    pub async fn update_keys(&self) -> Result<Sent, ClientError> {
        self.intend(IntentKind::UpdateKeys, Vec::new()).await
    }

    async fn change_members(
        &self,
        additions: Vec<stored::MemberAddition>,
        removed: &[InboxId],
    ) -> Result<Sent, ClientError> {
        let body = stored::MembershipIntent {
            additions,
            removed_inboxes: removed.iter().map(InboxId::to_hex).collect(),
        };
        self.intend(IntentKind::ChangeMembers, body.encode_to_vec())
            .await
    }

    async fn intend(&self, kind: IntentKind, body: Vec<u8>) -> Result<Sent, ClientError> {
        let intent = NewIntent {
            group: self.id,
            kind,
            body: body.into(),
            message_id: None,
        };
        let sender = self.engine.sender();
        Ok(sender.send(intent, DEFAULT_BARRIER_TIMEOUT).await?)
    }

    /// The idempotency key of a message that is sent once: its time, as released clients have it.
    fn fresh_key(&self) -> String {
        crate::content::idempotency_key(self.engine.context().runtime.now_ns())
    }

    fn message(&self, content: &EncodedContent, key: &str) -> (MessageId, NewIntent) {
        let (id, plaintext) = encode_payload(&self.id, content, key);
        let intent = NewIntent {
            group: self.id,
            kind: IntentKind::SendMessage,
            body: plaintext.into(),
            message_id: Some(id),
        };
        (id, intent)
    }

    async fn record(&self) -> Result<stored::GroupRecord, ClientError> {
        let record = self.engine.group(self.id).await?;
        record.ok_or(ClientError::UnknownGroup)
    }
}
