//! Which sessions want to be told about which topics.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher;
use std::sync::Arc;

use parking_lot::Mutex;
use xmtp_proto::id::Topic;

use super::mailbox::Mailbox;
use crate::limits::REGISTRY_SHARDS;
use crate::session::{Held, Row};
use crate::store::{Envelope, Interest};

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

impl Interest for Registry {
    fn includes(&self, topic: &Topic) -> bool {
        self.shard(topic).lock().contains_key(topic)
    }
}

impl Registry {
    /// Tells every session that wants to hear of the envelope's topic and began on this tail.
    ///
    /// - All of them share one encoding.
    /// - A session of an earlier tail is about to end, and there may be a hole before this row.
    pub(super) fn tell(&self, envelope: &Envelope, tail: u64) {
        let topic = envelope.meta.key.topic;
        if let Some(mailboxes) = self.shard(&topic).lock().get(&topic) {
            let row = Row::encode(envelope, Held::Shared);
            let current = mailboxes.iter().filter(|mailbox| mailbox.tail() == tail);
            current.for_each(|mailbox| mailbox.tell(&row));
        }
    }

    /// Has a mailbox told from now on; it is registered once per topic.
    pub(super) fn register(&self, topic: Topic, mailbox: &Arc<Mailbox>) {
        match self.shard(&topic).lock().entry(topic) {
            Entry::Occupied(mut mailboxes) => mailboxes.get_mut().push(mailbox.clone()),
            // Most topics have one session on a server.
            Entry::Vacant(topic) => {
                topic.insert(vec![mailbox.clone()]);
            }
        }
    }

    /// Has a mailbox told no longer, and says whether it was told before.
    pub(super) fn deregister(&self, topic: Topic, mailbox: &Arc<Mailbox>) -> bool {
        let mut shard = self.shard(&topic).lock();
        let Entry::Occupied(mut mailboxes) = shard.entry(topic) else {
            return false;
        };
        let before = mailboxes.get().len();
        let others = |other: &Arc<Mailbox>| !Arc::ptr_eq(other, mailbox);
        mailboxes.get_mut().retain(others);
        let was_told = mailboxes.get().len() < before;
        if mailboxes.get().is_empty() {
            mailboxes.remove();
        }
        was_told
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::fixture::{envelope, group};

    /// Before the first row of a new tail there may be rows that nobody was told of.
    #[test]
    fn a_session_of_an_earlier_tail_is_told_no_more() {
        let registry = Registry::default();
        let (old, new) = (Arc::new(Mailbox::new(0)), Arc::new(Mailbox::new(1)));
        registry.register(group(1), &old);
        registry.tell(&envelope(group(1), 1, 1), 0);
        registry.register(group(1), &new);
        registry.tell(&envelope(group(1), 3, 1), 1);
        let told = |mailbox: &Mailbox| {
            let rows = mailbox.take().rows;
            rows.iter()
                .map(|row| row.sequence_id.get())
                .collect::<Vec<_>>()
        };
        assert_eq!((told(&old), told(&new)), (vec![1], vec![3]));
    }
}
