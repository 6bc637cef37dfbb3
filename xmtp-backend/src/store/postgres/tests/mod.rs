//! The rules that only a shared database can break: who waits for whom, what is seen when, and what
//! is left after a loss. Each test has a database of its own, and stops the store at named points.

mod boundary;
mod encryption;
mod following;
mod publishing;
mod replica;
mod setup;
mod silence;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use deadpool_postgres::ClientWrapper;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_postgres::SimpleQueryMessage;

use super::*;
use crate::hooks::{NoHooks, Point, Verdict};
use crate::store::conformance::{envelope, fill, group, payloads, query, run, store_one};
use crate::testing::Postgres;

/// How long anything may take; it can only fail a test.
const PATIENCE: Duration = Duration::from_secs(60);

const IDENTIFIER: &str = "org.example.test";

/// Returns the settings of a test on an empty database; `None` where there is no PostgreSQL.
fn fresh() -> Option<PostgresOptions> {
    Some(settings(&Postgres::shared()?.database()))
}

fn settings(url: &str) -> PostgresOptions {
    PostgresOptions {
        url: Secret::new(url),
        replica_url: None,
        identifier: IDENTIFIER.to_owned(),
        max_connections: 12,
        max_statement_time: Duration::from_secs(20),
        max_publish_time: Duration::from_secs(30),
        max_barrier_wait: Duration::from_millis(50),
        max_replica_wait: PATIENCE,
        poll_interval: Duration::from_millis(5),
        max_gap_ranges: 100,
    }
}

async fn open(settings: &PostgresOptions) -> PostgresStore {
    open_with(settings, Arc::new(NoHooks)).await
}

async fn open_with(settings: &PostgresOptions, hooks: Arc<dyn Hooks>) -> PostgresStore {
    let opened = PostgresStore::open(settings.clone(), hooks).await;
    opened.expect("the store opens")
}

/// Opens a connection beside the store.
async fn connection(settings: &PostgresOptions) -> ClientWrapper {
    let server = Server::parse(&settings.url).expect("an address");
    server.connect("test").await.expect("a connection")
}

/// Runs SQL beside the store and returns the first value.
async fn sql(settings: &PostgresOptions, sql: &str) -> String {
    let client = connection(settings).await;
    let messages = client.simple_query(sql).await.expect("it runs");
    let value = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or_default().to_owned()),
        _ => None,
    });
    value.unwrap_or_default()
}

/// Waits until a statement gives a value.
async fn until(settings: &PostgresOptions, statement: &str, value: &str) {
    let wait = async {
        while sql(settings, statement).await != value {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, wait).await.expect(statement);
}

/// Ends the connections of servers that are in the middle of a transaction.
const TERMINATE: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND state = 'idle in transaction'";

/// Holds a store at one point.
#[derive(Debug)]
struct Hold {
    point: Point,
    arrivals: mpsc::UnboundedSender<Held>,
}

/// A store that waits for its verdict.
type Held = oneshot::Sender<Verdict>;

impl Hold {
    fn at(point: Point) -> (Arc<Self>, mpsc::UnboundedReceiver<Held>) {
        let (arrivals, held) = mpsc::unbounded_channel();
        (Arc::new(Self { point, arrivals }), held)
    }
}

#[async_trait]
impl Hooks for Hold {
    async fn reach(&self, point: Point) -> Verdict {
        if point != self.point {
            return Verdict::Go;
        }
        let (held, verdict) = oneshot::channel();
        // Once the test no longer listens, everything goes.
        match self.arrivals.send(held) {
            Ok(()) => verdict.await.unwrap_or(Verdict::Go),
            Err(_) => Verdict::Go,
        }
    }
}

async fn arrival(held: &mut mpsc::UnboundedReceiver<Held>) -> Held {
    let held = timeout(PATIENCE, held.recv()).await;
    held.expect("it gets there").expect("the store lives")
}

/// Waits for the next rows of a tail.
async fn next(tail: &mut Box<dyn Tail>) -> Vec<Envelope> {
    let rows = timeout(PATIENCE, tail.next()).await.expect("rows in time");
    rows.expect("the tail lives")
}

/// Waits for a number of rows and returns their payloads.
async fn texts(tail: &mut Box<dyn Tail>, count: usize) -> Vec<String> {
    let mut texts = Vec::new();
    while texts.len() < count {
        for row in next(tail).await {
            texts.push(String::from_utf8(row.payload.to_vec()).expect("text"));
        }
    }
    texts
}

/// Waits until a tail ends.
async fn ended(tail: &mut Box<dyn Tail>) -> TailError {
    let ended = async {
        loop {
            if let Err(error) = tail.next().await {
                return error;
            }
        }
    };
    timeout(PATIENCE, ended).await.expect("the tail ends")
}

#[tokio::test]
async fn postgres_conforms() {
    let Some(server) = Postgres::shared() else {
        return;
    };
    run(async || {
        let settings = settings(&server.database());
        let opened = PostgresStore::open(settings, Arc::new(NoHooks)).await;
        opened.expect("the store opens")
    })
    .await;
}

#[test]
fn connections_are_divided_and_not_exceeded() {
    for max in 5..60 {
        let sizes = Sizes::of(max);
        assert!(
            sizes.publishes + sizes.queries + sizes.turns + 2 <= max,
            "{max}: {sizes:?}"
        );
    }
    let few = Sizes::of(1);
    assert_eq!((few.publishes, few.queries, few.turns), (1, 1, 1));
}

/// Ids are taken in one place, so that none is taken without the locks.
#[test]
fn one_statement_takes_ids() {
    let mut found = Vec::new();
    let mut folders = vec![std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path)
                .expect("a text")
                .to_lowercase();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let words = [concat!("next", "val("), concat!("set", "val(")];
            found.extend(
                words
                    .iter()
                    .flat_map(|word| text.matches(word))
                    .map(|_| name.clone()),
            );
        }
    }
    found.sort();
    assert_eq!(found, ["allocate.sql", "fence.sql"]);
}
