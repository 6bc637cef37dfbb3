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
///
/// Its key is that time as released clients write it: a date, not the number that commits have.
pub fn join_transcript_id(group: &GroupId, updated: &GroupUpdated, server_ns: u64) -> Transcript {
    let key = format!("{}_welcome_added", date_text(server_ns));
    transcript(group, updated, key)
}

/// Writes a time as `2026-11-30 10:08:13.167306028 UTC`, with 0, 3, 6 or 9 digits after the dot.
fn date_text(ns: u64) -> String {
    let (seconds, nanos) = (ns / 1_000_000_000, ns % 1_000_000_000);
    let (year, month, day) = civil_date(seconds / 86_400);
    let of_day = seconds % 86_400;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let fraction = match nanos {
        0 => String::new(),
        _ if nanos % 1_000_000 == 0 => format!(".{:03}", nanos / 1_000_000),
        _ if nanos % 1000 == 0 => format!(".{:06}", nanos / 1000),
        _ => format!(".{nanos:09}"),
    };
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}{fraction} UTC")
}

/// Answers year, month and day of a day counted from the Unix epoch.
///
/// Years are counted from March, so that the leap day is the last of its year.
fn civil_date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
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

#[cfg(test)]
mod tests {
    use super::date_text;

    #[test]
    fn times_read_as_released_clients_write_them() {
        let cases = [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400_000_000_000, "2000-02-29 00:00:00 UTC"),
            (
                1_796_033_293_167_306_028,
                "2026-11-30 10:08:13.167306028 UTC",
            ),
            (1_796_033_293_167_306_000, "2026-11-30 10:08:13.167306 UTC"),
            (1_796_033_293_160_000_000, "2026-11-30 10:08:13.160 UTC"),
            (
                4_107_542_399_000_000_001,
                "2100-02-28 23:59:59.000000001 UTC",
            ),
        ];
        for (ns, text) in cases {
            assert_eq!(date_text(ns), text);
        }
    }
}
