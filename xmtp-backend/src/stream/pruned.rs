//! Envelopes that are deleted while a stream that is behind still needs them.
//!
//! The engines differ in how they delete, so the same history runs on each that keeps a database.

use std::sync::Arc;

use tokio::time::timeout;

use super::tests::{HoldAt, PATIENCE, Peer, Rig};
use crate::config::{Config, PostgresSettings, Secret};
use crate::hooks::{NoHooks, Point, SystemClock};
use crate::limits::STREAM_READS;
use crate::session::Frame;
use crate::session::fixture::{group, update};
use crate::store::{
    PostgresOptions, PostgresStore, PruneBudget, SqliteSettings, SqliteStore, Store,
};
use crate::testing::Postgres;

/// Payload bytes of which two rows fill the share of a topic in a turn.
const HALF_TURN: usize = 60_000;

/// Deletes everything that has expired and may go, which `count` rows have and may.
async fn prune(store: &dyn Store, count: usize) {
    let mut deleted = 0;
    let prune = async {
        while deleted < count {
            let budget = PruneBudget {
                rows: 100,
                after: None,
            };
            let pruned = store.prune(i64::MAX.unsigned_abs(), budget).await;
            deleted += pruned.expect("it is pruned").deleted;
        }
    };
    timeout(PATIENCE, prune).await.expect("everything expires");
    assert_eq!(deleted, count, "the newest stays");
}

async fn ids(peer: &mut Peer, count: usize) -> Vec<u64> {
    let mut ids = Vec::new();
    while ids.len() < count {
        match peer.frame().await {
            Frame::Messages(rows) => ids.extend(rows.iter().map(|row| row.sequence_id.get())),
            other => panic!("not messages: {other:?}"),
        }
    }
    ids
}

/// The rest of a history goes while its first turn is under way.
async fn between_two_turns(store: Arc<dyn Store>) {
    let (hooks, mut arrivals) = HoldAt::new(Point::Fetched);
    let mut rig = Rig::over(store, hooks.clone(), |_| {}).await;
    for _ in 0..6 {
        rig.publish(group(1), HALF_TURN).await;
    }
    let mut peer = rig.open().await;
    peer.send(update(1, &[(group(1), 0)], &[]));
    peer.applied().await;
    arrivals.recv().await.expect("a turn is fetched");
    prune(rig.store.as_ref(), 5).await;
    hooks.go.add_permits(100);
    assert_eq!(ids(&mut peer, 3).await, [1, 2, 6], "what is left comes");
    rig.publish(group(1), 9).await;
    assert_eq!(ids(&mut peer, 1).await, [7], "and then what is new");
}

/// The very row that a registration has to reach goes before it is fetched, and the fetch that is
/// under way comes back with nothing.
async fn the_target_itself(store: Arc<dyn Store>) {
    let (hooks, mut arrivals) = HoldAt::new(Point::HeadsRead);
    let mut rig = Rig::over(store, hooks.clone(), |_| {}).await;
    for _ in 0..3 {
        rig.publish(group(1), 9).await;
    }
    let mut peer = rig.open().await;
    peer.send(update(1, &[(group(1), 0)], &[]));
    arrivals.recv().await.expect("the head is read");
    let shared = rig.engine.shared.clone();
    let reads = shared.reads.acquire_many(STREAM_READS as u32).await;
    let reads = reads.expect("it stays open");
    hooks.go.add_permits(100);
    peer.applied().await;
    rig.publish(group(1), 9).await;
    prune(rig.store.as_ref(), 3).await;
    drop(reads);
    assert_eq!(ids(&mut peer, 1).await, [4]);
    rig.publish(group(1), 9).await;
    assert_eq!(ids(&mut peer, 1).await, [5]);
}

/// Returns an empty store of each kind.
async fn stores(folder: &tempfile::TempDir, name: &str) -> Vec<Arc<dyn Store>> {
    let path = folder.path().join(name);
    let sqlite = SqliteStore::open(
        &path,
        "org.example.test",
        Arc::new(SystemClock),
        SqliteSettings::default(),
    );
    let mut stores: Vec<Arc<dyn Store>> = vec![Arc::new(sqlite.expect("it opens"))];
    if let Some(server) = Postgres::shared() {
        let config = Config::ephemeral("org.example.test");
        let database = PostgresSettings {
            url: Secret::new(server.database()),
            replica_url: None,
        };
        let options = PostgresOptions::new(&config, &database);
        let postgres = PostgresStore::open(options, Arc::new(NoHooks)).await;
        stores.push(Arc::new(postgres.expect("it opens")));
    }
    stores
}

#[tokio::test]
async fn what_is_pruned_while_it_is_needed_is_waited_for_by_nobody() {
    let folder = tempfile::tempdir().expect("a folder");
    for store in stores(&folder, "one.db3").await {
        between_two_turns(store.clone()).await;
        store.close().await;
    }
    for store in stores(&folder, "two.db3").await {
        the_target_itself(store.clone()).await;
        store.close().await;
    }
}
