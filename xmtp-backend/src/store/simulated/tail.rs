//! The tail of the replica: a cursor, the gaps below it, and one snapshot for each poll.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;
use xmtp_proto::id::SequenceId;

use super::super::record::Envelope;
use super::super::{Tail, TailError};
use super::{Replayed, Shared};
use crate::limits::TAIL_PAGE_ROWS;

/// Gives out what the replica shows, ids that come late included.
#[derive(Debug)]
pub(super) struct ReplicaTail {
    shared: Arc<Shared>,
    replayed: watch::Receiver<Replayed>,
    cursor: SequenceId,
    /// Ids up to the cursor that are neither seen nor known to be absent for ever.
    pub(super) gaps: BTreeSet<SequenceId>,
}

impl ReplicaTail {
    /// Begins at what the replica shows now; ids that may still come below it are gaps.
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let mut replayed = shared.replayed.subscribe();
        replayed.mark_changed();
        let (cursor, gaps) = {
            let databases = shared.databases.lock();
            let replica = &databases.replica;
            let cursor = replica.data.last.max(replica.boundary);
            let rows = replica
                .data
                .rows_after(replica.boundary, cursor, usize::MAX);
            let mut gaps = between(replica.boundary, cursor);
            for row in rows {
                gaps.remove(&row.meta.sequence_id);
            }
            (cursor, gaps)
        };
        Self {
            shared,
            replayed,
            cursor,
            gaps,
        }
    }

    /// Reads one snapshot: first all gaps, then the rows above the cursor, then the boundary.
    pub(super) fn poll(&mut self) -> Vec<Envelope> {
        let databases = self.shared.databases.lock();
        let replica = &databases.replica;
        let mut rows = Vec::new();
        self.gaps.retain(|gap| {
            let below = SequenceId::checked(gap.get() - 1).unwrap_or(SequenceId::ZERO);
            let late = replica.data.rows_after(below, *gap, 1);
            let found = !late.is_empty();
            rows.extend(late);
            !found && *gap > replica.boundary
        });
        let forward = replica
            .data
            .rows_after(self.cursor, SequenceId::MAX, TAIL_PAGE_ROWS);
        for row in &forward {
            let id = row.meta.sequence_id;
            let mut holes = between(self.cursor, id);
            holes.remove(&id);
            self.gaps
                .extend(holes.into_iter().filter(|hole| *hole > replica.boundary));
            self.cursor = id;
        }
        rows.extend(forward);
        rows
    }
}

/// Lists the ids above `after` and up to `through`.
fn between(after: SequenceId, through: SequenceId) -> BTreeSet<SequenceId> {
    let ids = after.get() + 1..=through.get();
    ids.filter_map(|id| SequenceId::checked(id).ok()).collect()
}

#[async_trait]
impl Tail for ReplicaTail {
    async fn next(&mut self) -> Result<Vec<Envelope>, TailError> {
        loop {
            let closed = self.replayed.borrow_and_update().closed;
            let rows = self.poll();
            if !rows.is_empty() {
                return Ok(rows);
            }
            if closed || self.replayed.changed().await.is_err() {
                return Err(TailError::Final);
            }
        }
    }
}
