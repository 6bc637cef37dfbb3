//! The allocation boundary: a position up to which every id is settled.
//!
//! Whoever holds the barrier alone knows that every publish that took an id before has ended. The
//! sequence is read only then, by a later statement, and the barrier is let go at once. The boundary is
//! written after that: it is seen only by snapshots that also see all it speaks of, on a replica too,
//! because commits are replayed in their order.
//!
//! Servers share what any of them has drawn: one whose replica lags behind a boundary that stands on
//! the primary waits for the replica, and does not hold publishes back for another one.

use std::time::Duration;

use deadpool_postgres::ClientWrapper;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_postgres::Error;
use xmtp_proto::id::SequenceId;

use super::connect::Parameters;
use super::fault::{Fault, Trouble, within};
use super::statements::{BARRIER, BOUNDARY_TURN, LOCK, TRY_LOCK};
use super::tail::BOUNDARY;
use crate::limits::{BARRIER_REST, BOUNDARY_CHECK, DATABASE_ANSWER_TIME, DATABASE_SLACK};
use crate::telemetry::metrics;

/// What one attempt brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    /// The boundary stands here or higher.
    Closed(SequenceId),
    /// It stands here, as high as it is wanted; another server has moved it.
    Shared(SequenceId),
    /// Another server tries just now.
    Elsewhere,
    /// A publish did not end in time; the barrier was let go.
    TimedOut,
}

impl Attempt {
    /// Returns the name of the outcome in the numbers.
    fn name(&self) -> &'static str {
        match self {
            Self::Closed(_) => "advanced",
            Self::Shared(_) => "shared",
            Self::Elsewhere => "elsewhere",
            Self::TimedOut => "timeout",
        }
    }
}

/// The one connection that moves the boundary.
#[derive(Debug)]
pub(super) struct Boundary {
    client: ClientWrapper,
    max_wait: Duration,
    pause: Duration,
}

impl Boundary {
    pub(super) fn new(client: ClientWrapper, max_wait: Duration, pause: Duration) -> Self {
        Self {
            client,
            max_wait,
            pause,
        }
    }

    /// Moves the boundary to the present, or only to `wanted` if that is given and another server
    /// has done so; however long it takes.
    pub(super) async fn close(&self, wanted: Option<SequenceId>) -> Result<SequenceId, Trouble> {
        loop {
            let attempt = self.attempt(wanted).await?;
            metrics::boundary_advanced(attempt.name());
            match attempt {
                Attempt::Closed(boundary) | Attempt::Shared(boundary) => return Ok(boundary),
                Attempt::Elsewhere => sleep(self.pause).await,
                // While it waited, publishes waited behind it; they get their share of the time.
                Attempt::TimedOut => sleep(self.max_wait * BARRIER_REST).await,
            }
        }
    }

    /// Moves the boundary whenever it is wanted above `settled`, at most once per pause; returns
    /// when its connection is lost or nobody wants anything any more.
    pub(super) async fn run(self, mut wanted: watch::Receiver<SequenceId>, start: SequenceId) {
        let mut settled = start;
        loop {
            let above = wanted.wait_for(|wanted| *wanted > settled);
            let asked = timeout(BOUNDARY_CHECK, above).await;
            let wanted = match asked.map(|asked| asked.map(|wanted| *wanted)) {
                Ok(Ok(wanted)) => wanted,
                Err(_) if !self.client.is_closed() => continue,
                Ok(Err(_)) | Err(_) => return,
            };
            match self.close(Some(wanted)).await {
                Ok(boundary) => settled = settled.max(boundary),
                Err(trouble) => {
                    tracing::warn!(code = trouble.code(), "the database draws no boundary");
                    return;
                }
            }
            sleep(self.pause).await;
        }
    }

    pub(super) async fn attempt(&self, wanted: Option<SequenceId>) -> Result<Attempt, Trouble> {
        within(self.max_wait + DATABASE_ANSWER_TIME, self.try_once(wanted)).await
    }

    async fn try_once(&self, wanted: Option<SequenceId>) -> Result<Attempt, Error> {
        let client = &self.client;
        let try_turn = client.prepare_cached(TRY_LOCK).await?;
        let lock = client.prepare_cached(LOCK).await?;
        let stands = client.prepare_cached(BOUNDARY).await?;
        let begin = format!(
            "BEGIN; SET LOCAL lock_timeout = {}; SET LOCAL statement_timeout = {}",
            self.max_wait.as_millis(),
            (self.max_wait + DATABASE_SLACK).as_millis(),
        );
        let (begun, turn, stands) = tokio::join!(
            biased;
            client.batch_execute(&begin),
            client.query_one(&try_turn, &[&BOUNDARY_TURN]),
            client.query_one(&stands, &[]),
        );
        begun?;
        let stands = id(stands?.try_get(0)?);
        if wanted.is_some_and(|wanted| stands >= wanted) {
            client.batch_execute("ROLLBACK").await?;
            return Ok(Attempt::Shared(stands));
        }
        if !turn?.try_get::<_, bool>(0)? {
            client.batch_execute("ROLLBACK").await?;
            return Ok(Attempt::Elsewhere);
        }
        let value = client.prepare_cached(GIVEN).await?;
        let (locked, given, ended) = tokio::join!(
            biased;
            client.query(&lock, &[&BARRIER]),
            client.query_one(&value, &[]),
            client.batch_execute("COMMIT"),
        );
        match locked {
            Err(error) if Fault::of(&error) == Fault::LockTimeout => {
                ended?;
                return Ok(Attempt::TimedOut);
            }
            locked => locked?,
        };
        ended?;
        let given: i64 = given?.try_get(0)?;
        self.raise(given).await?;
        Ok(Attempt::Closed(id(given)))
    }

    async fn raise(&self, closed: i64) -> Result<(), Error> {
        let client = &self.client;
        let raise = client.prepare_cached(RAISE).await?;
        let closed: &Parameters<'_> = &[&closed];
        let (begun, raised, ended) = tokio::join!(
            biased;
            client.batch_execute("BEGIN; SET LOCAL synchronous_commit = on"),
            client.execute(&raise, closed),
            client.batch_execute("COMMIT"),
        );
        begun?;
        raised?;
        ended
    }
}

fn id(value: i64) -> SequenceId {
    SequenceId::saturating(value.unsigned_abs())
}

/// The last id that was given; the sequence shows it whatever the snapshot.
const GIVEN: &str = "
SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM envelope_seq";

/// The boundary never falls.
const RAISE: &str = "
UPDATE allocation_boundary SET closed_sequence_id = greatest(closed_sequence_id, $1)
WHERE closed_sequence_id < $1";
