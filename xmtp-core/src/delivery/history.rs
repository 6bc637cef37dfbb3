//! What is stored already, from one snapshot, and the cursor from which nothing is missed.

use std::collections::BinaryHeap;

use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{DatabaseId, GroupId};

use super::cursor::DeliveryCursor;
use super::error::StreamError;
use super::filter::{Filter, Scope, Selection};
use super::message::{Message, is_eligible};
use super::messages::Messages;
use super::replay::Replay;
use super::scan::groups_after;
use super::store;
use crate::limits::{MAX_LOCAL_READ_BYTES, MAX_LOCAL_READ_ROWS};
use crate::storage::{Order, Snapshot, StorageError};

/// The newest messages of a snapshot, with its live edge (STR-099).
///
/// # Behavior
/// - Messages and cursor are of one snapshot: what follows the cursor is what the snapshot did
///   not hold, with no gap and no overlap.
#[derive(Clone, Debug)]
pub struct History {
    /// The newest messages in local order, oldest first.
    pub messages: Vec<Message>,
    /// The live edge of the snapshot.
    pub cursor: DeliveryCursor,
    /// Whether there are older ones, for [`Messages::page`].
    pub has_older: bool,
    pub(super) source: Messages,
    pub(super) scope: Scope,
    pub(super) filter: Filter,
}

impl History {
    /// Follows the snapshot live, with its scope and filter.
    pub async fn follow(&self) -> Result<Replay, StreamError> {
        let (scope, filter) = (self.scope.clone(), self.filter.clone());
        self.source.replay(self.cursor, scope, filter).await
    }
}

/// Older messages; a page promises no live edge.
#[derive(Clone, Debug)]
pub struct HistoryPage {
    /// Messages in local order, oldest first.
    pub messages: Vec<Message>,
    /// Whether there are older ones.
    pub has_older: bool,
}

/// What to read, newest first.
pub(super) struct Request {
    pub(super) database: DatabaseId,
    pub(super) selection: Selection,
    pub(super) limit: u32,
    pub(super) now_ns: u64,
}

/// Messages found so far, newest first.
struct Taken<'a> {
    request: &'a Request,
    messages: Vec<Message>,
    bytes: u64,
    has_older: bool,
}

impl Request {
    /// Reads the newest messages below a number, at most one local page.
    pub(super) fn read(
        &self,
        snapshot: &dyn Snapshot,
        below: u64,
    ) -> Result<HistoryPage, StorageError> {
        let mut taken = Taken {
            request: self,
            messages: Vec::new(),
            bytes: 0,
            has_older: false,
        };
        let is_everything = self.selection.scope == Scope::All && self.selection.filter.is_all();
        match is_everything {
            true => taken.scan(snapshot, below)?,
            false => taken.merge(snapshot, below)?,
        }
        taken.messages.reverse();
        Ok(HistoryPage {
            messages: taken.messages,
            has_older: taken.has_older,
        })
    }
}

impl Taken<'_> {
    /// Reads every message downwards.
    fn scan(&mut self, snapshot: &dyn Snapshot, mut below: u64) -> Result<(), StorageError> {
        loop {
            let page = store::messages_below(snapshot, below)?;
            for (number, message) in page.rows {
                below = number;
                if !self.take(number, message)? {
                    return Ok(());
                }
            }
            if !page.more {
                return Ok(());
            }
        }
    }

    /// Merges the groups that are wanted, newest first: one seek for each group and message.
    fn merge(&mut self, snapshot: &dyn Snapshot, below: u64) -> Result<(), StorageError> {
        let mut newest: BinaryHeap<(u64, GroupId)> = BinaryHeap::new();
        for group in self.groups(snapshot)? {
            newest.extend(
                store::number_beside(snapshot, &group, below, Order::Descending)?
                    .map(|at| (at, group)),
            );
        }
        while let Some((number, group)) = newest.pop() {
            let message = store::message(snapshot, number)?.unwrap_or_default();
            if !self.take(number, message)? {
                return Ok(());
            }
            newest.extend(
                store::number_beside(snapshot, &group, number, Order::Descending)?
                    .map(|at| (at, group)),
            );
        }
        Ok(())
    }

    fn groups(&self, snapshot: &dyn Snapshot) -> Result<Vec<GroupId>, StorageError> {
        let selection = &self.request.selection;
        let mut groups = Vec::new();
        let mut after = None;
        loop {
            let listed = groups_after(snapshot, selection, after.as_ref())?;
            let Some(last) = listed.last() else {
                return Ok(groups);
            };
            after = Some(*last);
            for group in listed {
                if selection.filter.admits(snapshot, &group)? {
                    groups.push(group);
                }
            }
        }
    }

    /// Takes a message if it may be shown; answers whether there is room for more.
    fn take(&mut self, number: u64, message: stored::StoredMessage) -> Result<bool, StorageError> {
        if !is_eligible(&message, self.request.now_ns) {
            return Ok(true);
        }
        let bytes = self.bytes + message.content.len() as u64;
        let limit = self.request.limit.min(MAX_LOCAL_READ_ROWS) as usize;
        let is_over = !self.messages.is_empty() && bytes > u64::from(MAX_LOCAL_READ_BYTES);
        if self.messages.len() >= limit || is_over {
            self.has_older = true;
            return Ok(false);
        }
        self.bytes = bytes;
        let message = Message::new(self.request.database, number, message)?;
        self.messages.push(message);
        Ok(true)
    }
}
