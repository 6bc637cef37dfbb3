//! The workers that publish: each takes what waits and runs it as one transaction.
//!
//! While a worker is free a request gets a transaction of its own. Under load requests share one, and
//! with it the commit and the locks of their topics.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot};
use tokio::task::JoinSet;
use xmtp_proto::id::Topic;

use super::Shared;
use super::publish::{Outcome, Publisher, Request};
use crate::limits::{COMBINED_PUBLISHES, GROUP_COMMIT_BYTES, WRITE_QUEUE_REQUESTS};
use crate::store::PublishError;
use crate::store::record::{EnvelopeKey, PreparedEnvelope};

/// One request and where its answer goes.
#[derive(Debug)]
struct Job {
    envelopes: Vec<PreparedEnvelope>,
    answer: oneshot::Sender<Outcome>,
}

/// The server's end of the workers.
#[derive(Debug)]
pub(super) struct Publishers {
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    workers: Mutex<JoinSet<()>>,
    publisher: Arc<Publisher>,
}

impl Publishers {
    pub(super) fn start(publisher: Publisher, workers: usize, shared: &Arc<Shared>) -> Self {
        let (jobs, receiver) = mpsc::channel(WRITE_QUEUE_REQUESTS);
        let queue = Arc::new(AsyncMutex::new(Queue {
            receiver,
            held: VecDeque::new(),
        }));
        let publisher = Arc::new(publisher);
        let mut tasks = JoinSet::new();
        for _ in 0..workers {
            tasks.spawn(work(queue.clone(), publisher.clone(), shared.clone()));
        }
        Self {
            jobs: Mutex::new(Some(jobs)),
            workers: Mutex::new(tasks),
            publisher,
        }
    }

    pub(super) async fn publish(&self, envelopes: Vec<PreparedEnvelope>) -> Outcome {
        let jobs = self.jobs.lock().clone().ok_or(PublishError::Unavailable)?;
        let (answer, answered) = oneshot::channel();
        let job = Job { envelopes, answer };
        jobs.send(job)
            .await
            .map_err(|_| PublishError::Unavailable)?;
        // A worker that ended without an answer may have committed.
        answered.await.unwrap_or(Err(PublishError::UnknownOutcome))
    }

    /// Lets the accepted requests finish and ends the workers.
    pub(super) async fn stop(&self) {
        drop(self.jobs.lock().take());
        let mut workers = std::mem::take(&mut *self.workers.lock());
        while let Some(ended) = workers.join_next().await {
            if ended.is_err() {
                tracing::error!("a publisher of the store ended badly");
            }
        }
        self.publisher.close();
    }
}

/// What waits to be published.
#[derive(Debug)]
struct Queue {
    receiver: mpsc::Receiver<Job>,
    /// Taken from the channel and not fit for the group before it; at most one.
    held: VecDeque<Job>,
}

impl Queue {
    /// Takes what waits, up to the bounds of a group and to the first request that depends on
    /// another one in it.
    async fn group(&mut self) -> Option<Vec<Job>> {
        let first = match self.held.pop_front() {
            Some(job) => job,
            None => self.receiver.recv().await?,
        };
        let mut group = Group::default();
        let mut jobs = Vec::new();
        let mut next = Some(first);
        while let Some(job) = next {
            // Its caller has given up and will learn nothing; nothing is stored of it.
            if job.answer.is_closed() {
                next = self.receiver.try_recv().ok();
                continue;
            }
            if !group.admits(&job.envelopes) {
                self.held.push_back(job);
                break;
            }
            jobs.push(job);
            next = match jobs.len() < COMBINED_PUBLISHES && group.bytes < GROUP_COMMIT_BYTES {
                true => self.receiver.try_recv().ok(),
                false => None,
            };
        }
        Some(jobs)
    }
}

/// What the requests of one transaction touch.
#[derive(Debug, Default)]
struct Group {
    keys: HashSet<EnvelopeKey>,
    inboxes: HashSet<Topic>,
    bytes: usize,
    /// A request that may be refused rolls its transaction back, so it has one of its own.
    alone: bool,
}

impl Group {
    /// Adds a request if it depends on none of the others.
    fn admits(&mut self, request: &Request) -> bool {
        let alone = request.iter().any(|row| row.refused.is_some());
        let updates = || request.iter().filter(|row| row.identity.is_some());
        let collides = request.iter().any(|row| self.keys.contains(&row.key))
            || updates().any(|row| self.inboxes.contains(&row.key.topic));
        if collides || self.alone || (alone && !self.keys.is_empty()) {
            return false;
        }
        self.alone = alone;
        self.keys.extend(request.iter().map(|row| row.key));
        self.inboxes.extend(updates().map(|row| row.key.topic));
        self.bytes += request.iter().map(|row| row.payload.len()).sum::<usize>();
        true
    }
}

async fn work(queue: Arc<AsyncMutex<Queue>>, publisher: Arc<Publisher>, shared: Arc<Shared>) {
    loop {
        // One worker waits for requests at a time; the others wait for it.
        let Some(jobs) = queue.lock().await.group().await else {
            return;
        };
        if !jobs.is_empty() {
            run(&publisher, jobs).await;
            shared.committed();
        }
    }
}

async fn run(publisher: &Publisher, jobs: Vec<Job>) {
    let requests: Vec<&Request> = jobs.iter().map(|job| job.envelopes.as_slice()).collect();
    match publisher.publish(&requests).await {
        Ok(outcomes) => {
            for (job, outcome) in jobs.into_iter().zip(outcomes) {
                // A caller that has gone away needs no answer.
                let _ = job.answer.send(outcome);
            }
        }
        // One of them is to blame, and the others shall not suffer for it.
        Err(PublishError::Broken(_)) if jobs.len() > 1 => {
            for job in jobs {
                let alone = publisher.publish(&[job.envelopes.as_slice()]).await;
                let outcome = alone.map(|mut outcomes| outcomes.pop());
                let missing = Err(PublishError::Broken("a request has no outcome"));
                let _ = job
                    .answer
                    .send(outcome.and_then(|outcome| outcome.unwrap_or(missing)));
            }
        }
        Err(error) => {
            for job in jobs {
                let _ = job.answer.send(Err(error));
            }
        }
    }
}
