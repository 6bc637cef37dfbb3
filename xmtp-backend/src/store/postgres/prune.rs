//! One step of pruning, in one statement.
//!
//! No row is locked for it: a row that is not the newest of its topic in some snapshot never becomes
//! it again. One server prunes at a time; for the others there is nothing to do. What has expired
//! is so by the clock of the database too: a server whose clock is ahead deletes nothing early.

use tokio_postgres::types::ToSql;

use super::Shared;
use super::decode::{column, integer, position};
use super::statements::PRUNE_TURN;
use crate::store::record::{PruneBudget, PrunePosition, Pruned};
use crate::store::{PruneError, ReadError};

/// Answers with the rows that are gone and, where as many were looked at as may be, the last one.
const PRUNE: &str = "
WITH turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock($1) AS taken
), looked AS MATERIALIZED (
    SELECT e.sequence_id, e.expiry_ns FROM envelope AS e
    WHERE e.expiry_ns < least($2::bigint, (extract(epoch FROM clock_timestamp()) * 1e9)::bigint)
        AND (e.expiry_ns, e.sequence_id) > ($3::bigint, $4::bigint)
        AND (SELECT taken FROM turn)
    ORDER BY e.expiry_ns, e.sequence_id LIMIT $5::bigint
), gone AS (
    DELETE FROM envelope AS e USING looked
    WHERE e.sequence_id = looked.sequence_id
        AND NOT EXISTS (
            SELECT 1 FROM topic_head
            WHERE topic_head.topic = e.topic AND topic_head.last_sequence_id = e.sequence_id
        )
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM looked) = $5,
    last.expiry_ns, last.sequence_id
FROM (SELECT 1) AS always
LEFT JOIN LATERAL (
    SELECT * FROM looked ORDER BY expiry_ns DESC, sequence_id DESC LIMIT 1
) AS last ON true";

/// Deletes what the budget allows.
pub(super) async fn prune(
    shared: &Shared,
    now_ns: u64,
    budget: PruneBudget,
) -> Result<Pruned, PruneError> {
    let pruned = step(shared, now_ns, budget).await;
    pruned.map_err(|_| PruneError::Unavailable)
}

async fn step(shared: &Shared, now_ns: u64, budget: PruneBudget) -> Result<Pruned, ReadError> {
    let (now, rows) = (time(now_ns), i64::try_from(budget.rows).unwrap_or(i64::MAX));
    let after = budget.after.map_or((0, 0), |after| {
        (time(after.expiry_ns), integer(after.sequence_id))
    });
    let begin = format!(
        "BEGIN; SET LOCAL statement_timeout = {}",
        shared.settings.max_statement_time.as_millis()
    );
    let run = shared.queries.run(|session| {
        let begin = begin.as_str();
        async move {
            let statement = session.lease.prepare_cached(PRUNE).await?;
            let parameters: [&(dyn ToSql + Sync); 5] =
                [&PRUNE_TURN, &now, &after.0, &after.1, &rows];
            let (begun, row, ended) = tokio::join!(
                biased;
                session.lease.batch_execute(begin),
                session.lease.query_one(&statement, &parameters),
                session.lease.batch_execute("COMMIT"),
            );
            begun?;
            let row = row?;
            ended?;
            Ok((row, session))
        }
    });
    let row = run.await?;
    let deleted: i64 = column(&row, 0)?;
    let is_full: bool = column(&row, 1)?;
    let last: (Option<i64>, Option<i64>) = (column(&row, 2)?, column(&row, 3)?);
    let next = match last {
        (Some(expiry_ns), Some(id)) if is_full => Some(PrunePosition {
            expiry_ns: expiry_ns.unsigned_abs(),
            sequence_id: position(id)?,
        }),
        _ => None,
    };
    Ok(Pruned {
        deleted: usize::try_from(deleted).unwrap_or_default(),
        next,
    })
}

fn time(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}
