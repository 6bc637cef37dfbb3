//! Many topics with long histories: nobody is served twice before another is served once.

use proptest::prelude::*;

use super::deviation::Deviation;
use super::fixture::group;
use super::model::{Step, World, rounds};

/// The most topics of a case.
const TOPICS: u8 = 8;

/// The sizes of a topic's envelopes, in bytes.
type History = Vec<usize>;

/// Makes histories, of which some are registered first and some while those are being read.
pub(super) fn histories() -> impl Strategy<Value = (Vec<History>, usize, Vec<usize>)> {
    let bytes = prop_oneof![
        3 => 1..30_000_usize,
        1 => 100_000..140_000_usize,
        1 => Just((1 << 20) - 256),
    ];
    let history = prop::collection::vec(bytes, 1..8);
    let histories = prop::collection::vec(history, 2..=usize::from(TOPICS));
    let takes = prop::collection::vec(0..4_usize, 1..20);
    histories.prop_flat_map(move |histories| {
        let count = histories.len();
        (Just(histories), 1..=count, takes.clone())
    })
}

/// Reads the histories to their end.
pub(super) fn run(
    broken: Option<Deviation>,
    (histories, early, takes): (Vec<History>, usize, Vec<usize>),
) {
    let mut world = World::changing(broken, TOPICS);
    let topics = 0..u8::try_from(histories.len()).expect("few topics");
    for (topic, history) in topics.clone().zip(&histories) {
        history
            .iter()
            .for_each(|bytes| world.commit(group(topic), *bytes));
    }
    let adds: Vec<_> = topics.map(|topic| (topic, 0)).collect();
    world.update(&adds[..early], &[]);
    let turn = |world: &mut World, count| {
        for step in [
            Step::ReadHeads,
            Step::HeadsArrive,
            Step::ReadTurn,
            Step::TurnArrives,
        ] {
            world.run(step);
        }
        world.run(Step::TakeFrames { count });
    };
    let (before, after) = takes.split_at(takes.len() / 2);
    before.iter().for_each(|count| turn(&mut world, *count));
    if early < adds.len() {
        world.update(&adds[early..], &[]);
    }
    after.iter().for_each(|count| turn(&mut world, *count));
    world.settle();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: rounds() / 4, ..ProptestConfig::default() })]

    /// covers: STR-016
    #[test]
    fn of_two_that_owe_history_neither_is_served_twice_before_the_other(case in histories()) {
        run(None, case);
    }
}
