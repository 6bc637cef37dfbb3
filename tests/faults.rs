//! The database fails at every single operation while envelopes of MLS are applied, once each: the
//! position stays below what was not applied, nothing behind it is, nothing is taken for invalid,
//! and afterwards everything applies as if nothing had happened.
//!
//! What is applied comes from a real backend and real members; each try starts from a copy of the
//! same disk.

mod shared;

use std::collections::BTreeSet;
use std::sync::Arc;

use shared::{account, now};
use xmtp_core::engine::receive::receive_in;
use xmtp_core::processing::{self, Left, Processors};
use xmtp_core::receipt::{Batch, admit, check};
use xmtp_core::runtime::{Runtime, SimulatedRuntime};
use xmtp_core::storage::{
    All, Database, Durability, KeyRange, Order, Page, Read, Snapshot, Storage, StorageError,
    WriteTxn, schema, verify,
};
use xmtp_core::testing::faulty::Faulty;
use xmtp_core::testing::memory::{MemoryDisk, MemoryStorage};
use xmtp_core::transport::Transport;
use xmtp_core::welcome::{self, WelcomeOutcome};
use xmtp_mls::processor::MlsProcessor;
use xmtp_mls::{Client, Installation};
use xmtp_proto::backend::v1::{Cursor, QueryRequest, TopicQuery};
use xmtp_proto::storage::v1::TopicRecord;
use xmtp_proto::{InboxId, InstallationId, SequenceId, Topic, TopicKind};
use xmtp_testkit::TestBackend;

const BO: [u8; 32] = [71; 32];
const CAROL: [u8; 32] = [72; 32];

/// More rows than any table of these tests has.
const MANY: Page = Page {
    rows: 100_000,
    bytes: u32::MAX,
    order: Order::Ascending,
};
/// Fewer operations than this would mean that a scene is not what it is meant to be.
const FEWEST_OPERATIONS: u64 = 8;

/// Something to receive and apply, on a disk that is ready for it.
struct Scene {
    name: &'static str,
    disk: MemoryDisk,
    installation: InstallationId,
    inbox: InboxId,
    batch: Batch,
}

/// How the envelopes come to be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// In the transaction that receives them.
    AtOnce,
    /// In a turn of their own, after they were received.
    Later,
}

/// A process over a copy of a scene's disk.
struct Process<'s> {
    scene: &'s Scene,
    faulty: Arc<Faulty>,
    database: Database,
    /// Another handle on the same disk, which nothing fails.
    reader: Arc<MemoryStorage>,
    processors: Processors,
}

/// Everything that is stored, but what counts commits.
type Rows = Vec<(&'static str, Vec<u8>, Vec<u8>)>;

impl<'s> Process<'s> {
    fn start(scene: &'s Scene) -> Self {
        let runtime: Arc<dyn Runtime> = Arc::new(SimulatedRuntime::new(1));
        let disk = scene.disk.copy();
        let faulty = Faulty::new(disk.open());
        let database = Database::open(faulty.clone(), runtime).expect("it opens");
        let load = |snapshot: &dyn Snapshot| {
            Installation::load(snapshot, &scene.installation, scene.inbox)
        };
        let installation = database.read::<_, StorageError>(load);
        let installation = installation.expect("it is read").expect("it is there");
        let reader = disk.open();
        reader.open_tables(schema::TABLES).expect("the tables");
        Self {
            scene,
            faulty,
            database,
            reader,
            processors: MlsProcessor::new(Arc::new(installation)).processors(),
        }
    }

    fn write<T>(
        &self,
        f: impl FnOnce(&mut WriteTxn<'_>) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        self.database.write(Durability::Ordered, f)
    }

    fn read<T>(&self, f: impl FnOnce(&dyn Snapshot) -> Result<T, StorageError>) -> T {
        let snapshot = self.reader.snapshot().expect("a snapshot");
        f(&*snapshot).expect("it is read")
    }

    fn admit(&self) {
        let admitted = self
            .database
            .write(Durability::Ordered, |txn| admit(txn, &self.scene.batch));
        assert_eq!(admitted.expect("it is admitted").left_out, None);
    }

    /// Receives the batch and applies what can be applied at once.
    fn receive(&self) -> Result<(), StorageError> {
        let batches = std::slice::from_ref(&self.scene.batch);
        let received = self.write(|txn| receive_in(txn, batches, &self.processors))?;
        for outcome in received {
            outcome.expect("a batch in order");
        }
        Ok(())
    }

    /// Applies what one transaction takes of what is pending; answers whether more may be left.
    fn apply(&self) -> Result<bool, StorageError> {
        let topic = &self.scene.batch.topic;
        if topic.kind() != TopicKind::Welcome {
            let turn =
                |txn: &mut WriteTxn<'_>| processing::turn(txn, topic, &self.processors, false);
            return Ok(self.write(turn)?.left == Left::More);
        }
        let pending = self.read(|snapshot| snapshot.page(schema::PENDING, topic, None, MANY));
        let Some(((_, sequence), _)) = pending.rows.first() else {
            return Ok(false);
        };
        let attempt = |txn: &mut WriteTxn<'_>| {
            welcome::attempt(txn, topic, *sequence, &self.processors, false)
        };
        let outcome = self.write(attempt)?;
        assert!(matches!(outcome, WelcomeOutcome::Joined(_)), "{outcome:?}");
        Ok(true)
    }

    /// Applies everything that is pending; whatever fails has changed nothing.
    fn apply_all(&self) -> Result<(), StorageError> {
        loop {
            let before = self.rows();
            match self.apply() {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => {
                    assert!(self.rows() == before, "{}: half a turn", self.scene.name);
                    return Err(error);
                }
            }
        }
    }

    fn rows(&self) -> Rows {
        let uncounted = [
            schema::REVISION.info,
            schema::COUNTER.info,
            schema::DATABASE.info,
        ];
        let everything = KeyRange {
            start: &[],
            end: None,
        };
        self.read(|snapshot| {
            let mut all = Vec::new();
            for table in schema::TABLES {
                if uncounted.contains(table) {
                    continue;
                }
                let rows = snapshot.scan(table.id, everything, MANY)?;
                all.extend(
                    rows.iter()
                        .map(|(key, value)| (table.name, key.to_vec(), value.to_vec())),
                );
            }
            Ok(all)
        })
    }

    fn record(&self) -> TopicRecord {
        let topic = &self.scene.batch.topic;
        self.read(|snapshot| snapshot.row(schema::TOPIC, topic))
            .unwrap_or_default()
    }

    fn rejections(&self) -> usize {
        let found = self.read(|snapshot| snapshot.page(schema::REJECTION, &All, None, MANY));
        found.rows.len()
    }

    /// Tells whether the operation that was to fail has been reached.
    fn has_failed(&self, at: u64) -> bool {
        self.faulty.operations() >= at
    }

    fn verify(&self) {
        let faults = self.read(|snapshot| Ok(verify::verify(snapshot)));
        assert_eq!(
            faults,
            Ok(()),
            "{} leaves a broken database",
            self.scene.name
        );
    }
}

/// Names the tables in which two ends differ. MLS state holds maps without an order and is compared
/// by its rows alone; the group's record holds the authenticator of the epoch that was reached.
fn differing(one: &Rows, other: &Rows) -> BTreeSet<&'static str> {
    let plain = |rows: &Rows| -> BTreeSet<_> {
        let rows = rows.iter().map(|(table, key, value)| {
            let mut value = value.clone();
            if *table == schema::MLS.info.name {
                value.clear();
            }
            (*table, key.clone(), value)
        });
        rows.collect()
    };
    let (one, other) = (plain(one), plain(other));
    let differing = one.symmetric_difference(&other);
    differing.map(|(table, _, _)| *table).collect()
}

/// Lets everything through; answers what is left and how many envelopes were rejected.
fn calm(scene: &Scene) -> (Rows, usize) {
    let process = Process::start(scene);
    process.receive().expect("no fault");
    process.apply_all().expect("no fault");
    let record = process.record();
    assert_eq!(record.pending_rows, 0, "{}", scene.name);
    process.verify();
    (process.rows(), process.rejections())
}

/// Plays a scene with one fault at its operation `number`; answers whether there was one.
fn play(scene: &Scene, path: Path, error: &StorageError, number: u64, end: &(Rows, usize)) -> bool {
    let what = format!("{}: {path:?}, {error:?} at operation {number}", scene.name);
    let process = Process::start(scene);
    let rejections = process.rejections();
    if path == Path::Later {
        process.admit();
    }
    let (before, below) = (process.rows(), process.record());
    let pending = scene.batch.envelopes.len() as u64;
    let at = process.faulty.operations() + number;
    process.faulty.fail_operation(at, error.clone());
    let mut told = match path {
        Path::AtOnce => process.receive(),
        Path::Later => Ok(()),
    };
    let now = process.record();
    if told.is_err() {
        assert!(process.rows() == before, "{what}: half a batch");
    } else if process.has_failed(at) {
        // Receipt alone was committed; what was to be applied with it is undone.
        assert_eq!(now.processed, below.processed, "{what}");
        assert!(now.received > below.received, "{what}");
        assert_eq!(u64::from(now.pending_rows), pending, "{what}");
    } else {
        told = process.apply_all();
    }
    if !process.has_failed(at) {
        told.expect("no fault was left");
        assert_eq!(process.rejections(), end.1, "{what}");
        let differing = differing(&process.rows(), &end.0);
        assert!(differing.is_empty(), "{what}: another end in {differing:?}");
        return false;
    }
    assert!(
        told.is_ok() || told == Err(error.clone()),
        "{what}: {told:?}"
    );
    assert_eq!(process.rejections(), rejections, "{what}");
    process.receive().expect("the fault has passed");
    process.apply_all().expect("the fault has passed");
    assert_eq!(process.rejections(), end.1, "{what}");
    let differing = differing(&process.rows(), &end.0);
    assert!(differing.is_empty(), "{what}: another end in {differing:?}");
    process.verify();
    true
}

/// Plays a scene until a run meets its fault no more.
fn fail_everywhere(scene: &Scene) {
    let end = calm(scene);
    let faults = [
        StorageError::Busy { waited_ms: 1 },
        StorageError::Full,
        StorageError::Io {
            action: "read",
            detail: String::new(),
        },
    ];
    for path in [Path::AtOnce, Path::Later] {
        for error in &faults {
            let reached = (1..).find(|number| !play(scene, path, error, *number, &end));
            let reached = reached.expect("a run ends");
            assert!(reached > FEWEST_OPERATIONS, "{}: {reached}", scene.name);
        }
    }
}

async fn open(secret: &[u8; 32], disk: &MemoryDisk, backend: &TestBackend) -> Client {
    shared::open(secret, disk.open(), backend.in_process(), now()).await
}

/// Reads what the backend has of a topic behind what a disk has received.
async fn behind(disk: &MemoryDisk, backend: &TestBackend, topic: Topic) -> Batch {
    let runtime: Arc<dyn Runtime> = Arc::new(SimulatedRuntime::new(1));
    let database = Database::open(disk.copy().open(), runtime).expect("it opens");
    let record = database.read::<_, StorageError>(|snapshot| snapshot.row(schema::TOPIC, &topic));
    let after = record.expect("it is read").unwrap_or_default().received;
    let request = QueryRequest {
        queries: vec![TopicQuery {
            topic: Some(topic.to_proto()),
            cursor: Some(Cursor { sequence_id: after }),
        }],
        limit: 100,
    };
    let page = backend.in_process().query(request).await.expect("a page");
    let batch = check(topic, SequenceId::saturating(after), page.envelopes);
    batch.expect("the backend's order")
}

/// A member's commits with a message behind them, a batch of messages, updates of an inbox, and
/// Welcomes: no failing read or write of any of them becomes a verdict.
///
/// covers: STR-074, STR-077, STR-084, STR-070
#[tokio::test(flavor = "multi_thread")]
async fn no_failing_operation_becomes_a_verdict() {
    let mut backend = TestBackend::start().await;
    let disk = MemoryDisk::new();
    let bo = open(&BO, &disk, &backend).await;
    let carol = open(&CAROL, &MemoryDisk::new(), &backend).await;
    let bos = account(&BO).inbox_id();
    let group = async |name| {
        let group = carol.conversations().new_group(name, &[bos]).await;
        group.expect("a group")
    };
    let (commits, texts) = (group("commits").await, group("texts").await);
    bo.sync_all().await.expect("bo joins");
    let (installation, inbox) = (bo.installation_id(), bo.inbox_id());
    shared::close(&bo).await;

    commits.update_keys().await.expect("a commit");
    commits.rename("renamed").await.expect("a commit");
    commits
        .send_text("behind the commits")
        .await
        .expect("a text");
    for number in 1..=5 {
        let text = format!("text {number}");
        texts.send_text(&text).await.expect("a text");
    }
    group("one more").await;
    group("and one more").await;
    for _ in 0..2 {
        let another = open(&CAROL, &MemoryDisk::new(), &backend).await;
        another.close().await.expect("it closes");
    }
    let scenes = [
        ("commits", Topic::group(&commits.id())),
        ("messages", Topic::group(&texts.id())),
        ("identity updates", Topic::identity(&carol.inbox_id())),
        ("Welcomes", Topic::welcome(&installation)),
    ];
    for (name, topic) in scenes {
        let batch = behind(&disk, &backend, topic).await;
        assert!(
            batch.envelopes.len() > 1,
            "{name}: nothing could come later"
        );
        fail_everywhere(&Scene {
            name,
            disk: disk.copy(),
            installation,
            inbox,
            batch,
        });
    }
    carol.close().await.expect("it closes");
    backend.stop().await;
}
