//! The simulator passes the suite of every store, and shows what only a replicated store shows.

use std::time::Duration;

use tokio::time::timeout;

use super::super::conformance::{Stopped, envelope, group, payloads, run};
use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

fn store() -> SimulatedStore {
    SimulatedStore::new(Arc::new(Stopped))
}

/// Publishes in a task of its own.
fn publish(
    store: &SimulatedStore,
    number: u8,
    payload: &'static str,
) -> tokio::task::JoinHandle<Result<Vec<Meta>, PublishError>> {
    let store = store.clone();
    tokio::spawn(async move { store.publish(vec![envelope(group(number), payload)]).await })
}

async fn next(tail: &mut dyn Tail) -> Vec<Envelope> {
    let rows = timeout(PATIENCE, tail.next()).await;
    rows.expect("rows in time").expect("no failure")
}

#[tokio::test]
async fn the_simulator_conforms() {
    run(async || store()).await;
}

#[tokio::test]
async fn a_lower_id_that_commits_later_is_given_out_late() {
    let store = store();
    let mut tail = store.tail().await.unwrap();
    store.control().hold(Phase::Inserted);
    let slow = publish(&store, 1, "slow");
    store.control().held(Phase::Inserted, 1).await;
    let held = store.control().keep(Phase::Inserted);
    let fast = publish(&store, 2, "fast").await.unwrap().unwrap();
    assert_eq!(payloads(&next(tail.as_mut()).await), [b"fast"]);
    drop(held);
    let slow = slow.await.unwrap().unwrap();
    assert!(slow[0].sequence_id < fast[0].sequence_id);
    assert_eq!(payloads(&next(tail.as_mut()).await), [b"slow"]);
}

#[tokio::test]
async fn publishes_of_one_topic_wait_for_each_other() {
    let store = store();
    store.control().hold(Phase::Inserted);
    let first = publish(&store, 1, "same");
    store.control().held(Phase::Inserted, 1).await;
    let held = store.control().keep(Phase::Inserted);
    let retry = publish(&store, 1, "same");
    tokio::task::yield_now().await;
    assert!(!retry.is_finished(), "it waits for the lock of the topic");
    drop(held);
    let (first, retry) = (first.await.unwrap(), retry.await.unwrap());
    assert_eq!(first, retry, "and then finds what the other stored");
}

#[tokio::test]
async fn an_aborted_publish_leaves_a_gap_that_only_the_boundary_closes() {
    let store = store();
    let mut tail = ReplicaTail::new(store.shared.clone());
    store
        .control()
        .fail(Fault::ConnectionLost(Phase::Allocated));
    let lost = publish(&store, 1, "lost").await.unwrap();
    assert_eq!(lost, Err(PublishError::Unavailable));
    let kept = publish(&store, 1, "kept").await.unwrap().unwrap();
    assert_eq!(kept[0].sequence_id.get(), 2, "the first id is gone");
    assert_eq!(payloads(&next(&mut tail).await), [b"kept"]);
    assert!(tail.poll().is_empty() && tail.gaps.len() == 1);
    store.control().fail(Fault::BoundaryTimeout);
    assert!(store.shared.advance_boundary().await.is_err());
    assert!(tail.poll().is_empty() && tail.gaps.len() == 1);
    assert_eq!(store.shared.advance_boundary().await, Ok(2.into()));
    assert!(tail.poll().is_empty() && tail.gaps.is_empty());
}

#[tokio::test]
async fn the_boundary_waits_for_what_is_allocated() {
    let store = store();
    let mut tail = ReplicaTail::new(store.shared.clone());
    store.control().hold(Phase::Inserted);
    let slow = publish(&store, 1, "slow");
    store.control().held(Phase::Inserted, 1).await;
    let shared = store.shared.clone();
    let boundary = tokio::spawn(async move { shared.advance_boundary().await });
    tokio::task::yield_now().await;
    assert_eq!(
        store.shared.databases.lock().primary.boundary,
        SequenceId::ZERO
    );
    drop(store.control().keep(Phase::Inserted));
    slow.await.unwrap().unwrap();
    assert_eq!(boundary.await.unwrap(), Ok(1.into()));
    assert_eq!(payloads(&next(&mut tail).await), [b"slow"]);
}

#[tokio::test]
async fn a_replica_is_a_prefix_and_never_behind_its_own_tail() {
    let store = store();
    let mut tail = store.tail().await.unwrap();
    store.control().hold_replica(true);
    for payload in ["a", "b", "c"] {
        publish(&store, 1, payload).await.unwrap().unwrap();
    }
    let heads = async || store.heads(vec![group(1)]).await.unwrap()[0].get();
    assert_eq!(heads().await, 0);
    for replayed in 1..=2 {
        store.replay(1);
        assert_eq!(heads().await, replayed);
        assert_eq!(next(tail.as_mut()).await.len(), 1);
    }
    store.control().hold_replica(false);
    publish(&store, 2, "d").await.unwrap().unwrap();
    assert_eq!(payloads(&next(tail.as_mut()).await), [b"c", b"d"]);
}

#[tokio::test]
async fn an_unknown_commit_is_settled_by_the_same_bytes() {
    for kept in [false, true] {
        let store = store();
        store.control().keep_lost_commits(kept);
        store
            .control()
            .fail(Fault::ConnectionLost(Phase::Committing));
        let unknown = publish(&store, 1, "a").await.unwrap();
        assert_eq!(unknown, Err(PublishError::UnknownOutcome));
        let again = publish(&store, 1, "a").await.unwrap().unwrap();
        assert_eq!(again[0].sequence_id.get(), if kept { 1 } else { 2 });
        let turn = store.heads(vec![group(1)]).await.unwrap();
        assert_eq!(turn, [again[0].sequence_id]);
    }
}

#[tokio::test]
async fn timeouts_are_told_as_what_they_are() {
    let store = store();
    store.control().fail(Fault::LockTimeout);
    let refused = publish(&store, 1, "a").await.unwrap();
    assert_eq!(refused, Err(PublishError::Unavailable));
    store.control().fail(Fault::StatementTimeout);
    assert_eq!(store.heads(vec![group(1)]).await, Err(ReadError::TimedOut));
    assert_eq!(
        store.heads(vec![group(1)]).await,
        Ok(vec![SequenceId::ZERO])
    );
}
