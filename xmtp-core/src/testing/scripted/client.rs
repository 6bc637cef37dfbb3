//! A whole engine on a scripted backend, a simulated runtime and a memory database.

use std::sync::Arc;
use std::time::Duration;

use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{GroupId, InstallationId, SequenceId, Topic};

use super::{ScriptedBackend, ScriptedProcessor, processors};
use crate::engine::{Context, Engine};
use crate::processor::Joined;
use crate::runtime::{Runtime, RuntimeExt, SimulatedRuntime};
use crate::storage::{Database, Storage, StorageError, verify};
use crate::subscription::Interests;
use crate::subscription::progress::{self, TopicProgress};
use crate::testing::memory::MemoryStorage;
use crate::welcome::{CREATED_DURABILITY, install_created};

/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// After this much virtual time a condition that does not hold fails the test.
const PATIENCE: Duration = Duration::from_secs(3_600);

/// A client under test.
#[derive(Debug)]
pub struct ScriptedClient {
    /// The engine.
    pub engine: Engine,
    /// Its parts.
    pub context: Context,
    /// What decides its envelopes.
    pub processor: Arc<ScriptedProcessor>,
}

/// The installation of every scripted client.
pub const INSTALLATION: InstallationId = InstallationId::from_bytes([7; 32]);

impl ScriptedClient {
    /// Starts a client with an empty database.
    pub fn start(runtime: &SimulatedRuntime, backend: &ScriptedBackend) -> Self {
        Self::open(runtime, backend, MemoryStorage::new())
    }

    /// Starts a client on an engine of its own choice.
    ///
    /// # Panics
    /// When the database does not open.
    pub fn open(
        runtime: &SimulatedRuntime,
        backend: &ScriptedBackend,
        storage: Arc<dyn Storage>,
    ) -> Self {
        let runtime: Arc<dyn Runtime> = Arc::new(runtime.clone());
        let processor = Arc::new(ScriptedProcessor::default());
        let database = Database::open(storage, runtime.clone()).expect("the database opens");
        let context = Context {
            database,
            transport: backend.transport(),
            processors: processors(&processor),
            runtime,
            interests: Interests::default(),
            welcome_topic: Topic::welcome(&INSTALLATION),
        };
        Self {
            engine: Engine::start(context.clone()),
            context,
            processor,
        }
    }

    /// Makes this client a member of a group since its beginning.
    ///
    /// # Panics
    /// When the database fails.
    pub fn join(&self, group: &GroupId) {
        let joined = Joined {
            record: stored::GroupRecord::default(),
            messages: Vec::new(),
        };
        let written = self.context.database.write(CREATED_DURABILITY, |txn| {
            install_created(txn, *group, joined)
        });
        written.expect("a group is installed");
    }

    /// Reads how far a topic is.
    ///
    /// # Panics
    /// When the database fails.
    pub fn progress(&self, topic: &Topic) -> TopicProgress {
        self.context
            .database
            .read(|snapshot| progress::read(snapshot, topic, SequenceId::MAX))
            .expect("progress is read")
    }

    /// Reads F.
    pub fn received(&self, topic: &Topic) -> u64 {
        self.progress(topic).received.get()
    }

    /// Reads P; F for a Welcome topic without unresolved Welcomes.
    pub fn processed(&self, topic: &Topic) -> u64 {
        match self.progress(topic).position {
            progress::Position::Processed { processed, .. } => processed.get(),
            progress::Position::Welcomes { unresolved } if unresolved.is_empty() => {
                self.received(topic)
            }
            progress::Position::Welcomes { .. } => 0,
        }
    }

    /// Counts the envelopes of a topic that wait.
    ///
    /// # Panics
    /// When the database fails.
    pub fn pending_rows(&self, topic: &Topic) -> u64 {
        let record = self
            .context
            .database
            .read(|snapshot| crate::receipt::store::topic(snapshot, topic));
        record.expect("positions are read").pending_rows.into()
    }

    /// Reads the content of a group's messages in delivery order.
    ///
    /// # Panics
    /// When the database fails.
    pub fn messages(&self, group: &GroupId) -> Vec<String> {
        use crate::storage::schema::{MESSAGE, MESSAGE_BY_GROUP};
        use crate::storage::{Order, Page, Read};
        let page = Page {
            rows: u32::MAX,
            bytes: u32::MAX,
            order: Order::Ascending,
        };
        let read = self.context.database.read(|snapshot| {
            let found = snapshot.page(MESSAGE_BY_GROUP, group, None, page)?;
            let mut contents = Vec::new();
            for ((_, number), _) in found.rows {
                let message = snapshot.row(MESSAGE, &number)?.unwrap_or_default();
                contents.push(String::from_utf8_lossy(&message.content).into_owned());
            }
            Ok::<_, StorageError>(contents)
        });
        read.expect("messages are read")
    }

    /// Waits until a condition holds.
    ///
    /// # Panics
    /// When it does not within an hour of virtual time.
    pub async fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let deadline = self.context.runtime.monotonic() + PATIENCE;
        while !holds(self) {
            let now = self.context.runtime.monotonic();
            assert!(now < deadline, "never: {what}");
            self.context.runtime.sleep(LOOK_EVERY).await;
        }
    }

    /// Lets virtual time pass.
    pub async fn wait(&self, duration: Duration) {
        self.context.runtime.sleep(duration).await;
    }

    /// Checks every rule that holds across tables.
    ///
    /// # Panics
    /// When one is broken.
    pub fn verify(&self) {
        if let Err(faults) = verify::verify_database(&self.context.database) {
            panic!("the database is broken: {faults:?}");
        }
    }
}
