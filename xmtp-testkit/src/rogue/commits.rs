//! Commits, honest or not: each is what a [`Draft`] asks for, whatever the rules say.

use openmls::component::ComponentData;
use openmls::group::{GroupContext as MlsContext, MlsGroup, MlsGroupJoinConfig, Propose};
use openmls::prelude::{
    AppDataUpdateProposal, BasicCredential, CredentialWithKey, Extension, ExtensionType,
    Extensions, LeafNodeIndex, LeafNodeParameters, PURE_PLAINTEXT_WIRE_FORMAT_POLICY,
    PreSharedKeyProposal, Proposal, ProposalOrRefType, RequiredCapabilitiesExtension,
    UnknownExtension,
};
use openmls::schedule::PreSharedKeyId;
use openmls_traits::OpenMlsProvider;
use prost::Message;
use tls_codec::Serialize;
use xmtp_core::storage::WriteTxn;
use xmtp_mls::group::{component, extension_type, join_config, merge_pending};
use xmtp_mls::key_package::FetchedPackage;
use xmtp_mls::{Leaf, Provider};
use xmtp_proto::content::{
    GroupMembership, GroupMetadataV1, GroupMutableMetadataV1, GroupMutablePermissionsV1,
    MlsCredential, PolicySet,
};
use xmtp_proto::{GroupId, InboxId, InstallationId};

use super::{Commit, Invitation, Rogue, RogueError, mls};

/// What a commit does. Nothing asks whether it may, or whether its parts fit each other.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    /// Installations that get a leaf.
    pub adds: Vec<FetchedPackage>,
    /// Installations that lose theirs.
    pub removes: Vec<InstallationId>,
    /// The member list after it.
    pub membership: Option<GroupMembership>,
    /// Attributes and roles after it.
    pub metadata: Option<GroupMutableMetadataV1>,
    /// The rules after it.
    pub policies: Option<PolicySet>,
    /// The creator after it, which never changes.
    pub creator: Option<InboxId>,
    /// Whether it requires less of members than before.
    pub requires_less: bool,
    /// The inbox that the own leaf names after it.
    pub names: Option<InboxId>,
    /// Whether it refers to a proposal that nobody has seen.
    pub refers_to_unseen: bool,
    /// Whether it asks for a key that members are to share beforehand.
    pub needs_shared_key: bool,
    /// The name in a context of the dictionary form after it.
    pub dictionary_name: Option<String>,
    /// Whether everybody can read it.
    pub is_public: bool,
    /// Commits before it that nobody sees.
    pub ahead: u64,
    /// All extensions of the context after it, whatever else it says.
    pub extensions: Option<Extensions<MlsContext>>,
}

impl Rogue {
    /// Makes a commit from the present state of a group.
    ///
    /// # Errors
    /// When openmls does not make it.
    pub fn commit(&self, group: &GroupId, draft: &Draft) -> Result<Commit, RogueError> {
        self.trial(group, |txn, group| {
            for _ in 0..draft.ahead {
                self.staged(txn, group, &Draft::default())?;
                merge_pending(group, &Provider::new(txn)).map_err(mls)?;
            }
            self.skip_used(&Provider::new(txn), group)?;
            self.staged(txn, group, draft)
        })
    }

    /// Makes a commit and leaves it pending.
    pub(super) fn staged(
        &self,
        txn: &mut WriteTxn<'_>,
        group: &mut MlsGroup,
        draft: &Draft,
    ) -> Result<Commit, RogueError> {
        let provider = Provider::new(txn);
        if draft.is_public {
            let config = MlsGroupJoinConfig::builder()
                .wire_format_policy(PURE_PLAINTEXT_WIRE_FORMAT_POLICY)
                .max_past_epochs(xmtp_mls::group::MAX_PAST_EPOCHS)
                .use_ratchet_tree_extension(true)
                .sender_ratchet_configuration(*join_config().sender_ratchet_configuration())
                .build();
            let set = group.set_configuration(provider.store(), &config);
            set.map_err(mls)?;
        }
        if draft.refers_to_unseen {
            let same = Propose::GroupContextExtensions(group.extensions().clone());
            let by = &self.installation;
            let proposed = group.propose(&provider, by, same, ProposalOrRefType::Reference);
            proposed.map_err(mls)?;
        }
        let mut proposals = shared_key(&provider, draft)?;
        if let Some(name) = &draft.dictionary_name {
            let update = AppDataUpdateProposal::update(component::NAME, name.as_bytes().to_vec());
            proposals.push(Proposal::AppDataUpdate(Box::new(update)));
        }
        let removes = places(group, &draft.removes)?;
        let extensions = changed(group, draft)?;
        let leaf = leaf_of(&self.installation.id(), draft);
        let adds = draft.adds.iter().map(|added| added.package.clone());
        let mut builder = group
            .commit_builder()
            .consume_proposal_store(draft.refers_to_unseen)
            .force_self_update(true)
            .leaf_node_parameters(leaf)
            .propose_adds(adds)
            .propose_removals(removes)
            .add_proposals(proposals);
        if let Some(extensions) = extensions {
            let proposed = builder.propose_group_context_extensions(extensions);
            builder = proposed.map_err(mls)?;
        }
        let mut builder = builder.load_psks(provider.store()).map_err(mls)?;
        if let Some(name) = &draft.dictionary_name {
            let mut updater = builder.app_data_dictionary_updater();
            updater.set(ComponentData::from_parts(
                component::NAME,
                name.as_bytes().to_vec().into(),
            ));
            let updates = updater.changes();
            builder.with_app_data_dictionary_updates(updates);
        }
        let (rand, crypto) = (provider.rand(), provider.crypto());
        let built = builder.build(rand, crypto, &self.installation, |_| true);
        let bundle = built.map_err(mls)?.stage_commit(&provider).map_err(mls)?;
        let welcome = bundle.to_welcome_msg();
        let welcome = welcome.map(|welcome| welcome.tls_serialize_detached());
        let recipients = draft.adds.iter().map(|added| added.recipient.clone());
        Ok(Commit {
            bytes: bundle.commit().tls_serialize_detached().map_err(mls)?,
            invitation: welcome.transpose().map_err(mls)?.map(|welcome| Invitation {
                welcome,
                recipients: recipients.collect(),
            }),
        })
    }
}

/// Finds the places of installations in the tree.
fn places(group: &MlsGroup, ids: &[InstallationId]) -> Result<Vec<LeafNodeIndex>, RogueError> {
    let leaves: Vec<Leaf> = group
        .members()
        .filter_map(|member| Leaf::of(&member).ok())
        .collect();
    let place = |id: &InstallationId| {
        let leaf = leaves.iter().find(|leaf| leaf.installation == *id);
        leaf.map(|leaf| leaf.index)
            .ok_or_else(|| mls("nobody to remove"))
    };
    ids.iter().map(place).collect()
}

/// The proposal of a key that only the rogue has.
fn shared_key(provider: &Provider<'_, '_>, draft: &Draft) -> Result<Vec<Proposal>, RogueError> {
    if !draft.needs_shared_key {
        return Ok(Vec::new());
    }
    let key = PreSharedKeyId::external(vec![7; 16], vec![7; 32]);
    key.store(provider, &[7; 32]).map_err(mls)?;
    let proposal = PreSharedKeyProposal::new(key);
    Ok(vec![Proposal::PreSharedKey(Box::new(proposal))])
}

fn leaf_of(id: &InstallationId, draft: &Draft) -> LeafNodeParameters {
    let Some(inbox) = &draft.names else {
        return LeafNodeParameters::default();
    };
    let named = MlsCredential {
        inbox_id: inbox.to_hex(),
    };
    let credential = CredentialWithKey {
        credential: BasicCredential::new(named.encode_to_vec()).into(),
        signature_key: id.as_bytes().to_vec().into(),
    };
    LeafNodeParameters::builder()
        .with_credential_with_key(credential)
        .build()
}

/// Carries a message in an extension of ours.
pub(super) fn carried(kind: u16, message: &impl Message) -> Extension {
    Extension::Unknown(kind, UnknownExtension(message.encode_to_vec()))
}

/// The extensions of the context after the commit, where one changes.
fn changed(group: &MlsGroup, draft: &Draft) -> Result<Option<Extensions<MlsContext>>, RogueError> {
    if let Some(extensions) = &draft.extensions {
        return Ok(Some(extensions.clone()));
    }
    let mut changes = Vec::new();
    if let Some(membership) = &draft.membership {
        changes.push(carried(extension_type::MEMBERSHIP, membership));
    }
    if let Some(metadata) = &draft.metadata {
        changes.push(carried(extension_type::MUTABLE_METADATA, metadata));
    }
    if let Some(policies) = &draft.policies {
        let policies = GroupMutablePermissionsV1 {
            policies: Some(policies.clone()),
        };
        changes.push(carried(extension_type::PERMISSIONS, &policies));
    }
    if let Some(creator) = &draft.creator {
        changes.push(immutable(group, |metadata| {
            metadata.creator_inbox_id = creator.to_hex();
        })?);
    }
    if draft.requires_less {
        changes.push(fewer_requirements(group));
    }
    if changes.is_empty() {
        return Ok(None);
    }
    let mut extensions = group.extensions().clone();
    for change in changes {
        extensions.add_or_replace(change).map_err(mls)?;
    }
    Ok(Some(extensions))
}

/// Changes what never changes about a group.
pub(super) fn immutable(
    group: &MlsGroup,
    change: impl FnOnce(&mut GroupMetadataV1),
) -> Result<Extension, RogueError> {
    let kind = extension_type::IMMUTABLE_METADATA;
    let UnknownExtension(bytes) = group
        .extensions()
        .unknown(kind)
        .ok_or_else(|| mls("no fixed metadata"))?;
    // The message stands behind its length, which takes one byte or two here.
    let behind = if bytes[0] < 0x40 { 1 } else { 2 };
    let mut metadata = GroupMetadataV1::decode(&bytes[behind..]).map_err(mls)?;
    change(&mut metadata);
    let mut bytes = Vec::new();
    super::dictionary::put_opaque(&mut bytes, &metadata.encode_to_vec());
    Ok(Extension::Unknown(kind, UnknownExtension(bytes)))
}

fn fewer_requirements(group: &MlsGroup) -> Extension {
    let Some(required) = group.extensions().required_capabilities() else {
        unreachable!("every group of ours has requirements");
    };
    let fewer: Vec<ExtensionType> = required
        .extension_types()
        .iter()
        .copied()
        .filter(|kind| *kind != ExtensionType::ApplicationId)
        .collect();
    Extension::RequiredCapabilities(RequiredCapabilitiesExtension::new(
        &fewer,
        required.proposal_types(),
        required.credential_types(),
    ))
}
