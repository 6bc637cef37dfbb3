//! Fair rounds of bounded pages over the topics that are short of their targets (STR-016).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use xmtp_proto::Topic;

/// The topics that are short, each visited once before any is visited twice.
///
/// A page asks only for topics that this round has not visited. Whatever order the backend fills
/// a page in, at least one of them is served, so a hot topic cannot keep the others waiting.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// Not visited in this round, in order.
    unvisited: VecDeque<Topic>,
    /// Visited in this round and still short.
    visited: VecDeque<Topic>,
    /// Not asked for before a time.
    resting: BTreeMap<Topic, Duration>,
    known: BTreeSet<Topic>,
}

/// What a page did for one topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visit {
    /// It has reached its target, or can get no further in this run.
    Done,
    /// It got further and is still short.
    Served,
    /// The page was full before it.
    Unvisited,
    /// It can get no further now.
    Rests {
        /// When it is asked for again.
        until: Duration,
    },
}

impl Rounds {
    /// Offers a topic that is short; it joins the back unless it is here already.
    pub(super) fn offer(&mut self, topic: Topic) {
        if self.known.insert(topic) {
            self.visited.push_back(topic);
        }
    }

    /// Takes up to `most` topics for the next page, those of this round first.
    pub(super) fn take(&mut self, most: usize, now: Duration) -> Vec<Topic> {
        let due = self.resting.iter().filter(|(_, until)| **until <= now);
        let due: Vec<Topic> = due.map(|(topic, _)| *topic).collect();
        for topic in due {
            self.resting.remove(&topic);
            self.visited.push_back(topic);
        }
        if self.unvisited.is_empty() {
            std::mem::swap(&mut self.unvisited, &mut self.visited);
        }
        let count = self.unvisited.len().min(most);
        self.unvisited.drain(..count).collect()
    }

    /// Gives back the topics of a page, in the order in which they were taken.
    pub(super) fn give_back(&mut self, visits: impl DoubleEndedIterator<Item = (Topic, Visit)>) {
        for (topic, visit) in visits.rev() {
            match visit {
                Visit::Done => {
                    self.known.remove(&topic);
                }
                Visit::Served => self.visited.push_back(topic),
                Visit::Unvisited => self.unvisited.push_front(topic),
                Visit::Rests { until } => {
                    self.resting.insert(topic, until);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use xmtp_proto::GroupId;

    fn topic(number: u8) -> Topic {
        Topic::group(&GroupId::from_bytes([number; 16]))
    }

    proptest! {
        /// Even when every page serves the worst topic of those asked for, each topic is served
        /// once before any is served twice.
        /// covers: STR-016
        #[test]
        fn no_topic_is_served_twice_before_another_once(
            topics in 2u8..20,
            most in 1usize..10,
            picks in proptest::collection::vec(any::<prop::sample::Index>(), 40..80),
        ) {
            let mut rounds = Rounds::default();
            (0..topics).for_each(|number| rounds.offer(topic(number)));
            let mut served = BTreeMap::new();
            for pick in picks {
                let page = rounds.take(most, Duration::ZERO);
                let winner = page[pick.index(page.len())];
                *served.entry(winner).or_insert(0_u32) += 1;
                rounds.give_back(page.into_iter().map(|asked| {
                    let visit = if asked == winner { Visit::Served } else { Visit::Unvisited };
                    (asked, visit)
                }));
                let counts = (0..topics).map(|number| served.get(&topic(number)).copied());
                let counts: Vec<u32> = counts.map(Option::unwrap_or_default).collect();
                let (least, most) = (counts.iter().min(), counts.iter().max());
                prop_assert!(most.unwrap() - least.unwrap() <= 1);
            }
        }
    }

    /// A topic that rests is not asked for before its time.
    #[test]
    fn a_topic_rests_until_its_time() {
        let mut rounds = Rounds::default();
        rounds.offer(topic(1));
        let page = rounds.take(10, Duration::ZERO);
        let until = Duration::from_secs(1);
        rounds.give_back(
            page.into_iter()
                .map(|topic| (topic, Visit::Rests { until })),
        );
        rounds.offer(topic(1));
        assert!(rounds.take(10, Duration::ZERO).is_empty());
        assert_eq!(rounds.take(10, until), [topic(1)]);
    }
}
