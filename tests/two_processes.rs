//! Two processes on one encrypted database of one account, and a third party at the other end of
//! a real backend.
//!
//! `XMTP_ROUNDS` is how many conversations the third party begins.

mod shared;

use std::collections::BTreeSet;
use std::time::Duration;

use shared::{
    ENDPOINT, HOME, LEASE_IS_OVER, PATIENCE, account, close, grpc, now, open, sqlite, text_of,
    texts_of, told,
};
use xmtp_core::delivery::{Filter, MessageConsumer, Scope, StreamError};
use xmtp_core::limits::DEFAULT_CONSUMER_LEASE_DURATION;
use xmtp_core::storage::{All, Database, Order, Page, Read, StorageError, schema};
use xmtp_core::testing::memory::MemoryStorage;
use xmtp_mls::{Client, Group};
use xmtp_testkit::process::{Child, role, say};
use xmtp_testkit::{ShiftedRuntime, TestBackend};

const DEFAULT_ROUNDS: usize = 5;
/// Texts that the third party sends in each conversation.
const TEXTS_PER_ROUND: usize = 3;
/// More rows than any table of these tests has.
const MANY_ROWS: u32 = 100_000;

const BO: [u8; 32] = [21; 32];
const CAROL: [u8; 32] = [22; 32];

const TEXTS: &str = "XMTP_TEST_TEXTS";

fn rounds() -> usize {
    let asked = std::env::var("XMTP_ROUNDS").ok();
    let asked = asked.map(|text| text.parse().expect("XMTP_ROUNDS is a number"));
    asked.unwrap_or(DEFAULT_ROUNDS)
}

/// Opens the database that the processes share.
async fn open_bo(home: &str, endpoint: &str, ahead: Duration) -> Client {
    open(
        &BO,
        sqlite(home),
        grpc(endpoint),
        ShiftedRuntime::ahead(ahead),
    )
    .await
}

/// Opens what is told to a child.
async fn open_as_child() -> Client {
    open_bo(&told(HOME), &told(ENDPOINT), Duration::ZERO).await
}

async fn open_carol(backend: &TestBackend) -> Client {
    open(&CAROL, MemoryStorage::new(), backend.in_process(), now()).await
}

/// Waits for the next text of a consumer.
async fn next_text(consumer: &mut MessageConsumer) -> Result<String, StreamError> {
    loop {
        let message = consumer.next().await?.expect("nobody ended the consumer");
        if let Some(text) = text_of(&message) {
            return Ok(text);
        }
    }
}

async fn say_done(client: &Client) {
    client.close().await.expect("the database closes");
    say("done");
}

/// Streams, consumes and answers every text of the third party.
async fn live(texts: usize) {
    let client = open_as_child().await;
    say("ready");
    let messages = client.messages();
    let consumer = messages.consume(Scope::All, Filter::all()).await;
    let mut consumer = consumer.expect("this process is the only consumer");
    let mut answered = 0;
    while answered < texts {
        let message = consumer.next().await.expect("an item").expect("no end");
        let Some(text) = text_of(&message).filter(|text| text.starts_with("carol")) else {
            continue;
        };
        let group = client.conversations().group(message.group);
        group
            .send_text(&format!("live: {text}"))
            .await
            .expect("live's answer");
        if text.ends_with(".2") {
            group.update_keys().await.expect("live's keys");
        }
        answered += 1;
    }
    consumer.finish().await.expect("the consumer ends");
    say_done(&client).await;
}

/// Syncs in a loop and answers every text of the third party.
async fn syncing(texts: usize) {
    let client = open_as_child().await;
    say("ready");
    let mut answered = BTreeSet::new();
    while answered.len() < texts {
        client.sync_all().await.expect("a sync");
        for group in client.conversations().list().await.expect("the groups") {
            for text in texts_of(&client, group.id()).await {
                if text.starts_with("carol") && answered.insert(text.clone()) {
                    group
                        .send_text(&format!("sync: {text}"))
                        .await
                        .expect("sync's answer");
                    if text.ends_with(".3") {
                        group.update_keys().await.expect("sync's keys");
                    }
                }
            }
        }
    }
    say_done(&client).await;
}

/// Begins a conversation with Bo, renames it and renews keys between texts.
async fn begin(carol: &Client, round: usize) -> Group {
    let inbox = account(&BO).inbox_id();
    let name = format!("room {round}");
    let group = carol.conversations().new_group(&name, &[inbox]).await;
    let group = group.expect("a conversation");
    for number in 1..=TEXTS_PER_ROUND {
        let text = format!("carol {round}.{number}");
        group.send_text(&text).await.expect("carol's text");
        match number {
            1 => group
                .rename(&format!("place {round}"))
                .await
                .expect("a new name"),
            _ => group.update_keys().await.expect("carol's keys"),
        };
    }
    group
}

/// What a conversation holds when everybody has answered, each text once.
fn everything(round: usize) -> Vec<String> {
    let texts = (1..=TEXTS_PER_ROUND).map(|number| format!("carol {round}.{number}"));
    let mut all: Vec<String> = texts
        .flat_map(|text| [format!("live: {text}"), format!("sync: {text}"), text])
        .collect();
    all.sort();
    all
}

/// Reads the reasons of rejections, and how many sends are unfinished.
fn left_behind(database: &Database) -> (Vec<String>, usize) {
    let page = Page {
        rows: MANY_ROWS,
        bytes: u32::MAX,
        order: Order::Ascending,
    };
    let read = database.read(|snapshot| {
        let rejections = snapshot.page(schema::REJECTION, &All, None, page)?.rows;
        let unfinished = snapshot
            .page(schema::INTENT_BY_GROUP, &All, None, page)?
            .rows;
        let reasons = rejections
            .into_iter()
            .map(|(_, rejection)| rejection.reason);
        Ok::<_, StorageError>((reasons.collect(), unfinished.len()))
    });
    read.expect("the database is read")
}

/// Two processes receive, process, join, send and renew keys beside each other; nothing is lost,
/// doubled or decided twice.
///
/// covers: STR-070, STR-112
#[tokio::test(flavor = "multi_thread")]
async fn two_processes_share_one_database() {
    const NAME: &str = "two_processes_share_one_database";
    if let Some(role) = role() {
        let texts = told(TEXTS).parse().expect("a number");
        return match role.as_str() {
            "live" => live(texts).await,
            _ => syncing(texts).await,
        };
    }
    let rounds = rounds();
    let mut backend = TestBackend::start().await;
    let home = tempfile::tempdir().expect("a folder");
    let path = home.path().to_str().expect("a folder with a plain name");
    let texts = (rounds * TEXTS_PER_ROUND).to_string();
    let endpoint = backend.endpoint();
    let variables = [
        (HOME, path),
        (ENDPOINT, endpoint.as_str()),
        (TEXTS, texts.as_str()),
    ];
    // Both find an empty database, and register one installation.
    let mut children = ["live", "sync"].map(|role| Child::spawn(NAME, role, &variables));
    for child in &mut children {
        tokio::task::block_in_place(|| child.wait_for("ready", PATIENCE));
    }
    let carol = open_carol(&backend).await;
    carol.go_live();
    let mut groups = Vec::new();
    for round in 0..rounds {
        groups.push(begin(&carol, round).await);
    }
    for child in &mut children {
        tokio::task::block_in_place(|| child.wait_for("done", PATIENCE * rounds as u32));
        assert!(child.wait().success());
    }

    let bo = open_bo(path, &endpoint, Duration::ZERO).await;
    bo.sync_all().await.expect("bo syncs");
    carol.sync_all().await.expect("carol syncs");
    for (round, group) in groups.iter().enumerate() {
        let found = texts_of(&bo, group.id()).await;
        assert_eq!(
            found,
            texts_of(&carol, group.id()).await,
            "another order in round {round}"
        );
        let mut sorted = found;
        sorted.sort();
        assert_eq!(sorted, everything(round), "round {round}");
        let other = bo.conversations().group(group.id());
        assert_eq!(
            other.name().await.expect("a name"),
            format!("place {round}")
        );
        assert_eq!(
            other.epoch().await.expect("an epoch"),
            group.epoch().await.expect("an epoch")
        );
        assert_eq!(
            other.epoch_authenticator().await.expect("an authenticator"),
            group.epoch_authenticator().await.expect("an authenticator")
        );
    }
    for (name, client) in [("bo", &bo), ("carol", &carol)] {
        let (reasons, unfinished) = left_behind(&client.engine().context().database);
        // A commit that lost against another of its epoch.
        let unexpected: Vec<&String> = reasons
            .iter()
            .filter(|reason| *reason != "commit_stale")
            .collect();
        assert!(unexpected.is_empty(), "{name} rejected {unexpected:?}");
        assert_eq!(unfinished, 0, "{name} has unfinished sends");
        close(client).await;
    }
    backend.stop().await;
}

/// Takes over the default consumer and says what it gets; never ends by itself.
async fn consumer(count: usize) {
    let client = open_as_child().await;
    client.sync_all().await.expect("a sync");
    let consumer = client.messages().consume(Scope::All, Filter::all()).await;
    let mut consumer = consumer.expect("this process is the only consumer");
    for _ in 0..count {
        say(&format!(
            "handed {}",
            next_text(&mut consumer).await.expect("a text")
        ));
    }
    if count == 1 {
        // Keeps its item, and is killed here.
        std::future::pending::<()>().await;
    }
    say("waits");
    let lost = next_text(&mut consumer)
        .await
        .expect_err("another consumer took over");
    assert_eq!(lost, StreamError::OwnershipLost);
    say("lost");
}

fn expires_in(result: Result<MessageConsumer, StreamError>) -> Duration {
    match result {
        Err(StreamError::AlreadyActive { expires_in }) => expires_in,
        other => panic!("a second consumer became {other:?}"),
    }
}

/// One default consumer over all processes; its item comes again after it was killed, and a
/// consumer that lives on past its lease hands over nothing more.
///
/// covers: STR-023, STR-096
#[tokio::test(flavor = "multi_thread")]
async fn one_default_consumer_over_all_processes() {
    const NAME: &str = "one_default_consumer_over_all_processes";
    if let Some(role) = role() {
        return match role.as_str() {
            "killed" => consumer(1).await,
            _ => consumer(2).await,
        };
    }
    let mut backend = TestBackend::start().await;
    let home = tempfile::tempdir().expect("a folder");
    let path = home.path().to_str().expect("a folder with a plain name");
    let endpoint = backend.endpoint();
    let variables = [(HOME, path), (ENDPOINT, endpoint.as_str())];
    let bo = open_bo(path, &endpoint, Duration::ZERO).await;
    let carol = open_carol(&backend).await;
    let group = carol
        .conversations()
        .new_group("ops", &[bo.inbox_id()])
        .await;
    let group = group.expect("a conversation");
    group.send_text("one").await.expect("a text");

    let mut child = Child::spawn(NAME, "killed", &variables);
    let handed = |child: &mut Child, text: &str| {
        let line = tokio::task::block_in_place(|| child.wait_for("handed", PATIENCE));
        assert_eq!(line, format!("handed {text}"));
    };
    handed(&mut child, "one");
    let lease = DEFAULT_CONSUMER_LEASE_DURATION;
    for scope in [Scope::All, Scope::from(group.id())] {
        let left = expires_in(bo.messages().consume(scope, Filter::all()).await);
        assert!(left > Duration::ZERO && left <= lease, "{left:?}");
    }
    // A replay needs no lease.
    assert_eq!(texts_of(&bo, group.id()).await, ["one"]);
    child.kill();
    let left = expires_in(bo.messages().consume(Scope::All, Filter::all()).await);
    assert!(
        left > Duration::ZERO && left <= lease,
        "a kill gives nothing back: {left:?}"
    );
    bo.close().await.expect("a close");

    // By a clock that is ahead, the lease of the killed one has lapsed, and its item comes again.
    let mut child = {
        let later = open_bo(path, &endpoint, LEASE_IS_OVER).await;
        let consumer = later.messages().consume(Scope::All, Filter::all()).await;
        let mut consumer = consumer.expect("the lease has lapsed");
        assert_eq!(next_text(&mut consumer).await.expect("a text"), "one");
        consumer
            .close()
            .await
            .expect("a close without an acknowledgement");
        later.close().await.expect("a close");
        group.send_text("two").await.expect("a text");
        Child::spawn(NAME, "overtaken", &variables)
    };
    handed(&mut child, "one");
    handed(&mut child, "two");
    tokio::task::block_in_place(|| child.wait_for("waits", PATIENCE));

    let later = open_bo(path, &endpoint, LEASE_IS_OVER * 2).await;
    let consumer = later.messages().consume(Scope::All, Filter::all()).await;
    let mut consumer = consumer.expect("the lease has lapsed by this clock");
    group.send_text("three").await.expect("a text");
    let mut texts = vec![next_text(&mut consumer).await.expect("a text")];
    // The overtaken one acknowledged its last item by asking on, unless it was too late.
    if texts[0] == "two" {
        texts.push(next_text(&mut consumer).await.expect("a text"));
    }
    assert_eq!(texts.last().map(String::as_str), Some("three"));
    let line = tokio::task::block_in_place(|| child.next_line(PATIENCE));
    assert_eq!(line, "lost");
    assert!(child.wait().success());
    consumer.finish().await.expect("an end");
    close(&later).await;
    carol.close().await.expect("a close");
    backend.stop().await;
}
