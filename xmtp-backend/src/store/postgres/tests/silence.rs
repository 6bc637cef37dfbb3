//! A database that neither answers nor hangs up: everything that waits for it ends by itself.

use super::*;
use crate::testing::{Proxy, Silence};

/// A database, and a way to it that can fall silent.
struct Rig {
    proxy: Proxy,
    /// Through the proxy.
    settings: PostgresOptions,
    /// Beside it.
    direct: PostgresOptions,
}

impl Rig {
    async fn new() -> Option<Self> {
        let server = Postgres::shared()?;
        let proxy = Proxy::to(server).await;
        let url = server.database();
        let database = url.rsplit('/').next().expect("a name");
        let quick = |url: &str| PostgresOptions {
            max_statement_time: Duration::from_millis(300),
            max_publish_time: Duration::from_millis(500),
            ..settings(url)
        };
        Some(Self {
            settings: quick(&proxy.address(database)),
            direct: settings(&url),
            proxy,
        })
    }
}

/// Waits for something that must end, whatever it ends with.
async fn ends<T>(work: impl Future<Output = T>) -> T {
    timeout(PATIENCE, work).await.expect("it ends by itself")
}

/// covers: STR-035
#[tokio::test]
async fn a_silent_database_ends_the_tail_and_is_followed_again_when_it_answers() {
    let Some(rig) = Rig::new().await else { return };
    let store = open(&rig.settings).await;
    let mut tail = store.tail().await.expect("a tail");
    fill(&store, group(1), &["a"]).await;
    assert_eq!(texts(&mut tail, 1).await, ["a"]);
    rig.proxy.silence(Silence::Now);
    assert_eq!(ended(&mut tail).await, TailError::Lost);
    let reopened = async {
        assert_eq!(
            ends(store.tail()).await.expect_err("no tail"),
            TailError::Lost
        );
    };
    let reads = async {
        for _ in 0..2 {
            ends(store.query(query(&[(group(1), 0)], 9)))
                .await
                .expect_err("no page");
            ends(store.heads(vec![group(1)]))
                .await
                .expect_err("no heads");
        }
    };
    let publishes = async {
        for _ in 0..2 {
            let error = ends(store.publish(vec![envelope(group(1), "b")])).await;
            assert_eq!(error, Err(PublishError::Unavailable));
        }
    };
    let budget = PruneBudget {
        rows: 9,
        after: None,
    };
    let prune = async {
        assert_eq!(
            ends(store.prune(1, budget)).await,
            Err(PruneError::Unavailable)
        );
    };
    tokio::join!(reopened, reads, publishes, prune);
    rig.proxy.silence(Silence::Never);
    let mut tail = store.tail().await.expect("a tail");
    store_one(&store, envelope(group(1), "b")).await;
    assert_eq!(texts(&mut tail, 1).await, ["b"]);
    ends(store.close()).await;
}

/// Connections that open and then say nothing, not even which server they lead to.
#[tokio::test]
async fn a_connection_that_falls_silent_once_it_is_open_is_given_up() {
    let Some(rig) = Rig::new().await else { return };
    let store = open(&rig.settings).await;
    rig.proxy.silence(Silence::AfterStart);
    let tail = async {
        assert_eq!(
            ends(store.tail()).await.expect_err("no tail"),
            TailError::Lost
        );
    };
    let reads = async {
        ends(store.query(query(&[(group(1), 0)], 9)))
            .await
            .expect_err("no page");
        ends(store.heads(vec![group(1)]))
            .await
            .expect_err("no heads");
    };
    let publish = async {
        let error = ends(store.publish(vec![envelope(group(1), "a")])).await;
        assert_eq!(error, Err(PublishError::Unavailable));
    };
    let opened = async {
        let opened = PostgresStore::open(rig.settings.clone(), Arc::new(NoHooks));
        let error = Box::pin(ends(opened)).await.expect_err("no store");
        assert!(matches!(error, SetupError::Silent), "{error}");
        let error = Box::pin(ends(fence(&rig.settings)))
            .await
            .expect_err("no fence");
        assert!(matches!(error, SetupError::Silent), "{error}");
    };
    tokio::join!(tail, reads, publish, opened);
    rig.proxy.silence(Silence::Never);
    ends(store.close()).await;
}

/// The connection of the boundary falls silent, and the one of the tail goes on.
///
/// covers: STR-035
#[tokio::test]
async fn a_boundary_that_is_never_drawn_ends_the_tail() {
    let Some(rig) = Rig::new().await else { return };
    let mut settings = rig.settings.clone();
    settings.replica_url = Some(rig.direct.url.clone());
    let store = open(&settings).await;
    let mut tail = store.tail().await.expect("a tail");
    let (hooks, mut held) = Hold::at(Point::Allocated);
    let (undone, other) = (open_with(&rig.direct, hooks).await, open(&rig.direct).await);
    rig.proxy.silence(Silence::Now);
    let publish = undone.publish(vec![envelope(group(1), "undone")]);
    let undo = async {
        let held = arrival(&mut held).await;
        held.send(Verdict::Unavailable).expect("it is held");
    };
    assert_eq!(
        tokio::join!(publish, undo).0,
        Err(PublishError::Unavailable)
    );
    store_one(&other, envelope(group(2), "a")).await;
    assert_eq!(ended(&mut tail).await, TailError::Lost);
}

/// A publish that finds its envelope stored has nothing to commit, and is answered though what it
/// began can not be undone. Its connection is closed: it may be in the middle of that.
#[tokio::test]
async fn a_transaction_that_can_not_be_undone_holds_up_no_answer() {
    let Some(rig) = Rig::new().await else { return };
    let other = open(&rig.direct).await;
    let stored = store_one(&other, envelope(group(1), "a")).await;
    let (hooks, mut held) = Hold::at(Point::TopicsLocked);
    // The server does not end the transaction meanwhile.
    let settings = PostgresOptions {
        max_publish_time: PATIENCE,
        ..rig.settings.clone()
    };
    let store = open_with(&settings, hooks).await;
    let publish = ends(store.publish(vec![envelope(group(1), "a")]));
    let silence = async {
        let held = arrival(&mut held).await;
        let open = "SELECT pid FROM pg_stat_activity
            WHERE datname = current_database() AND state = 'idle in transaction'";
        let pid = sql(&rig.direct, open).await;
        rig.proxy.silence(Silence::Now);
        held.send(Verdict::Go).expect("it is held");
        pid
    };
    let (published, pid) = tokio::join!(publish, silence);
    assert_eq!(published, Ok(vec![stored]));
    rig.proxy.silence(Silence::Never);
    let open = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
    until(&rig.direct, &open, "0").await;
}
