//! Commit-log entries: readable, with a group; what they say and who signed is for clients.

use prost::Message;
use xmtp_proto::backend::v1::CommitLogEntry;
use xmtp_proto::content::PlaintextCommitLogEntry;
use xmtp_proto::id::TopicKind;

use super::{Read, malformed, topic};
use crate::store::Refusal;

/// Reads a commit-log entry.
pub(super) fn read(entry: &CommitLogEntry) -> Result<Read, Refusal> {
    let plain = PlaintextCommitLogEntry::decode(entry.serialized_commit_log_entry.as_ref());
    let plain = plain.map_err(|_| malformed("the commit-log entry can not be read"))?;
    let problem = "the group id of the commit-log entry does not have 16 bytes";
    topic(TopicKind::CommitLog, &plain.group_id, problem).map(Read::plain)
}
