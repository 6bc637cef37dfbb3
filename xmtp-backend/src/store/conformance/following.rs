//! What streams live on: heads, turns and tails.

use super::*;

pub(super) async fn heads_are_zero_for_empty_topics(store: &dyn Store) {
    let ids = fill(store, group(1), &["a", "b"]).await;
    let heads = store
        .heads(vec![group(2), group(1), group(2)])
        .await
        .unwrap();
    assert_eq!(heads, [SequenceId::ZERO, ids[1], SequenceId::ZERO]);
}

fn want(topic: Topic, after: SequenceId, through: SequenceId) -> Want {
    Want {
        topic,
        after,
        through,
    }
}

fn whole(number: u8) -> Want {
    want(group(number), SequenceId::ZERO, SequenceId::MAX)
}

/// covers: STR-016, STR-030
pub(super) async fn a_turn_is_bounded_and_fair(store: &dyn Store) {
    fill(store, group(1), &["a1", "a2", "a3"]).await;
    fill(store, group(2), &["b1", "b2", "b3"]).await;
    let two_rows = TurnBudget {
        topic_rows: 2,
        topic_bytes: 1 << 20,
        bytes: 1 << 20,
    };
    let turn = store
        .fetch_turn(vec![whole(2), whole(1)], two_rows)
        .await
        .unwrap();
    let served: Vec<_> = turn
        .served
        .iter()
        .map(|one| (payloads(&one.rows), one.complete))
        .collect();
    assert_eq!(
        served,
        [
            (vec![&b"b1"[..], b"b2"], false),
            (vec![&b"a1"[..], b"a2"], false)
        ]
    );

    // Each row counts 258 bytes.
    let one_topic = TurnBudget {
        topic_rows: 9,
        topic_bytes: 600,
        bytes: 600,
    };
    let turn = store
        .fetch_turn(vec![whole(1), whole(2)], one_topic)
        .await
        .unwrap();
    assert_eq!(
        turn.served.len(),
        1,
        "the second topic has no room in this turn"
    );
    assert_eq!(payloads(&turn.served[0].rows), [b"a1", b"a2"]);
    assert!(!turn.served[0].complete);

    let share = TurnBudget {
        topic_rows: 9,
        topic_bytes: 300,
        bytes: 600,
    };
    let turn = store
        .fetch_turn(vec![whole(1), whole(2)], share)
        .await
        .unwrap();
    let rows: Vec<_> = turn
        .served
        .iter()
        .flat_map(|one| payloads(&one.rows))
        .collect();
    assert_eq!(rows, [b"a1", b"b1"]);
}

pub(super) async fn a_turn_always_brings_something(store: &dyn Store) {
    let large = "x".repeat(5000);
    fill(store, group(1), &[&large, "small"]).await;
    fill(store, group(2), &[&large]).await;
    let tiny = TurnBudget {
        topic_rows: 9,
        topic_bytes: 100,
        bytes: 1000,
    };
    let turn = store
        .fetch_turn(vec![whole(1), whole(2)], tiny)
        .await
        .unwrap();
    assert_eq!((turn.served.len(), turn.served[0].rows.len()), (1, 1));
    assert!(!turn.served[0].complete);
    let roomy = TurnBudget {
        topic_rows: 9,
        topic_bytes: 100,
        bytes: 11_000,
    };
    let turn = store
        .fetch_turn(vec![whole(1), whole(2)], roomy)
        .await
        .unwrap();
    let rows: Vec<_> = turn.served.iter().map(|one| one.rows.len()).collect();
    assert_eq!(rows, [1, 1], "a first row may exceed its topic's share");
}

pub(super) async fn a_turn_ends_its_ranges(store: &dyn Store) {
    let ids = fill(store, group(1), &["a", "b", "c"]).await;
    let budget = TurnBudget {
        topic_rows: 2,
        topic_bytes: 1 << 20,
        bytes: 1 << 20,
    };
    let wants = vec![
        want(group(1), ids[0], ids[1]),
        want(group(1), ids[2], SequenceId::MAX),
        want(group(2), SequenceId::ZERO, SequenceId::MAX),
        want(group(1), ids[0], ids[2]),
    ];
    let turn = store.fetch_turn(wants, budget).await.unwrap();
    let served: Vec<_> = turn
        .served
        .iter()
        .map(|one| (payloads(&one.rows), one.complete))
        .collect();
    let (b, c): (&[u8], &[u8]) = (b"b", b"c");
    assert_eq!(
        served,
        [
            (vec![b], true),
            (vec![], true),
            (vec![], true),
            (vec![b, c], true)
        ]
    );
}

pub(super) async fn a_tail_gives_out_each_envelope_once(store: &dyn Store) {
    fill(store, group(1), &["before"]).await;
    let mut tail = store.tail().await.unwrap();
    fill(store, group(1), &["a", "b"]).await;
    fill(store, group(1), &["a"]).await;
    fill(store, group(2), &["c"]).await;
    let mut rows = Vec::new();
    while rows.len() < 3 {
        rows.extend(tail.next().await.unwrap());
    }
    assert_eq!(payloads(&rows), [b"a", b"b", b"c"]);
}

pub(super) async fn a_tail_that_falls_behind_misses_nothing(store: &dyn Store) {
    const ROWS: usize = 80;
    let mut tail = store.tail().await.unwrap();
    // Together larger than what a tail keeps.
    let large = vec![0; 1 << 20];
    for number in 0..ROWS {
        let mut payload = large.clone();
        payload[0] = u8::try_from(number).unwrap();
        store_one(store, envelope(group(1), payload)).await;
    }
    let mut next = 0;
    while next < ROWS {
        for row in tail.next().await.unwrap() {
            assert_eq!(usize::from(row.payload[0]), next);
            next += 1;
        }
    }
    fill(store, group(1), &["after"]).await;
    assert_eq!(payloads(&tail.next().await.unwrap()), [b"after"]);
}

/// covers: STR-010
pub(super) async fn concurrent_publishes_keep_topics_in_order(store: &dyn Store) {
    let publisher = async |number: u8| {
        for round in 0..20 {
            let payload = format!("{number} {round}");
            store_one(store, envelope(group(1), payload)).await;
        }
    };
    let mut tail = store.tail().await.unwrap();
    let publishers = futures_util::future::join_all((0..8).map(publisher));
    publishers.await;
    let mut told = Vec::new();
    while told.len() < 160 {
        told.extend(tail.next().await.unwrap());
    }
    let page = store.query(query(&[(group(1), 0)], 1000)).await.unwrap();
    assert_eq!(told, page.envelopes);
    assert!(told.is_sorted_by(|a, b| a.meta.sequence_id < b.meta.sequence_id));
}
