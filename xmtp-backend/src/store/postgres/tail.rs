//! The tail: opening it, and its reader's end.
//!
//! A task polls (`follow.rs`), another moves the boundary (`boundary.rs`); both end with the tail.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use deadpool_postgres::ClientWrapper;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_postgres::{Error, Row};
use xmtp_proto::id::SequenceId;

use super::boundary::Boundary;
use super::endpoint::{Identity, identity};
use super::fault::{Trouble, within};
use super::follow::{Follower, Pages};
use super::open::check_history;
use super::{SetupError, Shared};
use crate::limits::{DATABASE_ANSWER_TIME, REPLICA_WARNING};
use crate::store::record::Envelope;
use crate::store::{Tail, TailError};

/// Reads the boundary.
pub(super) const BOUNDARY: &str = "SELECT closed_sequence_id FROM allocation_boundary";

/// Reads the boundary and what would tell that a replica was promoted. A connection outlives that.
pub(super) const SHOWN: &str = "
SELECT closed_sequence_id, pg_is_in_recovery(),
    CASE WHEN pg_is_in_recovery() THEN (SELECT timeline_id FROM pg_control_checkpoint()) END
FROM allocation_boundary";

/// Gives out what becomes visible on the endpoint.
#[derive(Debug)]
pub(super) struct PostgresTail {
    pages: mpsc::Receiver<Result<Vec<Envelope>, TailError>>,
    _tasks: JoinSet<()>,
}

#[async_trait]
impl Tail for PostgresTail {
    async fn next(&mut self) -> Result<Vec<Envelope>, TailError> {
        self.pages.recv().await.unwrap_or(Err(TailError::Lost))
    }
}

/// Opens a tail at a boundary that is drawn now.
///
/// - Refuses an endpoint that does not show what the primary stores.
/// - Waits until the endpoint shows that boundary; what it shows beyond is not given out twice and
///   not left out, because the tail begins behind the boundary.
pub(super) async fn open(shared: &Arc<Shared>) -> Result<PostgresTail, TailError> {
    let (boundary, primary, start) = draw(shared).await?;
    let client = shared.endpoint.server.connect("tail").await.map_err(lost)?;
    let strays = shared.endpoint.strays();
    let here = identity(&client).await.map_err(lost)?;
    if let Err(error) = shared.endpoint.check(&here, primary) {
        tracing::error!(%error, "streams can not be served");
        shared.lookups.renew();
        return Err(TailError::Lost);
    }
    shared.endpoint.follow(here.clone());
    wait_for_boundary(&client, &here, start, shared).await?;
    shared.has_followed.store(true, Ordering::Relaxed);

    let (wanted, asked) = watch::channel(start);
    let (send, pages) = mpsc::channel(1);
    let mut tasks = JoinSet::new();
    let (failed, boundary_failed) = tokio::sync::oneshot::channel();
    tasks.spawn(async move {
        boundary.run(asked, start).await;
        tracing::warn!("the boundary can not be moved");
        // The follower may have ended before.
        let _ = failed.send(());
    });
    let follower = Follower::new(shared.clone(), client, here, start, wanted);
    tasks.spawn(follower.run(Pages::new(send), boundary_failed, strays));
    Ok(PostgresTail {
        pages,
        _tasks: tasks,
    })
}

/// Connects to the primary and draws a boundary.
async fn draw(shared: &Shared) -> Result<(Boundary, Identity, SequenceId), TailError> {
    let client = shared.primary.connect("boundary").await.map_err(lost)?;
    let here = identity(&client).await.map_err(lost)?;
    match check_history(&client, &here).await {
        Ok(()) => {}
        Err(SetupError::Database(error)) => return Err(lost(error)),
        Err(SetupError::Silent) => return Err(lost(Trouble::Silent)),
        Err(error) => {
            // Ids may be given twice on a history that was cut.
            tracing::error!(%error, "the store can not go on");
            return Err(TailError::Final);
        }
    }
    let settings = &shared.settings;
    let boundary = Boundary::new(client, settings.max_barrier_wait, settings.poll_interval);
    let start = boundary.close(None).await.map_err(lost)?;
    Ok((boundary, here, start))
}

/// Waits until the endpoint has replayed everything up to the boundary.
///
/// - The first wait ends, so that a start does; streams that ran before run again however long the
///   replica takes.
async fn wait_for_boundary(
    client: &ClientWrapper,
    here: &Identity,
    start: SequenceId,
    shared: &Shared,
) -> Result<(), TailError> {
    let (begun, is_first) = (Instant::now(), !shared.has_followed.load(Ordering::Relaxed));
    let mut told = begun;
    loop {
        let row = within(DATABASE_ANSWER_TIME, client.query_one(SHOWN, &[])).await;
        let row = row.map_err(lost)?;
        let shown: i64 = row.try_get(0).map_err(lost)?;
        if !is_still(here, &row).map_err(lost)? {
            return Err(TailError::Lost);
        }
        if SequenceId::saturating(shown.unsigned_abs()) >= start {
            return Ok(());
        }
        if is_first && begun.elapsed() >= shared.settings.max_replica_wait {
            return Err(TailError::Behind);
        }
        if told.elapsed() >= REPLICA_WARNING {
            let seconds = begun.elapsed().as_secs();
            tracing::warn!(
                seconds,
                "the replica is behind the boundary; streams wait for it"
            );
            told = Instant::now();
        }
        if shared.news.borrow().closed {
            return Err(TailError::Final);
        }
        tokio::time::sleep(shared.settings.poll_interval).await;
    }
}

/// Says whether what [`SHOWN`] read is from the server that it was, in the part that it had.
pub(super) fn is_still(here: &Identity, shown: &Row) -> Result<bool, Error> {
    let (is_replica, timeline): (bool, Option<i32>) = (shown.try_get(1)?, shown.try_get(2)?);
    let still = is_replica == here.is_replica && timeline.is_none_or(|now| now == here.timeline);
    if !still {
        tracing::warn!("the database that streams follow was promoted, or replays another history");
    }
    Ok(still)
}

fn lost(trouble: impl Into<Trouble>) -> TailError {
    let trouble = trouble.into();
    tracing::warn!(code = trouble.code(), "the tail of the database is lost");
    TailError::Lost
}
