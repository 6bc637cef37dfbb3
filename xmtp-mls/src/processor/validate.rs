//! What a staged commit must prove before it is merged, in the order in which it is looked at: the
//! first rule that is broken decides.

use std::collections::{BTreeMap, BTreeSet};

use openmls::group::{MlsGroup, StagedCommit};
use openmls::prelude::{Proposal, Sender};
use xmtp_core::processor::{Blocked, Dependency, PendingItem, Rejected, Verdict};
use xmtp_core::storage::{StorageError, WriteTxn};
use xmtp_identity::AssociationState;
use xmtp_proto::{InboxId, InstallationId, SequenceId};

use super::identity::state_at;
use super::verdict::Failure;
use super::{permission, welcome};
use crate::Leaf;
use crate::group::{ContextError, ContextForm, GroupContext, extension_type};

/// Whoever made a commit: the leaf that signed it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Committer {
    pub(super) inbox: InboxId,
    pub(super) installation: InstallationId,
}

/// An installation under the inbox that its leaf names.
type Pair = (InboxId, InstallationId);

/// Checks a staged commit against the identity log and the group's rules, and answers the context
/// that it leads to.
pub(super) fn validate(
    txn: &WriteTxn<'_>,
    group: &MlsGroup,
    before: &GroupContext,
    item: &PendingItem,
    staged: &StagedCommit,
    committer: Committer,
) -> Result<GroupContext, Failure> {
    check_proposals(before, staged)?;
    let extensions = staged.group_context().extensions();
    let after = GroupContext::read(extensions).map_err(|fault| match fault {
        ContextError::OutOfRange => Rejected::IdentityReferenceInvalid,
        ContextError::Missing(_) | ContextError::Malformed(_) => Rejected::InvalidCommit,
    })?;
    let tree = leaves(group);
    check_updates(group, &tree, staged)?;
    check_sequences(before, &after, item.sequence_id)?;
    let states = changed_states(txn, before, &after)?;
    check_installations(group, before, &after, staged, &states, committer)?;
    check_leaves(txn, &tree, &after, staged, committer)?;
    if after.form != before.form {
        return Err(migration(before, &committer.inbox));
    }
    check_fixed(group, before, &after, staged)?;
    permission::judge(before, &after, &committer.inbox)?;
    let floor = after.floor();
    if floor < before.floor() {
        return Err(Rejected::PolicyDenied.into());
    }
    if floor.is_some_and(|floor| floor > welcome::own_version()) {
        return Err(Blocked::VersionFloor.into());
    }
    Ok(after)
}

/// Every member of the tree whose leaf can be read.
fn leaves(group: &MlsGroup) -> BTreeSet<Pair> {
    group
        .members()
        .filter_map(|member| Leaf::of(&member).ok())
        .map(|leaf| (leaf.inbox, leaf.installation))
        .collect()
}

/// Only additions, removals, updates and new contexts come in a commit, and a new context as a
/// whole only where the context is made of extensions.
fn check_proposals(before: &GroupContext, staged: &StagedCommit) -> Result<(), Failure> {
    for queued in staged.queued_proposals() {
        match queued.proposal() {
            Proposal::Add(_) | Proposal::Remove(_) | Proposal::Update(_) => {}
            Proposal::GroupContextExtensions(_) if before.form == ContextForm::Extensions => {}
            Proposal::GroupContextExtensions(_) | Proposal::AppDataUpdate(_) => {
                return Err(Blocked::Unsupported.into());
            }
            _ => return Err(Rejected::UnsupportedProposal.into()),
        }
    }
    Ok(())
}

/// Whoever renews their leaf by a proposal keeps their inbox.
fn check_updates(
    group: &MlsGroup,
    tree: &BTreeSet<Pair>,
    staged: &StagedCommit,
) -> Result<(), Rejected> {
    for update in staged.update_proposals() {
        let named = crate::leaf::inbox_of(update.update_proposal().leaf_node().credential());
        let Sender::Member(index) = update.sender() else {
            return Err(Rejected::InvalidCommit);
        };
        let proposer = group.member_at(*index);
        let proposer = proposer.and_then(|member| Leaf::of(&member).ok());
        let keeps = proposer.zip(named.ok()).is_some_and(|(leaf, named)| {
            leaf.inbox == named && tree.contains(&(leaf.inbox, leaf.installation))
        });
        if !keeps {
            return Err(Rejected::InvalidCommit);
        }
    }
    Ok(())
}

/// Member sequence ids never fall, are not zero, and name updates before the commit.
fn check_sequences(
    before: &GroupContext,
    after: &GroupContext,
    commit: SequenceId,
) -> Result<(), Rejected> {
    for (inbox, sequence) in &after.members {
        let old = before.members.get(inbox);
        if old == Some(sequence) {
            continue;
        }
        if *sequence == SequenceId::ZERO || *sequence >= commit {
            return Err(Rejected::IdentityReferenceInvalid);
        }
        if old.is_some_and(|old| old > sequence) {
            return Err(Rejected::InvalidCommit);
        }
    }
    Ok(())
}

/// The verified states of an inbox before and after a commit.
struct Changed {
    before: Option<AssociationState>,
    after: Option<AssociationState>,
}

/// Reads the identity states that the commit's changes rest on, or says which are missing.
fn changed_states(
    txn: &WriteTxn<'_>,
    before: &GroupContext,
    after: &GroupContext,
) -> Result<BTreeMap<InboxId, Changed>, Failure> {
    let inboxes: BTreeSet<&InboxId> = before.members.keys().chain(after.members.keys()).collect();
    let mut states = BTreeMap::new();
    let mut missing = Vec::new();
    for inbox in inboxes {
        let (old, new) = (before.members.get(inbox), after.members.get(inbox));
        if old == new {
            continue;
        }
        let mut read = |sequence: Option<&SequenceId>| -> Result<_, StorageError> {
            let Some(sequence) = sequence.filter(|sequence| **sequence > SequenceId::ZERO) else {
                return Ok(None);
            };
            let state = state_at(txn, inbox, *sequence)?;
            if state.is_none() {
                missing.push(Dependency::Identity {
                    inbox: *inbox,
                    sequence: *sequence,
                });
            }
            Ok(state)
        };
        let changed = Changed {
            before: read(old)?,
            after: read(new)?,
        };
        states.insert(*inbox, changed);
    }
    if !missing.is_empty() {
        return Err(Failure::Verdict(Verdict::Waits(missing)));
    }
    Ok(states)
}

/// Added leaves are ones that the identity log says were added, or ones that are there; removed
/// leaves are exactly what it says is gone, without those that could never be added.
///
/// A super admin may remove a leaf and add it again, and remove one that is listed as failed.
fn check_installations(
    group: &MlsGroup,
    before: &GroupContext,
    after: &GroupContext,
    staged: &StagedCommit,
    states: &BTreeMap<InboxId, Changed>,
    committer: Committer,
) -> Result<(), Rejected> {
    let in_tree: BTreeSet<InstallationId> = leaves(group).into_iter().map(|(_, id)| id).collect();
    let installations = |state: &Option<AssociationState>| -> BTreeSet<InstallationId> {
        state
            .iter()
            .flat_map(AssociationState::installations)
            .collect()
    };
    let (mut to_add, mut to_remove) = (BTreeSet::new(), BTreeSet::new());
    for (inbox, changed) in states {
        let (old, new) = (
            installations(&changed.before),
            installations(&changed.after),
        );
        to_add.extend(new.difference(&old).map(|id| (*inbox, *id)));
        to_remove.extend(old.difference(&new).copied());
    }
    let mut added: BTreeSet<Pair> = added(staged)?;
    let mut removed: BTreeSet<InstallationId> = removed(group, staged)?;
    let is_failed = |id: &InstallationId| {
        after.failed.contains(id) || (before.failed.contains(id) && !in_tree.contains(id))
    };
    to_remove.retain(|id| !is_failed(id));
    if before.is_super_admin(&committer.inbox) {
        let again: BTreeSet<InstallationId> = added
            .iter()
            .map(|(_, id)| *id)
            .filter(|id| removed.contains(id))
            .collect();
        added.retain(|(_, id)| !again.contains(id));
        removed.retain(|id| !again.contains(id) && (!is_failed(id) || to_remove.contains(id)));
    }
    let is_expected = |pair: &Pair| to_add.contains(pair) || in_tree.contains(&pair.1);
    if !added.iter().all(is_expected) || removed != to_remove {
        return Err(Rejected::InvalidCommit);
    }
    Ok(())
}

/// The leaves that a commit adds.
fn added(staged: &StagedCommit) -> Result<BTreeSet<Pair>, Rejected> {
    let pair = |leaf: &openmls::prelude::LeafNode| {
        let installation = crate::leaf::installation_of(leaf.signature_key().as_slice()).ok()?;
        Some((crate::leaf::inbox_of(leaf.credential()).ok()?, installation))
    };
    staged
        .add_proposals()
        .map(|queued| pair(queued.add_proposal().key_package().leaf_node()))
        .collect::<Option<_>>()
        .ok_or(Rejected::InvalidCommit)
}

/// The leaves that a commit removes.
fn removed(group: &MlsGroup, staged: &StagedCommit) -> Result<BTreeSet<InstallationId>, Rejected> {
    let leaf = |index| {
        let member = group.member_at(index)?;
        Leaf::of(&member).ok().map(|leaf| leaf.installation)
    };
    staged
        .remove_proposals()
        .map(|queued| leaf(queued.remove_proposal().removed()))
        .collect::<Option<_>>()
        .ok_or(Rejected::InvalidCommit)
}

/// The committer's leaf after the commit, and every renewed one, names the inbox that it named
/// before, and that inbox has the installation at the update which the member list names.
fn check_leaves(
    txn: &WriteTxn<'_>,
    tree: &BTreeSet<Pair>,
    after: &GroupContext,
    staged: &StagedCommit,
    committer: Committer,
) -> Result<(), Failure> {
    let mut pairs: BTreeSet<Pair> = BTreeSet::from([(committer.inbox, committer.installation)]);
    let path = staged.update_path_leaf_node();
    let renewed = staged.update_proposals();
    let renewed = renewed.map(|update| update.update_proposal().leaf_node().clone());
    for (leaf, is_path) in path
        .into_iter()
        .cloned()
        .map(|leaf| (leaf, true))
        .chain(renewed.map(|leaf| (leaf, false)))
    {
        let installation = crate::leaf::installation_of(leaf.signature_key().as_slice());
        let inbox = crate::leaf::inbox_of(leaf.credential());
        let (Ok(installation), Ok(inbox)) = (installation, inbox) else {
            return Err(Rejected::InvalidCommit.into());
        };
        if is_path && inbox != committer.inbox {
            return Err(Rejected::InvalidCommit.into());
        }
        pairs.insert((inbox, installation));
    }
    let mut missing = Vec::new();
    for (inbox, installation) in pairs {
        let Some(sequence) = after.members.get(&inbox) else {
            return Err(Rejected::InvalidCommit.into());
        };
        if *sequence == SequenceId::ZERO {
            if !tree.contains(&(inbox, installation)) {
                return Err(Rejected::InvalidCommit.into());
            }
            continue;
        }
        match state_at(txn, &inbox, *sequence)? {
            Some(state) if state.is_installation(installation) => {}
            Some(_) => return Err(Rejected::InvalidCommit.into()),
            None => missing.push(Dependency::Identity {
                inbox,
                sequence: *sequence,
            }),
        }
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(Failure::Verdict(Verdict::Waits(missing))),
    }
}

/// A super admin may bring a group into the dictionary form, which this build cannot follow yet.
fn migration(before: &GroupContext, committer: &InboxId) -> Failure {
    match before.is_super_admin(committer) {
        true => Blocked::Unsupported.into(),
        false => Rejected::PolicyDenied.into(),
    }
}

/// What a group is, who created it, its pair, and what it requires of members never change.
fn check_fixed(
    group: &MlsGroup,
    before: &GroupContext,
    after: &GroupContext,
    staged: &StagedCommit,
) -> Result<(), Rejected> {
    let (old, new) = (group.extensions(), staged.group_context().extensions());
    let fixed = extension_type::IMMUTABLE_METADATA;
    let is_same = old.unknown(fixed) == new.unknown(fixed)
        && old.required_capabilities() == new.required_capabilities()
        && after.conversation_type == before.conversation_type
        && after.creator == before.creator
        && after.dm == before.dm
        && after.oneshot == before.oneshot;
    match is_same {
        true => Ok(()),
        false => Err(Rejected::InvalidCommit),
    }
}
