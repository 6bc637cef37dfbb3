//! Joining a group from a Welcome, in two steps: look at it, then install exactly what was seen.

use std::collections::BTreeSet;

use openmls::group::{MlsGroup, StagedWelcome, WelcomeError};
use openmls::prelude::Welcome;
use thiserror::Error;
use xmtp_core::storage::{StorageError, WriteTxn};
use xmtp_proto::id::{GroupId, SequenceId};

use super::context::{ContextError, GroupContext};
use super::{GroupFault, settings};
use crate::leaf::{Leaf, LeafFault};
use crate::store::{erase_group, put_join_epoch};
use crate::welcome::WelcomeFault;
use crate::{Installation, Provider};

/// Why a group cannot be joined.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum JoinFault {
    /// openmls or the storage failed.
    #[error(transparent)]
    Group(#[from] GroupFault),
    /// The Welcome does not open.
    #[error(transparent)]
    Welcome(#[from] WelcomeFault),
    /// The group's context cannot be read.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// A leaf cannot be read.
    #[error(transparent)]
    Leaf(#[from] LeafFault),
    /// The group id does not have 16 bytes.
    #[error("the group's id is malformed")]
    GroupId,
    /// The own key is not a leaf.
    #[error("the welcome leads to a group without this installation")]
    NotALeaf,
    /// The inbox of a leaf is not on the member list.
    #[error("a leaf belongs to an inbox that is not on the member list")]
    LeafNotListed,
    /// A member's identity update has the number 0, or one after the Welcome.
    #[error("a member's identity update is not before the welcome")]
    MemberSequence,
}

/// A group seen through a Welcome. Nothing is written until [`StagedJoin::install`].
#[derive(Debug)]
pub struct StagedJoin {
    staged: StagedWelcome,
    group: GroupId,
    context: GroupContext,
    leaves: Vec<Leaf>,
    adder: Leaf,
}

/// Opens an MLS Welcome with the key package it names and checks it against RFC 9420.
///
/// Lifetimes of leaves are not checked: a group outlives the key packages it was made from.
pub fn stage_join(txn: &mut WriteTxn<'_>, welcome: Welcome) -> Result<StagedJoin, JoinFault> {
    let provider = Provider::new(txn);
    let config = settings::join_config();
    let builder = StagedWelcome::build_from_welcome(&provider, &config, welcome);
    let builder = settle(&provider, builder)?;
    if !builder.processed_welcome().psks().is_empty() {
        return Err(WelcomeFault::PreSharedKeys.into());
    }
    // Whether an old state may be replaced is decided between the two steps.
    let staged = builder
        .skip_lifetime_validation()
        .replace_old_group()
        .build();
    let staged = settle(&provider, staged)?;

    let context = staged.group_context();
    let group = GroupId::try_from(context.group_id().as_slice()).map_err(|_| JoinFault::GroupId)?;
    let leaves = staged.members().map(|member| Leaf::of(&member));
    let leaves = leaves.collect::<Result<Vec<_>, _>>()?;
    let index = staged.welcome_sender_index();
    let adder = staged
        .welcome_sender()
        .map_err(|_| GroupFault::Invalid("welcome sender"))?;
    Ok(StagedJoin {
        group,
        context: GroupContext::read(context.extensions())?,
        leaves,
        adder: Leaf::at(index, adder)?,
        staged,
    })
}

impl StagedJoin {
    /// Answers the group.
    pub fn group_id(&self) -> &GroupId {
        &self.group
    }

    /// Answers the epoch that is joined.
    pub fn epoch(&self) -> u64 {
        self.staged.group_context().epoch().as_u64()
    }

    /// Answers what the group's context says.
    pub fn context(&self) -> &GroupContext {
        &self.context
    }

    /// Answers every member, the own leaf included.
    pub fn leaves(&self) -> &[Leaf] {
        &self.leaves
    }

    /// Answers who added this installation: the leaf that signed the group's info.
    pub fn adder(&self) -> &Leaf {
        &self.adder
    }

    /// Checks what can be checked without identity states, for a Welcome at `sequence`.
    pub fn check(&self, own: &Installation, sequence: SequenceId) -> Result<(), JoinFault> {
        if !self.leaves.iter().any(|leaf| leaf.installation == own.id()) {
            return Err(JoinFault::NotALeaf);
        }
        let members = &self.context.members;
        if self
            .leaves
            .iter()
            .any(|leaf| !members.contains_key(&leaf.inbox))
        {
            return Err(JoinFault::LeafNotListed);
        }
        let is_before = |id: &SequenceId| *id > SequenceId::ZERO && *id < sequence;
        if !members.values().all(is_before) {
            return Err(JoinFault::MemberSequence);
        }
        Ok(())
    }

    /// Answers the installations in the tree.
    pub fn installations(&self) -> BTreeSet<xmtp_proto::id::InstallationId> {
        self.leaves.iter().map(|leaf| leaf.installation).collect()
    }

    /// Writes the group, in the place of any older state of it.
    pub fn install(self, txn: &mut WriteTxn<'_>) -> Result<MlsGroup, GroupFault> {
        erase_group(txn, &self.group)?;
        put_join_epoch(txn, &self.group, self.epoch())?;
        let provider = Provider::new(txn);
        let joined = self.staged.into_group(&provider);
        provider.settle(joined.map_err(|error| match error {
            WelcomeError::StorageError(error) => GroupFault::Storage(error),
            _ => GroupFault::Library,
        }))
    }
}

fn settle<T>(
    provider: &Provider<'_, '_>,
    result: Result<T, WelcomeError<StorageError>>,
) -> Result<T, JoinFault> {
    if let Some(fault) = provider.store().take_fault() {
        return Err(GroupFault::Storage(fault).into());
    }
    result.map_err(|error| match error {
        WelcomeError::LibraryError(_) => GroupFault::Library.into(),
        WelcomeError::StorageError(error) => GroupFault::Storage(error).into(),
        WelcomeError::NoMatchingKeyPackage
        | WelcomeError::NoMatchingEncryptionKey
        | WelcomeError::PrivateInitKeyNotFound
        | WelcomeError::JoinerSecretNotFound => WelcomeFault::NoKey.into(),
        WelcomeError::GroupSecrets(_)
        | WelcomeError::GroupInfo(_)
        | WelcomeError::UnableToDecrypt => WelcomeFault::Decryption.into(),
        WelcomeError::Psk(_) => WelcomeFault::PreSharedKeys.into(),
        _ => GroupFault::Invalid("welcome").into(),
    })
}
