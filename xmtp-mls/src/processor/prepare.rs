//! Preparing the exact bytes of an intent, from state that is read under the writer.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use openmls::group::MlsGroup;
use prost::Message;
use xmtp_core::processor::{Dependency, PrepareError, Prepared};
use xmtp_core::storage::{StorageError, WriteTxn};
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::backend::v1::{ClientEnvelope, GroupMessage};
use xmtp_proto::envelope::{canonical_bytes, payload_hash};
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::storage::v1::IntentKind;
use xmtp_proto::{GroupId, InboxId, InstallationId, SequenceId};

use super::identity::state_at;
use crate::group::{
    BuiltCommit, CommitPlan, GroupContext, GroupFault, build_commit, clear_pending, encrypt, load,
};
use crate::key_package::{FetchedPackage, check};
use crate::welcome::{Recipient, WrapperAlgorithm, WrapperPublicKey, wrap};
use crate::{Installation, Leaf, Provider};

/// Why preparing stops.
enum Stop {
    Storage(StorageError),
    Prepare(PrepareError),
}

impl From<StorageError> for Stop {
    fn from(error: StorageError) -> Self {
        Self::Storage(error)
    }
}

impl From<GroupFault> for Stop {
    fn from(fault: GroupFault) -> Self {
        Self::Prepare(match fault {
            GroupFault::Storage(error) => return Self::Storage(error),
            GroupFault::Inactive | GroupFault::NoGroup => PrepareError::Inactive,
            GroupFault::Library => PrepareError::Local {
                what: "mls library",
            },
            GroupFault::KeyMissing => PrepareError::Local { what: "own key" },
            GroupFault::Pending => PrepareError::Local {
                what: "pending commit",
            },
            _ => PrepareError::Unsendable { reason: "invalid" },
        })
    }
}

fn unsendable(reason: &'static str) -> Stop {
    Stop::Prepare(PrepareError::Unsendable { reason })
}

/// Prepares an intent.
pub(super) fn prepare(
    installation: &Installation,
    txn: &mut WriteTxn<'_>,
    intent: &stored::Intent,
) -> Result<Result<Prepared, PrepareError>, StorageError> {
    match attempt(installation, txn, intent) {
        Ok(attempt) => Ok(Ok(Prepared { attempt })),
        Err(Stop::Storage(error)) => Err(error),
        Err(Stop::Prepare(error)) => Ok(Err(error)),
    }
}

fn attempt(
    installation: &Installation,
    txn: &mut WriteTxn<'_>,
    intent: &stored::Intent,
) -> Result<stored::Attempt, Stop> {
    let id = GroupId::try_from(&intent.group_id[..]).map_err(|_| unsendable("invalid"))?;
    let mut group = load(&Provider::new(txn), &id)?;
    let base_epoch = group.epoch().as_u64();
    let base_authenticator = group.epoch_authenticator().as_slice().to_vec();
    let (bytes, staged) = match intent.kind() {
        IntentKind::SendMessage => {
            let bytes = encrypt(&mut group, &Provider::new(txn), installation, &intent.body)?;
            (bytes, Vec::new())
        }
        IntentKind::ChangeMembers => change_members(installation, txn, &mut group, intent)?,
        IntentKind::ChangeMetadata => change_metadata(installation, txn, &mut group, intent)?,
        IntentKind::UpdateKeys => {
            let plan = CommitPlan::default();
            let built = build_commit(&mut group, &Provider::new(txn), installation, plan)?;
            (built.commit, Vec::new())
        }
        IntentKind::Unspecified => return Err(unsendable("invalid")),
    };
    let hash = payload_hash(&bytes);
    let envelope = ClientEnvelope {
        payload: Some(Payload::GroupMessage(GroupMessage {
            data: bytes.into(),
            should_push: intent.kind() == IntentKind::SendMessage,
            ..Default::default()
        })),
    };
    Ok(stored::Attempt {
        envelopes: vec![canonical_bytes(&envelope).into()],
        payload_hash: hash.to_vec().into(),
        base_epoch,
        base_authenticator: base_authenticator.into(),
        staged: staged.into(),
        ..Default::default()
    })
}

/// Builds the commit of a membership change: leaves and the member list in one commit.
fn change_members(
    installation: &Installation,
    txn: &mut WriteTxn<'_>,
    group: &mut MlsGroup,
    intent: &stored::Intent,
) -> Result<(Vec<u8>, Vec<u8>), Stop> {
    let body =
        stored::MembershipIntent::decode(intent.body.clone()).map_err(|_| unsendable("invalid"))?;
    let context = GroupContext::of(group).map_err(|_| unsendable("unsupported_group"))?;
    let change = Membership::plan(txn, group, &context, &body)?;
    if change.is_nothing(&context) {
        return Err(Stop::Prepare(PrepareError::Superseded));
    }
    let plan = CommitPlan {
        adds: change
            .adds
            .iter()
            .map(|fetched| fetched.package.clone())
            .collect(),
        removes: change.removes.clone(),
        membership: Some(change.membership.clone()),
        ..Default::default()
    };
    let built = build_commit(group, &Provider::new(txn), installation, plan)?;
    let BuiltCommit { commit, welcome } = built;
    let staged = stored::StagedWelcome {
        welcome: welcome.unwrap_or_default().into(),
        recipients: change
            .adds
            .iter()
            .map(|fetched| to_stored(&fetched.recipient))
            .collect(),
    };
    Ok((commit, staged.encode_to_vec()))
}

/// A membership change, checked against the current tree.
struct Membership {
    adds: Vec<FetchedPackage>,
    removes: Vec<openmls::prelude::LeafNodeIndex>,
    membership: xmtp_proto::content::GroupMembership,
}

impl Membership {
    fn plan(
        txn: &WriteTxn<'_>,
        group: &MlsGroup,
        context: &GroupContext,
        body: &stored::MembershipIntent,
    ) -> Result<Self, Stop> {
        let leaves: BTreeMap<InstallationId, Leaf> = group
            .members()
            .filter_map(|member| Leaf::of(&member).ok())
            .map(|leaf| (leaf.installation, leaf))
            .collect();
        let mut next = context.clone();
        let mut change = Self {
            adds: Vec::new(),
            removes: Vec::new(),
            membership: Default::default(),
        };
        for addition in &body.additions {
            change.add(txn, &leaves, &mut next, addition)?;
        }
        for inbox in &body.removed_inboxes {
            let inbox = InboxId::parse_hex(inbox).map_err(|_| unsendable("invalid"))?;
            list_absent(txn, &leaves, &mut next, &inbox, &BTreeSet::new())?;
            next.members.remove(&inbox);
            let gone = leaves.values().filter(|leaf| leaf.inbox == inbox);
            change.removes.extend(gone.map(|leaf| leaf.index));
        }
        let max = xmtp_proto::limits::BACKEND_DEFAULT_MAX_GROUP_MEMBERS as usize;
        if next.members.len() > max {
            return Err(unsendable("too_many_members"));
        }
        change.membership = next.to_membership();
        Ok(change)
    }

    /// Plans the leaves of one inbox so that the tree holds what its state at the named update
    /// says, or lists what cannot be added as failed.
    fn add(
        &mut self,
        txn: &WriteTxn<'_>,
        leaves: &BTreeMap<InstallationId, Leaf>,
        next: &mut GroupContext,
        addition: &stored::MemberAddition,
    ) -> Result<(), Stop> {
        let inbox = InboxId::parse_hex(&addition.inbox_id).map_err(|_| unsendable("invalid"))?;
        let sequence = SequenceId::saturating(addition.sequence_id);
        if next
            .members
            .get(&inbox)
            .is_some_and(|held| *held >= sequence)
        {
            return Ok(());
        }
        let Some(state) = state_at(txn, &inbox, sequence)? else {
            let dependency = Dependency::Identity { inbox, sequence };
            return Err(Stop::Prepare(PrepareError::Waits(vec![dependency])));
        };
        let installations: BTreeSet<InstallationId> = state.installations().into_iter().collect();
        let mut added = BTreeSet::new();
        for encoded in &addition.key_packages {
            for id in &installations {
                let Ok(fetched) = check(encoded, id, &inbox, txn.now_ns()) else {
                    continue;
                };
                if !leaves.contains_key(id) && added.insert(*id) {
                    self.adds.push(fetched);
                }
            }
        }
        let gone = leaves
            .values()
            .filter(|leaf| leaf.inbox == inbox && !installations.contains(&leaf.installation));
        self.removes.extend(gone.map(|leaf| leaf.index));
        for id in &installations {
            if !leaves.contains_key(id) && !added.contains(id) {
                next.failed.insert(*id);
            } else {
                next.failed.remove(id);
            }
        }
        list_absent(txn, leaves, next, &inbox, &installations)?;
        next.members.insert(inbox, sequence);
        Ok(())
    }

    fn is_nothing(&self, before: &GroupContext) -> bool {
        self.adds.is_empty() && self.removes.is_empty() && self.membership == before.to_membership()
    }
}

/// Lists as failed what an inbox loses by the change and never had a leaf: everybody expects a
/// removal of what is gone and not listed.
fn list_absent(
    txn: &WriteTxn<'_>,
    leaves: &BTreeMap<InstallationId, Leaf>,
    next: &mut GroupContext,
    inbox: &InboxId,
    left: &BTreeSet<InstallationId>,
) -> Result<(), Stop> {
    let held = next.members.get(inbox).copied().unwrap_or_default();
    let Some(state) = state_at(txn, inbox, held)? else {
        return Ok(());
    };
    let gone = state.installations().into_iter();
    let absent = gone.filter(|id| !left.contains(id) && !leaves.contains_key(id));
    next.failed.extend(absent);
    Ok(())
}

/// Builds the commit of an attribute change.
fn change_metadata(
    installation: &Installation,
    txn: &mut WriteTxn<'_>,
    group: &mut MlsGroup,
    intent: &stored::Intent,
) -> Result<(Vec<u8>, Vec<u8>), Stop> {
    let body =
        stored::MetadataIntent::decode(intent.body.clone()).map_err(|_| unsendable("invalid"))?;
    let mut context = GroupContext::of(group).map_err(|_| unsendable("unsupported_group"))?;
    let before = context.attributes.clone();
    context.attributes.extend(body.attributes);
    if context.attributes == before {
        return Err(Stop::Prepare(PrepareError::Superseded));
    }
    let plan = CommitPlan {
        metadata: Some(context.to_mutable_metadata()),
        ..Default::default()
    };
    let built = build_commit(group, &Provider::new(txn), installation, plan)?;
    Ok((built.commit, Vec::new()))
}

/// Discards the commit that an attempt staged. A message stages nothing.
pub(super) fn discard(
    txn: &mut WriteTxn<'_>,
    group: &GroupId,
    attempt: &stored::Attempt,
) -> Result<(), StorageError> {
    let provider = Provider::new(txn);
    let mut group = match load(&provider, group) {
        Ok(group) => group,
        Err(GroupFault::Storage(error)) => return Err(error),
        Err(_) => return Ok(()),
    };
    let is_current = group.epoch_authenticator().as_slice() == &attempt.base_authenticator[..];
    if !is_current || group.pending_commit().is_none() {
        return Ok(());
    }
    match clear_pending(&mut group, &provider) {
        Err(GroupFault::Storage(error)) => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Wraps the Welcome that an own commit owes, now that the commit's sequence id is known.
pub(super) fn owed_welcomes(
    txn: &WriteTxn<'_>,
    staged: &[u8],
    commit: SequenceId,
) -> Result<Vec<Bytes>, StorageError> {
    let corrupt = StorageError::Corrupt {
        table: "intent",
        what: "staged Welcome",
    };
    let staged = stored::StagedWelcome::decode(staged).map_err(|_| corrupt.clone())?;
    if staged.welcome.is_empty() {
        return Ok(Vec::new());
    }
    let recipients: Option<Vec<Recipient>> = staged.recipients.iter().map(from_stored).collect();
    let recipients = recipients.ok_or(corrupt.clone())?;
    let wrapped = wrap(&**txn.runtime(), &recipients, &staged.welcome, commit);
    let envelopes = wrapped.map_err(|_| corrupt)?.into_iter().map(|welcome| {
        let envelope = ClientEnvelope {
            payload: Some(Payload::WelcomeMessage(welcome)),
        };
        canonical_bytes(&envelope).into()
    });
    Ok(envelopes.collect())
}

fn to_stored(recipient: &Recipient) -> stored::WelcomeRecipient {
    stored::WelcomeRecipient {
        installation_key: recipient.installation.as_bytes().to_vec().into(),
        public_key: recipient.key.as_bytes().to_vec().into(),
        algorithm: recipient.key.algorithm().to_wire() as u32,
        reads_pointers: recipient.reads_pointers,
    }
}

fn from_stored(stored: &stored::WelcomeRecipient) -> Option<Recipient> {
    let algorithm = WrapperAlgorithm::from_wire(i32::try_from(stored.algorithm).ok()?)?;
    Some(Recipient {
        installation: InstallationId::try_from(&stored.installation_key[..]).ok()?,
        key: WrapperPublicKey::new(algorithm, &stored.public_key).ok()?,
        reads_pointers: stored.reads_pointers,
    })
}
