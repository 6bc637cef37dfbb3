//! Two processes on one encrypted database of one account, and a third party at the other end of
//! a real backend.
//!
//! `XMTP_ROUNDS` is how many conversations the third party begins.

mod shared;

use std::time::Duration;

use shared::crowd::{
    TEXTS, TEXTS_PER_ROUND, begin, check, live, open_as_child, open_bo, open_carol, syncing,
};
use shared::{ENDPOINT, HOME, LEASE_IS_OVER, PATIENCE, close, text_of, texts_of, told};
use xmtp_core::delivery::{Filter, MessageConsumer, Scope, StreamError};
use xmtp_core::limits::DEFAULT_CONSUMER_LEASE_DURATION;
use xmtp_testkit::TestBackend;
use xmtp_testkit::process::{Child, role, say};

const DEFAULT_ROUNDS: usize = 5;

fn rounds() -> usize {
    let asked = std::env::var("XMTP_ROUNDS").ok();
    let asked = asked.map(|text| text.parse().expect("XMTP_ROUNDS is a number"));
    asked.unwrap_or(DEFAULT_ROUNDS)
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
    check(&backend, &bo, &carol, &groups).await;
    close(&bo).await;
    close(&carol).await;
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
