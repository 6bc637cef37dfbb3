//! One account in several processes on one database, and a third party who begins conversations and
//! is answered by each of them.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt;
use xmtp_core::delivery::{Filter, MessageConsumer, Scope, StreamError};
use xmtp_core::error::Coded;
use xmtp_core::storage::{All, Database, Domain, Order, Page, Read, StorageError, schema};
use xmtp_core::testing::memory::MemoryStorage;
use xmtp_core::transport::Transport;
use xmtp_mls::key_package::ROTATE_AFTER_WELCOME_NS;
use xmtp_mls::{Client, Group};
use xmtp_proto::backend::v1::QueryNewestRequest;
use xmtp_proto::envelope::canonical_bytes;
use xmtp_proto::{GroupId, Topic};
use xmtp_testkit::process::say;
use xmtp_testkit::{ShiftedRuntime, TestBackend};

use super::{ENDPOINT, HOME, account, grpc, now, open, sqlite, text_of, texts_of, told};

/// Texts that the third party sends in each conversation.
pub(crate) const TEXTS_PER_ROUND: usize = 3;
/// More rows than any table of these tests has.
const MANY: Page = Page {
    rows: 100_000,
    bytes: u32::MAX,
    order: Order::Ascending,
};
/// How often a write that finds the database busy is tried again.
const MAX_TRIES: usize = 24;

pub(crate) const BO: [u8; 32] = [21; 32];
pub(crate) const CAROL: [u8; 32] = [22; 32];

/// Tells a child how many texts the third party sends in all.
pub(crate) const TEXTS: &str = "XMTP_TEST_TEXTS";

/// Opens the database that the processes share.
pub(crate) async fn open_bo(home: &str, endpoint: &str, ahead: Duration) -> Client {
    open(
        &BO,
        sqlite(home),
        grpc(endpoint),
        ShiftedRuntime::ahead(ahead),
    )
    .await
}

/// Opens what is told to a child.
pub(crate) async fn open_as_child() -> Client {
    open_bo(&told(HOME), &told(ENDPOINT), Duration::ZERO).await
}

pub(crate) async fn open_carol(backend: &TestBackend) -> Client {
    open(&CAROL, MemoryStorage::new(), backend.in_process(), now()).await
}

/// Repeats what another process keeps from being written for longer than a writer waits; says
/// `busy` each time.
pub(crate) async fn patiently<T, E: Coded>(mut call: impl AsyncFnMut() -> Result<T, E>) -> T {
    for _ in 0..MAX_TRIES {
        match call().await {
            Ok(answer) => return answer,
            Err(error) if error.code() == "storage.busy" => say("busy"),
            Err(error) => panic!("{}: {error}", error.code()),
        }
    }
    panic!("the database is busy for ever");
}

pub(crate) async fn say_done(client: &Client) {
    client.close().await.expect("the database closes");
    say("done");
}

/// Reads and replays what is stored for as long as the client is open, and says `read` each time:
/// no reader ever waits for a writer.
pub(crate) fn keep_reading(client: &Client) {
    let client = client.clone();
    tokio::spawn(async move {
        let mut changes = client.engine().context().database.changes();
        loop {
            let Ok(groups) = client.conversations().list().await else {
                return;
            };
            if let Some(group) = groups.last()
                && read_one(&client, group.id()).await.is_err()
            {
                return;
            }
            say("read");
            if changes
                .changed_or_poll(Domain::Progress.bit())
                .await
                .is_err()
            {
                return;
            }
        }
    });
}

/// Reads the history of a group, and replays its first message.
async fn read_one(client: &Client, group: GroupId) -> Result<(), StreamError> {
    let messages = client.messages();
    let scope = Scope::from(group);
    let history = messages.history(scope.clone(), Filter::all(), 1).await?;
    if !history.messages.is_empty() {
        let replay = messages.replay(messages.beginning(), scope, Filter::all());
        replay.await?.next().await.transpose()?;
    }
    Ok(())
}

/// Starts the default consumer, also after one of this process whose lease is not given back yet.
async fn consume(client: &Client) -> MessageConsumer {
    let mut changes = client.engine().context().database.changes();
    loop {
        match client.messages().consume(Scope::All, Filter::all()).await {
            Ok(consumer) => return consumer,
            Err(StreamError::AlreadyActive { .. } | StreamError::Storage(_)) => say("busy"),
            Err(error) => panic!("no consumer: {error}"),
        }
        changes.changed_or_poll(0).await.expect("it is open");
    }
}

/// Streams, consumes and answers every text of the third party.
pub(crate) async fn live(texts: usize) {
    let client = open_as_child().await;
    keep_reading(&client);
    say("ready");
    let mut answered = BTreeSet::new();
    while answered.len() < texts {
        let mut consumer = consume(&client).await;
        while answered.len() < texts {
            let (group, text) = match consumer.next().await {
                Ok(message) => {
                    let message = message.expect("nobody ended the consumer");
                    (message.group, text_of(&message))
                }
                // The item was not acknowledged, and comes again.
                Err(StreamError::AckNotStored { .. } | StreamError::Storage(_)) => {
                    say("busy");
                    break;
                }
                Err(error) => panic!("the consumer ended: {error}"),
            };
            let Some(text) = text.filter(|text| text.starts_with("carol")) else {
                continue;
            };
            if answered.insert(text.clone()) {
                let group = client.conversations().group(group);
                answer(&group, "live", &text, ".2").await;
            }
        }
        // What is not acknowledged at its end is of no interest here.
        let _ = consumer.finish().await;
    }
    say_done(&client).await;
}

/// Syncs in a loop and answers every text of the third party.
pub(crate) async fn syncing(texts: usize) {
    let client = open_as_child().await;
    keep_reading(&client);
    say("ready");
    let mut answered = BTreeSet::new();
    while answered.len() < texts {
        patiently(async || client.sync_all().await).await;
        for group in client.conversations().list().await.expect("the groups") {
            for text in texts_of(&client, group.id()).await {
                if text.starts_with("carol") && answered.insert(text.clone()) {
                    answer(&group, "sync", &text, ".3").await;
                }
            }
        }
    }
    say_done(&client).await;
}

/// Answers a text, and renews keys behind one of each conversation.
async fn answer(group: &Group, who: &str, text: &str, renews_behind: &str) {
    let answer = format!("{who}: {text}");
    patiently(async || group.send_text(&answer).await).await;
    if text.ends_with(renews_behind) {
        patiently(async || group.update_keys().await).await;
    }
}

/// Joins, receives and renews keys in every conversation, and says nothing in any; never ends.
pub(crate) async fn helping() {
    let client = open_as_child().await;
    keep_reading(&client);
    say("ready");
    let mut renewed: BTreeSet<GroupId> = BTreeSet::new();
    loop {
        patiently(async || client.sync_all().await).await;
        for group in client.conversations().list().await.expect("the groups") {
            if renewed.insert(group.id()) {
                patiently(async || group.update_keys().await).await;
            }
        }
    }
}

/// Begins a conversation with Bo, renames it and renews keys between texts.
pub(crate) async fn begin(carol: &Client, round: usize) -> Group {
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
    let read = database.read(|snapshot| {
        let rejections = snapshot.page(schema::REJECTION, &All, None, MANY)?.rows;
        let unfinished = snapshot
            .page(schema::INTENT_BY_GROUP, &All, None, MANY)?
            .rows;
        let reasons = rejections
            .into_iter()
            .map(|(_, rejection)| rejection.reason);
        Ok::<_, StorageError>((reasons.collect(), unfinished.len()))
    });
    read.expect("the database is read")
}

/// Reads the key package that the backend hands out.
async fn handed_out(backend: &TestBackend, topic: &Topic) -> Vec<u8> {
    let request = QueryNewestRequest {
        topics: vec![topic.to_proto()],
        include_full_envelope: true,
    };
    let answer = backend.in_process().query_newest(request).await;
    let newest = answer.expect("an answer").results.pop().expect("a result");
    canonical_bytes(&newest.envelope.expect("an envelope"))
}

/// Checks that nothing was lost, doubled or decided twice, and that both sides are at the same
/// place in every conversation.
///
/// No generation of a sender's ratchet was used twice: whoever receives a second message of one
/// rejects it as one whose secret is gone, and here nobody rejected anything but commits that lost
/// their race.
pub(crate) async fn check(backend: &TestBackend, bo: &Client, carol: &Client, groups: &[Group]) {
    bo.sync_all().await.expect("bo syncs");
    carol.sync_all().await.expect("carol syncs");
    bo.sync_all().await.expect("bo syncs what carol sent on");
    for (round, group) in groups.iter().enumerate() {
        let found = texts_of(bo, group.id()).await;
        assert_eq!(
            found,
            texts_of(carol, group.id()).await,
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
    for (name, client) in [("bo", bo), ("carol", carol)] {
        let (reasons, unfinished) = left_behind(&client.engine().context().database);
        // A commit that lost against another of its epoch.
        let unexpected: Vec<&String> = reasons
            .iter()
            .filter(|reason| *reason != "commit_stale")
            .collect();
        assert!(unexpected.is_empty(), "{name} rejected {unexpected:?}");
        assert_eq!(unfinished, 0, "{name} has unfinished sends");
    }
    let database = &bo.engine().context().database;
    let made = database.read(|snapshot| snapshot.page(schema::KEY_PACKAGE, &All, None, MANY));
    let made: Result<_, StorageError> = made;
    let mut made: Vec<_> = made.expect("it is read").rows;
    made.retain(|(_, package)| package.confirmed_ns != 0);
    let newest = made.iter().max_by_key(|(_, package)| package.created_ns);
    let (_, newest) = newest.expect("a package");
    let topic = Topic::key_package(&bo.installation_id());
    assert_eq!(newest.envelope, handed_out(backend, &topic).await);
    // However many processes looked, one was made for each time one was due: soon after a Welcome.
    let mut times: Vec<u64> = made.iter().map(|(_, package)| package.created_ns).collect();
    times.sort_unstable();
    let is_apart = |pair: &[u64]| pair[1] - pair[0] >= ROTATE_AFTER_WELCOME_NS;
    assert!(times.windows(2).all(is_apart), "made twice: {times:?}");
}
