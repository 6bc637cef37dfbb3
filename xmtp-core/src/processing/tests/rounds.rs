//! Whose dependencies each round asks for, counted in rounds.

use std::collections::BTreeSet;

use xmtp_proto::{InboxId, SequenceId, Topic};

use crate::engine::tests::play::Act;
use crate::engine::tests::world::{World, topic};
use crate::limits::MAX_DEPENDENCIES_PER_PARENT;
use crate::processing::dependency::{Place, waiting};
use crate::processor::{Dependency, Verdict};
use crate::receipt::check;
use crate::testing::scripted::{INSTALLATION, welcome_envelope};

/// A verdict that waits for so many inboxes, of which no other parent needs any.
fn waits(name: u8, count: usize) -> Act {
    let inbox = |number: usize| {
        let mut id = [name; 32];
        id[..8].copy_from_slice(&(number as u64).to_be_bytes());
        InboxId::from_bytes(id)
    };
    let needed = (0..count).map(|number| Dependency::Identity {
        inbox: inbox(number),
        sequence: SequenceId::saturating(1),
    });
    Act::Is(Verdict::Waits(needed.collect()))
}

/// Groups whose commits wait for so many inboxes each.
fn waiting_groups(world: &World, counts: &[usize]) {
    for (name, count) in (1..).zip(counts) {
        world.join(name);
        let text = format!("commit {name}");
        world.play.always(&text, waits(name, *count));
        world.receive(name, &[(2, &text)]);
        world.turn(&topic(name));
    }
}

/// The parents of the next round, and how many dependencies they have in it.
fn round(world: &World, place: &mut Place, most: usize) -> (BTreeSet<(Topic, SequenceId)>, usize) {
    let welcomes = world.context.welcome_topic;
    let found = world.read(|snapshot| waiting(snapshot, Some(&welcomes), place, most));
    let parents = found.iter().map(|found| (found.topic, found.sequence));
    (parents.collect(), found.len())
}

/// A commit that lists more than a round has places takes its share of them alone.
/// covers: STR-075, STR-072
#[test]
fn one_parent_has_its_share_of_a_round() {
    let world = World::new();
    waiting_groups(&world, &[2_000, 1, 1, 1]);
    let mut place = Place::default();
    for _ in 0..3 {
        let (parents, count) = round(&world, &mut place, 1_024);
        assert_eq!(parents.len(), 4);
        assert_eq!(count, MAX_DEPENDENCIES_PER_PARENT + 3);
    }
}

/// Each round begins behind the parent that was served last: two that fit a round are served in
/// each, until everyone was, and then the first ones again. Welcomes go around by themselves.
/// covers: STR-075, STR-072, STR-080
#[test]
fn a_round_begins_behind_the_one_before() {
    const PARENTS: usize = 11;
    let world = World::new();
    let share = MAX_DEPENDENCIES_PER_PARENT;
    waiting_groups(&world, &[share + 1; PARENTS]);
    let welcomes = world.context.welcome_topic;
    let envelopes = (1..=PARENTS as u64).map(|sequence| {
        let text = format!("{sequence} 0 0");
        world.play.always(&text, waits(100 + sequence as u8, share));
        let envelope = welcome_envelope(&INSTALLATION, &text);
        crate::engine::tests::world::served(&welcomes, sequence, envelope)
    });
    let batch = check(welcomes, SequenceId::ZERO, envelopes.collect()).expect("in order");
    world.admit(&batch).expect("it fits");
    for sequence in 1..=PARENTS as u64 {
        let sequence = SequenceId::saturating(sequence);
        let processors = &world.context.processors;
        world.write(|txn| crate::welcome::attempt(txn, &welcomes, sequence, processors, true));
    }
    let mut place = Place::default();
    let mut served = Vec::new();
    for _ in 0..PARENTS {
        let (parents, count) = round(&world, &mut place, 2 * share + 1);
        assert_eq!((parents.len(), count), (4, 4 * share));
        served.extend(parents);
    }
    let different: BTreeSet<_> = served.iter().collect();
    assert_eq!(different.len(), 2 * PARENTS);
    for parent in different {
        let times = served.iter().filter(|served| *served == parent).count();
        assert_eq!(times, 2, "each as often as any other");
    }
}
