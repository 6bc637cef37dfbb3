//! Polling: one snapshot at a time, first what was skipped, then what is new.
//!
//! Within one snapshot a topic's skipped rows are lower than its new ones, so giving them out first
//! keeps the topic's order. Reading the two from two snapshots would not: a low row that became visible
//! between them would come after a higher one.
//!
//! Payloads are read only where somebody waits for the topic. That is asked after the snapshot was
//! taken: whoever comes later reads a head that is not below what was left out.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::ClientWrapper;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_postgres::{Error, Row};
use xmtp_proto::id::SequenceId;

use super::Shared;
use super::connect::Parameters;
use super::decode::{column, envelope, integer, topic};
use super::endpoint::Identity;
use super::fault::{Fault, Trouble, within};
use super::fetch::PAYLOADS;
use super::gaps::Gaps;
use super::pace::Pace;
use super::read::bigint;
use super::tail::{SHOWN, is_still};
use crate::hooks::{Point, Verdict};
use crate::limits::{
    DATABASE_ANSWER_TIME, DATABASE_SLACK, GAP_PATIENCE, POLL_ATTEMPTS, TAIL_PAGE_BYTES,
    TAIL_PAGE_ROWS,
};
use crate::store::record::Envelope;
use crate::store::{ReadError, TailError};
use crate::telemetry::{metrics, step};

/// The lowest rows above `$1` in a number of ranges.
const SKIPPED: &str = "
SELECT probe.sequence_id, probe.topic, probe.encoded_len
FROM unnest($3::bigint[], $4::bigint[]) AS given (first, last)
CROSS JOIN LATERAL (
    SELECT e.sequence_id, e.topic, e.encoded_len FROM envelope AS e
    WHERE e.sequence_id >= given.first AND e.sequence_id <= given.last
        AND e.sequence_id > $1::bigint
    ORDER BY e.sequence_id LIMIT $2::bigint
) AS probe
ORDER BY probe.sequence_id LIMIT $2::bigint";

/// The lowest rows above `$1`.
const NEW: &str = "
SELECT e.sequence_id, e.topic, e.encoded_len FROM envelope AS e
WHERE e.sequence_id > $1::bigint
ORDER BY e.sequence_id LIMIT $2::bigint";

/// Where pages go. One waits while the next is read, so that a poll never gets far ahead.
#[derive(Debug)]
pub(super) struct Pages {
    send: mpsc::Sender<Result<Vec<Envelope>, TailError>>,
}

impl Pages {
    pub(super) fn new(send: mpsc::Sender<Result<Vec<Envelope>, TailError>>) -> Self {
        Self { send }
    }

    async fn give(&self, rows: Vec<Envelope>) {
        if !rows.is_empty() {
            // The reader is gone only when this task is about to be stopped.
            let _ = self.send.send(Ok(rows)).await;
        }
    }

    async fn end(&self, error: TailError) {
        let _ = self.send.send(Err(error)).await;
    }
}

/// Why a poll ended early.
#[derive(Debug)]
enum Failed {
    Database(Trouble),
    Tail(TailError),
}

impl From<ReadError> for Failed {
    fn from(error: ReadError) -> Self {
        tracing::error!(%error, "the tail reads what it can not understand");
        Self::Tail(TailError::Final)
    }
}

/// What polls.
#[derive(Debug)]
pub(super) struct Follower {
    shared: Arc<Shared>,
    client: ClientWrapper,
    /// The server that is read.
    here: Identity,
    /// Asks for the boundary to be moved to an id.
    wanted: watch::Sender<SequenceId>,
    pace: Pace,
    /// How long an answer of the database may take.
    patience: Duration,
    begin: String,
    /// The greatest id that was passed.
    cursor: i64,
    gaps: Gaps,
}

/// One page of rows, cut by their number and by the bytes that were read.
#[derive(Default)]
struct Page {
    /// The ids of all rows, ascending.
    passed: Vec<i64>,
    /// Those that somebody waits for.
    rows: Vec<Envelope>,
    /// Whether there may be more behind it.
    more: bool,
}

impl Follower {
    pub(super) fn new(
        shared: Arc<Shared>,
        client: ClientWrapper,
        here: Identity,
        start: SequenceId,
        wanted: watch::Sender<SequenceId>,
    ) -> Self {
        let time = shared.settings.max_statement_time;
        let limit = time.as_millis();
        Self {
            pace: Pace::new(shared.settings.poll_interval),
            shared,
            client,
            here,
            wanted,
            patience: time + DATABASE_SLACK,
            begin: format!(
                "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; \
                 SET LOCAL statement_timeout = {limit}"
            ),
            cursor: integer(start),
            gaps: Gaps::default(),
        }
    }

    /// Polls until the database, the boundary or the reader is gone.
    pub(super) async fn run(
        mut self,
        pages: Pages,
        boundary_failed: oneshot::Receiver<()>,
        mut strays: watch::Receiver<u64>,
    ) {
        let error = tokio::select! {
            error = self.poll_on(&pages) => error,
            _ = boundary_failed => TailError::Lost,
            // The endpoint lives as long as the store, and this task holds it.
            _ = strays.changed() => TailError::Lost,
        };
        pages.end(error).await;
    }

    /// Asks for a boundary at the last gap that is old enough to be settled by one.
    fn ask_for_boundary(&self) {
        let since = Instant::now().checked_sub(GAP_PATIENCE);
        let Some(last) = since.and_then(|since| self.gaps.last_of(since)) else {
            return;
        };
        let last = SequenceId::saturating(last.unsigned_abs());
        self.wanted.send_if_modified(|wanted| {
            let is_higher = last > *wanted;
            *wanted = last.max(*wanted);
            is_higher
        });
    }

    /// Asks the database, and does not wait for ever: a frozen one ends nothing by itself.
    async fn ask<T>(&self, answer: impl Future<Output = Result<T, Error>>) -> Result<T, Failed> {
        within(self.patience, answer)
            .await
            .map_err(Failed::Database)
    }

    async fn poll_on(&mut self, pages: &Pages) -> TailError {
        let mut news = self.shared.news.subscribe();
        let mut failures = 0;
        loop {
            let closed = news.borrow_and_update().closed;
            match step!("tailer.poll", self.poll(pages)).await {
                Ok(true) => {
                    failures = 0;
                    self.ask_for_boundary();
                    continue;
                }
                Ok(false) if closed => return TailError::Final,
                Ok(false) => failures = 0,
                Err(Failed::Tail(error)) => return error,
                Err(Failed::Database(trouble)) => {
                    failures += 1;
                    if !self.survives(&trouble, failures).await {
                        return TailError::Lost;
                    }
                }
            }
            self.ask_for_boundary();
            let pause = tokio::time::sleep(self.pace.pause(Instant::now()));
            tokio::select! {
                _ = news.changed() => {}
                () = pause => {}
            }
        }
    }

    /// Says whether the next poll may try again: a replica cancels reads that hold it up, and what
    /// was given out so far was given out in order.
    async fn survives(&self, trouble: &Trouble, failures: u32) -> bool {
        let passing = matches!(trouble.fault(), Fault::Again | Fault::TimedOut);
        tracing::warn!(
            code = trouble.code(),
            passing,
            "a poll of the database failed"
        );
        metrics::database_failed(trouble.fault().name());
        if !passing || failures >= POLL_ATTEMPTS {
            return false;
        }
        let undone = self.client.batch_execute("ROLLBACK");
        within(DATABASE_ANSWER_TIME, undone).await.is_ok()
    }

    /// Reads one snapshot; true if there may be more behind what was read.
    async fn poll(&mut self, pages: &Pages) -> Result<bool, Failed> {
        let shown = self.ask(async {
            let shown = self.client.prepare_cached(SHOWN).await?;
            let (begun, shown) = tokio::join!(
                biased;
                self.client.batch_execute(&self.begin),
                self.client.query_one(&shown, &[]),
            );
            begun?;
            let shown = shown?;
            Ok((is_still(&self.here, &shown)?, shown))
        });
        let (is_still, shown) = shown.await?;
        if !is_still {
            return Err(Failed::Tail(TailError::Lost));
        }
        let boundary: i64 = column(&shown, 0)?;
        self.give_skipped(pages).await?;
        if self.shared.hooks.reach(Point::GapsRead).await == Verdict::Unavailable {
            return Err(Failed::Tail(TailError::Lost));
        }
        let page = self.page(NEW, None, self.cursor).await?;
        self.ask(self.client.batch_execute("COMMIT")).await?;
        self.pass(&page.passed);
        if !page.rows.is_empty() {
            self.pace.found(Instant::now());
        }
        pages.give(page.rows).await;
        // Absence and boundary were seen by one snapshot.
        self.gaps.close(boundary);
        metrics::gap_ranges(self.gaps.len() as f64);
        if self.gaps.len() > self.shared.settings.max_gap_ranges {
            return Err(Failed::Tail(TailError::Overflow));
        }
        Ok(page.more)
    }

    /// Gives out all rows that were skipped before and are there now.
    async fn give_skipped(&mut self, pages: &Pages) -> Result<(), Failed> {
        let mut after = 0;
        while self.gaps.len() > 0 {
            let bounds = self.gaps.bounds();
            let page = self.page(SKIPPED, Some(&bounds), after).await?;
            for id in page.passed {
                after = id;
                self.gaps.found(id);
            }
            pages.give(page.rows).await;
            if !page.more {
                break;
            }
        }
        Ok(())
    }

    /// Moves the cursor over new rows and remembers the ids between them.
    fn pass(&mut self, ids: &[i64]) {
        let now = Instant::now();
        for &id in ids {
            self.gaps.skip(self.cursor + 1, id - 1, now);
            self.cursor = id;
        }
    }

    async fn page(
        &self,
        sql: &str,
        ranges: Option<&(Vec<i64>, Vec<i64>)>,
        after: i64,
    ) -> Result<Page, Failed> {
        let limit = bigint(TAIL_PAGE_ROWS);
        let found = self.ask(async {
            let statement = self.client.prepare_cached(sql).await?;
            let parameters: &Parameters<'_> = match ranges {
                None => &[&after, &limit],
                Some((first, last)) => &[&after, &limit, first, last],
            };
            self.client.query(&statement, parameters).await
        });
        let found = found.await?;
        let (mut page, wanted) = self.choose(&found)?;
        page.more |= bigint(found.len()) == limit;
        if !wanted.is_empty() {
            page.rows = self.load(&wanted).await?;
        }
        Ok(page)
    }

    /// Decides which rows of a page are loaded, the first whatever its size.
    fn choose(&self, found: &[Row]) -> Result<(Page, Vec<i64>), Failed> {
        let interest = self.shared.interest.lock().clone();
        let (mut page, mut wanted, mut bytes) = (Page::default(), Vec::new(), 0);
        for row in found {
            let (id, length): (i64, i32) = (column(row, 0)?, column(row, 2)?);
            let topic = topic(column(row, 1)?)?;
            if interest.as_ref().is_none_or(|who| who.includes(&topic)) {
                if bytes >= TAIL_PAGE_BYTES {
                    page.more = true;
                    break;
                }
                bytes += usize::try_from(length).unwrap_or(0);
                wanted.push(id);
            }
            page.passed.push(id);
        }
        Ok((page, wanted))
    }

    async fn load(&self, ids: &[i64]) -> Result<Vec<Envelope>, Failed> {
        let loaded = self.ask(async {
            let statement = self.client.prepare_cached(PAYLOADS).await?;
            self.client.query(&statement, &[&ids]).await
        });
        let loaded = loaded.await?;
        if loaded.len() != ids.len() {
            let missing = "a row is not in the snapshot that named it";
            return Err(ReadError::Broken(missing).into());
        }
        let rows = loaded.iter().map(|row| envelope(row, 0));
        Ok(rows.collect::<Result<_, ReadError>>()?)
    }
}
