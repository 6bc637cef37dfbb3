//! The suites of the wire and of the program on PostgreSQL, and what only a server of its own shows:
//! lost connections, a crash of the database, several servers on one database.

#![allow(clippy::duplicate_mod, reason = "each suite brings its own helpers")]

#[path = "binary.rs"]
mod binary;
mod common;
#[path = "publish.rs"]
mod publish;
#[path = "rpc.rs"]
mod rpc;
#[path = "stream_races.rs"]
mod stream_races;
#[path = "streams.rs"]
mod streams;

use std::sync::Arc;

use common::*;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use xmtp_backend::hooks::{Clock, Hooks, Point, SystemClock, Verdict};
use xmtp_backend::testing::Postgres;

/// Ends the connections of one purpose; "t" if there were any.
fn terminate(server: &Postgres, database: &str, purpose: &str) -> String {
    let statement = format!(
        "SELECT count(pg_terminate_backend(pid)) > 0 FROM pg_stat_activity
         WHERE datname = current_database() AND application_name = 'xmtp-backend {purpose}'"
    );
    server.sql(database, &statement)
}

fn name(url: &str) -> &str {
    url.rsplit('/').next().expect("a name")
}

async fn health(peer: &Peer) -> ServingStatus {
    let mut client = HealthClient::new(peer.channel.clone());
    let request = HealthCheckRequest::default();
    client
        .check(request)
        .await
        .expect("an answer")
        .into_inner()
        .status()
}

/// Opens a stream as soon as the server lets one run.
async fn reopened(peer: &Peer) -> Subscriber {
    let open = async {
        loop {
            if let Ok(mut stream) = peer.try_subscribe(None).await
                && stream.next().await.is_ok()
            {
                return stream;
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, open).await.expect("streams run again")
}

/// covers: STR-035
#[tokio::test]
async fn a_lost_tail_ends_streams_and_nothing_else() {
    let Some(server) = Postgres::shared() else {
        return;
    };
    let url = server.database();
    let mut config = config();
    config.database = on_postgres(&url);
    let peer = Peer::start(config).await;
    for (round, purpose) in ["tail", "boundary"].into_iter().enumerate() {
        let group = round as u8;
        let first = publish_texts(&peer, group, &["a"]).await;
        let mut stream = reopened(&peer).await;
        stream
            .update(1, vec![from(&group_topic(group), 0)], vec![])
            .await;
        stream.applied().await;
        assert_eq!(stream.ids(1).await, first);
        assert_eq!(terminate(server, name(&url), purpose), "t");
        let second = publish_texts(&peer, group, &["b"]).await;
        assert_eq!(health(&peer).await, ServingStatus::Serving);
        assert_eq!(peer.read(&group_topic(group)).await.len(), 2);
        assert_eq!(stream.failure().await.code(), Code::Unavailable);
        let mut stream = reopened(&peer).await;
        stream
            .update(1, vec![from(&group_topic(group), first[0])], vec![])
            .await;
        stream.applied().await;
        assert_eq!(stream.ids(1).await, second);
        let third = publish_texts(&peer, group, &["c"]).await;
        assert_eq!(stream.ids(1).await, third);
    }
    peer.running.stop().await;
}

/// The clock of a server that is wrong by days.
#[derive(Debug)]
struct Wrong;

impl Clock for Wrong {
    fn now_ns(&self) -> u64 {
        SystemClock.now_ns() + 10 * 24 * 3600 * 1_000_000_000
    }
}

#[tokio::test]
async fn envelopes_are_dated_by_the_clock_of_the_database() {
    let Some(server) = Postgres::shared() else {
        return;
    };
    let url = server.database();
    let mut config = config();
    (config.database, config.clock) = (on_postgres(&url), Arc::new(Wrong));
    let retention = config.retention.group_message_seconds * 1_000_000_000;
    let peer = Peer::start(config).await;
    let now = || -> u64 {
        let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint";
        server.sql(name(&url), sql).parse().expect("a time")
    };
    let before = now();
    let stored = peer.publish(vec![message(1, "a"), message(2, "b")]).await;
    let metas = stored.expect("it is stored").envelope_metas;
    let stored_ns = metas[0].server_ns;
    assert!((before..=now()).contains(&stored_ns));
    for meta in metas {
        assert_eq!(meta.server_ns, stored_ns, "one reading");
        assert_eq!(meta.expiry_ns, stored_ns + retention);
    }
}

/// Holds publishes that have taken their ids until the test lets them go.
#[derive(Debug)]
struct HoldAllocated {
    reached: mpsc::UnboundedSender<()>,
    go: Semaphore,
}

#[tonic::async_trait]
impl Hooks for HoldAllocated {
    async fn reach(&self, point: Point) -> Verdict {
        if point == Point::Allocated {
            let _ = self.reached.send(());
            self.go.acquire().await.expect("it stays open").forget();
        }
        Verdict::Go
    }
}

/// covers: STR-030
#[tokio::test]
async fn more_open_ranges_than_may_be_end_streams_as_exhausted() {
    let Some(server) = Postgres::shared() else {
        return;
    };
    let url = server.database();
    let mut config = config();
    config.database = on_postgres(&url);
    config.streams.max_gap_ranges = 1;
    let peer = Peer::start(config.clone()).await;
    let (reached, mut held) = mpsc::unbounded_channel();
    let go = Semaphore::new(0);
    let hooks = Arc::new(HoldAllocated { reached, go });
    config.hooks = hooks.clone();
    let late = Arc::new(Peer::start(config).await);
    let mut stream = opened(&peer).await;
    let mut publishes = Vec::new();
    for group in [1, 2] {
        let late = late.clone();
        publishes.push(tokio::spawn(async move {
            publish_texts(&late, group, &["late"]).await
        }));
        held.recv().await.expect("it takes its id");
        publish_texts(&peer, 3, &[&group.to_string()]).await;
    }
    assert_eq!(stream.failure().await.code(), Code::ResourceExhausted);
    hooks.go.add_permits(100);
    for publish in publishes {
        publish.await.expect("it is stored");
    }
    let mut stream = reopened(&peer).await;
    stream
        .update(1, vec![from(&group_topic(1), 0)], vec![])
        .await;
    stream.applied().await;
    assert_eq!(stream.ids(1).await, [1]);
}

#[tokio::test]
async fn what_one_server_stores_streams_of_another_deliver() {
    let Some(server) = Postgres::shared() else {
        return;
    };
    let url = server.database();
    let mut config = config();
    config.database = on_postgres(&url);
    let (one, two) = (Peer::start(config.clone()).await, Peer::start(config).await);
    let mut stream = opened(&two).await;
    let before = publish_texts(&one, 1, &["a"]).await;
    stream
        .update(1, vec![from(&group_topic(1), 0)], vec![])
        .await;
    stream.applied().await;
    let after = publish_texts(&one, 1, &["b"]).await;
    let own = publish_texts(&two, 1, &["c"]).await;
    assert_eq!(stream.ids(3).await, [before[0], after[0], own[0]]);
    let again = publish_texts(&two, 1, &["a"]).await;
    assert_eq!(again, before, "a retry may go to any server");
}

/// The database is killed and started again under a server that goes on.
///
/// covers: STR-035
#[tokio::test]
async fn acknowledged_envelopes_survive_a_crash_of_the_database() {
    let Some(mut server) = Postgres::start("fsync = on\n") else {
        return;
    };
    let url = server.database();
    let mut config = config();
    config.database = on_postgres(&url);
    let peer = Peer::start(config).await;
    let mut ids = publish_texts(&peer, 1, &["a", "b"]).await;
    let mut stream = opened(&peer).await;
    stream
        .update(1, vec![from(&group_topic(1), 0)], vec![])
        .await;
    stream.applied().await;
    assert_eq!(stream.ids(2).await, ids);
    server.kill();
    assert_eq!(stream.failure().await.code(), Code::Unavailable);
    let failed = peer.publish(vec![message(1, "c")]).await;
    assert_eq!(failed.expect_err("no database").code(), Code::Unavailable);
    server.resume();
    ids.extend(publish_texts(&peer, 1, &["c"]).await);
    let read: Vec<u64> = peer.read(&group_topic(1)).await.iter().map(id_of).collect();
    assert_eq!(read, ids);
    let mut stream = reopened(&peer).await;
    stream
        .update(1, vec![from(&group_topic(1), 0)], vec![])
        .await;
    stream.applied().await;
    assert_eq!(stream.ids(3).await, ids);
    peer.running.stop().await;
}
