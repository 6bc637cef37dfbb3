//! One step of pruning within the writer's transaction.

use rusqlite::{OptionalExtension, Transaction};
use xmtp_proto::id::SequenceId;

use super::read::{integer, sequence_id};
use crate::store::record::{PruneBudget, PrunePosition, Pruned};

/// Finds the last row that a step looks at, if there are as many as it may look at.
pub(super) const LAST: &str = "
SELECT expiry_ns, sequence_id FROM envelope
WHERE expiry_ns < ?1 AND (expiry_ns, sequence_id) > (?2, ?3)
ORDER BY expiry_ns, sequence_id LIMIT 1 OFFSET ?4";

/// Deletes between two positions what is not the newest of its topic.
pub(super) const DELETE: &str = "
DELETE FROM envelope
WHERE expiry_ns < ?1 AND (expiry_ns, sequence_id) > (?2, ?3)
AND (expiry_ns, sequence_id) <= (?4, ?5)
AND NOT EXISTS (
    SELECT 1 FROM topic_head
    WHERE topic_head.topic = envelope.topic
    AND topic_head.last_sequence_id = envelope.sequence_id
)";

/// Deletes what the budget allows.
pub(super) fn prune(
    transaction: &Transaction<'_>,
    now_ns: u64,
    budget: PruneBudget,
) -> rusqlite::Result<Pruned> {
    let now = time(now_ns);
    let start = PrunePosition {
        expiry_ns: 0,
        sequence_id: SequenceId::ZERO,
    };
    let after = place(budget.after.unwrap_or(start));
    let skipped = i64::try_from(budget.rows.saturating_sub(1)).unwrap_or(i64::MAX);
    let mut statement = transaction.prepare_cached(LAST)?;
    let last = statement.query_row((now, after.0, after.1, skipped), |row| {
        let expiry_ns: i64 = row.get(0)?;
        Ok(PrunePosition {
            expiry_ns: expiry_ns.unsigned_abs(),
            sequence_id: sequence_id(row, 1)?,
        })
    });
    let last = last.optional()?;
    let end = last.map_or((i64::MAX, i64::MAX), place);
    let deleted = transaction
        .prepare_cached(DELETE)?
        .execute((now, after.0, after.1, end.0, end.1))?;
    Ok(Pruned {
        deleted,
        next: last,
    })
}

fn place(position: PrunePosition) -> (i64, i64) {
    (time(position.expiry_ns), integer(position.sequence_id))
}

fn time(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}
