//! Processes on one database, one of which is stopped where it stands: the others go on reading and
//! receiving, their writes wait for it and then say that the database is busy, and once it goes on,
//! or is killed, everything completes.
//!
//! `XMTP_ROUNDS` is how many conversations a third party begins, and how often a process is stopped.
//! The moments come from a seed, which is printed; `XMTP_SEED` gives one.

#![allow(clippy::print_stderr)]

mod shared;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::StreamExt;
use shared::crowd::{
    TEXTS, TEXTS_PER_ROUND, begin, check, helping, live, open_as_child, open_bo, open_carol,
    patiently, say_done, syncing,
};
use shared::{ENDPOINT, HOME, PATIENCE, close, grpc, now, open, sqlite, text_of, texts_of, told};
use tokio::sync::Semaphore;
use xmtp_core::delivery::{Filter, MessageConsumer, Scope, StreamError};
use xmtp_core::error::Coded;
use xmtp_core::storage::{Durability, Read, StorageError, schema};
use xmtp_mls::Client;
use xmtp_proto::storage::v1::TopicRecord;
use xmtp_proto::{GroupId, Topic};
use xmtp_testkit::process::{Child, role, say};
use xmtp_testkit::{FaultTransport, Script, TestBackend};

const DEFAULT_ROUNDS: u64 = 3;
/// Reads that another process does while one is stopped within its transaction.
const READS: usize = 50;
/// The longest stop, in reads of another process: about five seconds when nothing happens.
const LONGEST_STOP: u64 = 20;
/// The latest moment of a stop, in things that processes say after the stop before.
const LATEST_STOP: u64 = 12;

/// The file that lets a transaction end.
const RELEASE: &str = "release";

/// How a stop ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    GoesOn,
    Killed,
}

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect("a number"))
}

/// Stays in a transaction until it is released, then commits and syncs.
async fn holding() {
    let client = open_as_child().await;
    let database = client.engine().context().database.clone();
    let release = PathBuf::from(told(HOME)).join(RELEASE);
    let held = tokio::task::spawn_blocking(move || {
        database.write::<_, StorageError>(Durability::Ordered, |_| {
            say("holds");
            // It is stopped here, and finds the file when it goes on.
            while !release.exists() {
                std::thread::yield_now();
            }
            Ok(())
        })
    });
    held.await.expect("it ends").expect("the transaction ends");
    patiently(async || client.sync_all().await).await;
    say_done(&client).await;
}

fn record(client: &Client, group: GroupId) -> TopicRecord {
    let database = &client.engine().context().database;
    let topic = Topic::group(&group);
    let read = database.read::<_, StorageError>(|snapshot| snapshot.row(schema::TOPIC, &topic));
    read.expect("a read never waits").unwrap_or_default()
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

async fn consumer(client: &Client) -> MessageConsumer {
    let consumer = client.messages().consume(Scope::All, Filter::all()).await;
    consumer.expect("the only consumer")
}

/// Waits until a frame came over the wire that is not stored: the writer is another's.
async fn received_into_memory(bo: &Client, wire: &FaultTransport, frames: u32) {
    let mut changes = bo.engine().context().database.changes();
    let waiting = async {
        while wire.frames() <= frames {
            changes.changed_or_poll(0).await.expect("it is open");
        }
    };
    let waited = tokio::time::timeout(PATIENCE, waiting).await;
    waited.expect("the receiver goes on");
}

/// A process that is stopped within a write transaction keeps nobody from reading, replaying and
/// receiving into memory. A send and an acknowledgement beside it wait, then say that the database
/// is busy, and have done nothing. When it goes on, or is killed, everything completes: what came
/// meanwhile is received once, and the item that was not acknowledged comes again.
///
/// covers: STR-070, STR-095, STR-101, STR-063
#[tokio::test(flavor = "multi_thread")]
async fn others_go_on_beside_a_process_that_is_stopped_in_its_transaction() {
    const NAME: &str = "others_go_on_beside_a_process_that_is_stopped_in_its_transaction";
    if role().is_some() {
        return holding().await;
    }
    for end in [End::GoesOn, End::Killed] {
        let mut backend = TestBackend::start().await;
        let home = tempfile::tempdir().expect("a folder");
        let path = home.path().to_str().expect("a folder with a plain name");
        let endpoint = backend.endpoint();
        let wire = FaultTransport::new(Script::of([]), Box::new(grpc(&endpoint)));
        let bo = open(&shared::crowd::BO, sqlite(path), wire.clone(), now()).await;
        bo.go_live();
        let carol = open_carol(&backend).await;
        let group = carol
            .conversations()
            .new_group("ops", &[bo.inbox_id()])
            .await;
        let group = group.expect("a conversation");
        group.send_text("one").await.expect("a text");
        let mut first = consumer(&bo).await;
        assert_eq!(next_text(&mut first).await, Ok("one".to_owned()));

        let variables = [(HOME, path), (ENDPOINT, endpoint.as_str())];
        let mut child = Child::spawn(NAME, "holder", &variables);
        tokio::task::block_in_place(|| {
            child.wait_for("holds", PATIENCE);
            child.stop();
        });
        let (before, frames) = (record(&bo, group.id()), wire.frames());
        group.send_text("two").await.expect("carol is on her own");
        received_into_memory(&bo, &wire, frames).await;
        for _ in 0..READS {
            assert_eq!(texts_of(&bo, group.id()).await, ["one"]);
            let messages = bo.messages();
            let beginning = messages.beginning();
            let replay = messages.replay(beginning, Scope::from(group.id()), Filter::all());
            let first = replay.await.expect("a replay").next().await;
            let first = first.expect("what is stored");
            first.expect("a replay never waits for a writer");
        }
        let own = bo.conversations().group(group.id());
        let (sent, handed) = tokio::join!(own.send_text("refused"), next_text(&mut first));
        let refused = sent.expect_err("the writer is another's");
        assert_eq!(refused.code(), "storage.busy", "{refused}");
        let Err(StreamError::AckNotStored { cause }) = handed else {
            panic!("the acknowledgement became {handed:?}");
        };
        assert!(matches!(cause, StorageError::Busy { .. }), "{cause}");
        assert_eq!(record(&bo, group.id()), before, "nothing was written");
        drop(first);

        match end {
            End::GoesOn => {
                std::fs::write(home.path().join(RELEASE), []).expect("a file");
                child.cont();
                tokio::task::block_in_place(|| child.wait_for("done", PATIENCE));
                assert!(child.wait().success());
            }
            End::Killed => child.kill(),
        }
        let mut again = consumer(&bo).await;
        assert_eq!(next_text(&mut again).await, Ok("one".to_owned()), "{end:?}");
        assert_eq!(next_text(&mut again).await, Ok("two".to_owned()), "{end:?}");
        again.finish().await.expect("D is stored");
        own.send_text("three").await.expect("the writer is free");
        carol.sync_all().await.expect("carol syncs");
        for client in [&bo, &carol] {
            assert_eq!(texts_of(client, group.id()).await, ["one", "two", "three"]);
        }
        assert!(record(&bo, group.id()).received > before.received);
        close(&bo).await;
        close(&carol).await;
        backend.stop().await;
    }
}

/// A small generator of numbers (SplitMix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// The processes of the crowd: one consumes, one syncs, one helps and may be killed.
const ROLES: [&str; 3] = ["live", "sync", "help"];
const HELPER: usize = 2;

struct Crowd<'t> {
    name: &'static str,
    variables: [(&'t str, &'t str); 3],
    children: Vec<Child>,
    stops: u64,
    kills: u64,
    busy: u64,
}

impl<'t> Crowd<'t> {
    fn start(name: &'static str, variables: [(&'t str, &'t str); 3]) -> Self {
        let mut children: Vec<Child> = ROLES
            .iter()
            .map(|role| Child::spawn(name, role, &variables))
            .collect();
        for child in &mut children {
            child.wait_for("ready", PATIENCE);
        }
        Self {
            name,
            variables,
            children,
            stops: 0,
            kills: 0,
            busy: 0,
        }
    }

    /// Waits until a process has said `count` more lines.
    fn listen(&mut self, who: usize, count: u64) {
        for _ in 0..count {
            self.hear(who);
        }
    }

    fn hear(&mut self, who: usize) -> bool {
        let is_busy = self.children[who].next_line(PATIENCE) == "busy";
        self.busy += u64::from(is_busy);
        is_busy
    }

    /// Stops one process at a random moment, until another one has read for a while or was told
    /// that the database is busy; then it goes on, or is killed and started anew.
    fn stop_one(&mut self, dice: &mut Dice) {
        let who = dice.below(ROLES.len() as u64) as usize;
        let other = (who + 1 + dice.below(2) as usize) % ROLES.len();
        self.listen(who, dice.below(LATEST_STOP));
        self.children[who].stop();
        self.stops += 1;
        let earlier = self.children[other].said();
        self.busy += earlier.iter().filter(|line| *line == "busy").count() as u64;
        for _ in 0..=dice.below(LONGEST_STOP) {
            if self.hear(other) {
                break;
            }
        }
        if who == HELPER && dice.below(2) == 0 {
            self.children[who].kill();
            self.kills += 1;
            self.children[who] = Child::spawn(self.name, ROLES[who], &self.variables);
            self.children[who].wait_for("ready", PATIENCE);
        } else {
            self.children[who].cont();
        }
    }

    /// Waits for those that answer, and ends the helper.
    fn finish(&mut self, patience: Duration) {
        for child in &mut self.children[..HELPER] {
            child.wait_for("done", patience);
            assert!(child.wait().success());
        }
        self.children[HELPER].kill();
    }
}

/// Three processes receive, process, join, send, consume and renew keys beside each other, and one
/// after another is stopped at a random moment, and some are killed: nothing is lost, doubled or
/// decided twice, no key is used twice, and a key package is made once for each time one was due.
///
/// covers: STR-070, STR-077, STR-112
#[tokio::test(flavor = "multi_thread")]
async fn three_processes_share_one_database_while_one_is_stopped() {
    const NAME: &str = "three_processes_share_one_database_while_one_is_stopped";
    if let Some(role) = role() {
        let texts = told(TEXTS).parse().expect("a number");
        return match role.as_str() {
            "live" => live(texts).await,
            "sync" => syncing(texts).await,
            _ => helping().await,
        };
    }
    let rounds = number_from("XMTP_ROUNDS").unwrap_or(DEFAULT_ROUNDS);
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock");
    let seed = number_from("XMTP_SEED").unwrap_or(since.as_nanos() as u64);
    eprintln!("{NAME}: XMTP_SEED={seed}");
    let mut dice = Dice(seed);
    let mut backend = TestBackend::start().await;
    let home = tempfile::tempdir().expect("a folder");
    let path = home.path().to_str().expect("a folder with a plain name");
    let texts = (rounds as usize * TEXTS_PER_ROUND).to_string();
    let endpoint = backend.endpoint();
    let variables = [
        (HOME, path),
        (ENDPOINT, endpoint.as_str()),
        (TEXTS, texts.as_str()),
    ];
    let mut crowd = tokio::task::block_in_place(|| Crowd::start(NAME, variables));
    let carol = open_carol(&backend).await;
    carol.go_live();
    // A conversation for each permit, the last one when nobody is stopped any more.
    let permits = Arc::new(Semaphore::new(0));
    let talking = {
        let (carol, permits) = (carol.clone(), permits.clone());
        tokio::spawn(async move {
            let mut groups = Vec::new();
            for round in 0..rounds as usize {
                let permit = permits.acquire().await;
                permit.expect("nobody closes the permits").forget();
                groups.push(begin(&carol, round).await);
            }
            groups
        })
    };
    for _ in 1..rounds {
        permits.add_permits(1);
        tokio::task::block_in_place(|| crowd.stop_one(&mut dice));
    }
    permits.add_permits(1);
    let groups = talking.await.expect("carol talked");
    tokio::task::block_in_place(|| crowd.finish(PATIENCE * rounds as u32));
    eprintln!(
        "{NAME}: {} stops, {} kills, {} times busy",
        crowd.stops, crowd.kills, crowd.busy
    );
    let bo = open_bo(path, &endpoint, Duration::ZERO).await;
    check(&backend, &bo, &carol, &groups).await;
    close(&bo).await;
    close(&carol).await;
    backend.stop().await;
}
