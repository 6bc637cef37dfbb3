//! Replay from a cursor, then live.

use futures_util::StreamExt;

use super::*;
use crate::delivery::{DeliveryCursor, Replay};

pub(super) fn start(world: &World, cursor: DeliveryCursor) -> Replay {
    start_in(world, cursor, Scope::All, Filter::all())
}

fn start_in(
    world: &World,
    cursor: DeliveryCursor,
    scope: impl Into<Scope>,
    filter: Filter,
) -> Replay {
    let replay = world.messages.replay(cursor, scope, filter);
    replay.now_or_never().unwrap().unwrap()
}

/// Takes every item that is there.
pub(super) fn drain(replay: &mut Replay) -> Vec<Message> {
    let mut all = Vec::new();
    while let Some(item) = replay.next().now_or_never() {
        all.push(item.expect("no end").unwrap());
    }
    all
}

pub(super) fn texts(replay: &mut Replay) -> Vec<String> {
    drain(replay).iter().map(text).collect()
}

/// A replay reads strictly after its cursor, goes on live, and restarts from any item's cursor.
/// covers: STR-100, STR-098
#[test]
fn a_replay_resumes_after_its_cursor_and_goes_on_live() {
    let world = World::new();
    let peer = world.another();
    world.put_all([(1, "a1"), (2, "b1"), (1, "a2")]);
    let mut replay = start(&world, world.messages.beginning());
    let stored = drain(&mut replay);
    assert_eq!(
        stored.iter().map(text).collect::<Vec<_>>(),
        ["a1", "b1", "a2"]
    );
    peer.put(2, "b2");
    world.put(1, "a3");
    assert_eq!(texts(&mut replay), ["b2", "a3"]);
    let text = stored[0].cursor().to_string();
    let mut again = start(&world, text.parse().unwrap());
    assert_eq!(texts(&mut again), ["b1", "a2", "b2", "a3"]);
}

/// A replay neither reads nor moves D, takes no lease, and leaves receipt and processing alone.
/// covers: STR-100, STR-023
#[test]
fn a_replay_is_independent_of_the_consumer() {
    let world = World::new();
    world.put_texts(1, ["a1", "a2"]);
    let mut consumer = world.consume(Scope::All);
    assert_eq!(next(&mut consumer), "a1");
    let before = world.rows_but(&[]);
    let mut replays = [0; 2].map(|_| start(&world, world.messages.beginning()));
    for replay in &mut replays {
        assert_eq!(texts(replay), ["a1", "a2"]);
    }
    assert_eq!(world.rows_but(&[]), before);
    assert_eq!(super::drain(&mut consumer), ["a2"]);
}

/// A replay reads only what its scope and filter select, however much lies between.
/// covers: STR-100, STR-101
#[test]
fn a_replay_selects_by_scope_and_filter() {
    let world = World::new();
    world.set_type(1, ConversationType::Dm);
    world.set_type(2, ConversationType::Group);
    world.put(1, "a1");
    for n in 0..300 {
        world.put(2, &format!("b{n}"));
    }
    world.put(1, "a2");
    let beginning = world.messages.beginning();
    let mut scoped = start_in(&world, beginning, group(1), Filter::all());
    assert_eq!(texts(&mut scoped), ["a1", "a2"]);
    let dms = Filter::conversation_types([ConversationType::Dm]);
    let mut filtered = start_in(&world, beginning, Scope::All, dms);
    assert_eq!(texts(&mut filtered), ["a1", "a2"]);
    let mut all = start(&world, beginning);
    assert_eq!(texts(&mut all).len(), 302);
}

/// A cursor brings back nothing that was deleted, has expired or was removed, and a later edit
/// of a message is no new message.
/// covers: STR-102
#[test]
fn a_replay_restores_nothing() {
    let world = World::new();
    let [_, deleted, removed, _] = world.put_texts(1, ["a1", "a2", "a3", "a4"]);
    let mut expiring = new_message(1, "a5");
    expiring.expires_ns = world.runtime.now_ns() + 1;
    put_as(&world.database, expiring).unwrap();
    let mut live = start(&world, world.messages.beginning());
    let first = live.next().now_or_never().unwrap().unwrap().unwrap();
    assert_eq!(text(&first), "a1");
    // The rest is queued by now.
    world.delete(deleted);
    world.change(|txn| txn.delete(crate::storage::schema::MESSAGE, &removed));
    world
        .runtime
        .clock()
        .advance(std::time::Duration::from_nanos(1));
    assert_eq!(texts(&mut live), ["a4"]);
    assert_eq!(
        texts(&mut start(&world, world.messages.beginning())),
        ["a1", "a4"]
    );
    world.delete(first.number);
    assert_eq!(texts(&mut live), Vec::<String>::new());
    let got = world.messages.get(group(1), message_id(1, "a4"));
    assert_eq!(text(&got.now_or_never().unwrap().unwrap().unwrap()), "a4");
    let got = world.messages.get(group(1), first.id);
    assert_eq!(got.now_or_never().unwrap(), Ok(None));
}

/// A replay that waits finds what another process stored, and ends with its database.
/// covers: STR-101, STR-100
#[test]
fn a_waiting_replay_polls_and_ends_with_its_database() {
    let world = World::new();
    let peer = world.another();
    let mut replay = start(&world, world.messages.beginning());
    let (runtime, starter) = (world.runtime.clone(), world.runtime.clone());
    let database = world.database.clone();
    let found = runtime.run(async move {
        let sleeper = starter.clone();
        starter.start(
            "peer",
            Box::pin(async move {
                sleeper.sleep_until(std::time::Duration::from_secs(1)).await;
                peer.put(1, "a1");
                sleeper.sleep_until(std::time::Duration::from_secs(2)).await;
                database.close().unwrap();
            }),
        );
        let first = replay.next().await.unwrap().unwrap();
        (
            text(&first),
            replay.next().await.is_none(),
            replay.next().await.is_none(),
        )
    });
    assert_eq!(found, ("a1".to_owned(), true, true));
}
