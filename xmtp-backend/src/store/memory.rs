//! The store that keeps everything in memory, for tests and trials.
//!
//! One lock makes each publish and each read a single step, so order is commit order. What a
//! durable engine must do to get the same effect is in `sqlite/`.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use xmtp_proto::id::{InboxId, SequenceId, Topic};

use super::decide::{Facts, decide, new_meta};
use super::feed::{Feed, Positions};
use super::memory_data::Data;
use super::record::{
    Envelope, EnvelopeKey, IdentifierKey, IdentityHistory, Meta, Page, PreparedEnvelope,
    PruneBudget, Pruned, Query, Turn, TurnBudget, Want,
};
use super::{PruneError, PublishError, ReadError, Store, Tail, TailError};
use crate::hooks::Clock;

/// Keeps envelopes in memory.
#[derive(Debug)]
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    kept: Arc<Mutex<Kept>>,
    feed: Feed,
}

#[derive(Debug, Default)]
struct Kept {
    data: Data,
    closed: bool,
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            kept: Arc::default(),
            feed: Feed::new(SequenceId::ZERO),
        }
    }

    fn read<T>(&self, read: impl FnOnce(&Data) -> T) -> Result<T, ReadError> {
        let kept = self.kept.lock();
        if kept.closed {
            Err(ReadError::Unavailable)
        } else {
            Ok(read(&kept.data))
        }
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn publish(&self, envelopes: Vec<PreparedEnvelope>) -> Result<Vec<Meta>, PublishError> {
        let mut kept = self.kept.lock();
        if kept.closed {
            return Err(PublishError::Unavailable);
        }
        let data = &mut kept.data;
        let facts: Vec<Facts> = envelopes
            .iter()
            .map(|envelope| data.facts(envelope))
            .collect();
        decide(&envelopes, &facts)?;
        let server_ns = self.clock.now_ns();
        let mut metas = Vec::with_capacity(envelopes.len());
        let mut last = data.last;
        for (envelope, facts) in envelopes.iter().zip(&facts) {
            metas.push(match facts.stored {
                Some(stored) => stored,
                None => {
                    last = last
                        .next()
                        .ok_or(PublishError::Broken("no sequence id is left"))?;
                    new_meta(envelope, last, server_ns)?
                }
            });
        }
        let mut rows = Vec::new();
        for ((envelope, facts), meta) in envelopes.into_iter().zip(&facts).zip(&metas) {
            if facts.stored.is_none() {
                rows.push(data.insert(*meta, envelope.payload));
                if let Some(identity) = &envelope.identity {
                    data.project(identity, meta.sequence_id);
                }
            }
        }
        // Under the lock, so that tails hear of commits in their order.
        self.feed.tell(&rows);
        Ok(metas)
    }

    async fn existing(&self, keys: Vec<EnvelopeKey>) -> Result<Vec<Option<Meta>>, ReadError> {
        self.read(|data| data.existing(&keys))
    }

    async fn identity_history(&self, topic: Topic) -> Result<IdentityHistory, ReadError> {
        self.read(|data| data.identity_history(&topic))
    }

    async fn query(&self, query: Query) -> Result<Page, ReadError> {
        self.read(|data| data.query(&query))?
    }

    async fn newest(
        &self,
        topics: Vec<Topic>,
        full: bool,
        max_bytes: usize,
    ) -> Result<Vec<Envelope>, ReadError> {
        self.read(|data| data.newest(&topics, full, max_bytes))?
    }

    async fn inbox_ids(&self, keys: Vec<IdentifierKey>) -> Result<Vec<Option<InboxId>>, ReadError> {
        self.read(|data| data.inbox_ids(&keys))
    }

    async fn heads(&self, topics: Vec<Topic>) -> Result<Vec<SequenceId>, ReadError> {
        self.read(|data| data.heads(&topics))
    }

    async fn fetch_turn(&self, wants: Vec<Want>, budget: TurnBudget) -> Result<Turn, ReadError> {
        self.read(|data| data.fetch_turn(&wants, budget))
    }

    async fn tail(&self) -> Result<Box<dyn Tail>, TailError> {
        Ok(Box::new(self.feed.tail(self.kept.clone())))
    }

    async fn prune(&self, now_ns: u64, budget: PruneBudget) -> Result<Pruned, PruneError> {
        let mut kept = self.kept.lock();
        if kept.closed {
            return Err(PruneError::Unavailable);
        }
        Ok(kept.data.prune(now_ns, budget))
    }

    async fn close(&self) {
        self.kept.lock().closed = true;
        self.feed.close();
    }
}

#[async_trait]
impl Positions for Mutex<Kept> {
    async fn rows_after(
        &self,
        after: SequenceId,
        through: SequenceId,
        max_rows: usize,
        _max_bytes: usize,
    ) -> Result<Vec<Envelope>, ReadError> {
        Ok(self.lock().data.rows_after(after, through, max_rows))
    }
}
