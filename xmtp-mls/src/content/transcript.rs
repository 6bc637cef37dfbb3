//! Transcripts: what a commit changed, derived by each client from the commit it validated.

use std::collections::BTreeSet;

use prost::Message;
use xmtp_proto::content::group_updated::{Inbox, MetadataFieldChange};
use xmtp_proto::content::{EncodedContent, GroupUpdated};
use xmtp_proto::id::{GroupId, InboxId, MessageId};

use super::group_updated_content;
use crate::group::GroupContext;

/// A transcript ready to be stored as a message.
#[derive(Clone, PartialEq)]
pub struct Transcript {
    /// Its message id.
    pub id: MessageId,
    /// Part of the id.
    pub idempotency_key: String,
    /// The content.
    pub content: EncodedContent,
}

// The metadata of a group does not reach a log.
impl std::fmt::Debug for Transcript {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transcript")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Answers what changed between two contexts, or `None` when nothing shows.
///
/// `left` are the inboxes with a pending leave request: removed, they count as left.
pub fn group_updated(
    before: &GroupContext,
    after: &GroupContext,
    initiator: &InboxId,
    left: &BTreeSet<InboxId>,
) -> Option<GroupUpdated> {
    let members = |context: &GroupContext| context.members.keys().copied().collect();
    let (before_members, after_members): (BTreeSet<InboxId>, BTreeSet<InboxId>) =
        (members(before), members(after));
    let gone = before_members.difference(&after_members);
    let (left, removed): (Vec<_>, Vec<_>) = gone.partition(|inbox| left.contains(inbox));
    let updated = GroupUpdated {
        initiated_by_inbox_id: initiator.to_hex(),
        added_inboxes: new_in(&before_members, &after_members),
        removed_inboxes: removed.into_iter().map(inbox).collect(),
        metadata_field_changes: field_changes(before, after),
        left_inboxes: left.into_iter().map(inbox).collect(),
        added_admin_inboxes: new_in(&before.admins, &after.admins),
        removed_admin_inboxes: new_in(&after.admins, &before.admins),
        added_super_admin_inboxes: new_in(&before.super_admins, &after.super_admins),
        removed_super_admin_inboxes: new_in(&after.super_admins, &before.super_admins),
    };
    let nothing = GroupUpdated {
        initiated_by_inbox_id: initiator.to_hex(),
        ..GroupUpdated::default()
    };
    (updated != nothing).then_some(updated)
}

/// Answers the transcript of a join: the own inbox, added by the adder.
pub fn joined(own: &InboxId, adder: &InboxId) -> GroupUpdated {
    GroupUpdated {
        initiated_by_inbox_id: adder.to_hex(),
        added_inboxes: vec![inbox(own)],
        ..GroupUpdated::default()
    }
}

/// Makes the transcript of a commit that the backend stored at a time, in nanoseconds.
pub fn commit_transcript_id(group: &GroupId, updated: &GroupUpdated, server_ns: u64) -> Transcript {
    transcript(group, updated, server_ns.to_string())
}

/// Makes the transcript of a join whose Welcome the backend stored at a time, in nanoseconds.
pub fn join_transcript_id(group: &GroupId, updated: &GroupUpdated, server_ns: u64) -> Transcript {
    transcript(group, updated, format!("{server_ns}_welcome_added"))
}

fn transcript(group: &GroupId, updated: &GroupUpdated, idempotency_key: String) -> Transcript {
    let content = group_updated_content(updated);
    Transcript {
        id: MessageId::derive(group, &idempotency_key, &content.encode_to_vec()),
        idempotency_key,
        content,
    }
}

fn inbox(id: &InboxId) -> Inbox {
    Inbox {
        inbox_id: id.to_hex(),
    }
}

/// Answers what is in `after` and not in `before`.
fn new_in(before: &BTreeSet<InboxId>, after: &BTreeSet<InboxId>) -> Vec<Inbox> {
    after.difference(before).map(inbox).collect()
}

fn field_changes(before: &GroupContext, after: &GroupContext) -> Vec<MetadataFieldChange> {
    let names: BTreeSet<&String> = before
        .attributes
        .keys()
        .chain(after.attributes.keys())
        .collect();
    let changes = names.into_iter().filter_map(|name| {
        let old_value = before.attributes.get(name).cloned();
        let new_value = after.attributes.get(name).cloned();
        (old_value != new_value).then(|| MetadataFieldChange {
            field_name: name.clone(),
            old_value,
            new_value,
        })
    });
    changes.collect()
}
