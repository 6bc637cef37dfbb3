//! A scope that changes while items are queued, handed over or awaited.

use super::*;

/// A group taken out gets no hand-off, though its items were queued; put in again, they are
/// selected from fresh state, in order.
/// covers: STR-022, STR-092
#[test]
fn a_group_taken_out_gets_no_hand_off() {
    let world = World::new();
    world.put(1, "a1");
    let [b1, _] = world.put_texts(2, ["b1", "b2"]);
    world.put(1, "a2");
    let mut consumer = world.consume(Scope::All);
    let scope = consumer.scope();
    assert_eq!(next(&mut consumer), "a1");
    scope.remove([group(2)]);
    assert!(!scope.contains(&group(2)));
    assert_eq!(next(&mut consumer), "a2");
    assert_eq!(poll(&mut consumer), None);
    assert_eq!(world.d(2), 0);
    // What changed while it was out of scope counts when it is back.
    world.delete(b1);
    scope.add([group(2)]);
    assert_eq!(drain(&mut consumer), ["b2"]);
}

/// Taking a group out and putting it in again does not revive what was queued before.
/// covers: STR-022
#[test]
fn a_queued_item_is_selected_again() {
    let world = World::new();
    let [_, b1, _, b2] = world.put_all([(1, "a1"), (2, "b1"), (1, "a2"), (2, "b2")]);
    let mut consumer = world.consume(Scope::All);
    let scope = consumer.scope();
    assert_eq!(next(&mut consumer), "a1");
    let generation = scope.generation();
    scope.remove([group(2)]);
    scope.add([group(2)]);
    assert_eq!(scope.generation(), generation + 2);
    // Another owner's progress in between is honoured: selection starts from D.
    world.change(|txn| store::put_delivered(txn, &group(2), b1));
    assert_eq!(drain(&mut consumer), ["a2", "b2"]);
    assert_eq!(world.d(2), b2);
}

/// An item that the application works on when its group leaves the scope is still acknowledged.
/// covers: STR-022, STR-094
#[test]
fn an_item_at_work_is_acknowledged_after_its_group_left() {
    let world = World::new();
    let a1 = world.put(1, "a1");
    let mut consumer = world.consume(groups(&[1]));
    assert_eq!(next(&mut consumer), "a1");
    consumer.scope().remove([group(1)]);
    assert_eq!(poll(&mut consumer), None);
    assert_eq!(world.d(1), a1);
}

/// A consumer that waits sees a group that is put in at once, with what is stored already.
/// covers: STR-022, STR-101
#[test]
fn a_waiting_consumer_sees_a_wider_scope_at_once() {
    let world = World::new();
    world.put(2, "b1");
    let mut consumer = world.consume(groups(&[]));
    let scope = consumer.scope();
    let (runtime, clock) = (world.runtime.clone(), world.runtime.clock());
    let starter = runtime.clone();
    let found = runtime.run(async move {
        let before = scope.generation();
        starter.start(
            "app",
            Box::pin(async move {
                scope.add([group(2)]);
                assert_eq!(scope.changed(before).await, before + 1);
            }),
        );
        text(&consumer.next().await.unwrap().unwrap())
    });
    assert_eq!(found, "b1");
    assert_eq!(clock.now(), std::time::Duration::ZERO);
}

/// Ending from elsewhere ends a loop that waits, acknowledges nothing, and frees the lease; the
/// item before is acknowledged only when the loop asks once more.
/// covers: STR-097, STR-094, STR-024
#[test]
fn ending_from_elsewhere_ends_the_loop() {
    let world = World::new();
    let a1 = world.put(1, "a1");
    let mut consumer = world.consume(Scope::All);
    let end = consumer.end_handle();
    let (runtime, starter) = (world.runtime.clone(), world.runtime.clone());
    let later = end.clone();
    runtime.run(async move {
        starter.start("app", Box::pin(async move { later.end() }));
        let first = consumer.next().await.unwrap();
        assert!(first.is_none_or(|item| text(&item) == "a1"));
        while consumer.next().await.unwrap().is_some() {}
    });
    assert_eq!(world.d(1), a1);
    let mut consumer = world.consume(Scope::All);
    world.put(1, "a2");
    assert_eq!(next(&mut consumer), "a2");
    consumer.end_handle().end();
    assert_eq!(world.d(1), a1, "ending acknowledges nothing");
    world.put(1, "a3");
    assert_eq!(poll(&mut consumer), Some(Ok(None)));
    assert!(world.d(1) > a1, "asking for the next does");
    assert_eq!(poll(&mut consumer), Some(Ok(None)));
}

/// A closed database ends a consumer that waits, and tells one that had something to acknowledge.
/// covers: STR-097, STR-095
#[test]
fn a_closed_database_ends_the_consumer() {
    let world = World::new();
    world.put(1, "a1");
    let mut consumer = world.consume(Scope::All);
    assert_eq!(next(&mut consumer), "a1");
    world.database.close().unwrap();
    assert_eq!(poll(&mut consumer), Some(Err(StreamError::Closed)));
    let world = World::new();
    let mut consumer = world.consume(Scope::All);
    assert_eq!(poll(&mut consumer), None);
    world.database.close().unwrap();
    assert_eq!(poll(&mut consumer), Some(Ok(None)));
}
