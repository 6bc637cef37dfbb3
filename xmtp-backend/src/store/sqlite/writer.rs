//! The thread that owns the connection that writes.

use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};
use xmtp_proto::id::SequenceId;

use super::OpenError;
use super::checkpoint::Checkpoint;
use super::fault::{counted, is_failed_sync, is_full, is_of_disk, told};
use super::log::Log;
use super::mark::Mark;
use super::prune::prune;
use super::publish::{Failure, last_sequence_id, set_last_sequence_id, store_request};
use super::schema::SCHEMA_VERSION;
use crate::hooks::Clock;
use crate::limits::{GROUP_COMMIT_BYTES, GROUP_COMMIT_REQUESTS, WRITE_QUEUE_REQUESTS};
use crate::store::feed::Feed;
use crate::store::record::{Envelope, Meta, PreparedEnvelope, PruneBudget, Pruned};
use crate::store::{PruneError, PublishError, TailError};

type Answer = Result<Vec<Meta>, PublishError>;

/// What the thread is asked to do.
#[derive(Debug)]
enum Job {
    Publish(Request),
    Beside(Beside),
}

/// What is done between the groups of publishes.
#[derive(Debug)]
enum Beside {
    Prune(PruneStep),
    /// Writes what is there already, to learn whether the disk takes it.
    Probe(oneshot::Sender<bool>),
}

/// One request and where its answer goes.
#[derive(Debug)]
struct Request {
    envelopes: Vec<PreparedEnvelope>,
    answer: oneshot::Sender<Answer>,
}

/// One step of pruning and where its answer goes.
#[derive(Debug)]
struct PruneStep {
    now_ns: u64,
    budget: PruneBudget,
    answer: oneshot::Sender<Result<Pruned, PruneError>>,
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
        mark: Mark,
        log: Log,
        clock: Arc<dyn Clock>,
        feed: Arc<Feed>,
    ) -> Result<Self, OpenError> {
        let (jobs, queue) = mpsc::channel(WRITE_QUEUE_REQUESTS);
        log.watch(&mut connection)?;
        let thread = std::thread::Builder::new().name("store-writer".to_owned());
        let thread = thread.spawn(move || {
            Loop {
                connection,
                mark,
                clock,
                feed: feed.as_ref(),
                log,
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
        let (answer, answered) = oneshot::channel();
        let sent = self.send(Job::Publish(Request { envelopes, answer })).await;
        sent.ok_or(PublishError::Unavailable)?;
        // A thread that ended without an answer may have committed.
        answered.await.unwrap_or(Err(PublishError::UnknownOutcome))
    }

    pub(super) async fn prune(
        &self,
        now_ns: u64,
        budget: PruneBudget,
    ) -> Result<Pruned, PruneError> {
        let (answer, answered) = oneshot::channel();
        let step = PruneStep {
            now_ns,
            budget,
            answer,
        };
        let sent = self.send(Job::Beside(Beside::Prune(step))).await;
        sent.ok_or(PruneError::Unavailable)?;
        answered.await.unwrap_or(Err(PruneError::Unavailable))
    }

    /// Waits until it is known whether the disk takes a write.
    pub(super) async fn probe(&self) -> Result<(), TailError> {
        let (answer, answered) = oneshot::channel();
        let sent = self.send(Job::Beside(Beside::Probe(answer))).await;
        sent.ok_or(TailError::Final)?;
        match answered.await {
            Ok(true) => Ok(()),
            Ok(false) => Err(TailError::Lost),
            Err(_) => Err(TailError::Final),
        }
    }

    /// Hands a job to the thread; nothing if the thread has ended.
    async fn send(&self, job: Job) -> Option<()> {
        let jobs = self.jobs.lock().clone()?;
        jobs.send(job).await.ok()
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
    mark: Mark,
    clock: Arc<dyn Clock>,
    feed: &'f Feed,
    log: Log,
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
                let emptied = self.log.move_all(&self.connection, Checkpoint::Truncate);
                result = emptied.map(drop);
                break;
            };
            result = self.work(first, &mut queue);
            if result.is_ok() {
                result = self.log.tend(&self.connection);
            }
        }
        if let Err(error) = result {
            told("a commit failed; writing ends", &error);
        }
        // From here on every tail ends, and with it every stream.
        self.feed.close();
        self.mark.sync();
        if let Err((_, error)) = self.connection.close() {
            tracing::warn!(code = ?error.sqlite_error_code(), "the database did not close cleanly");
        }
    }

    /// Does one job, and with a request those that wait behind it.
    ///
    /// An error means that the outcome of a commit is not known.
    fn work(&mut self, first: Job, queue: &mut mpsc::Receiver<Job>) -> rusqlite::Result<()> {
        let beside = match first {
            Job::Beside(beside) => Some(beside),
            Job::Publish(first) => {
                let (requests, beside) = gather(first, queue);
                self.commit_group(requests)?;
                beside
            }
        };
        match beside {
            Some(Beside::Prune(step)) => self.prune(step),
            Some(Beside::Probe(answer)) => self.probe(answer),
            None => Ok(()),
        }
    }

    /// Writes the version of the tables once more. A row that stays the same would not be written.
    fn probe(&mut self, answer: oneshot::Sender<bool>) -> rusqlite::Result<()> {
        let begun = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate);
        let written = begun.and_then(|transaction| {
            transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
            transaction.commit()
        });
        // A caller that has gone away needs no answer.
        let _ = answer.send(written.is_ok());
        match written {
            Ok(()) => self.feed.found(),
            Err(error) if is_failed_sync(&error) => return Err(error),
            // It was told of when it began, and is tried again soon.
            Err(error) => counted(&error),
        }
        Ok(())
    }

    /// Runs one transaction over a step of pruning and answers it.
    fn prune(&mut self, step: PruneStep) -> rusqlite::Result<()> {
        let begun = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate);
        let pruned = begun.and_then(|transaction| {
            let pruned = prune(&transaction, step.now_ns, step.budget)?;
            Ok((transaction, pruned))
        });
        let (committed, answer) = match pruned {
            Ok((transaction, pruned)) => (transaction.commit(), Ok(pruned)),
            Err(error) => (Err(error), Err(PruneError::Unavailable)),
        };
        // A caller that has gone away needs no answer.
        let _ = step.answer.send(match &committed {
            Ok(()) => answer,
            Err(_) => Err(PruneError::Unavailable),
        });
        match committed {
            Err(error) if !is_failed_sync(&error) => {
                // Which rows are gone does not matter, as long as the disk can be believed.
                lose(self.feed, "pruning failed", &error);
                Ok(())
            }
            committed => committed,
        }
    }

    /// Runs one transaction over the requests and answers them.
    ///
    /// An error means that the outcome of a commit is not known.
    fn commit_group(&mut self, jobs: Vec<Request>) -> Result<(), rusqlite::Error> {
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
                return refuse(self.feed, jobs, error);
            }
        };
        if let Err(error) = transaction.commit() {
            if is_full(&error) {
                // The last page carries the mark of the commit, and it was not written.
                return refuse(self.feed, jobs, error);
            }
            answer(jobs, |position| match &outcomes[position] {
                Outcome::Failed(failed) => Err(*failed),
                Outcome::Stored(_) => Err(PublishError::UnknownOutcome),
            });
            return Err(error);
        }
        if let Some(newest) = rows.last() {
            self.mark.advance(newest.meta.sequence_id);
        }
        self.feed.tell(&rows);
        answer(jobs, |position| match &outcomes[position] {
            Outcome::Failed(failed) => Err(*failed),
            Outcome::Stored(metas) => Ok(metas.clone()),
        });
        self.feed.found();
        Ok(())
    }
}

/// Answers that nothing is stored; writing goes on unless a sync has failed.
fn refuse(feed: &Feed, jobs: Vec<Request>, error: rusqlite::Error) -> rusqlite::Result<()> {
    let is_final = is_failed_sync(&error);
    if !is_final {
        lose(feed, "a write failed", &error);
    }
    answer(jobs, |_| Err(PublishError::Unavailable));
    if is_final { Err(error) } else { Ok(()) }
}

/// Tells of an error, and ends every tail if it is the disk that failed.
fn lose(feed: &Feed, what: &'static str, error: &rusqlite::Error) {
    told(what, error);
    if is_of_disk(error) {
        feed.lose();
    }
}

/// Takes the requests that wait, up to the bounds of a group or to what is done beside them.
fn gather(first: Request, queue: &mut mpsc::Receiver<Job>) -> (Vec<Request>, Option<Beside>) {
    let size = |request: &Request| {
        let rows = request.envelopes.iter();
        rows.map(|row| row.payload.len()).sum::<usize>()
    };
    let mut bytes = size(&first);
    let mut requests = vec![first];
    while requests.len() < GROUP_COMMIT_REQUESTS && bytes < GROUP_COMMIT_BYTES {
        match queue.try_recv() {
            Ok(Job::Publish(request)) => {
                bytes += size(&request);
                requests.push(request);
            }
            Ok(Job::Beside(beside)) => return (requests, Some(beside)),
            Err(_) => break,
        }
    }
    (requests, None)
}

fn run_jobs(
    transaction: &mut Transaction<'_>,
    jobs: &[Request],
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
    job: &Request,
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

fn answer(jobs: Vec<Request>, of: impl Fn(usize) -> Answer) {
    for (position, job) in jobs.into_iter().enumerate() {
        // A caller that has gone away needs no answer.
        let _ = job.answer.send(of(position));
    }
}
