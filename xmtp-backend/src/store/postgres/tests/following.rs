//! Tails that lose their connection, and streams that read a replica.

use super::*;
use crate::store::postgres::connect::{Failed, Session};
use crate::testing::Proxy;

/// Ends the connections of one purpose.
async fn terminate(settings: &PostgresOptions, purpose: &str) {
    let statement = format!(
        "SELECT count(pg_terminate_backend(pid)) > 0 FROM pg_stat_activity
         WHERE datname = current_database() AND application_name = 'xmtp-backend {purpose}'"
    );
    until(settings, &statement, "t").await;
}

#[tokio::test]
async fn a_tail_that_loses_its_connection_ends_and_another_begins() {
    let Some(settings) = fresh() else { return };
    let store = open(&settings).await;
    let mut tail = store.tail().await.expect("a tail");
    store_one(&store, envelope(group(1), "a")).await;
    assert_eq!(texts(&mut tail, 1).await, ["a"]);
    terminate(&settings, "tail").await;
    assert_eq!(ended(&mut tail).await, TailError::Lost);
    store_one(&store, envelope(group(1), "b")).await;
    let mut tail = store.tail().await.expect("another tail");
    store_one(&store, envelope(group(1), "c")).await;
    assert_eq!(texts(&mut tail, 1).await, ["c"], "it begins at the present");
}

#[tokio::test]
async fn a_boundary_that_cannot_be_moved_ends_the_tail() {
    let Some(settings) = fresh() else { return };
    let store = open(&settings).await;
    let mut tail = store.tail().await.expect("a tail");
    terminate(&settings, "boundary").await;
    assert_eq!(ended(&mut tail).await, TailError::Lost);
    store.tail().await.expect("another tail");
}

/// Includes some topics.
#[derive(Debug)]
struct Topics(Vec<Topic>);

impl Interest for Topics {
    fn includes(&self, topic: &Topic) -> bool {
        self.0.contains(topic)
    }
}

/// What nobody waits for is passed over, whether it is new or late, and holds nothing up.
#[tokio::test]
async fn only_what_somebody_waits_for_is_given_out() {
    let Some(settings) = fresh() else { return };
    let (hooks, mut held) = Hold::at(Point::Allocated);
    let (late, store) = (open_with(&settings, hooks).await, open(&settings).await);
    store.attend(Arc::new(Topics(vec![group(1), group(4)])));
    let mut tail = store.tail().await.expect("a tail");
    let request = vec![envelope(group(2), "late other"), envelope(group(1), "late")];
    let publish = late.publish(request);
    let others = async {
        let held = arrival(&mut held).await;
        fill(&store, group(3), &["a", "b"]).await;
        fill(&store, group(4), &["new"]).await;
        fill(&store, group(3), &["c"]).await;
        assert_eq!(next_texts(&mut tail).await, ["new"]);
        held.send(Verdict::Go).expect("it is held");
    };
    let (stored, ()) = tokio::join!(publish, others);
    stored.expect("it is stored");
    assert_eq!(next_texts(&mut tail).await, ["late"]);
    // What is below this one was passed over when it is given out.
    fill(&store, group(4), &["after"]).await;
    assert_eq!(next_texts(&mut tail).await, ["after"]);
    store.attend(Arc::new(Topics(vec![group(3)])));
    fill(&store, group(3), &["d"]).await;
    assert_eq!(next_texts(&mut tail).await, ["d"]);
}

async fn next_texts(tail: &mut Box<dyn Tail>) -> Vec<String> {
    let rows = next(tail).await;
    let text = |row: &Envelope| String::from_utf8(row.payload.to_vec()).expect("text");
    rows.iter().map(text).collect()
}

/// Reads of streams that find no connection free wait for those before them, however long those
/// take: streams bound their number.
#[tokio::test]
async fn a_slow_read_of_a_stream_fails_none_behind_it() {
    let Some(mut settings) = fresh() else { return };
    (settings.max_connections, settings.max_statement_time) = (1, Duration::from_millis(50));
    let store = open(&settings).await;
    let lane = store.shared.endpoint.lane();
    let slow = || async {
        let never = lane.run(|session| async move {
            let _held = session;
            std::future::pending::<Result<((), Session), Failed>>().await
        });
        assert_eq!(never.await, Err(ReadError::TimedOut));
    };
    let behind = async { store.heads(vec![group(1)]).await };
    let ((), (), heads) = tokio::join!(biased; slow(), slow(), behind);
    heads.expect("heads");
}

#[tokio::test]
async fn a_tail_sees_what_another_server_stores() {
    let Some(settings) = fresh() else { return };
    let (one, two) = (open(&settings).await, open(&settings).await);
    let (mut first, mut second) = (
        one.tail().await.expect("a tail"),
        two.tail().await.expect("a tail"),
    );
    fill(&one, group(1), &["a"]).await;
    fill(&two, group(1), &["b"]).await;
    for tail in [&mut first, &mut second] {
        assert_eq!(texts(tail, 2).await, ["a", "b"]);
    }
    assert_eq!(two.heads(vec![group(1)]).await.expect("heads"), [2.into()]);
}

/// A connection to another server than the tail's would read heads that the tail has passed.
#[tokio::test]
async fn streams_read_no_other_server_than_the_tail() {
    let Some(settings) = fresh() else { return };
    let store = open(&settings).await;
    let mut tail = store.tail().await.expect("a tail");
    let client = connection(&settings).await;
    let mut other = endpoint::identity(&client).await.expect("an identity");
    other.timeline += 1;
    store.shared.endpoint.follow(other);
    let heads = store.heads(vec![group(1)]).await;
    assert_eq!(heads, Err(ReadError::Unavailable));
    assert_eq!(ended(&mut tail).await, TailError::Lost);
    let _tail = store.tail().await.expect("another tail");
    store
        .heads(vec![group(1)])
        .await
        .expect("the tail's server is read again");
}

/// A low id is committed and a boundary passes it while the replica stands still.
///
/// covers: STR-010, STR-012
#[tokio::test]
async fn a_boundary_is_seen_on_a_replica_no_sooner_than_what_it_speaks_of() {
    let Some(primary) = Postgres::start("") else {
        return;
    };
    let url = primary.database();
    let replica = primary.replica();
    let database = url.rsplit('/').next().expect("a name").to_owned();
    let mut settings = settings(&url);
    let (hooks, mut held) = Hold::at(Point::Allocated);
    let late = open_with(&settings, hooks).await;
    settings.replica_url = Some(Secret::new(replica.address(&database)));
    let on_replica = PostgresOptions {
        url: Secret::new(replica.address(&database)),
        ..settings.clone()
    };
    let exists = "SELECT count(*) FROM pg_tables WHERE tablename = 'deployment'";
    until(&on_replica, exists, "1").await;
    let store = open(&settings).await;
    let mut tail = store.tail().await.expect("a tail");

    let low = tokio::spawn(async move { store_one(&late, envelope(group(1), "low")).await });
    let held = arrival(&mut held).await;
    store_one(&store, envelope(group(2), "high")).await;
    assert_eq!(texts(&mut tail, 1).await, ["high"]);
    sql(&on_replica, "SELECT pg_wal_replay_pause()").await;
    until(
        &on_replica,
        "SELECT pg_get_wal_replay_pause_state()",
        "paused",
    )
    .await;
    held.send(Verdict::Go).expect("it is held");
    low.await.expect("it is stored");
    let closed = "SELECT closed_sequence_id >= 2 FROM allocation_boundary";
    until(&settings, closed, "t").await;
    assert_eq!(
        store.heads(vec![group(1)]).await.expect("heads"),
        [SequenceId::ZERO],
        "the head is the one of the database that streams read"
    );
    let page = store
        .query(query(&[(group(1), 0)], 9))
        .await
        .expect("a page");
    assert_eq!(
        payloads(&page.envelopes),
        [b"low"],
        "calls read the primary"
    );
    sql(&on_replica, "SELECT pg_wal_replay_resume()").await;
    assert_eq!(texts(&mut tail, 1).await, ["low"]);
    store.close().await;
}

/// A replica behind an address that led to the primary before, and is promoted later.
#[tokio::test]
async fn reads_that_must_see_what_was_acknowledged_never_land_on_a_replica() {
    let Some(primary) = Postgres::start("") else {
        return;
    };
    let url = primary.database();
    let database = url.rsplit('/').next().expect("a name");
    let proxy = Proxy::to(&primary).await;
    let store = open(&settings(&proxy.address(database))).await;
    fill(&store, group(1), &["a"]).await;
    let replica = primary.replica();
    replica.sql(database, "SELECT pg_wal_replay_pause()");
    let on_replica = settings(&replica.address(database));
    let paused = "SELECT pg_get_wal_replay_pause_state()";
    until(&on_replica, paused, "paused").await;
    fill(&store, group(1), &["b"]).await;
    let ask = query(&[(group(1), 0)], 9);
    proxy.lead_to(&replica);
    let key = envelope(group(1), "b").key;
    // Connections that are cut are tried again, until one leads to the replica.
    let page = store.query(ask.clone()).await;
    assert_eq!(page.expect_err("no page"), ReadError::Unavailable);
    let stored = store.existing(vec![key]).await;
    assert_eq!(stored, Err(ReadError::Unavailable));
    let history = store.identity_history(group(1)).await;
    assert_eq!(history.expect_err("no log"), ReadError::Unavailable);
    replica.sql(database, "SELECT pg_wal_replay_resume()");
    replica.sql(database, "SELECT pg_promote()");
    let page = store.query(ask).await.expect("it is the primary now");
    assert_eq!(payloads(&page.envelopes).first(), Some(&&b"a"[..]));
    let publish = store.publish(vec![envelope(group(1), "c")]).await;
    assert_eq!(publish, Err(PublishError::Unavailable), "it was not fenced");
}
