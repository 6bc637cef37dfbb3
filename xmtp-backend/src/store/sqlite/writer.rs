//! The thread that owns the connection that writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rusqlite::hooks::Wal;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};
use xmtp_proto::id::SequenceId;

use super::OpenError;
use super::checkpoint::{Checkpoint, checkpoint, is_failed_sync, is_full};
use super::publish::{Failure, last_sequence_id, set_last_sequence_id, store_request};
use crate::hooks::Clock;
use crate::limits::{
    CHECKPOINT_PAGES, GROUP_COMMIT_BYTES, GROUP_COMMIT_REQUESTS, WRITE_QUEUE_REQUESTS,
};
use crate::store::PublishError;
use crate::store::feed::Feed;
use crate::store::record::{Envelope, Meta, PreparedEnvelope};

type Answer = Result<Vec<Meta>, PublishError>;

/// One request and where its answer goes.
#[derive(Debug)]
struct Job {
    envelopes: Vec<PreparedEnvelope>,
    answer: oneshot::Sender<Answer>,
}

/// The server's end of the thread.
#[derive(Debug)]
pub(super) struct Writer {
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Writer {
    pub(super) fn start(
        mut connection: Connection,
        clock: Arc<dyn Clock>,
        feed: Arc<Feed>,
    ) -> Result<Self, OpenError> {
        let (jobs, queue) = mpsc::channel(WRITE_QUEUE_REQUESTS);
        let log_pages = Arc::new(AtomicI32::new(0));
        let told = log_pages.clone();
        // It stands in for SQLite's own checkpoint.
        connection.wal_hook(Some(move |_: &mut Wal, pages| {
            told.store(pages, Ordering::Relaxed);
            Ok(())
        }))?;
        let thread = std::thread::Builder::new().name("store-writer".to_owned());
        let thread = thread.spawn(move || {
            Loop {
                connection,
                clock,
                feed: feed.as_ref(),
                log_pages,
            }
            .run(queue)
        });
        let thread = thread.map_err(|error| OpenError::Files(error.kind()))?;
        Ok(Self {
            jobs: Mutex::new(Some(jobs)),
            thread: Mutex::new(Some(thread)),
        })
    }

    pub(super) async fn publish(&self, envelopes: Vec<PreparedEnvelope>) -> Answer {
        let jobs = self.jobs.lock().clone().ok_or(PublishError::Unavailable)?;
        let (answer, answered) = oneshot::channel();
        let job = Job { envelopes, answer };
        jobs.send(job)
            .await
            .map_err(|_| PublishError::Unavailable)?;
        // A thread that ended without an answer may have committed.
        answered.await.unwrap_or(Err(PublishError::UnknownOutcome))
    }

    /// Lets the accepted requests finish and ends the thread.
    pub(super) async fn stop(&self) {
        drop(self.jobs.lock().take());
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            let joined = tokio::task::spawn_blocking(move || thread.join()).await;
            if !matches!(joined, Ok(Ok(()))) {
                tracing::error!("the writer of the store ended badly");
            }
        }
    }
}

/// What the thread owns.
struct Loop<'f> {
    connection: Connection,
    clock: Arc<dyn Clock>,
    feed: &'f Feed,
    /// Pages in the log after the last commit.
    log_pages: Arc<AtomicI32>,
}

/// What became of one request before the commit.
enum Outcome {
    Stored(Vec<Meta>),
    Failed(PublishError),
}

impl Loop<'_> {
    fn run(mut self, mut queue: mpsc::Receiver<Job>) {
        let mut result = Ok(());
        while result.is_ok() {
            let Some(first) = queue.blocking_recv() else {
                result = self.checkpoint(Checkpoint::Truncate);
                break;
            };
            let jobs = gather(first, &mut queue);
            result = self.commit_group(jobs);
            if result.is_ok() && self.log_pages.load(Ordering::Relaxed) >= CHECKPOINT_PAGES {
                result = self.checkpoint(Checkpoint::Passive);
            }
        }
        if let Err(error) = result {
            tracing::error!(code = ?error.sqlite_error_code(), "a commit failed; writing ends");
        }
        // From here on every tail ends, and with it every stream.
        self.feed.close();
        if let Err((_, error)) = self.connection.close() {
            tracing::warn!(code = ?error.sqlite_error_code(), "the database did not close cleanly");
        }
    }

    /// Moves the log into the database file; where there is no room for it, the log grows.
    fn checkpoint(&mut self, how: Checkpoint) -> Result<(), rusqlite::Error> {
        match checkpoint(&self.connection, how) {
            Ok(true) => self.log_pages.store(0, Ordering::Relaxed),
            Ok(false) => {}
            Err(error) if is_full(&error) => {
                tracing::warn!("the disk has no room to move the log");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Runs one transaction over the requests and answers them.
    ///
    /// An error means that the outcome of a commit is not known.
    fn commit_group(&mut self, jobs: Vec<Job>) -> Result<(), rusqlite::Error> {
        let server_ns = self.clock.now_ns();
        let begun = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate);
        let result = begun.and_then(|mut transaction| {
            let ran = run_jobs(&mut transaction, &jobs, server_ns)?;
            Ok((transaction, ran))
        });
        let (transaction, (outcomes, rows)) = match result {
            Ok(result) => result,
            Err(error) => {
                // Dropping the transaction rolled it back: nothing is stored.
                return refuse(jobs, error);
            }
        };
        if let Err(error) = transaction.commit() {
            if is_full(&error) {
                // The last page carries the mark of the commit, and it was not written.
                return refuse(jobs, error);
            }
            answer(jobs, |position| match &outcomes[position] {
                Outcome::Failed(failed) => Err(*failed),
                Outcome::Stored(_) => Err(PublishError::UnknownOutcome),
            });
            return Err(error);
        }
        self.feed.tell(&rows);
        answer(jobs, |position| match &outcomes[position] {
            Outcome::Failed(failed) => Err(*failed),
            Outcome::Stored(metas) => Ok(metas.clone()),
        });
        Ok(())
    }
}

/// Answers that nothing is stored; writing goes on unless a sync has failed.
fn refuse(jobs: Vec<Job>, error: rusqlite::Error) -> Result<(), rusqlite::Error> {
    tracing::warn!(code = ?error.sqlite_error_code(), "a write failed");
    answer(jobs, |_| Err(PublishError::Unavailable));
    if is_failed_sync(&error) {
        return Err(error);
    }
    Ok(())
}

/// Takes what waits, up to the bounds of a group.
fn gather(first: Job, queue: &mut mpsc::Receiver<Job>) -> Vec<Job> {
    let size = |job: &Job| {
        job.envelopes
            .iter()
            .map(|row| row.payload.len())
            .sum::<usize>()
    };
    let mut bytes = size(&first);
    let mut jobs = vec![first];
    while jobs.len() < GROUP_COMMIT_REQUESTS && bytes < GROUP_COMMIT_BYTES {
        let Ok(job) = queue.try_recv() else { break };
        bytes += size(&job);
        jobs.push(job);
    }
    jobs
}

fn run_jobs(
    transaction: &mut Transaction<'_>,
    jobs: &[Job],
    server_ns: u64,
) -> Result<(Vec<Outcome>, Vec<Envelope>), rusqlite::Error> {
    let mut last = last_sequence_id(transaction)?;
    let before = last;
    let (mut outcomes, mut rows) = (Vec::with_capacity(jobs.len()), Vec::new());
    for job in jobs {
        outcomes.push(match run_job(transaction, job, &mut last, server_ns) {
            Ok((metas, mut new)) => {
                rows.append(&mut new);
                Outcome::Stored(metas)
            }
            Err(Failure::Request(failed)) => Outcome::Failed(failed),
            Err(Failure::Engine(error)) => return Err(error),
        });
    }
    if last > before {
        set_last_sequence_id(transaction, last)?;
    }
    Ok((outcomes, rows))
}

/// Runs one request in its savepoint; a failed request undoes only itself.
fn run_job(
    transaction: &mut Transaction<'_>,
    job: &Job,
    last: &mut SequenceId,
    server_ns: u64,
) -> Result<(Vec<Meta>, Vec<Envelope>), Failure> {
    run_cached(transaction, "SAVEPOINT request")?;
    let stored = store_request(transaction, &job.envelopes, last, server_ns);
    if matches!(stored, Err(Failure::Request(_))) {
        run_cached(transaction, "ROLLBACK TO request")?;
    }
    run_cached(transaction, "RELEASE request")?;
    stored
}

fn run_cached(transaction: &Transaction<'_>, sql: &str) -> rusqlite::Result<()> {
    transaction.prepare_cached(sql)?.execute([]).map(|_| ())
}

fn answer(jobs: Vec<Job>, of: impl Fn(usize) -> Answer) {
    for (position, job) in jobs.into_iter().enumerate() {
        // A caller that has gone away needs no answer.
        let _ = job.answer.send(of(position));
    }
}
