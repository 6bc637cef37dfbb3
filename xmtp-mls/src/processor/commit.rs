//! Commits: what a staged commit must prove before it is merged.

use std::collections::{BTreeMap, BTreeSet};

use openmls::group::{MlsGroup, QueuedProposal, StagedCommit};
use xmtp_core::processor::{
    Blocked, Dependency, Effects, GroupChange, OwedWelcomes, PendingItem, Rejected, RetryCause,
    Verdict, proposals_in_epoch,
};
use xmtp_core::storage::{StorageError, WriteTxn};
use xmtp_identity::AssociationState;
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{InboxId, InstallationId, SequenceId};

use super::group::transcript_message;
use super::identity::state_at;
use super::verdict::{self, Failure};
use super::{prepare, welcome};
use crate::content::{commit_transcript_id, group_updated};
use crate::group::{
    Attribute, ContextForm, FrameKind, GroupContext, GroupFault, clear_pending, merge_pending,
};
use crate::store::Deferred;
use crate::{Installation, Leaf, Provider};

/// Applies a commit of another member.
pub(super) fn foreign(
    installation: &Installation,
    group: &mut MlsGroup,
    deferred: &Deferred,
    txn: &mut WriteTxn<'_>,
    item: &PendingItem,
    committer: Leaf,
    staged: StagedCommit,
) -> Result<Effects, Failure> {
    let before = GroupContext::of(group).map_err(|_| Blocked::Unsupported)?;
    let after = validate(txn, group, &before, item, &staged)?;
    let removed = staged.self_removed();
    let earlier = group.epoch_authenticator().as_slice().to_vec();
    let provider = Provider::deferring(txn, deferred);
    let merged = group.merge_staged_commit(&provider, staged);
    provider
        .settle(merged)
        .map_err(|fault| verdict::of_group(fault, FrameKind::Commit))?;
    // A competing commit ended the epoch of what this installation had staged.
    if group.pending_commit().is_some() {
        clear_pending(group, &provider)
            .map_err(|fault| verdict::of_group(fault, FrameKind::Commit))?;
    }
    drop(provider);
    effects(
        installation,
        group,
        item,
        &before,
        &after,
        committer.inbox,
        removed,
        &earlier,
    )
}

/// Applies the own commit that is pending, at its echo: validated like any other. One that is
/// rejected is no longer pending, so that the next can be prepared.
pub(super) fn own(
    installation: &Installation,
    group: &mut MlsGroup,
    deferred: &Deferred,
    txn: &mut WriteTxn<'_>,
    item: &PendingItem,
    intent: &stored::Intent,
) -> Result<Effects, Failure> {
    let applied = apply_own(installation, group, deferred, txn, item, intent);
    if let Err(Failure::Verdict(Verdict::Rejected(_))) = &applied {
        let provider = Provider::deferring(txn, deferred);
        clear_pending(group, &provider)
            .map_err(|fault| verdict::of_group(fault, FrameKind::Commit))?;
    }
    applied
}

fn apply_own(
    installation: &Installation,
    group: &mut MlsGroup,
    deferred: &Deferred,
    txn: &mut WriteTxn<'_>,
    item: &PendingItem,
    intent: &stored::Intent,
) -> Result<Effects, Failure> {
    let before = GroupContext::of(group).map_err(|_| Blocked::Unsupported)?;
    let staged = group.pending_commit().ok_or(Blocked::StorageMissing)?;
    let after = validate(txn, group, &before, item, staged)?;
    let earlier = group.epoch_authenticator().as_slice().to_vec();
    let provider = Provider::deferring(txn, deferred);
    merge_pending(group, &provider).map_err(|fault| verdict::of_group(fault, FrameKind::Commit))?;
    drop(provider);
    let mut effects = effects(
        installation,
        group,
        item,
        &before,
        &after,
        installation.inbox(),
        false,
        &earlier,
    )?;
    let staged = intent
        .attempt
        .as_ref()
        .map(|attempt| attempt.staged.clone());
    let owed = prepare::owed_welcomes(txn, &staged.unwrap_or_default(), item.sequence_id)?;
    effects.welcomes = Some(OwedWelcomes(owed));
    Ok(effects)
}

/// Keeps a standalone proposal. Groups in the extension form have none.
pub(super) fn proposal(
    group: &mut MlsGroup,
    txn: &mut WriteTxn<'_>,
    item: &PendingItem,
    proposal: QueuedProposal,
) -> Result<Effects, Failure> {
    let context = GroupContext::of(group).map_err(|_| Blocked::Unsupported)?;
    if context.form == ContextForm::Extensions {
        return Err(Rejected::UnsupportedProposal.into());
    }
    let reference = proposal.proposal_reference_ref().as_slice().to_vec();
    let epoch = group.epoch().as_u64();
    let provider = Provider::new(txn);
    let kept = group.store_pending_proposal(provider.store(), proposal);
    provider
        .settle(kept.map_err(GroupFault::Storage))
        .map_err(|fault| verdict::of_group(fault, FrameKind::Proposal))?;
    tracing::trace!(sequence = item.sequence_id.get(), "a proposal is kept");
    Ok(Effects {
        proposals: vec![(epoch, reference)],
        ..Default::default()
    })
}

/// Decides on a commit whose proposal is not held: never carried by the prefix, or lost here.
pub(super) fn missing_proposal(
    group: &MlsGroup,
    txn: &WriteTxn<'_>,
    item: &PendingItem,
) -> Result<Failure, StorageError> {
    let Some(id) = item.topic.group_id() else {
        return Ok(Rejected::WrongGroup.into());
    };
    let carried = proposals_in_epoch(txn, &id, group.epoch().as_u64())?;
    let held = group.pending_proposals().count();
    Ok(if carried > held {
        Blocked::StorageMissing.into()
    } else {
        Rejected::ProposalAbsent.into()
    })
}

/// Checks a staged commit against the identity log and the group's rules, and answers the context
/// that it leads to.
fn validate(
    txn: &WriteTxn<'_>,
    group: &MlsGroup,
    before: &GroupContext,
    item: &PendingItem,
    staged: &StagedCommit,
) -> Result<GroupContext, Failure> {
    let after = GroupContext::read(staged.group_context().extensions())
        .map_err(|_| Rejected::InvalidCommit)?;
    if after.conversation_type != before.conversation_type || after.creator != before.creator {
        return Err(Rejected::InvalidCommit.into());
    }
    let floor = before.floor();
    if after.floor() < floor {
        return Err(Rejected::PolicyDenied.into());
    }
    if after
        .floor()
        .is_some_and(|floor| floor > welcome::own_version())
    {
        return Err(Blocked::VersionFloor.into());
    }
    check_sequences(before, &after, item.sequence_id)?;
    let states = changed_states(txn, before, &after)?;
    check_installations(group, before, &after, staged, &states)?;
    Ok(after)
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

/// Added leaves are what the identity log says was added; removed leaves are what it says is gone.
fn check_installations(
    group: &MlsGroup,
    before: &GroupContext,
    after: &GroupContext,
    staged: &StagedCommit,
    states: &BTreeMap<InboxId, Changed>,
) -> Result<(), Failure> {
    let in_tree: BTreeSet<InstallationId> = group
        .members()
        .filter_map(|member| Leaf::of(&member).ok())
        .map(|leaf| leaf.installation)
        .collect();
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
    for proposal in staged.add_proposals() {
        let leaf = proposal.add_proposal().key_package().leaf_node();
        let added = crate::leaf::installation_of(leaf.signature_key().as_slice());
        let inbox = crate::leaf::inbox_of(leaf.credential());
        let (Ok(added), Ok(inbox)) = (added, inbox) else {
            return Err(Rejected::InvalidCommit.into());
        };
        if !to_add.contains(&(inbox, added)) && !in_tree.contains(&added) {
            return Err(Rejected::InvalidCommit.into());
        }
    }
    let failed: BTreeSet<InstallationId> = after.failed.union(&before.failed).copied().collect();
    for proposal in staged.remove_proposals() {
        let index = proposal.remove_proposal().removed();
        let leaf = group
            .member_at(index)
            .and_then(|member| Leaf::of(&member).ok());
        let leaf = leaf.ok_or(Rejected::InvalidCommit)?;
        if !to_remove.remove(&leaf.installation) {
            return Err(Rejected::InvalidCommit.into());
        }
    }
    // What the log says is gone and is neither removed nor known to have failed would stay.
    let stays = to_remove
        .iter()
        .any(|gone| in_tree.contains(gone) && !failed.contains(gone));
    if stays {
        return Err(Rejected::InvalidCommit.into());
    }
    Ok(())
}

/// What a merged commit changed, with its transcript.
#[allow(clippy::too_many_arguments)]
fn effects(
    installation: &Installation,
    group: &MlsGroup,
    item: &PendingItem,
    before: &GroupContext,
    after: &GroupContext,
    committer: InboxId,
    removed: bool,
    earlier_authenticator: &[u8],
) -> Result<Effects, Failure> {
    let id = item.topic.group_id().ok_or(Rejected::WrongGroup)?;
    let authenticator = group.epoch_authenticator().as_slice().to_vec();
    if !removed && authenticator == earlier_authenticator {
        return Err(Failure::Verdict(Verdict::Retry(RetryCause::Local {
            what: "merged commit",
        })));
    }
    let mut messages = Vec::new();
    if let Some(updated) = group_updated(before, after, &committer, &BTreeSet::new()) {
        let transcript = commit_transcript_id(&id, &updated, item.server_ns);
        messages.push(transcript_message(
            &id,
            item,
            committer.to_hex(),
            &transcript,
        ));
    }
    tracing::trace!(
        own = committer == installation.inbox(),
        "a commit is applied"
    );
    Ok(Effects {
        messages,
        group: Some(GroupChange {
            epoch: group.epoch().as_u64(),
            epoch_authenticator: authenticator,
            name: after.attribute(Attribute::Name).map(str::to_owned),
            removed,
        }),
        ..Default::default()
    })
}
