//! A backlog that no memory holds: the client takes it page by page, and what waits is in the
//! database.
//!
//! `XMTP_ROUNDS` is how many times 10,000 envelopes wait at the backend; 100 make a million. The
//! backend here is a rule and not a store: it makes each envelope when it is asked for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use xmtp_core::engine::fetch::fetch_page;
use xmtp_core::engine::{Context, Engine};
use xmtp_core::limits::{MAX_PENDING_ROWS_PER_TOPIC, max_pending_bytes, max_pending_rows};
use xmtp_core::processor::Joined;
use xmtp_core::runtime::NativeRuntime;
use xmtp_core::storage::schema::{HEAD, KIND_BUDGET};
use xmtp_core::storage::{Database, DatabaseKey, Durability, Read, StorageError};
use xmtp_core::subscription::Interests;
use xmtp_core::sync::SyncRequest;
use xmtp_core::testing::scripted::{
    INSTALLATION, ScriptedProcessor, group_envelope, processors, welcome_envelope,
};
use xmtp_core::transport::{Subscription, Transport, TransportCapability, TransportError};
use xmtp_core::welcome::install_created;
use xmtp_proto::backend::v1;
use xmtp_proto::backend::v1::message_hash::Hash;
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{GroupId, InboxId, Topic, TopicKind};
use xmtp_storage_sqlite::SqliteStorage;

/// Most resident memory of the process.
const MAX_RESIDENT_KIB: u64 = 256 * 1024;
/// Envelopes of one round.
const ENVELOPES_PER_ROUND: u64 = 10_000;
/// Groups whose messages flow.
const FLOWING_GROUPS: u8 = 50;
/// Groups whose head is blocked: each holds as much as a topic may, all of them what the kind may.
const STUCK_GROUPS: u8 = 8;
/// How long the backlog may take before the test has failed.
const PATIENCE: Duration = Duration::from_secs(3_600);

/// What the backend holds of a topic: envelopes with the ids from 1 on, all alike but for the head.
#[derive(Clone, Debug)]
struct Held {
    count: u64,
    envelope: v1::ClientEnvelope,
}

/// A backend that makes what it is asked for.
#[derive(Clone, Debug)]
struct Vast {
    topics: Arc<BTreeMap<Topic, Held>>,
}

impl Vast {
    fn meta(topic: &Topic, sequence_id: u64) -> v1::EnvelopeMeta {
        v1::EnvelopeMeta {
            topic: Some(topic.to_proto()),
            cursor: Some(v1::Cursor { sequence_id }),
            server_ns: sequence_id,
            message_hash: Some(v1::MessageHash {
                hash: Some(Hash::Sha256(vec![7; 32].into())),
            }),
            ..Default::default()
        }
    }

    fn held(&self, topic: &v1::Topic) -> Option<(Topic, &Held)> {
        let topic = Topic::parse(&topic.topic).ok()?;
        Some((topic, self.topics.get(&topic)?))
    }
}

/// What this backend is never asked.
const UNASKED: TransportError = TransportError::Protocol {
    rule: "only what is asked here",
};

#[async_trait]
impl Transport for Vast {
    async fn publish(
        &self,
        _request: v1::PublishRequest,
    ) -> Result<v1::PublishResponse, TransportError> {
        Err(UNASKED)
    }

    async fn query(&self, request: v1::QueryRequest) -> Result<v1::QueryResponse, TransportError> {
        let mut envelopes = Vec::new();
        let mut has_more = false;
        for query in &request.queries {
            let Some((topic, held)) = query.topic.as_ref().and_then(|topic| self.held(topic))
            else {
                continue;
            };
            let after = query.cursor.map_or(0, |cursor| cursor.sequence_id);
            let room = u64::from(request.limit) - envelopes.len() as u64;
            let last = held.count.min(after + room);
            has_more |= last < held.count;
            envelopes.extend((after + 1..=last).map(|sequence| v1::ServerEnvelope {
                meta: Some(Self::meta(&topic, sequence)),
                envelope: Some(held.envelope.clone()),
            }));
        }
        Ok(v1::QueryResponse {
            envelopes,
            continuation: Some(v1::Continuation { has_more }),
        })
    }

    async fn query_newest(
        &self,
        request: v1::QueryNewestRequest,
    ) -> Result<v1::QueryNewestResponse, TransportError> {
        let found = request.topics.iter().filter_map(|topic| self.held(topic));
        let results = found.map(|(topic, held)| v1::query_newest_response::Result {
            topic: Some(topic.to_proto()),
            meta: Some(Self::meta(&topic, held.count)),
            envelope: None,
        });
        Ok(v1::QueryNewestResponse {
            results: results.collect(),
        })
    }

    async fn subscribe(&self) -> Result<Subscription, TransportError> {
        Err(UNASKED)
    }

    async fn subscribe_static(
        &self,
        _request: v1::SubscribeStaticRequest,
    ) -> Result<
        BoxStream<'static, Result<v1::SubscribeStaticResponse, TransportError>>,
        TransportError,
    > {
        Err(UNASKED)
    }

    async fn inbox_ids(
        &self,
        _request: v1::GetInboxIdsRequest,
    ) -> Result<v1::GetInboxIdsResponse, TransportError> {
        Err(UNASKED)
    }

    async fn verify_wallet_signatures(
        &self,
        _request: v1::VerifySmartContractWalletSignaturesRequest,
    ) -> Result<v1::VerifySmartContractWalletSignaturesResponse, TransportError> {
        Err(UNASKED)
    }

    async fn configuration(&self) -> Result<v1::GetConfigurationResponse, TransportError> {
        Err(UNASKED)
    }

    fn endpoint(&self) -> String {
        "vast".to_owned()
    }

    fn capability(&self) -> TransportCapability {
        TransportCapability {
            name: "vast",
            bidirectional: true,
            credential_source: false,
        }
    }
}

fn flowing(number: u8) -> GroupId {
    GroupId::from_bytes([number; 16])
}

fn stuck(number: u8) -> GroupId {
    GroupId::from_bytes([0xf0 + number; 16])
}

fn inbox() -> InboxId {
    InboxId::from_bytes([5; 32])
}

/// A text of so many bytes that begins with a word of the script.
fn padded(word: &str, bytes: u64) -> String {
    format!("{word}{}", ".".repeat(bytes as usize))
}

/// Everything that waits: what flows, and more of each kind than its budget.
fn backlog(rounds: u64) -> BTreeMap<Topic, Held> {
    let mut topics = BTreeMap::new();
    let mut hold = |topic, count, envelope| topics.insert(topic, Held { count, envelope });
    let each = rounds * ENVELOPES_PER_ROUND / u64::from(FLOWING_GROUPS);
    for group in (0..FLOWING_GROUPS).map(flowing) {
        let envelope = group_envelope(&group, &padded("text", 200));
        hold(Topic::group(&group), each, envelope);
    }
    let share = |kind, topics: u64| max_pending_bytes(kind) / topics / MAX_PENDING_ROWS_PER_TOPIC;
    let rows = 2 * MAX_PENDING_ROWS_PER_TOPIC;
    // The rows of the kind are used up first, so that not even a small one fits.
    let bytes = share(TopicKind::Group, u64::from(STUCK_GROUPS)) - 512;
    for group in (0..STUCK_GROUPS).map(stuck) {
        let envelope = group_envelope(&group, &padded("block:", bytes));
        hold(Topic::group(&group), rows, envelope);
    }
    // No identity update is in it, so it blocks the inbox.
    let bytes = share(TopicKind::Identity, 1);
    let envelope = group_envelope(&stuck(0), &padded("none", bytes));
    hold(Topic::identity(&inbox()), rows, envelope);
    let bytes = share(TopicKind::Welcome, 1);
    let envelope = welcome_envelope(&INSTALLATION, &padded("block ", bytes));
    hold(Topic::welcome(&INSTALLATION), rows, envelope);
    topics
}

async fn start(rounds: u64, folder: &std::path::Path) -> (Engine, Context) {
    let storage = SqliteStorage::options(folder.join("client.db"))
        .key(DatabaseKey::new([8; 32]))
        .open()
        .expect("the file opens");
    let runtime = NativeRuntime::current();
    let context = Context {
        database: Database::open(storage, runtime.clone()).expect("the database opens"),
        transport: Box::new(Vast {
            topics: Arc::new(backlog(rounds)),
        }),
        processors: processors(&Arc::new(ScriptedProcessor::default())),
        runtime,
        interests: Interests::default(),
        welcome_topic: Topic::welcome(&INSTALLATION),
    };
    let groups = (0..FLOWING_GROUPS).map(flowing);
    let groups = groups.chain((0..STUCK_GROUPS).map(stuck));
    let written = context
        .database
        .write::<_, StorageError>(Durability::Flushed, |txn| {
            for group in groups {
                let record = stored::GroupRecord::default();
                let messages = Vec::new();
                install_created(txn, group, Joined { record, messages })?;
            }
            Ok(())
        });
    written.expect("the groups are there");
    (Engine::start(context.clone()), context)
}

/// Receives a topic until a bound keeps it.
async fn fill(context: &Context, topic: Topic) {
    loop {
        let page = fetch_page(context, &[topic]).await.expect("a page");
        if !page.paused.is_empty() {
            return;
        }
        assert!(page.new > 0, "a topic ended before its bound");
    }
}

/// Tells whether nothing more of some size fits a kind's budget.
fn is_full(context: &Context, kind: TopicKind, bytes: u64) -> bool {
    let budget = context.database.read::<_, StorageError>(|snapshot| {
        Ok(snapshot.row(KIND_BUDGET, &kind.byte())?.unwrap_or_default())
    });
    let budget = budget.expect("a budget");
    budget.rows == max_pending_rows(kind) || budget.bytes + bytes > max_pending_bytes(kind)
}

/// The most memory that this process ever had resident, in KiB; nothing where no kernel tells.
fn peak_resident_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// With heads blocked, a backlog of any length is received in memory that its length does not
/// change; with every pending budget full, what is left waits at the backend.
/// covers: STR-066
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_of_any_length_fits_in_memory() {
    let rounds = std::env::var("XMTP_ROUNDS").map_or(1, |text| text.parse().expect("a number"));
    let folder = tempfile::tempdir().expect("a folder");
    let (engine, context) = start(rounds, folder.path()).await;
    fill(&context, Topic::identity(&inbox())).await;
    fill(&context, context.welcome_topic).await;
    for group in (1..STUCK_GROUPS).map(stuck) {
        fill(&context, Topic::group(&group)).await;
    }
    let topics = (1..FLOWING_GROUPS).map(|number| Topic::group(&flowing(number)));
    let request = SyncRequest {
        timeout: PATIENCE,
        ..SyncRequest::new(topics)
    };
    let report = engine.sync(request).await.expect("all of it is received");
    let each = rounds * ENVELOPES_PER_ROUND / u64::from(FLOWING_GROUPS);
    assert_eq!(report.messages, each * u64::from(FLOWING_GROUPS - 1));

    fill(&context, Topic::group(&stuck(0))).await;
    for kind in [TopicKind::Group, TopicKind::Identity] {
        assert!(is_full(&context, kind, 64 * 1024), "{kind:?}");
    }
    let head = Topic::group(&stuck(0));
    let head = context
        .database
        .read::<_, StorageError>(|snapshot| snapshot.row(HEAD, &head));
    assert!(head.expect("it is read").is_some(), "a head is blocked");
    let last = Topic::group(&flowing(0));
    let page = fetch_page(&context, &[last]).await.expect("a page");
    let paused: Vec<_> = page.paused.iter().map(|(topic, _)| *topic).collect();
    assert_eq!((page.new, paused), (0, vec![last]));

    engine.close().await.expect("closed");
    match peak_resident_kib() {
        Some(peak) => assert!(peak < MAX_RESIDENT_KIB, "{peak} KiB were resident"),
        None if cfg!(target_os = "linux") => panic!("the kernel does not tell"),
        None => {}
    }
}
