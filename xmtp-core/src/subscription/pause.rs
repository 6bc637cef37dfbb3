//! Topics whose receipt is paused by a bound, and when it goes on (STR-063).
//!
//! A paused topic has no registration; nothing of it is dropped, because it is registered again
//! from durable F. Room goes to the topics that hold the least first, so one that holds much
//! never keeps an empty one out.

use std::collections::BTreeMap;

use xmtp_proto::limits::BACKEND_DEFAULT_MAX_ENVELOPE_BYTES;
use xmtp_proto::{Topic, TopicKind};

use crate::limits::{
    MAX_PENDING_BYTES_PER_TOPIC, MAX_PENDING_ROWS_PER_TOPIC, max_pending_bytes, max_pending_rows,
};
use crate::receipt::{self, Capacity, CapacityScope};
use crate::storage::{Snapshot, StorageError};

/// Topics looked at in one read.
const TOPICS_PER_READ: usize = 1_024;
/// Topics that go on in one look, so that they do not fill the bound again all at once.
const MAX_RESUMED: usize = 64;

/// Paused topics with the bound that stopped each.
pub(super) type Paused = BTreeMap<Topic, Capacity>;

/// Rows and bytes that wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Load {
    bytes: u64,
    rows: u64,
}

impl Load {
    fn is_within(self, rows: u64, bytes: u64) -> bool {
        self.rows <= rows && self.bytes <= bytes
    }
}

/// Answers the paused topics whose receipt may go on, those that hold the least first.
pub(super) fn resumable(
    snapshot: &dyn Snapshot,
    paused: &Paused,
) -> Result<Vec<Topic>, StorageError> {
    let mut ready = Vec::new();
    for (topic, capacity) in paused {
        let load = topic_load(snapshot, topic)?;
        let has_room = match capacity.scope {
            CapacityScope::Batch => true,
            CapacityScope::Topic => load.is_within(
                MAX_PENDING_ROWS_PER_TOPIC / 2,
                MAX_PENDING_BYTES_PER_TOPIC / 2,
            ),
            CapacityScope::Kind => kind_has_room(snapshot, topic.kind(), load)?,
        };
        if has_room {
            ready.push((load, *topic));
        }
    }
    ready.sort_unstable();
    ready.truncate(MAX_RESUMED);
    Ok(ready.into_iter().map(|(_, topic)| topic).collect())
}

/// Tells whether a kind has room for a topic: any room for one that holds little, a quarter of the
/// budget for one that holds much, so that those that are stuck never keep an empty one out.
fn kind_has_room(
    snapshot: &dyn Snapshot,
    kind: TopicKind,
    load: Load,
) -> Result<bool, StorageError> {
    let budget = receipt::store::kind_budget(snapshot, kind)?;
    let whole = Load {
        bytes: budget.bytes,
        rows: budget.rows,
    };
    let (rows, bytes) = (max_pending_rows(kind), max_pending_bytes(kind));
    let is_light = load.is_within(
        MAX_PENDING_ROWS_PER_TOPIC / 4,
        MAX_PENDING_BYTES_PER_TOPIC / 4,
    );
    Ok(if is_light {
        whole.is_within(rows - 1, bytes - BACKEND_DEFAULT_MAX_ENVELOPE_BYTES)
    } else {
        whole.is_within(rows / 4 * 3, bytes / 4 * 3)
    })
}

/// Answers the topics of a kind that hold more than an equal share of what waits: they pause
/// first when the kind's budget is exhausted.
pub(super) fn heaviest(
    snapshot: &dyn Snapshot,
    kind: TopicKind,
) -> Result<Vec<Topic>, StorageError> {
    let mut loads = Vec::new();
    let mut after = None;
    loop {
        let topics = receipt::store::pending_topics(snapshot, after, TOPICS_PER_READ)?;
        for topic in topics.iter().filter(|topic| topic.kind() == kind) {
            loads.push((*topic, topic_load(snapshot, topic)?));
        }
        if topics.len() < TOPICS_PER_READ {
            break;
        }
        after = topics.last().copied();
    }
    let count = loads.len().max(1) as u64;
    let share_rows = loads.iter().map(|(_, load)| load.rows).sum::<u64>() / count;
    let share_bytes = loads.iter().map(|(_, load)| load.bytes).sum::<u64>() / count;
    loads.retain(|(_, load)| !load.is_within(share_rows, share_bytes));
    Ok(loads.into_iter().map(|(topic, _)| topic).collect())
}

fn topic_load(snapshot: &dyn Snapshot, topic: &Topic) -> Result<Load, StorageError> {
    let record = receipt::store::topic(snapshot, topic)?;
    Ok(Load {
        bytes: record.pending_bytes,
        rows: record.pending_rows.into(),
    })
}
