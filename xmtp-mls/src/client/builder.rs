//! Composing a client from its parts.

use std::sync::Arc;

use xmtp_core::engine::{Context, Engine};
use xmtp_core::processing::Processors;
use xmtp_core::runtime::{NativeRuntime, Runtime};
use xmtp_core::storage::{Database, Durability, Priority, Storage};
use xmtp_core::subscription::Interests;
use xmtp_core::transport::Transport;
use xmtp_core::transport::layer::{Retry, Trace};
use xmtp_proto::Topic;

use super::{Account, BuildError, Client, account, compose, keys, store};
use crate::Installation;
use crate::processor::MlsProcessor;

/// Composes a client. Missing parts are reported all at once.
#[derive(Debug, Default)]
pub struct ClientBuilder {
    storage: Option<Arc<dyn Storage>>,
    transport: Option<Box<dyn Transport>>,
    account: Option<Account>,
    runtime: Option<Arc<dyn Runtime>>,
    is_shared: bool,
}

impl ClientBuilder {
    /// Chooses the storage engine.
    #[must_use]
    pub fn storage(mut self, storage: Arc<dyn Storage>) -> Self {
        self.storage = Some(storage);
        self
    }

    /// Chooses the wire.
    #[must_use]
    pub fn transport(mut self, transport: impl Transport + 'static) -> Self {
        self.transport = Some(Box::new(transport));
        self
    }

    /// Says who uses the client; needed once for each database.
    #[must_use]
    pub fn account(mut self, account: Account) -> Self {
        self.account = Some(account);
        self
    }

    /// Chooses time, tasks and randomness; the tokio runtime by default.
    #[must_use]
    pub fn runtime(mut self, runtime: Arc<dyn Runtime>) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// States that several processes use the database at the same time: an engine that cannot be
    /// shared is refused (EXT-004).
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.is_shared = true;
        self
    }

    /// Builds the client: opens the database, and registers the account where it is new.
    ///
    /// # Errors
    /// When a part is missing, the database does not open or belongs to another account, or
    /// registration fails; calling it again resumes.
    pub async fn build(self) -> Result<Client, BuildError> {
        let (Some(storage), Some(transport)) = (self.storage.clone(), self.transport.clone())
        else {
            return Err(BuildError::Missing {
                parts: self.missing(),
            });
        };
        compose::check(
            &storage.capability(),
            &transport.capability(),
            self.is_shared,
        )?;
        let runtime = self.runtime.unwrap_or_else(|| NativeRuntime::current());
        let database = Database::open(storage, runtime.clone())?;
        xmtp_core::delivery::clear_if_single(&database)?;
        let installation = load_or_create(&database, self.account.as_ref(), &*transport).await?;
        let processor = MlsProcessor::new(installation.clone());
        let context = Context {
            transport: layered(transport, &runtime),
            welcome_topic: Topic::welcome(&installation.id()),
            processors: Processors::clone(&processor.processors()),
            interests: Interests::default(),
            database,
            runtime,
        };
        finish(context, installation, self.account).await
    }

    fn missing(&self) -> Vec<&'static str> {
        let mut parts = Vec::new();
        if self.storage.is_none() {
            parts.push(".storage(...)");
        }
        if self.transport.is_none() {
            parts.push(".transport(...)");
        }
        parts
    }
}

fn layered(transport: Box<dyn Transport>, runtime: &Arc<dyn Runtime>) -> Box<dyn Transport> {
    let retrying = Retry::new(transport, runtime.clone());
    Box::new(Trace(Box::new(retrying)))
}

async fn finish(
    context: Context,
    installation: Arc<Installation>,
    account: Option<Account>,
) -> Result<Client, BuildError> {
    let record = context.database.read(|snapshot| store::account(snapshot))?;
    let is_registered = record.is_some_and(|record| record.registered_sequence_id > 0);
    if !is_registered {
        let account = account.ok_or(BuildError::NoAccount)?;
        account::register(&context, &installation, &account).await?;
    }
    let engine = Engine::start(context.clone());
    engine.attend("key packages", keys::run(context, installation.clone()));
    Ok(Client::new(engine, installation))
}

/// Loads the installation of the database, or makes one and keeps it before it is used.
async fn load_or_create(
    database: &Database,
    account: Option<&Account>,
    transport: &dyn Transport,
) -> Result<Arc<Installation>, BuildError> {
    if let Some(record) = database.read(|snapshot| store::account(snapshot))? {
        let damaged = BuildError::Registration {
            reason: "the stored account is damaged; restore the database from a backup",
        };
        if account.is_some_and(|account| !account.is_of(&record)) {
            return Err(BuildError::OtherAccount);
        }
        let Some((inbox, id)) = account::owner(&record) else {
            return Err(damaged);
        };
        let loaded = database.read(|snapshot| Installation::load(snapshot, &id, inbox))?;
        return loaded.map(Arc::new).ok_or(damaged);
    }
    let account = account.ok_or(BuildError::NoAccount)?.clone();
    let inbox = account.find_inbox(transport).await?;
    let installation = Arc::new(Installation::generate(&**database.runtime(), inbox));
    let kept = installation.clone();
    let record = database
        .write_queued(Priority::Foreground, Durability::Flushed, move |txn| {
            account::keep(txn, &kept, &account)
        })
        .await?;
    match account::owner(&record) {
        Some((_, id)) if id == installation.id() => Ok(installation),
        // Another process was faster: its installation is the database's.
        _ => Box::pin(load_or_create(database, None, transport)).await,
    }
}
