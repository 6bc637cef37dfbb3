//! A client that is killed at random moments of opening, receipt, processing and acknowledgement,
//! while somebody keeps talking to it.
//!
//! `XMTP_ROUNDS` is how often it is killed on each engine. The moments come from a seed, which is
//! printed; `XMTP_SEED` gives one.

#![allow(clippy::print_stderr)]

mod shared;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use shared::{
    ENDPOINT, HOME, KEY, LEASE_IS_OVER, PATIENCE, account, close, grpc, now, open, sqlite, text_of,
    texts_of, told,
};
use tokio::sync::Semaphore;
use xmtp_core::delivery::{Filter, Scope};
use xmtp_core::storage::{DatabaseKey, Storage};
use xmtp_core::testing::memory::MemoryStorage;
use xmtp_mls::{Client, Group};
use xmtp_proto::InboxId;
use xmtp_storage_sled::SledStorage;
use xmtp_testkit::process::{Child, role, say};
use xmtp_testkit::{ShiftedRuntime, TestBackend};

const DEFAULT_ROUNDS: u32 = 5;
/// Texts of one conversation; then the next one begins, so that Welcomes keep coming.
const TEXTS_PER_ROOM: usize = 12;
/// Texts that may be sent for each life, so that the last one has no long way to go.
const TEXTS_PER_LIFE: usize = 18;
/// The latest moment of a kill after the start of the process.
const LATEST_FROM_START_MS: u64 = 1_500;
/// The latest moment of a kill after the client has opened.
const LATEST_FROM_OPEN_MS: u64 = 600;
const ALICE: [u8; 32] = [31; 32];
const BO: [u8; 32] = [32; 32];

/// Tells a child which life it is: its clock is that many leases ahead, so that the one of the
/// life before has lapsed.
const LIFE: &str = "XMTP_TEST_LIFE";

#[derive(Clone, Copy, Debug)]
enum Engine {
    Sqlite,
    Sled,
}

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok();
    text.map(|text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is a number"))
    })
}

fn storage(engine: Engine, home: &str) -> Arc<dyn Storage> {
    match engine {
        Engine::Sqlite => sqlite(home),
        Engine::Sled => SledStorage::options(Path::new(home).join("bo"))
            .key(DatabaseKey::new(KEY))
            .open()
            .expect("sled opens again"),
    }
}

async fn open_bo(engine: Engine, home: &str, endpoint: &str, life: u32) -> Client {
    let clock = ShiftedRuntime::ahead(LEASE_IS_OVER * life);
    open(&BO, storage(engine, home), grpc(endpoint), clock).await
}

/// Says every text that is handed over, until it is killed.
async fn live(engine: Engine) {
    let life = number_from(LIFE).expect("which life it is") as u32;
    let bo = open_bo(engine, &told(HOME), &told(ENDPOINT), life).await;
    say("open");
    let consumer = bo.messages().consume(Scope::All, Filter::all()).await;
    let mut consumer = consumer.expect("the lease of the life before has lapsed");
    loop {
        let message = consumer.next().await.expect("an item").expect("no end");
        if let Some(text) = text_of(&message) {
            say(&format!("handed {text}"));
        }
    }
}

/// Begins conversations with Bo and sends `count` texts in them, one for each permit; answers each
/// conversation with the number of its texts.
async fn talk(
    alice: Client,
    bo: InboxId,
    count: usize,
    permits: Arc<Semaphore>,
) -> Vec<(Group, usize)> {
    let mut rooms: Vec<(Group, usize)> = Vec::new();
    for _ in 0..count {
        permits
            .acquire()
            .await
            .expect("nobody closes the permits")
            .forget();
        if rooms
            .last()
            .is_none_or(|(_, texts)| *texts == TEXTS_PER_ROOM)
        {
            let name = format!("room {}", rooms.len());
            let group = alice.conversations().new_group(&name, &[bo]).await;
            rooms.push((group.expect("a conversation"), 0));
        }
        let room = rooms.len() - 1;
        let (group, texts) = &mut rooms[room];
        group
            .send_text(&text(room, *texts))
            .await
            .expect("alice's text");
        *texts += 1;
        if *texts == TEXTS_PER_ROOM / 2 {
            group.update_keys().await.expect("alice's keys");
        }
    }
    rooms
}

fn text(room: usize, number: usize) -> String {
    format!("{room}.{number}")
}

/// What was handed over, in all lives.
#[derive(Default)]
struct Handed {
    /// The number of the next text of each conversation.
    next: BTreeMap<usize, usize>,
    last: Option<(usize, usize)>,
    again: u32,
}

impl Handed {
    /// Takes what one life said. Only its first text may be the one that the life before had last.
    fn take(&mut self, lines: &[String]) {
        let texts = lines.iter().filter_map(|line| line.strip_prefix("handed "));
        for (index, text) in texts.enumerate() {
            let (room, number) = text.split_once('.').expect("a text of alice");
            let at: (usize, usize) = (room.parse().expect("room"), number.parse().expect("number"));
            if index == 0 && self.last == Some(at) {
                self.again += 1;
                continue;
            }
            let next = self.next.entry(at.0).or_default();
            assert_eq!(
                at.1, *next,
                "a text of room {room} was skipped or acknowledged early"
            );
            *next += 1;
            self.last = Some(at);
        }
    }

    fn count(&self) -> usize {
        self.next.values().sum()
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

/// One life: opens, is killed at a random moment, and answers what it said.
fn killed(mut child: Child, dice: &mut Dice) -> Vec<String> {
    if dice.below(2) == 0 {
        return child.kill_after(Duration::from_millis(dice.below(LATEST_FROM_START_MS)));
    }
    child.wait_for("open", PATIENCE);
    child.kill_after(Duration::from_millis(dice.below(LATEST_FROM_OPEN_MS)))
}

async fn survive_kills(name: &str, engine: Engine) {
    if role().is_some() {
        return live(engine).await;
    }
    let rounds = number_from("XMTP_ROUNDS").map_or(DEFAULT_ROUNDS, |rounds| rounds as u32);
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.expect("a clock").as_nanos();
    let seed = number_from("XMTP_SEED").unwrap_or(since as u64);
    eprintln!("{name}: XMTP_SEED={seed}");
    let mut dice = Dice(seed);
    let mut backend = TestBackend::start().await;
    let home = tempfile::tempdir().expect("a folder");
    let path = home.path().to_str().expect("a folder with a plain name");
    let endpoint = backend.endpoint();
    let spawn = |life: u32| {
        let life = life.to_string();
        Child::spawn(
            name,
            "bo",
            &[(HOME, path), (ENDPOINT, &endpoint), (LIFE, &life)],
        )
    };
    let mut handed = Handed::default();
    // Nobody can be added before being registered.
    tokio::task::block_in_place(|| {
        let mut child = spawn(0);
        child.wait_for("open", PATIENCE);
        handed.take(&child.kill_after(Duration::ZERO));
    });

    let alice = open(&ALICE, MemoryStorage::new(), backend.in_process(), now()).await;
    let permits = Arc::new(Semaphore::new(0));
    let sent = TEXTS_PER_LIFE * rounds as usize;
    let talk = talk(
        alice.clone(),
        account(&BO).inbox_id(),
        sent,
        permits.clone(),
    );
    let talking = tokio::spawn(talk);
    for life in 1..=rounds {
        permits.add_permits(TEXTS_PER_LIFE);
        let said = tokio::task::block_in_place(|| killed(spawn(life), &mut dice));
        handed.take(&said);
    }
    let rooms = talking.await.expect("alice talked");

    // The last life hands over all the rest, and is killed too.
    tokio::task::block_in_place(|| {
        let mut child = spawn(rounds + 1);
        let mut said = Vec::new();
        let mut last = handed.last.map(|(room, number)| text(room, number));
        let mut count = handed.count();
        while count < sent {
            let line = child.next_line(PATIENCE);
            if let Some(text) = line.strip_prefix("handed ") {
                count += usize::from(last.as_deref() != Some(text));
                last = Some(text.to_owned());
            }
            said.push(line);
        }
        said.extend(child.kill_after(Duration::ZERO));
        handed.take(&said);
    });
    assert_eq!(handed.count(), sent);
    eprintln!(
        "{name}: {rounds} kills, {sent} texts, {} handed over again",
        handed.again
    );

    let bo = open_bo(engine, path, &endpoint, rounds + 2).await;
    bo.sync_all().await.expect("bo syncs");
    for (room, (group, texts)) in rooms.iter().enumerate() {
        let told: Vec<String> = (0..*texts).map(|number| text(room, number)).collect();
        assert_eq!(texts_of(&bo, group.id()).await, told);
        let other = bo.conversations().group(group.id());
        assert_eq!(
            other.epoch_authenticator().await.expect("an authenticator"),
            group.epoch_authenticator().await.expect("an authenticator")
        );
        other.send_text("bye").await.expect("bo answers");
    }
    alice.sync_all().await.expect("alice syncs");
    for (group, _) in &rooms {
        let texts = texts_of(&alice, group.id()).await;
        assert_eq!(texts.last().map(String::as_str), Some("bye"));
    }
    close(&bo).await;
    close(&alice).await;
    backend.stop().await;
}

/// covers: STR-077, STR-094, STR-095
#[tokio::test(flavor = "multi_thread")]
async fn killed_at_random_on_encrypted_sqlite() {
    survive_kills("killed_at_random_on_encrypted_sqlite", Engine::Sqlite).await;
}

/// covers: STR-077, STR-094, STR-095
#[tokio::test(flavor = "multi_thread")]
async fn killed_at_random_on_sealed_sled() {
    survive_kills("killed_at_random_on_sealed_sled", Engine::Sled).await;
}
