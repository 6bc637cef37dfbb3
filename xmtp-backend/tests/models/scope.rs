//! What a run of the model contains, and which rule of the design it leaves out.

use crate::state::{Bytes, Id, Topic};

/// Bounds of one run: small enough for every order of steps, large enough for the race it is about.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    /// What each of two writers publishes, in order.
    pub(crate) plans: [Vec<(Topic, Bytes)>; 2],
    /// Whether a publish may fail, or its writer die, after its id is allocated.
    pub(crate) aborts: bool,
    /// Whether rows may be pruned.
    pub(crate) prunes: bool,
    /// The updates that the client sends.
    pub(crate) updates: Vec<Update>,
    /// Whether the client may go away at any moment.
    pub(crate) disconnects: bool,
    /// The rule that is left out.
    pub(crate) fault: Option<Fault>,
    /// What has to be possible in this run, by the name of the property.
    pub(crate) sometimes: &'static [&'static str],
}

/// One update of the client.
#[derive(Clone, Debug)]
pub(crate) enum Update {
    /// Adds topics, each after a position.
    Add(Vec<(Topic, After)>),
    Remove(Topic),
}

/// Where a registration starts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum After {
    Id(Id),
    /// What the client has received last.
    Received,
}

/// A rule of the design that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Publishers allocate without the shared lock.
    NoSharedLock,
    /// The boundary is read when the exclusive lock is no longer held.
    BoundaryReadOutsideTheLock,
    /// The boundary is read before the exclusive lock is taken.
    BoundaryReadBeforeTheLock,
    /// The search for duplicates sees what was visible before the topic lock.
    SnapshotBeforeTheLock,
    /// Gaps and new rows are read in two snapshots.
    TwoSnapshots,
    /// The head is read before the registration is in the registry.
    HeadBeforeRegistration,
    /// What belongs to an earlier registration is taken for the present one.
    NoGenerationCheck,
    /// The tailer goes on from the greatest id and keeps no gaps.
    NoGaps,
    /// The boundary is derived from what the replica shows.
    BoundaryFromTheReplica,
    /// A scan that was cut moves the floor as if it had ended.
    FloorAfterACutScan,
    /// The newest row of a topic is pruned too.
    PrunedHead,
    /// The id is allocated before the topic lock is taken.
    IdBeforeTheLock,
    /// Heads and fetches come from another replica than the tail.
    TwoReplicas,
    /// A notice that does not fit the mailbox is dropped.
    DroppedNotice,
}
