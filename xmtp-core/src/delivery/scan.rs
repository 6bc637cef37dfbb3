//! Finds candidates in delivery-number order, in bounded reads of fresh state (STR-101).
//!
//! The scan position says only what this reader has looked at since its scope last changed; D
//! stays per group. A page without a candidate makes the scan jump to the earliest message above
//! the floor of any group in scope, found by one index seek per group, so that neither long
//! acknowledged stretches nor other groups are read through. Messages stored meanwhile have
//! greater numbers, so a jump spread over several snapshots misses none.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use xmtp_proto::GroupId;
use xmtp_proto::storage::v1 as stored;

use super::filter::Selection;
use super::message::{group_of, is_eligible};
use super::store;
use crate::limits::MAX_LOCAL_READ_ROWS;
use crate::storage::{Database, Order, Read, Snapshot, StorageError};

/// A message that may be handed over; judged again at hand-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) number: u64,
    pub(super) group: GroupId,
}

/// Below which number a reader wants nothing of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Floor {
    /// At D.
    Delivered,
    /// Nowhere: the scan position alone decides.
    Position,
}

impl Floor {
    fn of(self, snapshot: &dyn Snapshot, group: &GroupId) -> Result<u64, StorageError> {
        match self {
            Self::Delivered => store::delivered(snapshot, group),
            Self::Position => Ok(0),
        }
    }
}

/// A search for the earliest message above the floors, group after group.
#[derive(Clone, Copy, Debug)]
struct Jump {
    after: Option<GroupId>,
    earliest: Option<u64>,
    /// The greatest number when the search began.
    through: u64,
}

/// What one read found.
struct Found {
    candidates: Vec<Candidate>,
    position: u64,
    jump: Option<Jump>,
    is_end: bool,
}

/// Reads ahead for one reader; holds numbers, never messages.
#[derive(Debug)]
pub(super) struct Scanner {
    pub(super) queue: VecDeque<Candidate>,
    floor: Floor,
    position: u64,
    jump: Option<Jump>,
}

impl Scanner {
    pub(super) fn new(floor: Floor, position: u64) -> Self {
        Self {
            queue: VecDeque::new(),
            floor,
            position,
            jump: None,
        }
    }

    /// Forgets what was queued and starts below every floor.
    pub(super) fn restart(&mut self) {
        *self = Self::new(self.floor, 0);
    }

    /// Does one bounded read; answers whether it came to the end of what is stored.
    ///
    /// Cancelling it changes nothing.
    pub(super) async fn read(
        &mut self,
        database: &Database,
        selection: &Arc<Selection>,
    ) -> Result<bool, StorageError> {
        let (floor, position, jump) = (self.floor, self.position, self.jump);
        let (now_ns, selection) = (database.runtime().now_ns(), selection.clone());
        let found = database
            .read_queued(move |snapshot| match jump {
                None => page(snapshot, &selection, floor, position, now_ns),
                Some(jump) => seek(snapshot, &selection, floor, position, jump),
            })
            .await?;
        self.queue.extend(found.candidates);
        self.position = found.position;
        self.jump = found.jump;
        Ok(found.is_end)
    }
}

fn page(
    snapshot: &dyn Snapshot,
    selection: &Selection,
    floor: Floor,
    position: u64,
    now_ns: u64,
) -> Result<Found, StorageError> {
    let page = store::messages_above(snapshot, position)?;
    let mut found = Found {
        candidates: Vec::new(),
        position,
        jump: None,
        is_end: false,
    };
    let mut floors: BTreeMap<GroupId, u64> = BTreeMap::new();
    for (number, message) in page.rows {
        found.position = number;
        let group = group_of(&message)?;
        if !selection.contains(&group) || !is_eligible(&message, now_ns) {
            continue;
        }
        let known = floors.get(&group).copied();
        let floor = known.map_or_else(|| floor.of(snapshot, &group), Ok)?;
        floors.insert(group, floor);
        if number > floor {
            found.candidates.push(Candidate { number, group });
        }
    }
    if found.candidates.is_empty() {
        found.is_end = !page.more;
        found.jump = page.more.then_some(Jump {
            after: None,
            earliest: None,
            through: store::newest_number(snapshot)?,
        });
    }
    Ok(found)
}

fn seek(
    snapshot: &dyn Snapshot,
    selection: &Selection,
    floor: Floor,
    position: u64,
    mut jump: Jump,
) -> Result<Found, StorageError> {
    let groups = groups_after(snapshot, selection, jump.after.as_ref())?;
    for group in &groups {
        let floor = floor.of(snapshot, group)?.max(position);
        let first = store::number_beside(snapshot, group, floor, Order::Ascending)?;
        jump.earliest = [jump.earliest, first].into_iter().flatten().min();
    }
    jump.after = groups.last().copied();
    let is_done = groups.len() < MAX_LOCAL_READ_ROWS as usize;
    let target = jump.earliest.map_or(jump.through, |number| number - 1);
    Ok(Found {
        candidates: Vec::new(),
        position: if is_done {
            position.max(target)
        } else {
            position
        },
        jump: (!is_done).then_some(jump),
        is_end: false,
    })
}

/// Lists a bounded number of groups that a selection reads, in order; fewer only at the end.
pub(super) fn groups_after(
    snapshot: &dyn Snapshot,
    selection: &Selection,
    after: Option<&GroupId>,
) -> Result<Vec<GroupId>, StorageError> {
    let rows = MAX_LOCAL_READ_ROWS as usize;
    if let Some(listed) = selection.listed_after(after) {
        return Ok(listed.take(rows).collect());
    }
    let mut groups = Vec::new();
    let mut after = after.copied();
    while groups.len() < rows {
        let Some(group) = store::group_after(snapshot, after.as_ref())? else {
            break;
        };
        after = Some(group);
        if selection.contains(&group) {
            groups.push(group);
        }
    }
    Ok(groups)
}

/// What a candidate is, judged by fresh state.
pub(super) enum Judgement {
    /// Not to be read: deleted, expired, or out of scope.
    Skip,
    /// In scope, and excluded by the filter.
    Excluded,
    /// To be handed over.
    Deliver(Box<stored::StoredMessage>),
}

/// Judges a candidate at hand-off (STR-093, STR-103).
pub(super) fn judge(
    snapshot: &(impl Read + ?Sized),
    candidate: &Candidate,
    selection: &Selection,
    now_ns: u64,
) -> Result<Judgement, StorageError> {
    if !selection.contains(&candidate.group) {
        return Ok(Judgement::Skip);
    }
    match store::message(snapshot, candidate.number)? {
        Some(message) if is_eligible(&message, now_ns) => {
            match selection.filter.admits(snapshot, &candidate.group)? {
                true => Ok(Judgement::Deliver(Box::new(message))),
                false => Ok(Judgement::Excluded),
            }
        }
        _ => Ok(Judgement::Skip),
    }
}
