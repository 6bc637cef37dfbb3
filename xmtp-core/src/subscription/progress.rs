//! What "processed through H" means, for status and sync alike (STR-013).

use xmtp_proto::storage::v1 as stored;
use xmtp_proto::storage::v1::HeadKind;
use xmtp_proto::{SequenceId, Topic, TopicKind};

use crate::limits::{MAX_LOCAL_READ_BYTES, MAX_LOCAL_READ_ROWS};
use crate::processing::QUARANTINED;
use crate::processor::Dependency;
use crate::storage::{Read, StorageError};
use crate::{processing, receipt, welcome};

/// How far a topic is, as committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicProgress {
    /// F.
    pub received: SequenceId,
    /// What processing has done of it.
    pub position: Position,
    /// Why processing cannot go on at present, if so.
    pub blocked: Option<String>,
    /// Why the head waits at present, if it does.
    pub waiting: Option<String>,
}

/// What processing has done of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Position {
    /// A group or identity topic.
    Processed {
        /// P.
        processed: SequenceId,
        /// Whether the topic is a group that this installation left (STR-086).
        is_left: bool,
    },
    /// A Welcome topic.
    Welcomes {
        /// Welcomes at or below the target that are not completed.
        unresolved: Vec<SequenceId>,
    },
}

/// How an obligation stands against its fixed target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Completion {
    /// Something is left to receive or process.
    Pending,
    /// Everything through the target is processed.
    Complete,
    /// Processing cannot go on without an upgrade or a repair.
    Blocked {
        /// The stable code of the cause.
        code: String,
    },
}

/// Decides how an obligation stands (STR-013). A target of zero owes nothing.
pub fn completion(progress: &TopicProgress, target: SequenceId) -> Completion {
    let is_complete = match &progress.position {
        Position::Processed { processed, is_left } => *is_left || *processed >= target,
        Position::Welcomes { unresolved } => progress.received >= target && unresolved.is_empty(),
    };
    match &progress.blocked {
        _ if is_complete => Completion::Complete,
        Some(code) => Completion::Blocked { code: code.clone() },
        None => Completion::Pending,
    }
}

/// Reads how far a topic is. `through` bounds the unresolved Welcomes that are listed.
pub(crate) fn read(
    snapshot: &(impl Read + ?Sized),
    topic: &Topic,
    through: SequenceId,
) -> Result<TopicProgress, StorageError> {
    let record = receipt::store::topic(snapshot, topic)?;
    match topic.kind() {
        TopicKind::Welcome => welcomes(snapshot, topic, through, &record),
        TopicKind::Group => group(snapshot, topic, &record),
        TopicKind::Identity | TopicKind::KeyPackage | TopicKind::CommitLog => {
            processed(snapshot, topic, &record, false)
        }
    }
}

fn group(
    snapshot: &(impl Read + ?Sized),
    topic: &Topic,
    record: &stored::TopicRecord,
) -> Result<TopicProgress, StorageError> {
    let group = match topic.group_id() {
        Some(group) => welcome::store::group(snapshot, &group)?,
        None => None,
    };
    let inactive = group.filter(|group| !group.active);
    let is_quarantined = inactive
        .as_ref()
        .is_some_and(|group| group.inactive_cause == QUARANTINED);
    let is_left = inactive.is_some() && !is_quarantined;
    let mut progress = processed(snapshot, topic, record, is_left)?;
    if is_quarantined {
        progress.blocked = Some(QUARANTINED.to_owned());
    }
    Ok(progress)
}

fn processed(
    snapshot: &(impl Read + ?Sized),
    topic: &Topic,
    record: &stored::TopicRecord,
    is_left: bool,
) -> Result<TopicProgress, StorageError> {
    let head = processing::store::head(snapshot, topic)?;
    let blocked = match &head {
        Some(head) => blocked_head(snapshot, head)?,
        None => None,
    };
    Ok(TopicProgress {
        received: SequenceId::saturating(record.received),
        position: Position::Processed {
            processed: SequenceId::saturating(record.processed),
            is_left,
        },
        blocked,
        waiting: head.map(|head| head.code),
    })
}

/// Answers why a head cannot go on: it is blocked itself, or an identity that it waits for is.
fn blocked_head(
    snapshot: &(impl Read + ?Sized),
    head: &stored::HeadState,
) -> Result<Option<String>, StorageError> {
    match head.kind() {
        HeadKind::Blocked => Ok(Some(head.code.clone())),
        HeadKind::Waits => blocked_dependency(snapshot, &head.dependencies),
        HeadKind::Retry | HeadKind::Unspecified => Ok(None),
    }
}

fn blocked_dependency(
    snapshot: &(impl Read + ?Sized),
    dependencies: &[stored::Dependency],
) -> Result<Option<String>, StorageError> {
    for dependency in dependencies {
        let needed = processing::dependency::from_stored(dependency);
        let topic = match needed {
            Some(Dependency::Identity { inbox, .. }) => Topic::identity(&inbox),
            Some(Dependency::GroupPrefix { group, .. }) => Topic::group(&group),
            Some(Dependency::Pointee { .. }) | None => continue,
        };
        let head = processing::store::head(snapshot, &topic)?;
        if let Some(head) = head.filter(|head| head.kind() == HeadKind::Blocked) {
            return Ok(Some(head.code));
        }
    }
    Ok(None)
}

fn welcomes(
    snapshot: &(impl Read + ?Sized),
    topic: &Topic,
    through: SequenceId,
    record: &stored::TopicRecord,
) -> Result<TopicProgress, StorageError> {
    let mut unresolved = Vec::new();
    let mut after = SequenceId::ZERO;
    loop {
        let (rows, more) = receipt::store::pending_page(
            snapshot,
            topic,
            after,
            MAX_LOCAL_READ_ROWS,
            MAX_LOCAL_READ_BYTES,
        )?;
        let owed = rows.iter().map(|(sequence, _)| *sequence);
        unresolved.extend(owed.take_while(|sequence| *sequence <= through));
        let last = rows.last().map(|(sequence, _)| *sequence);
        match last {
            Some(last) if more && last <= through => after = last,
            _ => break,
        }
    }
    // The topic is blocked when nothing that is left can go on.
    let mut blocked = None;
    let mut waiting = None;
    let is_received = record.received >= through.get();
    let mut is_blocked = is_received && !unresolved.is_empty();
    for sequence in &unresolved {
        let Some(retry) = welcome::store::retry(snapshot, *sequence)? else {
            is_blocked = false;
            continue;
        };
        let code = match retry.blocked {
            true => Some(retry.code.clone()),
            false => blocked_dependency(snapshot, &retry.dependencies)?,
        };
        is_blocked &= code.is_some();
        blocked = blocked.or(code);
        waiting = waiting.or(Some(retry.code));
    }
    Ok(TopicProgress {
        received: SequenceId::saturating(record.received),
        position: Position::Welcomes { unresolved },
        blocked: blocked.filter(|_| is_blocked),
        waiting,
    })
}
