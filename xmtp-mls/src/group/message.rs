//! The bytes of a group's messages.

use openmls::framing::{ContentType, MlsMessageIn, ProtocolMessage};
use openmls::group::MlsGroup;
use openmls::prelude::{CreateMessageError, ProcessedMessage};
use tls_codec::Deserialize;
use xmtp_core::storage::StorageError;
use xmtp_proto::id::GroupId;

use super::GroupFault;
use crate::{Installation, Provider};

/// What a message carries; its frame says so in the clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// An application message.
    Application,
    /// A standalone proposal.
    Proposal,
    /// A commit.
    Commit,
}

/// A message whose frame has been read, and nothing else.
#[derive(Clone, Debug)]
pub struct Frame {
    message: ProtocolMessage,
    group: GroupId,
}

impl Frame {
    /// Reads the frame of an MLS message; it must fill the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, GroupFault> {
        let message = MlsMessageIn::tls_deserialize_exact(bytes)
            .map_err(|_| GroupFault::Invalid("encoding"))?;
        let message = message
            .try_into_protocol_message()
            .map_err(|_| GroupFault::Invalid("not a group message"))?;
        let group = GroupId::try_from(message.group_id().as_slice())
            .map_err(|_| GroupFault::Invalid("group id"))?;
        Ok(Self { message, group })
    }

    /// Answers what it carries.
    pub fn kind(&self) -> FrameKind {
        match self.message.content_type() {
            ContentType::Application => FrameKind::Application,
            ContentType::Proposal => FrameKind::Proposal,
            ContentType::Commit => FrameKind::Commit,
        }
    }

    /// Answers the group it is for.
    pub fn group_id(&self) -> &GroupId {
        &self.group
    }

    /// Answers the epoch it was made in.
    pub fn epoch(&self) -> u64 {
        self.message.epoch().as_u64()
    }

    /// Gives the message to openmls.
    pub fn into_message(self) -> ProtocolMessage {
        self.message
    }
}

/// Loads a group.
pub fn load(provider: &Provider<'_, '_>, group: &GroupId) -> Result<MlsGroup, GroupFault> {
    let id = openmls::group::GroupId::from_slice(group.as_bytes());
    let loaded = MlsGroup::load(provider.store(), &id).map_err(GroupFault::Storage);
    provider.settle(loaded)?.ok_or(GroupFault::NoGroup)
}

/// Processes a received message. Nothing is merged.
pub fn process(
    group: &mut MlsGroup,
    provider: &Provider<'_, '_>,
    frame: Frame,
) -> Result<ProcessedMessage, GroupFault> {
    let processed = group.process_message(provider, frame.into_message());
    provider.settle(processed.map_err(from_process))
}

/// Encrypts an application message and answers its MLS bytes.
pub fn encrypt(
    group: &mut MlsGroup,
    provider: &Provider<'_, '_>,
    signer: &Installation,
    plaintext: &[u8],
) -> Result<Vec<u8>, GroupFault> {
    let created = group.create_message(provider, signer, plaintext);
    let created = created.map_err(|error| match error {
        CreateMessageError::LibraryError(_) => GroupFault::Library,
        CreateMessageError::GroupStateError(error) => error.into(),
    });
    let message = provider.settle(created)?;
    message.to_bytes().map_err(|_| GroupFault::Library)
}

fn from_process(error: openmls::group::ProcessMessageError<StorageError>) -> GroupFault {
    error.into()
}
