//! The calls of the wire, callable with and without a socket.
//!
//! Each file holds one call. A call takes and returns plain messages, so that the gRPC adapter
//! (`grpc.rs`), the in-process transport of tests and these functions cannot differ.

mod codec;
mod configuration;
mod grpc;
mod health;
mod inbox_ids;
mod publish;
mod query;
mod query_newest;
mod status;
mod streams;
mod subscribe;
mod verify_wallets;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use tonic::Status;
use xmtp_proto::backend::v1::{GetConfigurationResponse, LimitsConfiguration};

use crate::chain::Chains;
use crate::config::Config;
use crate::hooks::{Call, Clock, Hooks, Point, Verdict};
use crate::maintenance::Pruner;
use crate::server::StartError;
use crate::store::Store;
use crate::stream::{Engine, StreamSettings};

#[cfg(test)]
pub(crate) use grpc::SERVICE_NAMES;
pub(crate) use grpc::routes;
pub(crate) use health::Health;
pub(crate) use status::{Failure, complete, unavailable, unreadable};
#[cfg(test)]
pub(crate) use wire::server_envelope;
pub(crate) use wire::{decode_topic, decode_topic_query, wire_meta, wire_topic};

pub use crate::stream::{Frames, StaticFrames};

/// The calls of the wire.
///
/// Clones share one server. Without a socket, the callers must be on a tokio runtime.
#[derive(Clone)]
pub struct Services {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn Store>,
    engine: Engine,
    chains: Chains,
    pruner: Pruner,
    configuration: GetConfigurationResponse,
    limits: LimitsConfiguration,
    /// How long a publish may take, of which its wait for the commit is a part; past it the outcome
    /// is unknown to the caller.
    publish_time: Duration,
    clock: Arc<dyn Clock>,
    hooks: Arc<dyn Hooks>,
    /// Where the next query begins among its topics.
    turn: AtomicUsize,
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Services")
            .field("store", &self.inner.store)
            .finish_non_exhaustive()
    }
}

impl Services {
    /// - `configuration` is what GetConfiguration answers, for ever.
    pub(crate) async fn new(
        config: &Config,
        configuration: GetConfigurationResponse,
        store: Arc<dyn Store>,
    ) -> Result<Self, StartError> {
        let chains = Chains::new(config)?;
        let settings = StreamSettings::new(config);
        let engine = Engine::start(store.clone(), settings, config.hooks.clone()).await?;
        let pruner = Pruner::start(store.clone(), config.clock.clone());
        let inner = Inner {
            store,
            engine,
            chains,
            pruner,
            configuration,
            limits: config.limits,
            publish_time: Duration::from_millis(config.publishing.max_publish_duration_ms.into()),
            clock: config.clock.clone(),
            hooks: config.hooks.clone(),
            turn: AtomicUsize::new(0),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Refuses new calls and ends every stream with UNAVAILABLE.
    pub(crate) fn shut_down(&self) {
        self.inner.pruner.stop();
        self.inner.engine.shut_down();
    }

    /// Waits until the store can no longer say what becomes visible.
    pub(crate) async fn failed(&self) {
        self.inner.engine.failed().await;
    }

    /// Ends all streams, finishes what was accepted, and lets go of the store.
    pub async fn close(&self) {
        self.shut_down();
        self.inner.store.close().await;
    }

    /// Closes the store under a running server.
    #[cfg(test)]
    pub(crate) async fn close_store(&self) {
        self.inner.store.close().await;
    }

    /// Counts the topics of all streams.
    #[cfg(test)]
    pub(crate) fn registrations(&self) -> usize {
        self.inner.engine.registrations()
    }

    /// Lets a call begin, or fails it.
    async fn begin(&self, call: Call) -> Result<(), Status> {
        if self.inner.engine.is_shut_down() {
            return Err(unavailable());
        }
        self.reach(Point::Call(call)).await
    }

    async fn reach(&self, point: Point) -> Result<(), Status> {
        match self.inner.hooks.reach(point).await {
            Verdict::Go => Ok(()),
            Verdict::Unavailable => Err(unavailable()),
        }
    }
}
