//! How a group begins. Ours begin in the extension form, which every released client reads.

use std::collections::BTreeMap;

use openmls::group::{GroupContext as MlsContext, MlsGroup, MlsGroupCreateConfig};
use openmls::prelude::{
    CredentialType, Extension, ExtensionType, Extensions, ProposalType,
    RequiredCapabilitiesExtension,
};
use xmtp_core::runtime::RuntimeExt;
use xmtp_core::storage::WriteTxn;
use xmtp_proto::content::{
    ConversationType, DmMembers, GroupMembership, GroupMetadataV1, GroupMutableMetadataV1,
    GroupMutablePermissionsV1, Inbox, Inboxes, PolicySet,
};
use xmtp_proto::id::{GroupId, InboxId, SequenceId};
use zeroize::Zeroizing;

use super::context::{Attribute, extension_type, immutable_extension, raw_extension};
use super::policy::{Preset, dm_policies, preset_policies};
use super::{GroupFault, settings};
use crate::leaf::{self, CIPHERSUITE};
use crate::{Installation, Provider};

/// When messages of a group disappear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disappearing {
    /// From when on, in nanoseconds.
    pub from_ns: i64,
    /// After how long, in nanoseconds.
    pub in_ns: i64,
}

/// What a new group is for.
#[derive(Clone, Debug, PartialEq)]
pub enum NewConversation {
    /// A group with the rules of a preset.
    Group(Preset),
    /// A group with rules of its own.
    Custom(PolicySet),
    /// A DM with another inbox.
    Dm(InboxId),
}

/// A group to create.
#[derive(Clone, Debug, PartialEq)]
pub struct NewGroup {
    /// What it is for.
    pub conversation: NewConversation,
    /// The identity update that the creator's own installations are taken from. Joiners refuse 0.
    pub creator_sequence: SequenceId,
    /// The name; a DM has none.
    pub name: String,
    /// The description.
    pub description: String,
    /// The address of a square image.
    pub image_url: String,
    /// Text for the application; a DM has none.
    pub app_data: String,
    /// When messages disappear.
    pub disappearing: Option<Disappearing>,
}

/// Creates a group with this installation as its only leaf, and answers its id.
///
/// The group is in the database; other installations of the creator come with the first commit.
pub fn create_group(
    txn: &mut WriteTxn<'_>,
    installation: &Installation,
    new: &NewGroup,
) -> Result<(GroupId, MlsGroup), GroupFault> {
    let runtime = txn.runtime().clone();
    let id = GroupId::from_bytes(runtime.random());
    let commit_log_seed = Zeroizing::new(runtime.random());
    let config = MlsGroupCreateConfig::builder()
        .ciphersuite(CIPHERSUITE)
        .wire_format_policy(settings::WIRE_FORMAT)
        .padding_size(settings::PADDING)
        .max_past_epochs(settings::MAX_PAST_EPOCHS)
        .number_of_resumption_psks(settings::RESUMPTION_SECRETS)
        .use_ratchet_tree_extension(true)
        .sender_ratchet_configuration(settings::ratchet())
        .lifetime(leaf::lifetime(txn.now_ns()))
        .capabilities(leaf::capabilities())
        .with_leaf_node_extensions(leaf::extensions(&installation.inbox()))
        .map_err(|_| GroupFault::Library)?
        .with_group_context_extensions(extensions(new, &installation.inbox(), &commit_log_seed)?)
        .build();
    let provider = Provider::new(txn);
    let created = MlsGroup::new_with_group_id(
        &provider,
        installation,
        &config,
        openmls::group::GroupId::from_slice(id.as_bytes()),
        leaf::credential(installation),
    );
    Ok((id, provider.settle(created)?))
}

fn extensions(
    new: &NewGroup,
    creator: &InboxId,
    commit_log_seed: &[u8; 32],
) -> Result<Extensions<MlsContext>, GroupFault> {
    let permissions = GroupMutablePermissionsV1 {
        policies: Some(match &new.conversation {
            NewConversation::Group(preset) => preset_policies(*preset),
            NewConversation::Custom(policies) => policies.clone(),
            NewConversation::Dm(_) => dm_policies(),
        }),
    };
    let membership = GroupMembership {
        members: BTreeMap::from([(creator.to_hex(), new.creator_sequence.get())]),
        failed_installations: Vec::new(),
    };
    let mutable = mutable_metadata(new, creator, commit_log_seed);
    let all = vec![
        immutable_extension(&immutable_metadata(new, creator)),
        raw_extension(extension_type::MUTABLE_METADATA, &mutable),
        raw_extension(extension_type::MEMBERSHIP, &membership),
        raw_extension(extension_type::PERMISSIONS, &permissions),
        required_capabilities(),
    ];
    Extensions::from_vec(all).map_err(|_| GroupFault::Invalid("extensions"))
}

fn immutable_metadata(new: &NewGroup, creator: &InboxId) -> GroupMetadataV1 {
    let inbox = |inbox: &InboxId| {
        Some(Inbox {
            inbox_id: inbox.to_hex(),
        })
    };
    let (conversation_type, dm_members) = match &new.conversation {
        NewConversation::Dm(peer) => {
            let pair = DmMembers {
                dm_member_one_inbox_id: inbox(creator),
                dm_member_two_inbox_id: inbox(peer),
            };
            (ConversationType::Dm, Some(pair))
        }
        NewConversation::Group(_) | NewConversation::Custom(_) => (ConversationType::Group, None),
    };
    GroupMetadataV1 {
        conversation_type: conversation_type.into(),
        creator_inbox_id: creator.to_hex(),
        dm_members,
        oneshot_message: None,
    }
}

fn mutable_metadata(
    new: &NewGroup,
    creator: &InboxId,
    commit_log_seed: &[u8; 32],
) -> GroupMutableMetadataV1 {
    let is_dm = matches!(new.conversation, NewConversation::Dm(_));
    let mut attributes = BTreeMap::from([
        (Attribute::Name, new.name.clone()),
        (Attribute::Description, new.description.clone()),
        (Attribute::ImageUrl, new.image_url.clone()),
        (Attribute::CommitLogSigner, hex::encode(commit_log_seed)),
    ]);
    if !is_dm {
        attributes.insert(Attribute::AppData, new.app_data.clone());
    }
    if let Some(disappearing) = new.disappearing {
        attributes.insert(Attribute::DisappearFrom, disappearing.from_ns.to_string());
        attributes.insert(Attribute::DisappearIn, disappearing.in_ns.to_string());
    }
    let super_admins = if is_dm {
        Vec::new()
    } else {
        vec![creator.to_hex()]
    };
    let named = attributes.into_iter();
    GroupMutableMetadataV1 {
        attributes: named
            .map(|(name, value)| (name.name().to_owned(), value))
            .collect(),
        admin_list: Some(Inboxes::default()),
        super_admin_list: Some(Inboxes {
            inbox_ids: super_admins,
        }),
    }
}

fn required_capabilities() -> Extension {
    Extension::RequiredCapabilities(RequiredCapabilitiesExtension::new(
        &[
            ExtensionType::Unknown(extension_type::MEMBERSHIP),
            ExtensionType::Unknown(extension_type::MUTABLE_METADATA),
            ExtensionType::Unknown(extension_type::PERMISSIONS),
            ExtensionType::Unknown(extension_type::IMMUTABLE_METADATA),
            ExtensionType::LastResort,
            ExtensionType::ApplicationId,
        ],
        &[ProposalType::GroupContextExtensions],
        &[CredentialType::Basic],
    ))
}
