//! One disk, one backend, and processes over both, without workers unless a test starts them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use xmtp_proto::backend::v1;
use xmtp_proto::backend::v1::message_hash::Hash;
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::storage::v1::IntentKind;
use xmtp_proto::{GroupId, InboxId, MessageId, SequenceId, Topic};

use super::play::Play;
use crate::engine::fetch::fetch_page;
use crate::engine::{Context, Engine};
use crate::processing::{self, Left, Processors, TurnReport};
use crate::processor::Joined;
use crate::receipt::{self, AdmissionError, Admitted, Batch};
use crate::runtime::{Runtime, SimulatedRuntime};
use crate::send::{NewIntent, Sender};
use crate::storage::schema::{COUNTER, DATABASE, MESSAGE, REVISION, TABLES};
use crate::storage::{
    Database, Durability, KeyRange, Order, Page, Read, Snapshot, StorageError, WriteTxn, verify,
};
use crate::subscription::Interests;
use crate::testing::faulty::Faulty;
use crate::testing::memory::MemoryDisk;
use crate::testing::scripted::{INSTALLATION, ScriptedBackend, group_envelope};
use crate::welcome::{CREATED_DURABILITY, install_created};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// A row of the database, for comparing whole states.
pub(crate) type Row = (&'static str, Vec<u8>, Vec<u8>);

/// One process on a disk.
pub(crate) struct World {
    pub(crate) runtime: SimulatedRuntime,
    pub(crate) disk: MemoryDisk,
    pub(crate) faulty: Arc<Faulty>,
    pub(crate) backend: ScriptedBackend,
    pub(crate) play: Arc<Play>,
    pub(crate) context: Context,
}

impl World {
    pub(crate) fn new() -> Self {
        let runtime = SimulatedRuntime::new(5);
        let backend = ScriptedBackend::new(Arc::new(runtime.clone()));
        Self::over(runtime, backend, MemoryDisk::new(), Arc::default())
    }

    /// Opens the same disk in another process: fresh handles, the same script.
    pub(crate) fn another(&self) -> Self {
        let (runtime, backend) = (self.runtime.clone(), self.backend.clone());
        Self::over(runtime, backend, self.disk.clone(), self.play.clone())
    }

    fn over(
        runtime: SimulatedRuntime,
        backend: ScriptedBackend,
        disk: MemoryDisk,
        play: Arc<Play>,
    ) -> Self {
        let shared: Arc<dyn Runtime> = Arc::new(runtime.clone());
        let faulty = Faulty::new(disk.open());
        let context = Context {
            database: Database::open(faulty.clone(), shared.clone()).expect("it opens"),
            transport: backend.transport(),
            processors: Processors {
                group: play.clone(),
                identity: play.clone(),
                welcome: play.clone(),
            },
            runtime: shared,
            interests: Interests::default(),
            welcome_topic: Topic::welcome(&INSTALLATION),
        };
        Self {
            runtime,
            disk,
            faulty,
            backend,
            play,
            context,
        }
    }

    /// Runs a future on virtual time.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> T {
        self.runtime.run(future)
    }

    /// Lets virtual time pass, and whatever runs with it.
    pub(crate) fn wait(&self, duration: Duration) {
        let sleep = self
            .runtime
            .sleep_until(self.runtime.monotonic() + duration);
        self.run(sleep);
    }

    /// Starts the workers.
    pub(crate) fn start(&self) -> Engine {
        Engine::start(self.context.clone())
    }

    /// Closes an engine and checks what it leaves.
    pub(crate) fn end(&self, engine: Engine) {
        self.run(async move { engine.close().await.expect("it closes") });
        self.another().verify();
    }

    /// Makes a sender that no receiver helps.
    pub(crate) fn sender(&self) -> Sender {
        Sender::new(self.context.clone(), Arc::new(|_| false))
    }

    pub(crate) fn join(&self, name: u8) {
        let joined = Joined {
            record: stored::GroupRecord::default(),
            messages: Vec::new(),
        };
        let database = &self.context.database;
        let install = |txn: &mut WriteTxn<'_>| install_created(txn, group(name), joined);
        database
            .write(CREATED_DURABILITY, install)
            .expect("it is written");
    }

    /// Stores group messages at the backend.
    pub(crate) fn store(&self, name: u8, texts: &[&str]) -> Vec<u64> {
        let envelopes = texts.iter().map(|text| group_envelope(&group(name), text));
        self.backend.store(envelopes)
    }

    pub(crate) fn write<T>(
        &self,
        f: impl FnOnce(&mut WriteTxn<'_>) -> Result<T, StorageError>,
    ) -> T {
        self.context
            .database
            .write(Durability::Ordered, f)
            .expect("it is written")
    }

    pub(crate) fn read<T>(&self, f: impl FnOnce(&dyn Snapshot) -> Result<T, StorageError>) -> T {
        self.context.database.read(f).expect("it is read")
    }

    pub(crate) fn admit(&self, batch: &Batch) -> Result<Admitted, AdmissionError> {
        let admit = |txn: &mut WriteTxn<'_>| receipt::admit(txn, batch);
        self.context.database.write(Durability::Ordered, admit)
    }

    /// Admits group messages from durable F on, each at its sequence id.
    pub(crate) fn receive(&self, name: u8, rows: &[(u64, &str)]) {
        let after = self.record(&topic(name)).received;
        let admitted = self
            .admit(&batch(name, after, rows))
            .expect("it is admitted");
        assert_eq!(admitted.left_out, None);
    }

    /// Admits what the backend holds of a group, without processing it.
    pub(crate) fn receive_all(&self, name: u8) {
        let after = self.record(&topic(name)).received;
        let request = v1::QueryRequest {
            queries: vec![v1::TopicQuery {
                topic: Some(topic(name).to_proto()),
                cursor: Some(v1::Cursor { sequence_id: after }),
            }],
            limit: 100,
        };
        let transport = self.context.transport.clone();
        let answer = self.run(async move { transport.query(request).await });
        let envelopes = answer.expect("a page").envelopes;
        let batch = receipt::check(topic(name), SequenceId::saturating(after), envelopes);
        self.admit(&batch.expect("in order")).expect("it fits");
    }

    /// Receives and processes what the backend holds of a group, as the engine does.
    pub(crate) fn sync(&self, name: u8) {
        let context = self.context.clone();
        let page = self.run(async move { fetch_page(&context, &[topic(name)]).await });
        page.expect("a page");
        while self.turn(&topic(name)).left == Left::More {}
    }

    pub(crate) fn turn(&self, topic: &Topic) -> TurnReport {
        self.try_turn(topic, false).expect("a turn")
    }

    pub(crate) fn try_turn(&self, topic: &Topic, force: bool) -> Result<TurnReport, StorageError> {
        let turn =
            |txn: &mut WriteTxn<'_>| processing::turn(txn, topic, &self.context.processors, force);
        self.context.database.write(Durability::Ordered, turn)
    }

    pub(crate) fn record(&self, topic: &Topic) -> stored::TopicRecord {
        self.read(|snapshot| receipt::store::topic(snapshot, topic))
    }

    /// F and P of a group.
    pub(crate) fn positions(&self, name: u8) -> (u64, u64) {
        let record = self.record(&topic(name));
        (record.received, record.processed)
    }

    pub(crate) fn head(&self, topic: &Topic) -> Option<stored::HeadState> {
        self.read(|snapshot| processing::store::head(snapshot, topic))
    }

    pub(crate) fn rejection(&self, topic: &Topic, sequence: u64) -> Option<String> {
        let sequence = SequenceId::saturating(sequence);
        let read =
            |snapshot: &dyn Snapshot| processing::store::rejection(snapshot, topic, sequence);
        self.read(read).map(|rejection| rejection.reason)
    }

    pub(crate) fn group(&self, name: u8) -> stored::GroupRecord {
        let read = |snapshot: &dyn Snapshot| crate::welcome::store::group(snapshot, &group(name));
        self.read(read).unwrap_or_default()
    }

    pub(crate) fn intent(&self, number: u64) -> stored::Intent {
        self.read(|snapshot| crate::send::store::intent(snapshot, number))
            .expect("the intent is there")
    }

    /// The content of all messages in delivery order.
    pub(crate) fn messages(&self) -> Vec<String> {
        let page = Page {
            rows: 10_000,
            bytes: u32::MAX,
            order: Order::Ascending,
        };
        let read = |snapshot: &dyn Snapshot| {
            snapshot.page(MESSAGE, &crate::storage::schema::All, None, page)
        };
        let rows = self.read(read).rows;
        rows.into_iter()
            .map(|(_, message)| String::from_utf8_lossy(&message.content).into_owned())
            .collect()
    }

    /// Every row but those that count commits.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let page = Page {
            rows: 100_000,
            bytes: u32::MAX,
            order: Order::Ascending,
        };
        let everything = KeyRange {
            start: &[],
            end: None,
        };
        let skipped = [REVISION.info.id, COUNTER.info.id, DATABASE.info.id];
        self.read(|snapshot| {
            let mut all = Vec::new();
            for table in TABLES.iter().filter(|table| !skipped.contains(&table.id)) {
                let rows = snapshot.scan(table.id, everything, page)?;
                all.extend(
                    rows.iter()
                        .map(|(k, v)| (table.name, k.to_vec(), v.to_vec())),
                );
            }
            Ok(all)
        })
    }

    pub(crate) fn verify(&self) {
        if let Err(faults) = verify::verify_database(&self.context.database) {
            panic!("the database is broken: {faults:?}");
        }
    }
}

pub(crate) fn group(name: u8) -> GroupId {
    GroupId::from_bytes([name; 16])
}

pub(crate) fn topic(name: u8) -> Topic {
    Topic::group(&group(name))
}

pub(crate) fn inbox(name: u8) -> InboxId {
    InboxId::from_bytes([name; 32])
}

/// A message to send, with an id of its own.
pub(crate) fn text(name: u8, body: &str) -> NewIntent {
    NewIntent {
        group: group(name),
        kind: IntentKind::SendMessage,
        body: Bytes::copy_from_slice(body.as_bytes()),
        message_id: Some(MessageId::derive(&group(name), body, body.as_bytes())),
    }
}

/// A change of the group's state to send; `body` begins with `commit`.
pub(crate) fn change(name: u8, body: &str) -> NewIntent {
    NewIntent {
        kind: IntentKind::ChangeMetadata,
        message_id: None,
        ..text(name, body)
    }
}

/// An envelope as the backend serves it, with a hash that is not the one of its content.
pub(crate) fn served(
    topic: &Topic,
    sequence: u64,
    envelope: v1::ClientEnvelope,
) -> v1::ServerEnvelope {
    v1::ServerEnvelope {
        meta: Some(v1::EnvelopeMeta {
            cursor: Some(v1::Cursor {
                sequence_id: sequence,
            }),
            server_ns: sequence * 1_000,
            message_hash: Some(v1::MessageHash {
                hash: Some(Hash::Sha256(vec![sequence as u8; 32].into())),
            }),
            topic: Some(topic.to_proto()),
            ..Default::default()
        }),
        envelope: Some(envelope),
    }
}

/// Group messages as a checked batch.
pub(crate) fn batch(name: u8, after: u64, rows: &[(u64, &str)]) -> Batch {
    let envelopes = rows.iter().map(|(sequence, text)| {
        served(&topic(name), *sequence, group_envelope(&group(name), text))
    });
    let after = SequenceId::saturating(after);
    receipt::check(topic(name), after, envelopes.collect()).expect("the batch is in order")
}
