//! The rows, heads and lookups of a store in memory, and every read over them.
//!
//! No locks, no waiting: a step of a store is one call under whatever lock the store has.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use xmtp_identity::projection::Association;
use xmtp_proto::id::{InboxId, SequenceId, Topic};

use super::ReadError;
use super::decide::Facts;
use super::record::{
    Envelope, EnvelopeKey, IdentifierKey, IdentityHistory, IdentityWrite, Meta, Page,
    PreparedEnvelope, PruneBudget, PrunePosition, Pruned, Query, Served, Turn, TurnBudget, Want,
};
use super::turn::{Meter, Room};
use crate::limits::OVERHEAD_BYTES;

/// What a store knows, in memory.
#[derive(Debug, Default)]
pub(super) struct Data {
    pub(super) last: SequenceId,
    rows: BTreeMap<SequenceId, Envelope>,
    topics: HashMap<Topic, BTreeMap<SequenceId, Envelope>>,
    keys: HashMap<EnvelopeKey, Meta>,
    associations: HashMap<IdentifierKey, HashMap<InboxId, Span>>,
}

/// From which update to which an identifier belongs to an inbox.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    associated: SequenceId,
    revoked: Option<SequenceId>,
}

impl Data {
    /// Answers what is known about an envelope.
    pub(super) fn facts(&self, envelope: &PreparedEnvelope) -> Facts {
        let topic = self.topics.get(&envelope.key.topic);
        let newest = topic.and_then(BTreeMap::last_key_value);
        Facts {
            stored: self.keys.get(&envelope.key).copied(),
            head: newest.map_or(SequenceId::ZERO, |(id, _)| *id),
            entries: topic.map_or(0, |rows| u32::try_from(rows.len()).unwrap_or(u32::MAX)),
        }
    }

    /// Stores a row.
    pub(super) fn insert(&mut self, meta: Meta, payload: bytes::Bytes) -> Envelope {
        let envelope = Envelope { meta, payload };
        self.last = self.last.max(meta.sequence_id);
        self.keys.insert(meta.key, meta);
        self.rows.insert(meta.sequence_id, envelope.clone());
        let topic = self.topics.entry(meta.key.topic).or_default();
        topic.insert(meta.sequence_id, envelope.clone());
        envelope
    }

    /// Changes the lookup.
    pub(super) fn project(&mut self, identity: &IdentityWrite, at: SequenceId) {
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

    /// Deletes what the budget allows.
    pub(super) fn prune(&mut self, now_ns: u64, budget: PruneBudget) -> Pruned {
        let expired = self.expired(now_ns, budget);
        let last = expired.last().copied();
        let is_full = expired.len() == budget.rows;
        let deleted = expired.into_iter();
        let deleted = deleted.filter(|row| self.delete_old(row.sequence_id));
        Pruned {
            deleted: deleted.count(),
            next: last.filter(|_| is_full),
        }
    }

    /// Returns the rows that one step of pruning looks at, in the order in which they expired.
    fn expired(&self, now_ns: u64, budget: PruneBudget) -> Vec<PrunePosition> {
        let positions = self.rows.values().filter_map(|row| {
            Some(PrunePosition {
                expiry_ns: row.meta.expiry_ns?,
                sequence_id: row.meta.sequence_id,
            })
        });
        let is_next = |position: &PrunePosition| {
            position.expiry_ns < now_ns && budget.after.is_none_or(|after| *position > after)
        };
        let mut expired: Vec<_> = positions.filter(is_next).collect();
        expired.sort_unstable();
        expired.truncate(budget.rows);
        expired
    }

    /// Deletes a row unless it is the newest of its topic.
    fn delete_old(&mut self, id: SequenceId) -> bool {
        let key = self.rows[&id].meta.key;
        if self.head(&key.topic) == id {
            return false;
        }
        self.rows.remove(&id);
        self.keys.remove(&key);
        let topic = self.topics.get_mut(&key.topic);
        topic.is_some_and(|rows| rows.remove(&id).is_some())
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

    pub(super) fn head(&self, topic: &Topic) -> SequenceId {
        let newest = self.topics.get(topic).and_then(BTreeMap::last_key_value);
        newest.map_or(SequenceId::ZERO, |(id, _)| *id)
    }

    pub(super) fn existing(&self, keys: &[EnvelopeKey]) -> Vec<Option<Meta>> {
        keys.iter().map(|key| self.keys.get(key).copied()).collect()
    }

    pub(super) fn identity_history(&self, topic: &Topic) -> IdentityHistory {
        let rows = self.topics.get(topic);
        let entries = rows.into_iter().flat_map(BTreeMap::values);
        IdentityHistory {
            entries: entries.map(|row| row.payload.clone()).collect(),
            head: self.head(topic),
        }
    }

    pub(super) fn query(&self, query: &Query) -> Result<Page, ReadError> {
        let mut page = Page::default();
        let mut bytes = 0;
        let topics = query
            .topics
            .iter()
            .cycle()
            .skip(query.first)
            .take(query.topics.len());
        for (topic, after) in topics {
            for row in self.range(topic, *after, SequenceId::MAX) {
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
    }

    pub(super) fn newest(
        &self,
        topics: &[Topic],
        full: bool,
        max_bytes: usize,
    ) -> Result<Vec<Envelope>, ReadError> {
        let newest = |topic| Some(self.topics.get(topic)?.last_key_value()?.1.clone());
        let mut found: Vec<Envelope> = topics.iter().filter_map(newest).collect();
        if !full {
            found.iter_mut().for_each(|row| row.payload.clear());
        }
        let sizes = found.iter().map(|row| row.payload.len() + OVERHEAD_BYTES);
        if full && sizes.sum::<usize>() > max_bytes {
            return Err(ReadError::TooLarge);
        }
        Ok(found)
    }

    pub(super) fn inbox_ids(&self, keys: &[IdentifierKey]) -> Vec<Option<InboxId>> {
        let live = |key: &IdentifierKey| {
            let inboxes = self.associations.get(key)?.iter();
            let live = inboxes.filter(|(_, span)| span.revoked.is_none());
            live.max_by_key(|(_, span)| span.associated)
                .map(|(inbox, _)| *inbox)
        };
        keys.iter().map(live).collect()
    }

    pub(super) fn heads(&self, topics: &[Topic]) -> Vec<SequenceId> {
        topics.iter().map(|topic| self.head(topic)).collect()
    }

    pub(super) fn fetch_turn(&self, wants: &[Want], budget: TurnBudget) -> Turn {
        let mut meter = Meter::new(budget);
        let served = wants.iter().map_while(|want| serve(self, want, &mut meter));
        Turn {
            served: served.collect(),
        }
    }

    /// Returns the lowest rows above `after` and up to `through`, whatever their topic.
    pub(super) fn rows_after(
        &self,
        after: SequenceId,
        through: SequenceId,
        max_rows: usize,
    ) -> Vec<Envelope> {
        if through <= after {
            return Vec::new();
        }
        let bounds = (Bound::Excluded(after), Bound::Included(through));
        let rows = self.rows.range(bounds).take(max_rows);
        rows.map(|(_, row)| row.clone()).collect()
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
