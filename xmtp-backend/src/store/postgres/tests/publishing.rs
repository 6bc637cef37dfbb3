//! Publishes that meet each other, and publishes that are cut off.

use futures_util::future::join_all;

use super::*;
use crate::store::conformance::update;

#[tokio::test]
async fn ids_follow_the_order_of_the_request() {
    let Some(settings) = fresh() else { return };
    let store = open(&settings).await;
    let topic = |number: usize| group(u8::try_from(number * 37 % 251).expect("a byte"));
    let request = (0..500).map(|number| envelope(topic(number), format!("{number}")));
    let metas = store
        .publish(request.collect())
        .await
        .expect("it is stored");
    assert!(metas.is_sorted_by(|a, b| a.sequence_id < b.sequence_id));
    assert!(
        metas
            .iter()
            .all(|meta| meta.server_ns == metas[0].server_ns)
    );
}

/// A retry that races its first attempt, on another server and on the same one.
#[tokio::test]
async fn a_retry_waits_for_the_first_attempt_and_finds_its_row() {
    let Some(settings) = fresh() else { return };
    let (hooks, mut held) = Hold::at(Point::Allocated);
    let (first, second) = (open_with(&settings, hooks).await, open(&settings).await);
    let publish = store_one(&first, envelope(group(1), "a"));
    let again = async {
        let held = arrival(&mut held).await;
        let retry = async {
            let (one, two) = tokio::join!(
                store_one(&second, envelope(group(1), "a")),
                store_one(&second, envelope(group(1), "a"))
            );
            assert_eq!(one, two);
            one
        };
        let release = async {
            let waits = "SELECT count(*) > 0 FROM pg_stat_activity
                WHERE datname = current_database() AND wait_event_type = 'Lock'";
            until(&settings, waits, "t").await;
            held.send(Verdict::Go).expect("it is held");
        };
        tokio::join!(retry, release).0
    };
    let (first, again) = tokio::join!(publish, again);
    assert_eq!(first, again);
    assert_eq!(sql(&settings, "SELECT count(*) FROM envelope").await, "1");
}

#[tokio::test]
async fn a_connection_lost_before_the_commit_is_made_good() {
    let Some(settings) = fresh() else { return };
    for point in [Point::TopicsLocked, Point::Allocated] {
        let (hooks, mut held) = Hold::at(point);
        let store = open_with(&settings, hooks).await;
        let publish = store_one(&store, envelope(group(1), format!("{point:?}")));
        let cut = async {
            let first = arrival(&mut held).await;
            assert_eq!(sql(&settings, TERMINATE).await, "1");
            first.send(Verdict::Go).expect("it is held");
            if point == Point::TopicsLocked {
                arrival(&mut held)
                    .await
                    .send(Verdict::Go)
                    .expect("it is held");
            }
        };
        if point == Point::TopicsLocked {
            let (meta, ()) = tokio::join!(publish, cut);
            assert_eq!(
                store.existing(vec![meta.key]).await.expect("a read"),
                [Some(meta)]
            );
        } else {
            // The commit itself meets the lost connection: nobody can say what became of it.
            let envelope = envelope(group(1), format!("{point:?}"));
            drop(publish);
            let publish = store.publish(vec![envelope]);
            let (answer, ()) = tokio::join!(publish, cut);
            assert_eq!(answer, Err(PublishError::UnknownOutcome));
        }
    }
}

#[tokio::test]
async fn a_lost_answer_to_the_commit_is_an_unknown_outcome() {
    let Some(settings) = fresh() else { return };
    let (hooks, mut held) = Hold::at(Point::CommitSent);
    let store = open_with(&settings, hooks).await;
    let publish = store.publish(vec![envelope(group(1), "a")]);
    let lose = async {
        let held = arrival(&mut held).await;
        held.send(Verdict::Unavailable).expect("it is held");
    };
    assert_eq!(
        tokio::join!(publish, lose).0,
        Err(PublishError::UnknownOutcome)
    );
    drop(held);
    let meta = store_one(&store, envelope(group(1), "a")).await;
    assert_eq!(
        meta.sequence_id,
        1.into(),
        "the retry finds what was stored"
    );
}

/// The database itself ends a publish that holds its locks for too long.
#[tokio::test]
async fn a_publish_that_hangs_loses_its_locks() {
    let Some(mut settings) = fresh() else { return };
    settings.max_publish_time = Duration::from_millis(300);
    let (hooks, mut held) = Hold::at(Point::Allocated);
    let hanging = open_with(&settings, hooks).await;
    settings.max_publish_time = PATIENCE;
    let store = open(&settings).await;
    let hang = hanging.publish(vec![envelope(group(1), "hangs")]);
    let other = async {
        let held = arrival(&mut held).await;
        let meta = store_one(&store, envelope(group(1), "other")).await;
        drop(held);
        meta
    };
    let (hung, meta) = tokio::join!(hang, other);
    assert!(hung.is_err(), "{hung:?}");
    assert_eq!(meta.sequence_id, 2.into());
    assert_eq!(sql(&settings, "SELECT count(*) FROM envelope").await, "1");
}

/// Requests that wait together share a transaction, and none of them fails for another.
#[tokio::test]
async fn a_request_that_fails_does_not_fail_those_beside_it() {
    let Some(mut settings) = fresh() else { return };
    settings.max_connections = 1;
    let (hooks, mut held) = Hold::at(Point::TopicsLocked);
    let store = open_with(&settings, hooks).await;
    let first = store.publish(vec![envelope(group(1), "first")]);
    let waiting = async {
        let busy = arrival(&mut held).await;
        let requests = join_all([
            store.publish(vec![envelope(group(1), "a"), envelope(group(2), "b")]),
            store.publish(vec![update(1, "moved", 7.into(), 9)]),
            store.publish(vec![update(2, "u", SequenceId::ZERO, 9)]),
            store.publish(vec![envelope(group(2), "c")]),
            // These depend on others of them and come after those.
            store.publish(vec![envelope(group(2), "c")]),
            store.publish(vec![update(2, "v", SequenceId::ZERO, 9)]),
        ]);
        let go = async {
            tokio::task::yield_now().await;
            drop(busy);
            drop(held);
        };
        tokio::join!(requests, go).0
    };
    let (first, answers) = tokio::join!(first, waiting);
    assert_eq!(first.expect("it is stored")[0].sequence_id, 1.into());
    for position in [1, 5] {
        assert_eq!(answers[position], Err(PublishError::HeadMoved));
    }
    for (position, ids) in [(0, vec![2, 3]), (2, vec![4]), (3, vec![5]), (4, vec![5])] {
        let metas = answers[position].as_ref().expect("it is stored");
        let found: Vec<u64> = metas.iter().map(|meta| meta.sequence_id.get()).collect();
        assert_eq!(found, ids);
    }
    let together = "SELECT count(DISTINCT xmin::text) FROM envelope";
    assert_eq!(sql(&settings, together).await, "2");
}

/// Many servers, overlapping topics in every order: nobody waits in a circle.
///
/// covers: STR-010
#[tokio::test]
async fn publishes_over_the_same_topics_neither_deadlock_nor_reorder() {
    let Some(settings) = fresh() else { return };
    let stores = join_all((0..3).map(|_| open(&settings))).await;
    let mut tail = stores[0].tail().await.expect("a tail");
    let publisher = async |store: &PostgresStore, number: usize| {
        for round in 0..12 {
            let topics = (0..6).map(|step| group(((number + round * 5 + step * 7) % 8) as u8));
            let text = |step| format!("{number} {round} {step}");
            let request = topics
                .enumerate()
                .map(|(step, topic)| envelope(topic, text(step)));
            store
                .publish(request.collect())
                .await
                .expect("it is stored");
        }
    };
    let publishers = (0..9).map(|number| publisher(&stores[number % 3], number));
    let rows = async {
        let mut rows = Vec::new();
        while rows.len() < 9 * 12 * 6 {
            rows.extend(next(&mut tail).await);
        }
        rows
    };
    let (_, rows) = tokio::join!(join_all(publishers), rows);
    for number in 0..8 {
        let told = rows
            .iter()
            .filter(|row| row.meta.key.topic == group(number));
        let told: Vec<_> = told.cloned().collect();
        let page = stores[1]
            .query(query(&[(group(number), 0)], 1000))
            .await
            .expect("a page");
        assert_eq!(told, page.envelopes, "each once and in order");
    }
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(sql(&settings, deadlocks).await, "0");
}

#[tokio::test]
async fn a_read_that_waits_too_long_is_told_so() {
    let Some(mut settings) = fresh() else { return };
    settings.max_statement_time = Duration::from_millis(200);
    let store = open(&settings).await;
    let client = connection(&settings).await;
    client
        .batch_execute("BEGIN; LOCK TABLE envelope")
        .await
        .expect("a lock");
    let page = store.query(query(&[(group(1), 0)], 9)).await;
    assert_eq!(page.unwrap_err(), ReadError::TimedOut);
    client.batch_execute("ROLLBACK").await.expect("no lock");
    store
        .query(query(&[(group(1), 0)], 9))
        .await
        .expect("a page");
}
