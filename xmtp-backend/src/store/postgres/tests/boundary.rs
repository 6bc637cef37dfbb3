//! Ids that are late, and ids that never come.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::store::postgres::boundary::{Attempt, Boundary};

/// Reads the boundary.
const CLOSED: &str = "SELECT closed_sequence_id FROM allocation_boundary";

/// covers: STR-010
#[tokio::test]
async fn a_late_low_id_is_given_out_when_it_comes() {
    let Some(settings) = fresh() else { return };
    let (hooks, mut held) = Hold::at(Point::Allocated);
    let (late, store) = (open_with(&settings, hooks).await, open(&settings).await);
    let mut tail = store.tail().await.expect("a tail");
    let publish = store_one(&late, envelope(group(1), "late"));
    let others = async {
        let held = arrival(&mut held).await;
        store_one(&store, envelope(group(2), "b")).await;
        assert_eq!(texts(&mut tail, 1).await, ["b"]);
        // The boundary is asked for and tried, and does not pass the publish that is under way.
        let client = connection(&settings).await;
        let boundary = Boundary::new(client, settings.max_barrier_wait, PATIENCE);
        assert_eq!(
            boundary.attempt(None).await.expect("an answer"),
            Attempt::TimedOut
        );
        assert_eq!(sql(&settings, CLOSED).await, "0");
        store_one(&store, envelope(group(3), "c")).await;
        assert_eq!(texts(&mut tail, 1).await, ["c"]);
        held.send(Verdict::Go).expect("it is held");
    };
    let (late, ()) = tokio::join!(publish, others);
    assert_eq!(late.sequence_id, 1.into());
    assert_eq!(texts(&mut tail, 1).await, ["late"]);
}

/// Holds the first poll that comes after it is armed.
#[derive(Debug)]
struct HoldPoll {
    armed: AtomicBool,
    hold: Arc<Hold>,
}

#[async_trait]
impl Hooks for HoldPoll {
    async fn reach(&self, point: Point) -> Verdict {
        if point == Point::GapsRead && !self.armed.swap(false, Ordering::Relaxed) {
            return Verdict::Go;
        }
        self.hold.reach(point).await
    }
}

/// A low row and a higher one of one topic become visible between the two reads of a poll.
///
/// covers: STR-010
#[tokio::test]
async fn a_poll_reads_one_snapshot() {
    let Some(settings) = fresh() else { return };
    let (hooks, mut held) = Hold::at(Point::Allocated);
    let late = open_with(&settings, hooks).await;
    let (hold, mut polls) = Hold::at(Point::GapsRead);
    let armed = AtomicBool::new(false);
    let hooks = Arc::new(HoldPoll { armed, hold });
    let store = open_with(&settings, hooks.clone()).await;
    let mut tail = store.tail().await.expect("a tail");
    let low = tokio::spawn(async move { store_one(&late, envelope(group(1), "low")).await });
    let held = arrival(&mut held).await;
    store_one(&store, envelope(group(2), "other")).await;
    assert_eq!(texts(&mut tail, 1).await, ["other"]);
    hooks.armed.store(true, Ordering::Relaxed);
    let poll = arrival(&mut polls).await;
    held.send(Verdict::Go).expect("it is held");
    low.await.expect("it is stored");
    store_one(&store, envelope(group(1), "high")).await;
    poll.send(Verdict::Go).expect("it is held");
    assert_eq!(texts(&mut tail, 2).await, ["low", "high"]);
}

/// Ids of publishes that were undone are forgotten once a boundary has passed them.
#[tokio::test]
async fn an_undone_id_is_forgotten_by_a_boundary() {
    const ROUNDS: usize = 4;
    let Some(mut settings) = fresh() else { return };
    settings.max_gap_ranges = 1;
    let (hooks, mut held) = Hold::at(Point::Allocated);
    let (undone, store) = (open_with(&settings, hooks).await, open(&settings).await);
    let mut tail = store.tail().await.expect("a tail");
    for round in 0..ROUNDS {
        let publish = undone.publish(vec![envelope(group(1), format!("undone {round}"))]);
        let undo = async {
            let held = arrival(&mut held).await;
            held.send(Verdict::Unavailable).expect("it is held");
        };
        assert_eq!(
            tokio::join!(publish, undo).0,
            Err(PublishError::Unavailable)
        );
        let text = format!("stored {round}");
        let meta = store_one(&store, envelope(group(1), text.clone())).await;
        assert_eq!(texts(&mut tail, 1).await, [text]);
        let reached = format!(
            "SELECT closed_sequence_id >= {} FROM allocation_boundary",
            meta.sequence_id.get()
        );
        until(&settings, &reached, "t").await;
    }
    // No row of the topic is waited for that will never come.
    let want = Want {
        topic: group(1),
        after: SequenceId::ZERO,
        through: SequenceId::MAX,
    };
    let budget = TurnBudget {
        topic_rows: 9,
        topic_bytes: 1 << 20,
        bytes: 1 << 20,
    };
    let turn = store.fetch_turn(vec![want], budget).await.expect("a turn");
    assert_eq!(
        (turn.served[0].rows.len(), turn.served[0].complete),
        (ROUNDS, true)
    );
}

#[tokio::test]
async fn too_many_open_ranges_end_the_tail_and_not_the_store() {
    let Some(mut settings) = fresh() else { return };
    settings.max_gap_ranges = 1;
    let (hooks, mut held) = Hold::at(Point::Allocated);
    let late = open_with(&settings, hooks).await;
    let store = open(&settings).await;
    let mut tail = store.tail().await.expect("a tail");
    let mut held_publishes = Vec::new();
    let (one, two) = (
        late.publish(vec![envelope(group(1), "late 1")]),
        late.publish(vec![envelope(group(2), "late 2")]),
    );
    let others = async {
        held_publishes.push(arrival(&mut held).await);
        store_one(&store, envelope(group(3), "a")).await;
        held_publishes.push(arrival(&mut held).await);
        store_one(&store, envelope(group(3), "b")).await;
        let ended = timeout(PATIENCE, async {
            loop {
                if let Err(error) = tail.next().await {
                    return error;
                }
            }
        });
        assert_eq!(ended.await.expect("the tail ends"), TailError::Overflow);
        held_publishes.clear();
    };
    let staggered = async {
        until(&settings, "SELECT count(*) FROM envelope", "1").await;
        two.await
    };
    let (one, two, ()) = tokio::join!(one, staggered, others);
    one.expect("it is stored");
    two.expect("it is stored");
    let mut tail = store.tail().await.expect("another tail");
    store_one(&store, envelope(group(3), "c")).await;
    assert_eq!(texts(&mut tail, 1).await, ["c"]);
}

#[tokio::test]
async fn the_boundary_never_falls_and_one_server_tries_at_a_time() {
    let Some(settings) = fresh() else { return };
    let store = open(&settings).await;
    store_one(&store, envelope(group(1), "a")).await;
    let client = connection(&settings).await;
    let boundary = Boundary::new(client, settings.max_barrier_wait, PATIENCE);
    assert_eq!(
        boundary.attempt(None).await.expect("an answer"),
        Attempt::Closed(1.into())
    );
    sql(
        &settings,
        "UPDATE allocation_boundary SET closed_sequence_id = 50",
    )
    .await;
    assert_eq!(
        boundary.attempt(None).await.expect("an answer"),
        Attempt::Closed(1.into())
    );
    assert_eq!(sql(&settings, CLOSED).await, "50");
    let other = connection(&settings).await;
    let turn = format!(
        "BEGIN; SELECT pg_advisory_xact_lock({})",
        statements::BOUNDARY_TURN
    );
    other.batch_execute(&turn).await.expect("a lock");
    assert_eq!(
        boundary.attempt(None).await.expect("an answer"),
        Attempt::Elsewhere
    );
}

/// A server whose replica lags asks for a boundary that stands already.
#[tokio::test]
async fn servers_share_the_boundary_that_one_of_them_has_drawn() {
    let Some(settings) = fresh() else { return };
    let store = open(&settings).await;
    store_one(&store, envelope(group(1), "a")).await;
    let boundary = async || {
        let client = connection(&settings).await;
        Boundary::new(client, settings.max_barrier_wait, PATIENCE)
    };
    let (one, two) = (boundary().await, boundary().await);
    let drawn = one.attempt(Some(1.into())).await.expect("an answer");
    assert_eq!(drawn, Attempt::Closed(1.into()));
    // Whoever takes the barrier now has to wait for a publish, and others behind it.
    let (hooks, mut held) = Hold::at(Point::Allocated);
    let late = open_with(&settings, hooks).await;
    let publish = store_one(&late, envelope(group(1), "b"));
    let others = async {
        let held = arrival(&mut held).await;
        let shared = two.attempt(Some(1.into())).await.expect("an answer");
        assert_eq!(shared, Attempt::Shared(1.into()));
        let above = two.attempt(Some(2.into())).await.expect("an answer");
        assert_eq!(above, Attempt::TimedOut);
        held.send(Verdict::Go).expect("it is held");
    };
    tokio::join!(publish, others);
    let drawn = two.attempt(Some(2.into())).await.expect("an answer");
    assert_eq!(drawn, Attempt::Closed(2.into()));
}
