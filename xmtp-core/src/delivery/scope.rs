//! Handles that steer a consumer while its next item is awaited.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;
use xmtp_proto::GroupId;

use super::boundary::Control;
use super::filter::{Filter, Scope, Selection};

/// Changes the scope and the filter of a consumer; cheap to clone (STR-022).
///
/// # Behavior
/// - A group taken out gets no hand-off once the call returned; what runs already goes on.
/// - A group put in again starts above its D; nothing queued before comes back by itself.
/// - A filter decides over later hand-offs; it takes nothing back and repeats nothing.
/// - Nothing waits for the network.
#[derive(Clone)]
pub struct ScopeHandle {
    pub(super) selection: Arc<watch::Sender<Arc<Selection>>>,
}

impl fmt::Debug for ScopeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopeHandle")
            .field("generation", &self.generation())
            .finish()
    }
}

impl ScopeHandle {
    pub(super) fn new(scope: Scope, filter: Filter) -> Self {
        let selection = Arc::new(Selection::new(scope, filter));
        Self {
            selection: Arc::new(watch::Sender::new(selection)),
        }
    }

    /// Puts groups into the scope.
    pub fn add(&self, groups: impl IntoIterator<Item = GroupId>) {
        self.rescope(|selection| match &mut selection.scope {
            Scope::All => remove_all(&mut selection.except, groups),
            Scope::Groups(scope) => insert_all(scope, groups),
        });
    }

    /// Takes groups out of the scope, also out of a scope of all groups.
    pub fn remove(&self, groups: impl IntoIterator<Item = GroupId>) {
        self.rescope(|selection| match &mut selection.scope {
            Scope::All => insert_all(&mut selection.except, groups),
            Scope::Groups(scope) => remove_all(scope, groups),
        });
    }

    /// Replaces the scope.
    pub fn set(&self, scope: impl Into<Scope>) {
        let scope = scope.into();
        self.rescope(|selection| {
            let is_changed = selection.scope != scope || !selection.except.is_empty();
            selection.scope = scope;
            selection.except.clear();
            is_changed
        });
    }

    /// Replaces the filter.
    pub fn set_filter(&self, filter: Filter) {
        self.selection.send_modify(|selection| {
            Arc::make_mut(selection).filter = filter;
        });
    }

    /// Tells whether a group is in scope.
    pub fn contains(&self, group: &GroupId) -> bool {
        self.selection.borrow().contains(group)
    }

    /// Answers a number that grows with every change of the scope.
    pub fn generation(&self) -> u64 {
        self.selection.borrow().generation
    }

    /// Waits until the scope is of another generation than `seen`; answers the new one.
    pub async fn changed(&self, seen: u64) -> u64 {
        let mut watch = self.selection.subscribe();
        let changed = watch.wait_for(|selection| selection.generation != seen);
        // The sender is in this handle.
        changed.await.map_or(seen, |selection| selection.generation)
    }

    fn rescope(&self, change: impl FnOnce(&mut Selection) -> bool) {
        self.selection.send_if_modified(|selection| {
            let selection = Arc::make_mut(selection);
            let is_changed = change(selection);
            selection.generation += u64::from(is_changed);
            is_changed
        });
    }
}

fn insert_all(set: &mut BTreeSet<GroupId>, groups: impl IntoIterator<Item = GroupId>) -> bool {
    let before = set.len();
    set.extend(groups);
    set.len() != before
}

fn remove_all(set: &mut BTreeSet<GroupId>, groups: impl IntoIterator<Item = GroupId>) -> bool {
    let before = set.len();
    groups.into_iter().for_each(|group| {
        set.remove(&group);
    });
    set.len() != before
}

/// Ends a consumer from elsewhere; cheap to clone.
///
/// # Behavior
/// - A `next` that waits answers the end; nothing is acknowledged by it.
/// - A `next` asked for later still acknowledges the item before, then answers the end.
#[derive(Clone, Debug)]
pub struct EndHandle {
    pub(super) control: Arc<watch::Sender<Control>>,
}

impl EndHandle {
    /// Ends the consumer.
    pub fn end(&self) {
        self.control.send_modify(|control| control.is_ending = true);
    }
}
