//! What a head waits for, as stored with it (STR-073, STR-075): after a restart the requirements
//! are derived again from what is pending.

use xmtp_proto::storage::v1 as stored;
use xmtp_proto::storage::v1::dependency::Kind;
use xmtp_proto::{GroupId, InboxId, SequenceId, Topic};

use super::store;
use crate::limits::{MAX_DEPENDENCIES_PER_PARENT, MAX_LOCAL_READ_BYTES, MAX_LOCAL_READ_ROWS};
use crate::processor::Dependency;
use crate::receipt;
use crate::storage::{Read, StorageError};
use crate::welcome;

/// Encodes a dependency for storage.
pub(crate) fn to_stored(dependency: &Dependency) -> stored::Dependency {
    let kind = match dependency {
        Dependency::Identity { inbox, sequence } => Kind::Identity(stored::IdentityAt {
            inbox_id: inbox.as_bytes().to_vec().into(),
            sequence_id: sequence.get(),
        }),
        Dependency::GroupPrefix { group, through } => Kind::GroupPrefix(stored::GroupPrefix {
            group_id: group.as_bytes().to_vec().into(),
            through: through.get(),
        }),
        Dependency::Pointee { destination } => Kind::Pointee(stored::WelcomePointee {
            destination: destination.as_bytes().to_vec().into(),
        }),
    };
    stored::Dependency { kind: Some(kind) }
}

/// Decodes a stored dependency; `None` when it is damaged.
pub(crate) fn from_stored(stored: &stored::Dependency) -> Option<Dependency> {
    Some(match stored.kind.as_ref()? {
        Kind::Identity(identity) => Dependency::Identity {
            inbox: InboxId::try_from(&identity.inbox_id[..]).ok()?,
            sequence: SequenceId::saturating(identity.sequence_id),
        },
        Kind::GroupPrefix(prefix) => Dependency::GroupPrefix {
            group: GroupId::try_from(&prefix.group_id[..]).ok()?,
            through: SequenceId::saturating(prefix.through),
        },
        Kind::Pointee(pointee) => Dependency::Pointee {
            destination: Topic::parse(&pointee.destination).ok()?,
        },
    })
}

/// A pending parent and one thing that it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Waiting {
    /// The parent's topic.
    pub(crate) topic: Topic,
    /// The parent's sequence id.
    pub(crate) sequence: SequenceId,
    /// What it waits for.
    pub(crate) dependency: Dependency,
    /// How often the parent was tried.
    pub(crate) attempts: u32,
    /// When the parent is given up, in nanoseconds; 0 is never.
    pub(crate) deadline_ns: u64,
}

/// Where a round ended, so that the next one begins behind it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    /// The topic whose head was served last.
    topic: Option<Topic>,
    /// The Welcome that was served last.
    welcome: SequenceId,
}

/// Lists what pending parents wait for: up to `most` of the heads of topics, then up to as many of
/// the Welcomes of `welcome_topic`, so that neither keeps the other out.
///
/// # Behavior
/// - One parent has up to [`MAX_DEPENDENCIES_PER_PARENT`] of them in a round.
/// - A round begins behind the parents that the one before served last, and goes around.
pub(crate) fn waiting(
    snapshot: &(impl Read + ?Sized),
    welcome_topic: Option<&Topic>,
    place: &mut Place,
    most: usize,
) -> Result<Vec<Waiting>, StorageError> {
    let mut found = of_heads(snapshot, &mut place.topic, most)?;
    if let Some(topic) = welcome_topic {
        found.extend(of_welcomes(snapshot, topic, &mut place.welcome, most)?);
    }
    Ok(found)
}

fn of_heads(
    snapshot: &(impl Read + ?Sized),
    place: &mut Option<Topic>,
    most: usize,
) -> Result<Vec<Waiting>, StorageError> {
    let start = *place;
    let (mut after, mut is_around) = (start, start.is_none());
    let mut found = Vec::new();
    loop {
        let (heads, more) = store::heads(snapshot, after.as_ref(), MAX_LOCAL_READ_ROWS)?;
        for (topic, state) in &heads {
            if is_around && start.is_some_and(|start| *topic > start) {
                return Ok(found);
            }
            let tried = (state.attempts, state.deadline_ns);
            let sequence = SequenceId::saturating(state.sequence_id);
            if !push(
                &mut found,
                most,
                (topic, sequence),
                &state.dependencies,
                tried,
            ) {
                return Ok(found);
            }
            *place = Some(*topic);
            after = Some(*topic);
        }
        if !more {
            if is_around {
                return Ok(found);
            }
            (after, is_around) = (None, true);
        }
    }
}

fn of_welcomes(
    snapshot: &(impl Read + ?Sized),
    topic: &Topic,
    place: &mut SequenceId,
    most: usize,
) -> Result<Vec<Waiting>, StorageError> {
    let start = *place;
    let (mut after, mut is_around) = (start, start == SequenceId::ZERO);
    let mut found = Vec::new();
    loop {
        let (rows, more) = receipt::store::pending_page(
            snapshot,
            topic,
            after,
            MAX_LOCAL_READ_ROWS,
            MAX_LOCAL_READ_BYTES,
        )?;
        for (sequence, _) in &rows {
            if is_around && start != SequenceId::ZERO && *sequence > start {
                return Ok(found);
            }
            if let Some(retry) = welcome::store::retry(snapshot, *sequence)? {
                let tried = (retry.attempts, retry.deadline_ns);
                if !push(
                    &mut found,
                    most,
                    (topic, *sequence),
                    &retry.dependencies,
                    tried,
                ) {
                    return Ok(found);
                }
            }
            *place = *sequence;
            after = *sequence;
        }
        if !more {
            if is_around {
                return Ok(found);
            }
            (after, is_around) = (SequenceId::ZERO, true);
        }
    }
}

/// Adds what one parent waits for; answers whether there was room for it.
fn push(
    found: &mut Vec<Waiting>,
    most: usize,
    (topic, sequence): (&Topic, SequenceId),
    dependencies: &[stored::Dependency],
    (attempts, deadline_ns): (u32, u64),
) -> bool {
    let of_parent = dependencies.len().min(MAX_DEPENDENCIES_PER_PARENT);
    if !found.is_empty() && found.len() + of_parent > most {
        return false;
    }
    let dependencies = dependencies.iter().filter_map(from_stored);
    found.extend(dependencies.take(of_parent).map(|dependency| Waiting {
        topic: *topic,
        sequence,
        dependency,
        attempts,
        deadline_ns,
    }));
    true
}

/// Tells whether the database holds what is waited for.
pub(crate) fn is_ready(
    snapshot: &(impl Read + ?Sized),
    dependency: &Dependency,
) -> Result<bool, StorageError> {
    match dependency {
        Dependency::Identity { inbox, sequence } => {
            Ok(store::identity_state(snapshot, inbox, *sequence)?.is_some())
        }
        Dependency::GroupPrefix { group, through } => {
            let record = receipt::store::topic(snapshot, &Topic::group(group))?;
            let active = welcome::store::group(snapshot, group)?.is_some_and(|group| group.active);
            Ok(record.processed >= through.get() || !active)
        }
        Dependency::Pointee { destination } => {
            let record = receipt::store::topic(snapshot, destination)?;
            Ok(record.pending_rows > 0)
        }
    }
}
