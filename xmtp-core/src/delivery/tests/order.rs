//! Which messages the default consumer reads, in which order, and what moves D.

use super::*;
use crate::storage::schema::{CounterName, DELIVERED, LEASE, REVISION};
use crate::storage::verify::verify_database;

/// Messages stored before, between and by another process come once, in local order.
/// covers: STR-091, STR-101
#[test]
fn stored_messages_come_in_local_order_whoever_stored_them() {
    let (world, peer) = two();
    world.put(2, "b1");
    peer.put(1, "a1");
    let mut consumer = world.consume(Scope::All);
    assert_eq!(drain(&mut consumer), ["b1", "a1"]);
    peer.put(1, "a2");
    world.put(2, "b2");
    assert_eq!(drain(&mut consumer), ["a2", "b2"]);
    assert_eq!(poll(&mut consumer), None);
}

fn two() -> (World, World) {
    let world = World::new();
    let peer = world.another();
    (world, peer)
}

/// A waiting consumer finds a message of another process within the poll interval, with no wake.
/// covers: STR-101, STR-091
#[test]
fn a_waiting_consumer_finds_what_another_process_stored() {
    let (world, peer) = two();
    let mut consumer = world.consume(Scope::All);
    let (runtime, clock) = (world.runtime.clone(), world.runtime.clock());
    let waiter = runtime.clone();
    let found = runtime.run(async move {
        let (send, found) = tokio::sync::oneshot::channel();
        waiter.start(
            "waiter",
            Box::pin(async move {
                let item = consumer.next().await.unwrap().unwrap();
                let _ = send.send(text(&item));
            }),
        );
        waiter.sleep_until(std::time::Duration::from_secs(5)).await;
        peer.put(1, "a1");
        found.await.unwrap()
    });
    assert_eq!(found, "a1");
    let limit = std::time::Duration::from_secs(5) + crate::limits::ACTIVE_DATABASE_POLL_INTERVAL;
    assert!(clock.now() <= limit, "{:?}", clock.now());
}

/// The example of the specification: one saved D for all-groups and selected-group consumers.
/// covers: STR-092, STR-097, STR-023
#[test]
fn all_groups_and_selected_groups_share_their_progress() {
    let world = World::new();
    world.put(1, "a1");
    world.put(2, "b1");
    let mut consumer = world.consume(Scope::All);
    assert_eq!(drain(&mut consumer), ["a1", "b1"]);
    drop(consumer);
    world.put(1, "a2");
    let mut consumer = world.consume(group(1));
    assert_eq!(next(&mut consumer), "a2");
    world.put(2, "b2");
    assert_eq!(drain(&mut consumer), Vec::<String>::new());
    drop(consumer);
    let mut consumer = world.consume(Scope::All);
    assert_eq!(drain(&mut consumer), ["b2"]);
}

/// A group out of scope keeps its D; in scope again, its backlog comes, however far behind.
/// covers: STR-092
#[test]
fn a_group_far_behind_is_not_missed() {
    let world = World::new();
    for n in 0..300 {
        world.put(2, &format!("b{n}"));
        if n == 200 {
            world.put(1, "a1");
        }
    }
    let mut consumer = world.consume(groups(&[2]));
    assert_eq!(drain(&mut consumer).len(), 300);
    assert_eq!((world.d(1), world.d(2) > 0), (0, true));
    consumer.scope().add([group(1)]);
    assert_eq!(drain(&mut consumer), ["a1"]);
    // A group without D starts from its beginning, whatever the others have reached.
    world.put(3, "c1");
    consumer.scope().set(Scope::All);
    assert_eq!(drain(&mut consumer), ["c1"]);
}

/// The search for a late group goes over more groups than one read takes.
/// covers: STR-092, STR-101
#[test]
fn a_late_group_among_many_is_found() {
    let world = World::new();
    for n in 0..=250_u8 {
        world.put(n, "first");
        world.put(n, "second");
    }
    let late = 251;
    for n in 0..200 {
        world.put(1, &format!("more{n}"));
    }
    world.put(late, "late1");
    world.put(late, "late2");
    let mut consumer = world.consume(Scope::All);
    consumer.scope().remove([group(late)]);
    assert_eq!(drain(&mut consumer).len(), 2 * 251 + 200);
    consumer.scope().add([group(late)]);
    assert_eq!(drain(&mut consumer), ["late1", "late2"]);
}

/// A filter moves D past what it excludes, without a callback, and repeats nothing when it opens.
/// covers: STR-093, STR-024
#[test]
fn a_filter_moves_d_and_never_rewinds_it() {
    let world = World::new();
    world.set_type(1, ConversationType::Group);
    world.set_type(2, ConversationType::Dm);
    let [_, b1, _, b2] = world.put_all([(1, "a1"), (2, "b1"), (1, "a2"), (2, "b2")]);
    let mut consumer = world.consume(Scope::All);
    let scope = consumer.scope();
    scope.set_filter(Filter::conversation_types([ConversationType::Group]));
    assert_eq!(next(&mut consumer), "a1");
    assert_eq!(world.d(2), 0, "not scanned yet");
    assert_eq!(next(&mut consumer), "a2");
    assert_eq!(world.d(2), b1);
    // A change of the filter takes nothing back from the application.
    scope.set_filter(Filter::conversation_types([]));
    assert_eq!(poll(&mut consumer), None);
    assert_eq!(world.d(2), b2);
    scope.set_filter(Filter::all());
    world.put(2, "b3");
    assert_eq!(drain(&mut consumer), ["b3"]);
}

/// A scope leaves D where a filter would move it.
/// covers: STR-092, STR-093
#[test]
fn a_scope_leaves_d_and_a_filter_moves_it() {
    let world = World::new();
    world.set_type(2, ConversationType::Dm);
    let number = world.put(2, "b1");
    let mut consumer = world.consume(groups(&[1]));
    let scope = consumer.scope();
    scope.set_filter(Filter::conversation_types([ConversationType::Group]));
    assert_eq!((poll(&mut consumer), world.d(2)), (None, 0));
    scope.add([group(2)]);
    assert_eq!((poll(&mut consumer), world.d(2)), (None, number));
}

/// Numbers grow, are given once to a message id, and are not given again after a deletion or a
/// restart.
/// covers: STR-090
#[test]
fn a_delivery_number_is_given_once() {
    let world = World::new();
    let first = world.put(1, "a1");
    assert_eq!(put_as(&world.database, new_message(1, "a1")), None);
    let second = world.put(1, "a2");
    assert_eq!(second, first + 1, "the repeated message took no number");
    world.change(|txn| {
        txn.delete(crate::storage::schema::MESSAGE, &second)?;
        txn.delete(
            crate::storage::schema::MESSAGE_BY_GROUP,
            &(group(1), second),
        )
    });
    let again = World::over(world.runtime.clone(), world.disk.clone(), world.disk.open());
    assert!(again.put(2, "b1") > second);
    // A number that a rolled back transaction took is not part of the order either.
    let refused = world.database.write(Durability::Ordered, |txn| {
        txn.take_number(CounterName::Delivery)?;
        Err::<(), _>(StorageError::Closed)
    });
    assert!(refused.is_err());
    assert_eq!(drain(&mut world.consume(Scope::All)), ["a1", "b1"]);
}

/// Consuming and closing change nothing but D and the lease; the next consumer goes on from D.
/// covers: STR-097, STR-023, STR-091
#[test]
fn consuming_leaves_receipt_and_processing_alone() {
    let world = World::new();
    world.put_texts(1, ["a1", "a2", "a3"]);
    let own = [DELIVERED.info.id, LEASE.info.id, REVISION.info.id];
    let before = world.rows_but(&own);
    let mut consumer = world.consume(Scope::All);
    assert_eq!(next(&mut consumer), "a1");
    assert_eq!(next(&mut consumer), "a2");
    let d = world.d(1);
    consumer.close().now_or_never().unwrap().unwrap();
    assert_eq!(world.d(1), d, "closing acknowledges nothing");
    let mut consumer = world.another().consume(Scope::All);
    assert_eq!(drain(&mut consumer), ["a2", "a3"]);
    drop(consumer);
    let mut replay = super::replay::start(&world, world.messages.beginning());
    assert_eq!(super::replay::texts(&mut replay), ["a1", "a2", "a3"]);
    let ceiling = crate::storage::schema::COUNTER.info.id;
    let keep = |rows: Vec<(TableId, Vec<u8>, Vec<u8>)>| -> Vec<_> {
        rows.into_iter().filter(|row| row.0 != ceiling).collect()
    };
    // The second process lifted the counters when it opened.
    assert_eq!(keep(world.rows_but(&own)), keep(before));
    assert_eq!(verify_database(&world.database), Ok(()));
}

/// Only published application and membership messages come; deleted and expired ones do not,
/// judged by the client's deadline when they are selected and again when they are handed over.
/// covers: STR-103, STR-102
#[test]
fn only_eligible_messages_come() {
    let world = World::new();
    let clock = world.runtime.clock();
    let soon = world.runtime.now_ns() + 5_000_000_000;
    let with = |text: &str, change: fn(&mut stored::StoredMessage, u64)| {
        let mut message = new_message(1, text);
        change(&mut message, soon);
        put_as(&world.database, message).unwrap()
    };
    with("unspecified", |message, _| message.kind = 0);
    with("membership", |message, _| {
        message.kind = MessageKind::MembershipChange.into()
    });
    with("deleted", |message, _| message.deleted = true);
    with("expired", |message, soon| {
        message.expires_ns = soon - 5_000_000_000
    });
    with("first", |_, _| ());
    with("expires", |message, soon| message.expires_ns = soon);
    let removed = with("removed", |_, _| ());
    let gone = with("gone", |_, _| ());
    with("last", |message, soon| message.expires_ns = soon + 1);
    let mut consumer = world.consume(Scope::All);
    assert_eq!(next(&mut consumer), "membership");
    // All are queued now, and change before their turn.
    world.delete(removed);
    world.change(|txn| txn.delete(crate::storage::schema::MESSAGE, &gone));
    assert_eq!(next(&mut consumer), "first");
    clock.advance(std::time::Duration::from_secs(5));
    assert_eq!(next(&mut consumer), "last");
}
