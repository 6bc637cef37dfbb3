//! The commits that this installation makes.
//!
//! A commit stays pending in the group's state until its echo: it is never merged when it is sent.

use openmls::group::{GroupContext as MlsContext, MlsGroup};
use openmls::prelude::{Extensions, KeyPackage, LeafNodeIndex};
use tls_codec::Serialize;
use xmtp_proto::content::{
    GroupMembership, GroupMutableMetadataV1, GroupMutablePermissionsV1, PolicySet,
};

use super::GroupFault;
use super::context::{extension_type, raw_extension};
use crate::{Installation, Provider};

/// What a commit is to change, in the extension form.
///
/// All changes of the context go into one proposal, which replaces the extensions named here and
/// carries the others as they are.
#[derive(Clone, Debug, Default)]
pub struct CommitPlan {
    /// The installations to add, by their checked key packages.
    pub adds: Vec<KeyPackage>,
    /// The leaves to remove.
    pub removes: Vec<LeafNodeIndex>,
    /// The member list after the commit. Adding or removing installations needs one.
    pub membership: Option<GroupMembership>,
    /// Attributes and roles after the commit.
    pub metadata: Option<GroupMutableMetadataV1>,
    /// The rules after the commit.
    pub policies: Option<PolicySet>,
}

/// A commit as it goes out.
#[derive(Clone, PartialEq, Eq)]
pub struct BuiltCommit {
    /// The MLS bytes of the commit.
    pub commit: Vec<u8>,
    /// The MLS bytes of its Welcome, when it adds someone.
    pub welcome: Option<Vec<u8>>,
}

impl std::fmt::Debug for BuiltCommit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BuiltCommit")
            .field("has_welcome", &self.welcome.is_some())
            .finish_non_exhaustive()
    }
}

/// Builds a commit and leaves it pending in the group. An empty plan renews the own keys.
///
/// # Behavior
/// - Fails with `Pending` while another commit is: openmls would drop it in silence.
/// - Proposals that others sent are left alone.
/// - The ratchet tree travels in the Welcome.
pub fn build_commit(
    group: &mut MlsGroup,
    provider: &Provider<'_, '_>,
    signer: &Installation,
    plan: CommitPlan,
) -> Result<BuiltCommit, GroupFault> {
    if group.pending_commit().is_some() {
        return Err(GroupFault::Pending);
    }
    let extensions = changed_extensions(group, &plan)?;
    let is_empty = plan.adds.is_empty() && plan.removes.is_empty() && extensions.is_none();
    let mut builder = group
        .commit_builder()
        .consume_proposal_store(false)
        .force_self_update(is_empty)
        .propose_adds(plan.adds)
        .propose_removals(plan.removes);
    if let Some(extensions) = extensions {
        builder = provider.settle(builder.propose_group_context_extensions(extensions))?;
    }
    let builder = provider.settle(builder.load_psks(provider.store()))?;
    let rand = openmls_traits::OpenMlsProvider::rand(provider);
    let built = builder.build(rand, crate::provider::crypto(), signer, |_| true);
    let built = provider.settle(built)?;
    let bundle = provider.settle(built.stage_commit(provider))?;
    let encode = |message: &openmls::framing::MlsMessageOut| {
        message
            .tls_serialize_detached()
            .map_err(|_| GroupFault::Library)
    };
    Ok(BuiltCommit {
        commit: encode(bundle.commit())?,
        welcome: bundle.to_welcome_msg().as_ref().map(encode).transpose()?,
    })
}

/// Merges the pending commit, at its echo.
pub fn merge_pending(group: &mut MlsGroup, provider: &Provider<'_, '_>) -> Result<(), GroupFault> {
    provider.settle(group.merge_pending_commit(provider))
}

/// Drops the pending commit, when another one won its epoch.
pub fn clear_pending(group: &mut MlsGroup, provider: &Provider<'_, '_>) -> Result<(), GroupFault> {
    let cleared = group.clear_pending_commit(provider.store());
    provider.settle(cleared.map_err(GroupFault::Storage))
}

/// The extensions after the commit, or `None` when none changes.
fn changed_extensions(
    group: &MlsGroup,
    plan: &CommitPlan,
) -> Result<Option<Extensions<MlsContext>>, GroupFault> {
    let membership = plan.membership.as_ref();
    let metadata = plan.metadata.as_ref();
    let policies = plan
        .policies
        .as_ref()
        .map(|policies| GroupMutablePermissionsV1 {
            policies: Some(policies.clone()),
        });
    let changes = [
        membership.map(|message| raw_extension(extension_type::MEMBERSHIP, message)),
        metadata.map(|message| raw_extension(extension_type::MUTABLE_METADATA, message)),
        policies.map(|message| raw_extension(extension_type::PERMISSIONS, &message)),
    ];
    let mut changes = changes.into_iter().flatten().peekable();
    if changes.peek().is_none() {
        return Ok(None);
    }
    let mut extensions = group.extensions().clone();
    for change in changes {
        extensions
            .add_or_replace(change)
            .map_err(|_| GroupFault::Invalid("extensions"))?;
    }
    Ok(Some(extensions))
}
