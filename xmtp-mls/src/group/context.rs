//! What a group's context says, whichever form it has.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use openmls::group::{GroupContext as MlsContext, MlsGroup};
use openmls::prelude::{Extension, Extensions, UnknownExtension};
use prost::Message;
use semver::Version;
use thiserror::Error;
use xmtp_proto::content::{
    ComponentMetadata, ConversationType, GroupMembership, GroupMetadataV1, GroupMutableMetadataV1,
    GroupMutablePermissionsV1, Inboxes, OneshotMessage, PolicySet,
};
use xmtp_proto::id::{InboxId, InstallationId, SequenceId};
use zeroize::Zeroizing;

use super::{dictionary, tls};

/// The numbers of our extensions.
pub mod extension_type {
    /// What never changes about a group.
    pub const IMMUTABLE_METADATA: u16 = 0xf000;
    /// Attributes and roles of a group.
    pub const MUTABLE_METADATA: u16 = 0xff00;
    /// Members of a group.
    pub const MEMBERSHIP: u16 = 0xff01;
    /// Rules of a group.
    pub const PERMISSIONS: u16 = 0xff02;
    /// The key that Welcomes are wrapped to; in key packages.
    pub const WRAPPER_ENCRYPTION: u16 = 0xff03;
    /// The AEADs read behind Welcome pointers; in key packages.
    pub const POINTEE_AEAD_TYPES: u16 = 0xff04;
}

/// An attribute of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attribute {
    /// The name.
    Name,
    /// The description.
    Description,
    /// The address of a square image.
    ImageUrl,
    /// Text for the application.
    AppData,
    /// From when on messages disappear, in nanoseconds.
    DisappearFrom,
    /// After how long messages disappear, in nanoseconds.
    DisappearIn,
    /// The oldest version that may take part.
    VersionFloor,
    /// The secret that the commit log is signed with. Do not show it.
    CommitLogSigner,
}

impl Attribute {
    /// Answers the name under which the extension form and transcripts have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Name => "group_name",
            Self::Description => "description",
            Self::ImageUrl => "group_image_url_square",
            Self::AppData => "app_data",
            Self::DisappearFrom => "message_disappear_from_ns",
            Self::DisappearIn => "message_disappear_in_ns",
            Self::VersionFloor => "minimum_supported_protocol_version",
            Self::CommitLogSigner => "_commit_log_signer",
        }
    }
}

/// A context that cannot be read.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ContextError {
    /// A part is not there.
    #[error("the group's context has no {0}")]
    Missing(&'static str),
    /// A part is not what it must be.
    #[error("the group's context has a malformed {0}")]
    Malformed(&'static str),
    /// The number of a member's identity update is no sequence id.
    #[error("the group's context names an identity update that cannot be")]
    OutOfRange,
}

/// Which form the context has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextForm {
    /// Four extensions.
    Extensions,
    /// One dictionary of components.
    Dictionary,
}

/// The rules of a group.
#[derive(Clone, Debug, PartialEq)]
pub enum Policies {
    /// Of the extension form.
    Set(PolicySet),
    /// Of the dictionary form, by component.
    Registry(BTreeMap<u16, ComponentMetadata>),
}

/// What a group's context says.
#[derive(Clone, PartialEq)]
pub struct GroupContext {
    /// Which form it has.
    pub form: ContextForm,
    /// What the group is for.
    pub conversation_type: ConversationType,
    /// The inbox that created the group; it has no lasting power.
    pub creator: InboxId,
    /// The pair of a DM.
    pub dm: Option<(InboxId, InboxId)>,
    /// The request of a one-shot group.
    pub oneshot: Option<OneshotMessage>,
    /// The identity update that each member's installations are taken from.
    pub members: BTreeMap<InboxId, SequenceId>,
    /// The installations that could not be added, over the whole group.
    pub failed: BTreeSet<InstallationId>,
    /// The admins.
    pub admins: BTreeSet<InboxId>,
    /// The super admins.
    pub super_admins: BTreeSet<InboxId>,
    /// The attributes that are set, by name; one of them is a secret.
    pub attributes: BTreeMap<String, String>,
    /// The rules.
    pub policies: Policies,
}

// Attributes hold a secret and an application's text, so they are counted and not shown.
impl fmt::Debug for GroupContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupContext")
            .field("form", &self.form)
            .field("conversation_type", &self.conversation_type)
            .field("members", &self.members.len())
            .field("attributes", &self.attributes.len())
            .finish_non_exhaustive()
    }
}

impl GroupContext {
    /// Reads the context of a group.
    pub fn of(group: &MlsGroup) -> Result<Self, ContextError> {
        Self::read(group.extensions())
    }

    /// Reads context extensions of either form.
    pub fn read(extensions: &Extensions<MlsContext>) -> Result<Self, ContextError> {
        match extensions.app_data_dictionary() {
            Some(extension) if dictionary::is_form(extension.dictionary()) => {
                dictionary::read(extension.dictionary())
            }
            _ => read_extensions(extensions),
        }
    }

    /// Answers an attribute, when it is set.
    pub fn attribute(&self, attribute: Attribute) -> Option<&str> {
        self.attributes.get(attribute.name()).map(String::as_str)
    }

    /// Answers the oldest version that may take part; a malformed one never pauses a group.
    pub fn floor(&self) -> Option<Version> {
        Version::parse(self.attribute(Attribute::VersionFloor)?).ok()
    }

    /// Answers from when on and after how long messages disappear, when they do.
    pub fn disappearing(&self) -> Option<(u64, u64)> {
        let value = |attribute| {
            let value = self.attribute(attribute)?.parse::<i64>().ok()?;
            u64::try_from(value).ok().filter(|value| *value > 0)
        };
        Some((
            value(Attribute::DisappearFrom)?,
            value(Attribute::DisappearIn)?,
        ))
    }

    /// Answers the seed of the commit log's key, when it is set and well formed.
    pub fn commit_log_seed(&self) -> Option<Zeroizing<[u8; 32]>> {
        let mut seed = Zeroizing::new([0; 32]);
        let text = self.attribute(Attribute::CommitLogSigner)?;
        hex::decode_to_slice(text, seed.as_mut_slice()).ok()?;
        Some(seed)
    }

    /// Answers the name that all groups of a DM's pair share.
    pub fn dm_id(&self) -> Option<String> {
        let (one, two) = self.dm?;
        let (low, high) = (one.min(two), one.max(two));
        Some(format!("dm:{}:{}", low.to_hex(), high.to_hex()))
    }

    /// Tells whether an inbox is an admin; super admins are.
    pub fn is_admin(&self, inbox: &InboxId) -> bool {
        self.admins.contains(inbox) || self.is_super_admin(inbox)
    }

    /// Tells whether an inbox is a super admin.
    pub fn is_super_admin(&self, inbox: &InboxId) -> bool {
        self.super_admins.contains(inbox)
    }

    /// Answers the member list as the extension form carries it.
    pub fn to_membership(&self) -> GroupMembership {
        let members = self.members.iter();
        let failed = self.failed.iter();
        GroupMembership {
            members: members
                .map(|(inbox, id)| (inbox.to_hex(), id.get()))
                .collect(),
            failed_installations: failed.map(|id| id.as_bytes().to_vec().into()).collect(),
        }
    }

    /// Answers attributes and roles as the extension form carries them.
    pub fn to_mutable_metadata(&self) -> GroupMutableMetadataV1 {
        GroupMutableMetadataV1 {
            attributes: self.attributes.clone(),
            admin_list: Some(to_inboxes(&self.admins)),
            super_admin_list: Some(to_inboxes(&self.super_admins)),
        }
    }
}

/// Makes an extension that carries a message of ours as it is.
pub(super) fn raw_extension(kind: u16, message: &impl Message) -> Extension {
    Extension::Unknown(kind, UnknownExtension(message.encode_to_vec()))
}

/// Makes the extension whose message has a length before it.
pub(super) fn immutable_extension(metadata: &GroupMetadataV1) -> Extension {
    let mut bytes = Vec::new();
    tls::put_opaque(&mut bytes, &metadata.encode_to_vec());
    Extension::Unknown(extension_type::IMMUTABLE_METADATA, UnknownExtension(bytes))
}

pub(super) fn inbox(text: &str, what: &'static str) -> Result<InboxId, ContextError> {
    InboxId::parse_hex(text).map_err(|_| ContextError::Malformed(what))
}

fn read_extensions(extensions: &Extensions<MlsContext>) -> Result<GroupContext, ContextError> {
    let immutable = immutable(extensions)?;
    let mutable: GroupMutableMetadataV1 =
        message(extensions, extension_type::MUTABLE_METADATA, "attributes")?;
    let membership: GroupMembership =
        message(extensions, extension_type::MEMBERSHIP, "member list")?;
    let permissions: GroupMutablePermissionsV1 =
        message(extensions, extension_type::PERMISSIONS, "rules")?;
    let conversation_type = ConversationType::try_from(immutable.conversation_type)
        .map_err(|_| ContextError::Malformed("conversation type"))?;
    if conversation_type == ConversationType::Unspecified {
        return Err(ContextError::Malformed("conversation type"));
    }
    Ok(GroupContext {
        form: ContextForm::Extensions,
        conversation_type,
        creator: inbox(&immutable.creator_inbox_id, "creator")?,
        dm: dm_pair(&immutable)?,
        oneshot: immutable.oneshot_message,
        members: members(&membership)?,
        failed: failed(&membership.failed_installations)?,
        admins: inboxes(mutable.admin_list, "admin list")?,
        super_admins: inboxes(mutable.super_admin_list, "super admin list")?,
        attributes: mutable.attributes,
        policies: Policies::Set(permissions.policies.ok_or(ContextError::Missing("rules"))?),
    })
}

fn immutable(extensions: &Extensions<MlsContext>) -> Result<GroupMetadataV1, ContextError> {
    const WHAT: &str = "fixed metadata";
    let extension = extensions.unknown(extension_type::IMMUTABLE_METADATA);
    let UnknownExtension(bytes) = extension.ok_or(ContextError::Missing(WHAT))?;
    let malformed = ContextError::Malformed(WHAT);
    let bytes = tls::only_opaque(bytes).map_err(|_| malformed)?;
    GroupMetadataV1::decode(bytes).map_err(|_| malformed)
}

fn message<M: Message + Default>(
    extensions: &Extensions<MlsContext>,
    kind: u16,
    what: &'static str,
) -> Result<M, ContextError> {
    let extension = extensions
        .unknown(kind)
        .ok_or(ContextError::Missing(what))?;
    M::decode(extension.0.as_slice()).map_err(|_| ContextError::Malformed(what))
}

fn dm_pair(immutable: &GroupMetadataV1) -> Result<Option<(InboxId, InboxId)>, ContextError> {
    const WHAT: &str = "DM pair";
    let Some(pair) = &immutable.dm_members else {
        return Ok(None);
    };
    let half = |half: &Option<xmtp_proto::content::Inbox>| {
        let half = half.as_ref().ok_or(ContextError::Malformed(WHAT))?;
        inbox(&half.inbox_id, WHAT)
    };
    Ok(Some((
        half(&pair.dm_member_one_inbox_id)?,
        half(&pair.dm_member_two_inbox_id)?,
    )))
}

fn members(membership: &GroupMembership) -> Result<BTreeMap<InboxId, SequenceId>, ContextError> {
    const WHAT: &str = "member list";
    let entries = membership.members.iter().map(|(text, id)| {
        let id = SequenceId::checked(*id).map_err(|_| ContextError::OutOfRange)?;
        Ok((inbox(text, WHAT)?, id))
    });
    entries.collect()
}

pub(super) fn failed(listed: &[bytes::Bytes]) -> Result<BTreeSet<InstallationId>, ContextError> {
    let ids = listed
        .iter()
        .map(|id| InstallationId::try_from(id.as_ref()));
    let ids = ids.collect::<Result<_, _>>();
    ids.map_err(|_| ContextError::Malformed("failed installation"))
}

fn inboxes(list: Option<Inboxes>, what: &'static str) -> Result<BTreeSet<InboxId>, ContextError> {
    let list = list.unwrap_or_default();
    list.inbox_ids
        .iter()
        .map(|text| inbox(text, what))
        .collect()
}

fn to_inboxes(list: &BTreeSet<InboxId>) -> Inboxes {
    Inboxes {
        inbox_ids: list.iter().map(InboxId::to_hex).collect(),
    }
}
