//! What a reader wants: the groups in its scope, and the filter over what they hold.
//!
//! The two differ in what they do to D. A group out of scope keeps its D, so its messages wait;
//! a message that the filter excludes is passed, and D moves past it without a callback.

use std::collections::BTreeSet;
use std::ops::Bound;

use xmtp_proto::GroupId;
use xmtp_proto::content::ConversationType;

use crate::storage::{Read, StorageError};
use crate::welcome;

/// The groups that a reader reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Every group, those found later included.
    #[default]
    All,
    /// These groups.
    Groups(BTreeSet<GroupId>),
}

impl From<GroupId> for Scope {
    fn from(group: GroupId) -> Self {
        Self::Groups(BTreeSet::from([group]))
    }
}

impl FromIterator<GroupId> for Scope {
    fn from_iter<I: IntoIterator<Item = GroupId>>(groups: I) -> Self {
        Self::Groups(groups.into_iter().collect())
    }
}

/// Which messages of the groups in scope are handed over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// `None` admits every type, and groups without a record.
    types: Option<BTreeSet<i32>>,
}

impl Filter {
    /// Admits every message.
    pub fn all() -> Self {
        Self::default()
    }

    /// Admits messages of conversations of these types.
    pub fn conversation_types(types: impl IntoIterator<Item = ConversationType>) -> Self {
        Self {
            types: Some(types.into_iter().map(i32::from).collect()),
        }
    }

    /// Tells whether every message is admitted.
    pub(super) fn is_all(&self) -> bool {
        self.types.is_none()
    }

    /// Tells whether a group's messages are admitted now.
    pub(super) fn admits(
        &self,
        snapshot: &(impl Read + ?Sized),
        group: &GroupId,
    ) -> Result<bool, StorageError> {
        let Some(types) = &self.types else {
            return Ok(true);
        };
        let record = welcome::store::group(snapshot, group)?.unwrap_or_default();
        Ok(i32::try_from(record.conversation_type).is_ok_and(|kind| types.contains(&kind)))
    }
}

/// A reader's scope and filter at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection {
    pub(super) scope: Scope,
    pub(super) filter: Filter,
    /// Groups taken out of a scope of all.
    pub(super) except: BTreeSet<GroupId>,
    /// Grows with every change of the scope.
    pub(super) generation: u64,
}

impl Selection {
    pub(super) fn new(scope: Scope, filter: Filter) -> Self {
        Self {
            scope,
            filter,
            ..Self::default()
        }
    }

    /// Tells whether a group is in scope.
    pub(super) fn contains(&self, group: &GroupId) -> bool {
        match &self.scope {
            Scope::All => !self.except.contains(group),
            Scope::Groups(groups) => groups.contains(group),
        }
    }

    /// Lists groups of a bounded scope after `after`; `None` when the scope is not bounded.
    pub(super) fn listed_after(
        &self,
        after: Option<&GroupId>,
    ) -> Option<impl Iterator<Item = GroupId>> {
        let Scope::Groups(groups) = &self.scope else {
            return None;
        };
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        Some(
            groups
                .range::<GroupId, _>((start, Bound::Unbounded))
                .copied(),
        )
    }
}
