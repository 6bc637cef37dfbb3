//! A store in memory that goes about as PostgreSQL does, under the hand of a test.
//!
//! A publish passes explicit phases and may be held or failed at each: it takes the locks of its
//! topics in byte order and its share of the barrier, looks again, allocates ids outside any
//! transaction, and commits or aborts. Ids of aborted publishes are gone, and a lower id may commit
//! after a higher one of another topic. Reads of streams go to a replica, which is a prefix of the
//! log of commits and lags as far as the test says. The closed boundary is a row like any other:
//! it is committed on the primary, by whoever holds the barrier alone, and seen on the replica.

mod control;
mod tail;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{Mutex as Lock, OwnedMutexGuard, OwnedRwLockReadGuard, RwLock, watch};
use xmtp_proto::id::{InboxId, SequenceId, Topic};

pub(super) use self::control::{Control, Fault, Phase};

use self::tail::ReplicaTail;
use super::decide::{Facts, decide, new_meta};
use super::memory_data::Data;
use super::record::{
    Envelope, EnvelopeKey, IdentifierKey, IdentityHistory, IdentityWrite, Meta, Page,
    PreparedEnvelope, PruneBudget, Pruned, Query, Turn, TurnBudget, Want,
};
use super::{PruneError, PublishError, ReadError, Store, Tail, TailError};
use crate::hooks::Clock;

/// A PostgreSQL store in memory.
#[derive(Clone, Debug)]
pub(super) struct SimulatedStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Arc<dyn Clock>,
    control: Control,
    databases: Mutex<Databases>,
    /// The row lock of each topic; rows are never deleted.
    locks: Mutex<std::collections::HashMap<Topic, Arc<Lock<()>>>>,
    /// Shared by publishes from before they allocate until they end; alone for the boundary.
    barrier: Arc<RwLock<()>>,
    /// Counts what the replica has replayed, and closes with the store.
    replayed: watch::Sender<Replayed>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Replayed {
    commits: usize,
    closed: bool,
}

/// The primary, its sequence and log, and the replica.
#[derive(Debug, Default)]
struct Databases {
    /// The greatest id ever allocated; no transaction takes it back.
    sequence: SequenceId,
    log: Vec<Commit>,
    primary: Snapshot,
    replica: Snapshot,
    replayed: usize,
    closed: bool,
}

/// What one commit changed.
#[derive(Clone, Debug)]
enum Commit {
    Rows(Vec<(Envelope, Option<IdentityWrite>)>),
    Boundary(SequenceId),
    Pruned(u64, PruneBudget),
}

/// What a database shows after some commits.
#[derive(Debug, Default)]
struct Snapshot {
    data: Data,
    /// Every id up to here is settled.
    boundary: SequenceId,
}

impl Snapshot {
    fn apply(&mut self, commit: &Commit) {
        match commit {
            Commit::Pruned(now_ns, budget) => {
                self.data.prune(*now_ns, *budget);
            }
            Commit::Boundary(closed) => self.boundary = self.boundary.max(*closed),
            Commit::Rows(rows) => {
                for (row, identity) in rows {
                    self.data.insert(row.meta, row.payload.clone());
                    if let Some(identity) = identity {
                        self.data.project(identity, row.meta.sequence_id);
                    }
                }
            }
        }
    }
}

/// What a publish holds until it ends.
struct Held {
    _topics: Vec<OwnedMutexGuard<()>>,
    _barrier: OwnedRwLockReadGuard<()>,
}

impl SimulatedStore {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let shared = Shared {
            clock,
            control: Control::default(),
            databases: Mutex::default(),
            locks: Mutex::default(),
            barrier: Arc::default(),
            replayed: watch::Sender::new(Replayed::default()),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Answers the hand of the test.
    pub(super) fn control(&self) -> &Control {
        &self.shared.control
    }

    /// Lets the replica replay up to so many commits that it has not replayed.
    pub(super) fn replay(&self, commits: usize) {
        self.shared.replay(commits);
    }

    fn primary<T>(&self, read: impl FnOnce(&Data) -> T) -> Result<T, ReadError> {
        let databases = self.shared.databases.lock();
        self.shared.control.read(databases.closed)?;
        Ok(read(&databases.primary.data))
    }

    fn replica<T>(&self, read: impl FnOnce(&Data) -> T) -> Result<T, ReadError> {
        let databases = self.shared.databases.lock();
        self.shared.control.read(databases.closed)?;
        Ok(read(&databases.replica.data))
    }
}

impl Shared {
    /// Takes the locks of the topics in byte order, and then a share of the barrier.
    async fn lock(&self, envelopes: &[PreparedEnvelope]) -> Result<Held, PublishError> {
        let topics: BTreeSet<Topic> = envelopes.iter().map(|row| row.key.topic).collect();
        let mut held = Vec::with_capacity(topics.len());
        for topic in topics {
            let lock = self.locks.lock().entry(topic).or_default().clone();
            held.push(lock.lock_owned().await);
        }
        self.control.reach(Phase::Locked).await?;
        Ok(Held {
            _topics: held,
            _barrier: self.barrier.clone().read_owned().await,
        })
    }

    /// Looks again, in a snapshot from after the locks, and decides.
    fn judge(&self, envelopes: &[PreparedEnvelope]) -> Result<Vec<Facts>, PublishError> {
        let databases = self.databases.lock();
        if databases.closed {
            return Err(PublishError::Unavailable);
        }
        let data = &databases.primary.data;
        let facts: Vec<Facts> = envelopes.iter().map(|row| data.facts(row)).collect();
        decide(envelopes, &facts)?;
        Ok(facts)
    }

    /// Allocates the ids of new envelopes in request order.
    fn allocate(
        &self,
        envelopes: &[PreparedEnvelope],
        facts: &[Facts],
    ) -> Result<Vec<Meta>, PublishError> {
        let server_ns = self.clock.now_ns();
        let mut databases = self.databases.lock();
        let meta = |(envelope, facts): (&PreparedEnvelope, &Facts)| {
            if let Some(stored) = facts.stored {
                return Ok(stored);
            }
            let next = databases.sequence.next();
            databases.sequence = next.ok_or(PublishError::Broken("no sequence id is left"))?;
            new_meta(envelope, databases.sequence, server_ns)
        };
        envelopes.iter().zip(facts).map(meta).collect()
    }

    fn commit(&self, commit: Commit) {
        let mut databases = self.databases.lock();
        databases.primary.apply(&commit);
        databases.log.push(commit);
        drop(databases);
        if !self.control.is_replica_held() {
            self.replay(usize::MAX);
        }
    }

    fn replay(&self, commits: usize) {
        let mut databases = self.databases.lock();
        let Databases {
            log,
            replica,
            replayed,
            ..
        } = &mut *databases;
        for commit in log[*replayed..].iter().take(commits) {
            replica.apply(commit);
            *replayed += 1;
        }
        let commits = *replayed;
        self.replayed
            .send_modify(|replayed| replayed.commits = commits);
    }

    /// Closes everything that is allocated: whoever holds the barrier alone knows that all of it is
    /// settled.
    async fn advance_boundary(&self) -> Result<SequenceId, ReadError> {
        self.control.boundary()?;
        let _alone = self.barrier.write().await;
        let closed = self.databases.lock().sequence;
        self.commit(Commit::Boundary(closed));
        Ok(closed)
    }
}

#[async_trait]
impl Store for SimulatedStore {
    async fn publish(&self, envelopes: Vec<PreparedEnvelope>) -> Result<Vec<Meta>, PublishError> {
        let shared = &self.shared;
        let held = shared.lock(&envelopes).await?;
        let facts = shared.judge(&envelopes)?;
        let metas = shared.allocate(&envelopes, &facts)?;
        // From here on a failure leaves a gap.
        shared.control.reach(Phase::Allocated).await?;
        let all = envelopes.into_iter().zip(&facts).zip(&metas);
        let new = all.filter(|((_, facts), _)| facts.stored.is_none());
        let rows = new.map(|((envelope, _), meta)| {
            let payload = envelope.payload;
            (
                Envelope {
                    meta: *meta,
                    payload,
                },
                envelope.identity,
            )
        });
        let rows: Vec<_> = rows.collect();
        shared.control.reach(Phase::Inserted).await?;
        match shared.control.reach(Phase::Committing).await {
            Err(PublishError::UnknownOutcome) if shared.control.is_lost_commit_kept() => {
                shared.commit(Commit::Rows(rows));
                return Err(PublishError::UnknownOutcome);
            }
            reached => reached?,
        }
        if !rows.is_empty() {
            shared.commit(Commit::Rows(rows));
        }
        drop(held);
        Ok(metas)
    }

    async fn existing(&self, keys: Vec<EnvelopeKey>) -> Result<Vec<Option<Meta>>, ReadError> {
        self.primary(|data| data.existing(&keys))
    }

    async fn identity_history(&self, topic: Topic) -> Result<IdentityHistory, ReadError> {
        self.primary(|data| data.identity_history(&topic))
    }

    async fn query(&self, query: Query) -> Result<Page, ReadError> {
        self.primary(|data| data.query(&query))?
    }

    async fn newest(
        &self,
        topics: Vec<Topic>,
        full: bool,
        max_bytes: usize,
    ) -> Result<Vec<Envelope>, ReadError> {
        self.replica(|data| data.newest(&topics, full, max_bytes))?
    }

    async fn inbox_ids(&self, keys: Vec<IdentifierKey>) -> Result<Vec<Option<InboxId>>, ReadError> {
        self.replica(|data| data.inbox_ids(&keys))
    }

    async fn heads(&self, topics: Vec<Topic>) -> Result<Vec<SequenceId>, ReadError> {
        self.replica(|data| data.heads(&topics))
    }

    async fn fetch_turn(&self, wants: Vec<Want>, budget: TurnBudget) -> Result<Turn, ReadError> {
        self.replica(|data| data.fetch_turn(&wants, budget))
    }

    async fn tail(&self) -> Result<Box<dyn Tail>, TailError> {
        Ok(Box::new(ReplicaTail::new(self.shared.clone())))
    }

    async fn prune(&self, now_ns: u64, budget: PruneBudget) -> Result<Pruned, PruneError> {
        let mut databases = self.shared.databases.lock();
        if databases.closed {
            return Err(PruneError::Unavailable);
        }
        let pruned = databases.primary.data.prune(now_ns, budget);
        databases.log.push(Commit::Pruned(now_ns, budget));
        drop(databases);
        if !self.shared.control.is_replica_held() {
            self.shared.replay(usize::MAX);
        }
        Ok(pruned)
    }

    async fn close(&self) {
        self.shared.databases.lock().closed = true;
        self.shared
            .replayed
            .send_modify(|replayed| replayed.closed = true);
    }
}
