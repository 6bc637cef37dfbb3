//! Which sessions want to be told about which topics.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher;
use std::sync::Arc;

use parking_lot::Mutex;
use xmtp_proto::id::Topic;

use super::mailbox::Mailbox;
use crate::limits::REGISTRY_SHARDS;
use crate::store::Envelope;

type Shard = HashMap<Topic, Vec<Arc<Mailbox>>>;

/// Leads from topics to mailboxes.
#[derive(Debug)]
pub(super) struct Registry {
    shards: Vec<Mutex<Shard>>,
    hasher: RandomState,
}

impl Default for Registry {
    fn default() -> Self {
        let shards = (0..REGISTRY_SHARDS).map(|_| Mutex::default()).collect();
        Self {
            shards,
            hasher: RandomState::new(),
        }
    }
}

impl Registry {
    /// Tells every session that wants to hear of the envelope's topic and began on this tail.
    ///
    /// - A session of an earlier tail is about to end, and there may be a hole before this row.
    pub(super) fn tell(&self, row: &Envelope, tail: u64) {
        let topic = row.meta.key.topic;
        if let Some(mailboxes) = self.shard(&topic).lock().get(&topic) {
            let current = mailboxes.iter().filter(|mailbox| mailbox.tail() == tail);
            current.for_each(|mailbox| mailbox.tell(row));
        }
    }

    /// Has a mailbox told from now on; it is registered once per topic.
    pub(super) fn register(&self, topic: Topic, mailbox: &Arc<Mailbox>) {
        self.shard(&topic)
            .lock()
            .entry(topic)
            .or_default()
            .push(mailbox.clone());
    }

    /// Has a mailbox told no longer.
    pub(super) fn deregister(&self, topic: Topic, mailbox: &Arc<Mailbox>) {
        if let Entry::Occupied(mut mailboxes) = self.shard(&topic).lock().entry(topic) {
            mailboxes
                .get_mut()
                .retain(|other| !Arc::ptr_eq(other, mailbox));
            if mailboxes.get().is_empty() {
                mailboxes.remove();
            }
        }
    }

    /// Counts the registrations of all sessions.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let shards = self.shards.iter();
        shards
            .map(|shard| shard.lock().values().map(Vec::len).sum::<usize>())
            .sum()
    }

    fn shard(&self, topic: &Topic) -> &Mutex<Shard> {
        let hash = self.hasher.hash_one(topic) as usize;
        &self.shards[hash % REGISTRY_SHARDS]
    }
}
