//! Which topics are wanted, and by whom. Network interest ends when nobody needs a topic.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use xmtp_proto::Topic;

/// Wanted topics with their owners; shared, cheap to clone.
#[derive(Clone, Debug)]
pub struct Interests {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    counts: Mutex<Counts>,
    revision: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Counts {
    next_owner: u64,
    owners: BTreeMap<u64, BTreeSet<Topic>>,
    topics: BTreeMap<Topic, usize>,
}

impl Default for Interests {
    fn default() -> Self {
        Self {
            shared: Arc::new(Shared {
                counts: Mutex::default(),
                revision: watch::Sender::new(0),
            }),
        }
    }
}

impl Interests {
    /// Registers an owner with no topics yet; its interests end when it is dropped.
    pub fn owner(&self) -> Interest {
        let mut counts = self.shared.counts.lock();
        counts.next_owner += 1;
        let id = counts.next_owner;
        counts.owners.insert(id, BTreeSet::new());
        Interest {
            shared: self.shared.clone(),
            id,
        }
    }

    /// Answers the topics that anybody wants.
    pub fn wanted(&self) -> BTreeSet<Topic> {
        self.shared.counts.lock().topics.keys().copied().collect()
    }

    /// Tells whether anybody wants a topic.
    pub fn is_wanted(&self, topic: &Topic) -> bool {
        self.shared.counts.lock().topics.contains_key(topic)
    }

    /// Answers a receiver that changes whenever the set of wanted topics does.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.shared.revision.subscribe()
    }
}

/// One owner's interests; they end when it is dropped, and no one else's do.
#[derive(Debug)]
pub struct Interest {
    shared: Arc<Shared>,
    id: u64,
}

impl Interest {
    /// Wants topics.
    pub fn add(&self, topics: impl IntoIterator<Item = Topic>) {
        self.change(|counts, id| {
            let mut changed = false;
            for topic in topics {
                if counts.owners.entry(id).or_default().insert(topic) {
                    let count = counts.topics.entry(topic).or_default();
                    *count += 1;
                    changed |= *count == 1;
                }
            }
            changed
        });
    }

    /// Wants topics no longer.
    pub fn remove(&self, topics: impl IntoIterator<Item = Topic>) {
        self.change(|counts, id| {
            let mut changed = false;
            for topic in topics {
                if counts.owners.entry(id).or_default().remove(&topic) {
                    changed |= counts.release(&topic);
                }
            }
            changed
        });
    }

    fn change(&self, apply: impl FnOnce(&mut Counts, u64) -> bool) {
        let changed = apply(&mut self.shared.counts.lock(), self.id);
        if changed {
            self.shared.revision.send_modify(|revision| *revision += 1);
        }
    }
}

impl Counts {
    /// Ends one owner's want of a topic; answers whether nobody wants it now.
    fn release(&mut self, topic: &Topic) -> bool {
        let Some(count) = self.topics.get_mut(topic) else {
            return false;
        };
        *count -= 1;
        if *count > 0 {
            return false;
        }
        self.topics.remove(topic);
        true
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        self.change(|counts, id| {
            let topics = counts.owners.remove(&id).unwrap_or_default();
            topics
                .iter()
                .fold(false, |changed, topic| counts.release(topic) | changed)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xmtp_proto::GroupId;

    /// An interest ends with its last owner only.
    /// covers: STR-015
    #[test]
    fn an_interest_ends_with_its_last_owner_only() {
        let interests = Interests::default();
        let topic = Topic::group(&GroupId::from_bytes([1; 16]));
        let (delivery, sync) = (interests.owner(), interests.owner());
        delivery.add([topic]);
        sync.add([topic]);
        drop(sync);
        assert!(interests.is_wanted(&topic));
        delivery.remove([topic]);
        assert!(!interests.is_wanted(&topic));
    }
}
