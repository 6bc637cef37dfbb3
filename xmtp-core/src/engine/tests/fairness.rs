//! How long a ready topic waits, counted in turns.

use proptest::prelude::*;
use xmtp_proto::SequenceId;

use super::play::Act;
use super::world::{SECOND, World, inbox, topic};
use crate::limits::TURN_TARGET_TIME;
use crate::processor::{Blocked, Dependency, RetryCause, Verdict};

/// What becomes of the envelopes of one topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Each takes as long as a turn may.
    Slow,
    /// The first is blocked.
    Blocked,
    /// The first waits for an update that nobody has.
    Waits,
    /// The first fails locally, and is tried again after its pauses.
    Retries,
    /// The database fails at the first.
    Fails,
}

const FATES: [Fate; 5] = [
    Fate::Slow,
    Fate::Blocked,
    Fate::Waits,
    Fate::Retries,
    Fate::Fails,
];

impl Fate {
    fn act(self, world: &World) -> Act {
        match self {
            Self::Slow => Act::Takes(world.runtime.clock(), TURN_TARGET_TIME),
            Self::Blocked => Act::Is(Verdict::Blocked(Blocked::Unsupported)),
            Self::Waits => Act::Is(Verdict::Waits(vec![Dependency::Identity {
                inbox: inbox(9),
                sequence: SequenceId::saturating(1),
            }])),
            Self::Retries => Act::Is(Verdict::Retry(RetryCause::Local { what: "test" })),
            Self::Fails => Act::Fails,
        }
    }
}

/// The topic of a look.
fn name_of(look: &str) -> u8 {
    let number = look.rsplit(' ').nth(1).expect("a text names its topic");
    number.parse().expect("a number")
}

/// Receives the envelopes of each topic and lets the workers run; answers whose turn each was.
///
/// Every envelope that is looked at ends its turn, so that a look is a turn.
fn turns(world: &World, topics: &[(Fate, u8)]) -> Vec<u8> {
    for (name, (fate, count)) in (1..).zip(topics) {
        world.join(name);
        let texts: Vec<String> = (0..*count)
            .map(|number| format!("commit {name} {number}"))
            .collect();
        for text in &texts {
            world.play.always(text, fate.act(world));
        }
        let first = u64::from(name) * 100;
        let rows: Vec<(u64, &str)> = (first..).zip(texts.iter().map(String::as_str)).collect();
        world.receive(name, &rows);
    }
    world.play.looked();
    let engine = world.start();
    world.wait(2 * SECOND);
    let looked = world.play.looked();
    world.end(engine);
    looked.iter().map(|look| name_of(look)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// From the start to the first turn of a ready topic, and between two of its turns, every other
    /// topic has at most one turn, whatever becomes of it: a slow, blocked, waiting or failing one
    /// delays it by one attempt, and all together by as many attempts as there are topics.
    ///
    /// covers: STR-072
    #[test]
    fn no_topic_delays_a_ready_one_by_more_than_one_attempt(
        topics in proptest::collection::vec((proptest::sample::select(&FATES[..]), 1u8..5), 2..7),
    ) {
        let world = World::new();
        let turns = turns(&world, &topics);
        let after = world.another();
        for (name, (fate, count)) in (1u8..).zip(&topics) {
            if *fate != Fate::Slow {
                continue;
            }
            prop_assert_eq!(after.record(&topic(name)).pending_rows, 0);
            let mut delays = std::collections::BTreeMap::<u8, u32>::new();
            let mut left = *count;
            for turn in &turns {
                if left == 0 {
                    break;
                }
                if *turn == name {
                    left -= 1;
                    delays.clear();
                    continue;
                }
                let delay = delays.entry(*turn).or_default();
                *delay += 1;
                prop_assert!(*delay <= 1, "{turn} had two turns while {name} waited: {turns:?}");
            }
            prop_assert_eq!(left, 0, "every ready envelope had its turn: {:?}", turns);
        }
    }

    /// A turn is one topic's and one transaction, and a look at a blocked head is not repeated.
    ///
    /// covers: STR-072, STR-071
    #[test]
    fn a_turn_is_one_topic_in_one_transaction(
        topics in proptest::collection::vec((proptest::sample::select(&FATES[..2]), 1u8..5), 1..7),
    ) {
        let world = World::new();
        let before = topics.len() as u64 * 2;
        let opened = world.faulty.commits();
        let turns = turns(&world, &topics);
        let commits = world.faulty.commits() - opened - before;
        prop_assert_eq!(commits, turns.len() as u64, "{:?}", turns);
        let expected: usize = topics
            .iter()
            .map(|(fate, count)| if *fate == Fate::Slow { usize::from(*count) } else { 1 })
            .sum();
        prop_assert_eq!(turns.len(), expected);
    }
}
