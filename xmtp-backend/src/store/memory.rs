//! The store that keeps everything in memory, for tests and trials.
//!
//! One lock makes each publish and each read a single step, so order is commit order. What a
//! durable engine must do to get the same effect is in `sqlite/`.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use xmtp_identity::projection::Association;
use xmtp_proto::id::{InboxId, SequenceId, Topic};

use super::decide::{Facts, decide, new_meta};
use super::feed::{Feed, Positions};
use super::record::{
    Envelope, EnvelopeKey, IdentifierKey, IdentityHistory, IdentityWrite, Meta, Page,
    PreparedEnvelope, Query, Served, Turn, TurnBudget, Want,
};
use super::turn::{Meter, Room};
use super::{PublishError, ReadError, Store, Tail, TailError};
use crate::hooks::Clock;
use crate::limits::OVERHEAD_BYTES;

/// Keeps envelopes in memory.
#[derive(Debug)]
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    data: Arc<Mutex<Data>>,
    feed: Feed,
}

#[derive(Debug, Default)]
struct Data {
    last: SequenceId,
    rows: BTreeMap<SequenceId, Envelope>,
    topics: HashMap<Topic, BTreeMap<SequenceId, Envelope>>,
    keys: HashMap<EnvelopeKey, Meta>,
    associations: HashMap<IdentifierKey, HashMap<InboxId, Span>>,
    closed: bool,
}

/// From which update to which an identifier belongs to an inbox.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    associated: SequenceId,
    revoked: Option<SequenceId>,
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            data: Arc::default(),
            feed: Feed::new(SequenceId::ZERO),
        }
    }

    fn read<T>(&self, read: impl FnOnce(&Data) -> Result<T, ReadError>) -> Result<T, ReadError> {
        let data = self.data.lock();
        if data.closed {
            Err(ReadError::Unavailable)
        } else {
            read(&data)
        }
    }
}

impl Data {
    fn facts(&self, envelope: &PreparedEnvelope) -> Facts {
        let topic = self.topics.get(&envelope.key.topic);
        let newest = topic.and_then(BTreeMap::last_key_value);
        Facts {
            stored: self.keys.get(&envelope.key).copied(),
            head: newest.map_or(SequenceId::ZERO, |(id, _)| *id),
            entries: topic.map_or(0, |rows| u32::try_from(rows.len()).unwrap_or(u32::MAX)),
        }
    }

    fn insert(&mut self, meta: Meta, payload: bytes::Bytes) -> Envelope {
        let envelope = Envelope { meta, payload };
        self.last = meta.sequence_id;
        self.keys.insert(meta.key, meta);
        self.rows.insert(meta.sequence_id, envelope.clone());
        let topic = self.topics.entry(meta.key.topic).or_default();
        topic.insert(meta.sequence_id, envelope.clone());
        envelope
    }

    fn project(&mut self, identity: &IdentityWrite, at: SequenceId) {
        for change in &identity.changes {
            let key = IdentifierKey {
                kind: change.kind.to_proto(),
                text: change.text.clone(),
            };
            let span = self
                .associations
                .entry(key)
                .or_default()
                .entry(change.inbox_id)
                .or_default();
            match change.change {
                Association::Associated if at > span.associated => {
                    *span = Span {
                        associated: at,
                        revoked: None,
                    };
                }
                Association::Revoked if at >= span.associated => span.revoked = Some(at),
                _ => {}
            }
        }
    }

    fn range(
        &self,
        topic: &Topic,
        after: SequenceId,
        through: SequenceId,
    ) -> impl Iterator<Item = &Envelope> {
        // A range that ends before it begins panics, and a cursor may well be past the head.
        let through = through.max(after);
        let bounds = (Bound::Excluded(after), Bound::Included(through));
        let open = after < through;
        let rows = self.topics.get(topic).filter(|_| open);
        rows.into_iter()
            .flat_map(move |rows| rows.range(bounds))
            .map(|(_, row)| row)
    }

    fn head(&self, topic: &Topic) -> SequenceId {
        let newest = self.topics.get(topic).and_then(BTreeMap::last_key_value);
        newest.map_or(SequenceId::ZERO, |(id, _)| *id)
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn publish(&self, envelopes: Vec<PreparedEnvelope>) -> Result<Vec<Meta>, PublishError> {
        let mut data = self.data.lock();
        if data.closed {
            return Err(PublishError::Unavailable);
        }
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
        self.read(|data| Ok(keys.iter().map(|key| data.keys.get(key).copied()).collect()))
    }

    async fn identity_history(&self, topic: Topic) -> Result<IdentityHistory, ReadError> {
        self.read(|data| {
            let rows = data.topics.get(&topic);
            let entries = rows.into_iter().flat_map(BTreeMap::values);
            let entries = entries.map(|row| row.payload.clone()).collect();
            Ok(IdentityHistory {
                entries,
                head: data.head(&topic),
            })
        })
    }

    async fn query(&self, query: Query) -> Result<Page, ReadError> {
        self.read(|data| {
            let mut page = Page::default();
            let mut bytes = 0;
            let topics = query
                .topics
                .iter()
                .cycle()
                .skip(query.first)
                .take(query.topics.len());
            for (topic, after) in topics {
                for row in data.range(topic, *after, SequenceId::MAX) {
                    if page.envelopes.len() == query.limit {
                        page.has_more = true;
                        return Ok(page);
                    }
                    bytes += row.payload.len() + OVERHEAD_BYTES;
                    if bytes > query.max_bytes {
                        return Err(ReadError::TooLarge);
                    }
                    page.envelopes.push(row.clone());
                }
            }
            Ok(page)
        })
    }

    async fn newest(
        &self,
        topics: Vec<Topic>,
        full: bool,
        max_bytes: usize,
    ) -> Result<Vec<Envelope>, ReadError> {
        self.read(|data| {
            let newest = |topic| Some(data.topics.get(topic)?.last_key_value()?.1.clone());
            let mut found: Vec<Envelope> = topics.iter().filter_map(newest).collect();
            if !full {
                found.iter_mut().for_each(|row| row.payload.clear());
            }
            let bytes: usize = found
                .iter()
                .map(|row| row.payload.len() + OVERHEAD_BYTES)
                .sum();
            if full && bytes > max_bytes {
                Err(ReadError::TooLarge)
            } else {
                Ok(found)
            }
        })
    }

    async fn inbox_ids(&self, keys: Vec<IdentifierKey>) -> Result<Vec<Option<InboxId>>, ReadError> {
        self.read(|data| {
            let live = |key: &IdentifierKey| {
                let inboxes = data.associations.get(key)?.iter();
                let live = inboxes.filter(|(_, span)| span.revoked.is_none());
                live.max_by_key(|(_, span)| span.associated)
                    .map(|(inbox, _)| *inbox)
            };
            Ok(keys.iter().map(live).collect())
        })
    }

    async fn heads(&self, topics: Vec<Topic>) -> Result<Vec<SequenceId>, ReadError> {
        self.read(|data| Ok(topics.iter().map(|topic| data.head(topic)).collect()))
    }

    async fn fetch_turn(&self, wants: Vec<Want>, budget: TurnBudget) -> Result<Turn, ReadError> {
        self.read(|data| {
            let mut meter = Meter::new(budget);
            let mut turn = Turn::default();
            for want in &wants {
                let Some(served) = serve(data, want, &mut meter) else {
                    break;
                };
                turn.served.push(served);
            }
            Ok(turn)
        })
    }

    async fn tail(&self) -> Result<Box<dyn Tail>, TailError> {
        Ok(Box::new(self.feed.tail(self.data.clone())))
    }

    async fn close(&self) {
        self.data.lock().closed = true;
        self.feed.close();
    }
}

/// Serves one want, or nothing if the turn has no room for it.
fn serve(data: &Data, want: &Want, meter: &mut Meter) -> Option<Served> {
    meter.next_topic();
    let mut served = Served {
        rows: Vec::new(),
        complete: true,
    };
    for row in data.range(&want.topic, want.after, want.through) {
        match meter.offer(row.payload.len()) {
            Room::Taken => served.rows.push(row.clone()),
            Room::NextTurn => {
                served.complete = false;
                break;
            }
            Room::Unvisited => return None,
        }
    }
    Some(served)
}

#[async_trait]
impl Positions for Mutex<Data> {
    async fn rows_after(
        &self,
        after: SequenceId,
        through: SequenceId,
        max_rows: usize,
        _max_bytes: usize,
    ) -> Result<Vec<Envelope>, ReadError> {
        let data = self.lock();
        let bounds = (Bound::Excluded(after), Bound::Included(through));
        Ok(data
            .rows
            .range(bounds)
            .take(max_rows)
            .map(|(_, row)| row.clone())
            .collect())
    }
}
