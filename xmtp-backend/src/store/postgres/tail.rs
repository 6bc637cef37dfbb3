//! The tail: opening it, and its reader's end.
//!
//! A task polls (`follow.rs`), another moves the boundary (`boundary.rs`); both end with the tail.

use std::sync::Arc;

use async_trait::async_trait;
use deadpool_postgres::ClientWrapper;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_postgres::Error;
use xmtp_proto::id::SequenceId;

use super::boundary::Boundary;
use super::connect::{code, connect};
use super::endpoint::identity;
use super::follow::{Follower, Pages};
use super::open::check_history;
use super::{SetupError, Shared};
use crate::store::record::Envelope;
use crate::store::{Tail, TailError};

/// Reads the boundary.
pub(super) const BOUNDARY: &str = "SELECT closed_sequence_id FROM allocation_boundary";

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
/// - Waits until the endpoint shows that boundary; what it shows beyond is not given out twice and
///   not left out, because the tail begins behind the boundary.
pub(super) async fn open(shared: &Arc<Shared>) -> Result<PostgresTail, TailError> {
    let (boundary, start) = draw(shared).await?;
    let client = connect(&shared.endpoint.config, "tail")
        .await
        .map_err(lost)?;
    let strays = shared.endpoint.strays();
    shared
        .endpoint
        .follow(identity(&client).await.map_err(lost)?);
    wait_for_boundary(&client, start, shared).await?;

    let requests = Arc::new(Notify::new());
    let (send, pages) = mpsc::channel(1);
    let mut tasks = JoinSet::new();
    let (failed, boundary_failed) = tokio::sync::oneshot::channel();
    let wanted = requests.clone();
    tasks.spawn(async move {
        boundary.run(wanted).await;
        tracing::warn!("the boundary can not be moved");
        // The follower may have ended before.
        let _ = failed.send(());
    });
    let follower = Follower::new(shared.clone(), client, start, requests);
    tasks.spawn(follower.run(Pages::new(send), boundary_failed, strays));
    Ok(PostgresTail {
        pages,
        _tasks: tasks,
    })
}

/// Connects to the primary and draws a boundary.
async fn draw(shared: &Shared) -> Result<(Boundary, SequenceId), TailError> {
    let client = connect(&shared.primary, "boundary").await.map_err(lost)?;
    let here = identity(&client).await.map_err(lost)?;
    match check_history(&client, &here).await {
        Ok(()) => {}
        Err(SetupError::Database(error)) => return Err(lost(error)),
        Err(error) => {
            // Ids may be given twice on a history that was cut.
            tracing::error!(%error, "the store can not go on");
            return Err(TailError::Final);
        }
    }
    let settings = &shared.settings;
    let boundary = Boundary::new(client, settings.max_barrier_wait, settings.poll_interval);
    let start = boundary.close().await.map_err(lost)?;
    Ok((boundary, start))
}

/// Waits until the endpoint has replayed everything up to the boundary.
async fn wait_for_boundary(
    client: &ClientWrapper,
    start: SequenceId,
    shared: &Shared,
) -> Result<(), TailError> {
    loop {
        let row = client.query_one(BOUNDARY, &[]).await.map_err(lost)?;
        let shown: i64 = row.try_get(0).map_err(lost)?;
        if SequenceId::saturating(shown.unsigned_abs()) >= start {
            return Ok(());
        }
        if shared.news.borrow().closed {
            return Err(TailError::Final);
        }
        tokio::time::sleep(shared.settings.poll_interval).await;
    }
}

fn lost(error: Error) -> TailError {
    tracing::warn!(code = code(&error), "the tail of the database is lost");
    TailError::Lost
}
