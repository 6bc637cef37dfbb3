//! Replicas that are none, that stop being one, and that do not catch up.

use super::*;
use crate::testing::Proxy;

/// A primary with one envelope, and a replica that has its tables.
struct Pair {
    primary: Postgres,
    replica: Postgres,
    database: String,
    /// Publishes to the primary and reads from the replica.
    settings: PostgresOptions,
    /// The replica alone.
    on_replica: PostgresOptions,
}

impl Pair {
    async fn start() -> Option<Self> {
        let primary = Postgres::start("fsync = off\n")?;
        let url = primary.database();
        let database = name(&url);
        let only = open(&settings(&url)).await;
        fill(&only, group(1), &["a"]).await;
        only.close().await;
        let replica = primary.replica();
        let on_replica = settings(&replica.address(&database));
        let mut both = settings(&url);
        both.replica_url = Some(on_replica.url.clone());
        Some(Self {
            primary,
            replica,
            database,
            settings: both,
            on_replica,
        })
    }

    async fn pause(&self) {
        sql(&self.on_replica, "SELECT pg_wal_replay_pause()").await;
        let state = "SELECT pg_get_wal_replay_pause_state()";
        until(&self.on_replica, state, "paused").await;
    }

    async fn resume(&self) {
        sql(&self.on_replica, "SELECT pg_wal_replay_resume()").await;
    }
}

fn name(url: &str) -> String {
    url.rsplit('/').next().expect("a name").to_owned()
}

async fn newest(store: &PostgresStore) -> Result<usize, ReadError> {
    let newest = store.newest(vec![group(1)], true, 1 << 20).await;
    newest.map(|newest| newest.len())
}

/// Another database on the same server, and one of another server.
#[tokio::test]
async fn a_replica_of_another_database_is_refused() {
    let Some(mut settings) = fresh() else { return };
    let Some(elsewhere) = Postgres::start("fsync = off\n") else {
        return;
    };
    for url in [
        fresh().expect("a database").url.expose(),
        &elsewhere.database(),
    ] {
        // It belongs to a deployment of the same name.
        open(&super::settings(url)).await.close().await;
        settings.replica_url = Some(Secret::new(url));
        let opened = PostgresStore::open(settings.clone(), Arc::new(NoHooks)).await;
        let error = opened.expect_err("it is refused");
        assert!(matches!(error, SetupError::OtherDatabase), "{error}");
        assert!(error.to_string().contains("database.replica_url"));
    }
}

/// The address of the replica leads elsewhere while the server runs.
#[tokio::test]
async fn a_replica_that_becomes_another_database_is_not_read() {
    let Some(server) = Postgres::shared() else {
        return;
    };
    let Some(elsewhere) = Postgres::start("fsync = off\n") else {
        return;
    };
    let url = server.database();
    let database = name(&url);
    elsewhere.sql("postgres", &format!("CREATE DATABASE {database}"));
    let other = super::settings(&elsewhere.address(&database));
    open(&other).await.close().await;
    let proxy = Proxy::to(server).await;
    let mut settings = super::settings(&url);
    settings.replica_url = Some(Secret::new(proxy.address(&database)));
    let store = open(&settings).await;
    fill(&store, group(1), &["a"]).await;
    let mut tail = store.tail().await.expect("a tail");
    assert_eq!(newest(&store).await, Ok(1));
    proxy.lead_to(&elsewhere);
    assert_eq!(ended(&mut tail).await, TailError::Lost);
    assert_eq!(newest(&store).await, Err(ReadError::Unavailable));
    assert_eq!(store.tail().await.expect_err("no tail"), TailError::Lost);
    proxy.lead_to(server);
    store.tail().await.expect("a tail again");
    assert_eq!(newest(&store).await, Ok(1));
}

/// A replica is promoted while the primary lives: what is stored from then on is never seen there,
/// and no connection to it ends by that.
#[tokio::test]
async fn a_replica_that_is_promoted_beside_its_primary_is_followed_no_longer() {
    let Some(pair) = Pair::start().await else {
        return;
    };
    let store = open(&pair.settings).await;
    let mut tail = store.tail().await.expect("a tail");
    fill(&store, group(1), &["b"]).await;
    assert_eq!(texts(&mut tail, 1).await, ["b"]);
    assert_eq!(newest(&store).await, Ok(1));
    store.heads(vec![group(1)]).await.expect("heads");
    pair.replica.sql(&pair.database, "SELECT pg_promote()");
    assert_eq!(ended(&mut tail).await, TailError::Lost);
    assert_eq!(store.tail().await.expect_err("no tail"), TailError::Lost);
    assert_eq!(newest(&store).await, Err(ReadError::Unavailable));
    let heads = store.heads(vec![group(1)]).await;
    assert_eq!(heads, Err(ReadError::Unavailable));
    fill(&store, group(1), &["c"]).await;
    let opened = PostgresStore::open(pair.settings.clone(), Arc::new(NoHooks)).await;
    let error = opened.expect_err("it is refused");
    assert!(matches!(error, SetupError::OtherDatabase), "{error}");
    let others = "SELECT count(*) FROM pg_stat_replication";
    let replicas = pair.primary.sql(&pair.database, others);
    assert_eq!(replicas, "0", "the primary lives and nobody replays it");
}

/// A start tells that it waits for nothing; streams that ran before wait as long as it takes.
#[tokio::test]
async fn a_replica_that_does_not_catch_up_fails_a_start_and_nothing_later() {
    let Some(mut pair) = Pair::start().await else {
        return;
    };
    pair.settings.max_replica_wait = Duration::ZERO;
    let store = open(&pair.settings).await;
    pair.pause().await;
    fill(&store, group(1), &["b"]).await;
    let opened = timeout(PATIENCE, store.tail()).await.expect("it ends");
    let error = opened.expect_err("no tail");
    assert_eq!(error, TailError::Behind);
    assert!(error.to_string().contains("database.replica_url"));
    pair.resume().await;
    let caught_up = "SELECT closed_sequence_id >= 2 FROM allocation_boundary";
    until(&pair.on_replica, caught_up, "t").await;
    let mut tail = store.tail().await.expect("it is not behind");

    pair.pause().await;
    fill(&store, group(1), &["c"]).await;
    let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE application_name = 'xmtp-backend tail'";
    assert_eq!(sql(&pair.on_replica, cut).await, "1");
    assert_eq!(ended(&mut tail).await, TailError::Lost);
    let waits = "SELECT count(*) FROM pg_stat_activity
        WHERE application_name = 'xmtp-backend tail' AND query LIKE '%pg_is_in_recovery%boundary'";
    let resume = async {
        until(&pair.on_replica, waits, "1").await;
        pair.resume().await;
    };
    let (again, ()) = tokio::join!(timeout(PATIENCE, store.tail()), resume);
    let mut tail = again.expect("in time").expect("another tail");
    fill(&store, group(1), &["d"]).await;
    assert_eq!(texts(&mut tail, 1).await, ["d"]);
}
