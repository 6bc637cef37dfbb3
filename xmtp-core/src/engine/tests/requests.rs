//! How often, and how many at once, the backend is asked for what parents wait for.

use std::collections::BTreeMap;

use xmtp_proto::{InboxId, SequenceId, Topic};

use super::play::Act;
use super::world::{SECOND, World, inbox, topic};
use crate::engine::depend::MAX_WAITING_PER_ROUND;
use crate::limits::{
    IDENTITY_REFERENCE_WAIT, IDENTITY_RETRY_PAUSE, MAX_DEPENDENCIES_PER_PARENT,
    MAX_DEPENDENCY_REQUESTS, STANDARD_REQUEST_TIMEOUT,
};
use crate::processor::{Dependency, Verdict};
use crate::testing::scripted::{Call, Fault, identity_envelope};

/// Groups whose commit waits for one update each, as `needed` says.
fn waiting(needed: &[(u8, u64)]) -> World {
    let world = World::new();
    for (name, (inbox_name, sequence)) in (1..).zip(needed) {
        world.join(name);
        let text = format!("commit {name}");
        let dependency = Dependency::Identity {
            inbox: inbox(*inbox_name),
            sequence: SequenceId::saturating(*sequence),
        };
        // Each look but the last finds it missing, as a processor does that reads the state.
        world
            .play
            .on(&text, [Act::Is(Verdict::Waits(vec![dependency]))]);
        world.receive(name, &[(u64::from(name) + 100, &text)]);
        world.turn(&topic(name));
    }
    world
}

/// Counts the queries that asked for each topic.
fn asks(world: &World) -> BTreeMap<Topic, usize> {
    let mut counts = BTreeMap::new();
    for topic in world.backend.queries().iter().flat_map(BTreeMap::keys) {
        *counts.entry(*topic).or_default() += 1;
    }
    counts
}

fn pending(world: &World, names: impl IntoIterator<Item = u8>) -> Vec<u8> {
    let names = names.into_iter();
    names
        .filter(|name| world.record(&topic(*name)).pending_rows > 0)
        .collect()
}

/// One read serves every parent that waits for the same update, each time it is asked for, and its
/// answer lets all of them go on; a restart derives the need of each from what is pending.
///
/// covers: STR-075, STR-076
#[test]
fn one_read_serves_every_parent_of_an_update() {
    let world = waiting(&[(9, 1); 6]);
    let identity = Topic::identity(&inbox(9));
    // The first answer takes its time: whoever else asked meanwhile would ask for the same.
    let delay = Fault::Delay(IDENTITY_RETRY_PAUSE / 4);
    world.backend.fail(Call::Query, [delay]);
    let engine = world.start();
    world.wait(IDENTITY_RETRY_PAUSE / 2);
    assert_eq!(asks(&world)[&identity], 1, "one for six parents");
    world.wait(IDENTITY_RETRY_PAUSE * 4);
    let count = asks(&world)[&identity];
    assert!((3..=5).contains(&count), "{count} reads in five pauses");
    assert_eq!(pending(&world, 1..=6), [1, 2, 3, 4, 5, 6]);
    world.end(engine);

    let world = world.another();
    assert_eq!(world.backend.store([identity_envelope(&inbox(9), 1)]), [1]);
    let engine = world.start();
    world.wait(IDENTITY_RETRY_PAUSE);
    assert!(pending(&world, 1..=6).is_empty());
    assert_eq!(
        asks(&world)[&identity],
        count + 1,
        "one more for all of them"
    );
    world.end(engine);
}

/// No more requests are under way than their bound, whatever is needed; those that never return
/// give their places up in time, and each parent still gets its own answer.
///
/// covers: STR-075
#[test]
fn requests_are_bounded_and_give_their_places_up() {
    const PARENTS: u8 = 3 * MAX_DEPENDENCY_REQUESTS as u8;
    let needed: Vec<(u8, u64)> = (1..=PARENTS).map(|name| (name, 1)).collect();
    let world = waiting(&needed);
    let hangs = (0..2 * MAX_DEPENDENCY_REQUESTS).map(|_| Fault::Hang);
    world.backend.fail(Call::Query, hangs);
    let engine = world.start();
    world.wait(STANDARD_REQUEST_TIMEOUT - SECOND);
    assert_eq!(world.backend.calls(Call::Query), MAX_DEPENDENCY_REQUESTS);
    world.wait(STANDARD_REQUEST_TIMEOUT);
    assert_eq!(
        world.backend.calls(Call::Query),
        2 * MAX_DEPENDENCY_REQUESTS
    );
    world.wait(STANDARD_REQUEST_TIMEOUT + SECOND);
    let asked = asks(&world);
    assert_eq!(asked.len(), usize::from(PARENTS), "each was asked for");
    world.end(engine);
}

/// A request that hangs keeps no sibling: their answers are used as they come.
///
/// covers: STR-075, STR-072
#[test]
fn a_request_that_hangs_keeps_no_sibling() {
    let world = World::new();
    let updates: Vec<u64> = (1..=5)
        .map(|name| world.backend.store([identity_envelope(&inbox(name), 1)])[0])
        .collect();
    for (name, update) in (1..=5).zip(&updates) {
        world.join(name);
        let text = format!("commit {name}");
        let dependency = Dependency::Identity {
            inbox: inbox(name),
            sequence: SequenceId::saturating(*update),
        };
        world
            .play
            .on(&text, [Act::Is(Verdict::Waits(vec![dependency]))]);
        world.receive(name, &[(u64::from(name) + 100, &text)]);
        world.turn(&topic(name));
    }
    world.backend.fail(Call::Query, [Fault::Hang]);
    let engine = world.start();
    world.wait(SECOND);
    assert_eq!(
        pending(&world, 1..=5).len(),
        1,
        "all but the one that hangs"
    );
    world.wait(STANDARD_REQUEST_TIMEOUT + SECOND);
    assert!(pending(&world, 1..=5).is_empty());
    world.end(engine);
}

/// More than a round has places for waits for what is absent, and the update of the last one is
/// there: it applies long before the others are rejected.
///
/// covers: STR-075, STR-072
#[test]
fn rounds_go_around() {
    const PARENTS: u8 = (MAX_WAITING_PER_ROUND / MAX_DEPENDENCIES_PER_PARENT) as u8 + 2;
    let world = World::new();
    let update = world.backend.store([identity_envelope(&inbox(0), 1)])[0];
    for name in 1..=PARENTS {
        world.join(name);
        let text = format!("commit {name}");
        let needed = |number: u8| {
            let mut id = [name; 32];
            id[0] = number;
            Dependency::Identity {
                inbox: InboxId::from_bytes(id),
                sequence: SequenceId::saturating(1),
            }
        };
        let act = |needed: Vec<Dependency>| Act::Is(Verdict::Waits(needed));
        if name == PARENTS {
            let needed = Dependency::Identity {
                inbox: inbox(0),
                sequence: SequenceId::saturating(update),
            };
            world.play.on(&text, [act(vec![needed])]);
        } else {
            let count = MAX_DEPENDENCIES_PER_PARENT as u8;
            world
                .play
                .always(&text, act((0..count).map(needed).collect()));
        }
        world.receive(name, &[(u64::from(name) + 100, &text)]);
        world.turn(&topic(name));
    }
    let engine = world.start();
    world.wait(IDENTITY_REFERENCE_WAIT / 2);
    let left: Vec<u8> = (1..PARENTS).collect();
    assert_eq!(pending(&world, 1..=PARENTS), left);
    world.wait(8 * IDENTITY_REFERENCE_WAIT);
    assert!(pending(&world, 1..=PARENTS).is_empty(), "each has its wait");
    world.end(engine);
}
