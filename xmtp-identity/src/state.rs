//! The state of an inbox: who belongs to it, and who may recover it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use xmtp_proto::id::{InboxId, InstallationId};
use xmtp_proto::identity as proto;

use crate::identifier::{Identifier, MemberKind};

/// Holds the state of one inbox after some update of its log.
///
/// Equal states give every further update the same outcome. `Debug` leaves the replay keys out.
#[derive(Clone, PartialEq, Eq)]
pub struct AssociationState {
    pub(crate) inbox_id: InboxId,
    pub(crate) members: BTreeMap<Identifier, Member>,
    pub(crate) recovery: Recovery,
    pub(crate) seen: BTreeSet<Bytes>,
}

/// Holds what is recorded about one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The member.
    pub identifier: Identifier,
    /// Who let the member in, `None` for the one that created the inbox.
    pub added_by: Option<Identifier>,
    /// The signed time of the update that added the member, in nanoseconds.
    pub added_at_ns: u64,
    /// The chain of the signature that added the member, for a smart contract wallet only.
    pub chain_id: Option<u64>,
}

/// Holds the recovery role, which outlives the membership of whoever has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// Who has the role.
    pub identifier: Identifier,
    /// The chain that signatures in this role must name.
    pub chain_id: Option<u64>,
}

/// Lists the members that two states do not share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AssociationStateDiff {
    /// Members of the newer state only, in order.
    pub new_members: Vec<Identifier>,
    /// Members of the older state only, in order.
    pub removed_members: Vec<Identifier>,
}

impl AssociationState {
    /// Returns the inbox.
    pub fn inbox_id(&self) -> InboxId {
        self.inbox_id
    }

    /// Returns the recovery role.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Returns the members, ordered by kind and then by identifier.
    pub fn members(&self) -> impl ExactSizeIterator<Item = &Member> {
        self.members.values()
    }

    /// Returns the record of one member.
    pub fn member(&self, identifier: &Identifier) -> Option<&Member> {
        self.members.get(identifier)
    }

    /// Tells whether `identifier` is a current member.
    pub fn is_member(&self, identifier: &Identifier) -> bool {
        self.members.contains_key(identifier)
    }

    /// Tells whether an installation is a current member.
    pub fn is_installation(&self, id: InstallationId) -> bool {
        self.is_member(&Identifier::installation(id))
    }

    /// Returns the installations that are members, ordered.
    pub fn installations(&self) -> Vec<InstallationId> {
        self.members
            .keys()
            .filter_map(|member| member.as_installation().copied())
            .collect()
    }

    /// Returns the members that are not installations, ordered.
    pub fn identifiers(&self) -> Vec<Identifier> {
        let keys = self.members.keys();
        keys.filter(|member| member.kind() != MemberKind::Installation)
            .cloned()
            .collect()
    }

    /// Tells whether a signature with this replay key was used already.
    pub fn has_seen(&self, replay_key: &[u8]) -> bool {
        self.seen.contains(replay_key)
    }

    /// Returns the installations of this state that `older` lacks, ordered.
    pub fn installations_added_since(&self, older: &Self) -> Vec<InstallationId> {
        let mut added = self.installations();
        added.retain(|id| !older.is_installation(*id));
        added
    }
}

/// Lists the members that `old` and `new` do not share; without `old`, all of `new` are new.
pub fn diff(old: Option<&AssociationState>, new: &AssociationState) -> AssociationStateDiff {
    let missing_from = |other: Option<&AssociationState>, identifier: &Identifier| {
        other.is_none_or(|other| !other.is_member(identifier))
    };
    let in_new = new
        .members
        .keys()
        .filter(|member| missing_from(old, member));
    let in_old = old.into_iter().flat_map(|old| old.members.keys());
    AssociationStateDiff {
        new_members: in_new.cloned().collect(),
        removed_members: in_old
            .filter(|member| missing_from(Some(new), member))
            .cloned()
            .collect(),
    }
}

impl fmt::Debug for AssociationState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AssociationState")
            .field("inbox_id", &self.inbox_id)
            .field("members", &self.members)
            .field("recovery", &self.recovery)
            .finish_non_exhaustive()
    }
}

impl AssociationStateDiff {
    /// Tells whether both states have the same members.
    pub fn is_empty(&self) -> bool {
        self.new_members.is_empty() && self.removed_members.is_empty()
    }

    /// Writes the difference as a message.
    pub fn to_proto(&self) -> proto::AssociationStateDiff {
        let write = |members: &[Identifier]| members.iter().map(Identifier::to_proto).collect();
        proto::AssociationStateDiff {
            new_members: write(&self.new_members),
            removed_members: write(&self.removed_members),
        }
    }
}
