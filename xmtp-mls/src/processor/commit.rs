//! Commits: each is validated, merged, and told as what it changed.

use std::collections::BTreeSet;

use openmls::group::{MlsGroup, QueuedProposal, StagedCommit};
use xmtp_core::processor::{
    Blocked, Effects, GroupChange, OwedWelcomes, PendingItem, Rejected, RetryCause, Verdict,
    proposals_in_epoch,
};
use xmtp_core::storage::{StorageError, WriteTxn};
use xmtp_proto::InboxId;
use xmtp_proto::storage::v1 as stored;

use super::group::transcript_message;
use super::prepare;
use super::validate::{Committer, validate};
use super::verdict::{self, Failure};
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
    let by = Committer {
        inbox: committer.inbox,
        installation: committer.installation,
    };
    let after = validate(txn, group, &before, item, &staged, by)?;
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
    let by = Committer {
        inbox: installation.inbox(),
        installation: installation.id(),
    };
    let after = validate(txn, group, &before, item, staged, by)?;
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
