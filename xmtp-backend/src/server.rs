//! The server: one port, all services, a graceful end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::auth::{self, KeySetFailure, Opened};
use crate::config::{Config, ConfigError, Database, published};
use crate::edge::{Listener, ObserveLayer, Serving, edge};
use crate::limits::ANSWER_TIME;
use crate::services::{Health, Services, routes};
use crate::store::{
    MemoryStore, OpenError, PostgresOptions, PostgresStore, PruneError, SetupError, SqliteSettings,
    SqliteStore, Store, TailError,
};
use crate::telemetry::{Scrape, metrics};
use crate::warden::{Refusal, Warden};

/// Starts servers.
#[derive(Clone, Copy, Debug)]
pub struct Backend;

/// Reports why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is refused.
    #[error("the configuration is refused: {0}")]
    Config(#[from] ConfigError),
    /// The keys of bearer tokens could not be loaded.
    #[error("auth.jwks_url: the keys can not be loaded: {0}")]
    Keys(#[from] KeySetFailure),
    /// The database could not be opened.
    #[error("the database is refused: {0}")]
    Store(#[from] OpenError),
    /// The database could not be used.
    #[error("the database is refused: {0}")]
    Setup(#[from] SetupError),
    /// The database does not tell what becomes visible.
    #[error("streams can not start: {0}")]
    Tail(#[from] TailError),
    /// The database could not be pruned.
    #[error("the database could not be pruned: {0}")]
    Prune(#[from] PruneError),
    /// The address could not be listened on.
    #[error("server.listen: the address can not be listened on: {0}")]
    Listen(io::ErrorKind),
    /// The address of the metrics could not be listened on.
    #[error("telemetry.metrics_listen: the address can not be listened on: {0}")]
    MetricsListen(io::ErrorKind),
}

/// Reports why a server ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// The store can no longer be trusted to tell what it holds; start again.
    #[error("the store failed")]
    StoreFailed,
    /// The listener failed.
    #[error("the listener failed")]
    ListenerFailed,
    /// The keys of bearer tokens could not be refreshed for `auth.jwks_max_stale_seconds`.
    #[error("the key set is too old, see that auth.jwks_url can be reached")]
    KeysTooOld,
}

impl Backend {
    /// Starts a server; when this returns, it serves.
    pub async fn start(config: Config) -> Result<Running, StartError> {
        // First of all: what is measured while the store opens would be lost.
        if config.telemetry.metrics_listen.is_some() {
            metrics::install()
                .map_err(|_| StartError::MetricsListen(io::ErrorKind::InvalidInput))?;
        }
        let (services, auth) = Self::open(&config).await?;
        match Running::listen(&config, services.clone(), auth).await {
            Ok(running) => Ok(running),
            Err(error) => {
                services.close().await;
                Err(error)
            }
        }
    }

    /// Opens the calls of a server without a socket.
    ///
    /// - Whoever can call them needs no credential.
    /// - [`Services::close`] lets go of the database.
    pub async fn services(config: &Config) -> Result<Services, StartError> {
        let (services, _) = Self::open(config).await?;
        Ok(services)
    }

    /// Loads the keys, opens the database, and begins to serve nobody yet.
    async fn open(config: &Config) -> Result<(Services, Option<Opened>), StartError> {
        config.check()?;
        let auth = open_auth(config).await?;
        let loaded = auth.as_ref().map_or(&[][..], |auth| &auth.loaded);
        let configuration = published(config, loaded)?;
        let store = open_store(config).await?;
        let services = Services::new(config, configuration, store.clone()).await;
        if services.is_err() {
            store.close().await;
        }
        Ok((services?, auth))
    }
}

async fn open_auth(config: &Config) -> Result<Option<Opened>, StartError> {
    let Some(auth) = &config.auth else {
        return Ok(None);
    };
    let (identifier, clock) = (&config.server.identifier, config.clock.clone());
    let opened = auth::open(auth, identifier, clock).await;
    opened.map(Some).map_err(|error| match error {
        auth::OpenError::Config(error) => error.into(),
        auth::OpenError::Keys(error) => error.into(),
    })
}

/// Opens the store that a configuration names.
pub(crate) async fn open_store(config: &Config) -> Result<Arc<dyn Store>, StartError> {
    let clock = config.clock.clone();
    let path = match &config.database {
        Database::Memory => return Ok(Arc::new(MemoryStore::new(clock))),
        Database::Sqlite(path) => path,
        Database::Postgres(database) => {
            let options = PostgresOptions::new(config, database);
            let hooks = config.hooks.clone();
            return Ok(Arc::new(PostgresStore::open(options, hooks).await?));
        }
    };
    let (path, identifier) = (path.clone(), config.server.identifier.clone());
    let settings = SqliteSettings::new(config);
    let open = move || SqliteStore::open(&path, &identifier, clock, settings);
    let opened = tokio::task::spawn_blocking(open).await;
    let store = opened.map_err(|_| OpenError::Files(io::ErrorKind::Other))??;
    Ok(Arc::new(store))
}

/// A server that serves.
///
/// - Dropping it stops it without waiting for open requests.
#[derive(Debug)]
pub struct Running {
    address: SocketAddr,
    refusal: Refusal,
    warden: Warden,
    max_drain_duration: Duration,
    stop: watch::Sender<bool>,
    serving: Serving,
    scrape: Option<Scrape>,
}

impl Running {
    async fn listen(
        config: &Config,
        services: Services,
        auth: Option<Opened>,
    ) -> Result<Self, StartError> {
        let listener = Listener::bind(config.server.listen).await;
        let listener = listener.map_err(|error| StartError::Listen(error.kind()))?;
        let address = listener.address();
        let scrape = match config.telemetry.metrics_listen {
            Some(listen) => Some(
                Scrape::start(listen)
                    .await
                    .map_err(|error| StartError::MetricsListen(error.kind()))?,
            ),
            None => None,
        };

        let health = Health::new();
        let stop = watch::Sender::new(false);
        let observe = ObserveLayer {
            identifier: config.server.identifier.as_str().into(),
            request_logger: config.server.request_logger,
        };
        let (authenticator, keys) = auth.map_or((None, None), Opened::into_parts);
        let routes = routes(&services).add_service(health.service());
        let service = edge(routes, observe, authenticator);
        let pong_wait = Duration::from_millis(config.streams.max_pong_wait_ms.into());
        let answer_time = ANSWER_TIME.max(pong_wait);
        let streams = config.max_http2_streams;
        let serving = listener.serve(service, streams, answer_time, stop.subscribe());
        metrics::backend_ready(true);
        let identifier = config.server.identifier.as_str();
        tracing::info!(%address, identifier, "the server is listening");
        let max_drain_duration = config.server.max_drain_duration;
        let refusal = Refusal { services, health };
        Ok(Self {
            address,
            warden: Warden::start(refusal.clone(), keys),
            refusal,
            max_drain_duration,
            stop,
            serving,
            scrape,
        })
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address as a client writes it.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the address that metrics are served on, if they are.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.scrape.as_ref().map(Scrape::address)
    }

    /// Returns the calls of this server, for use without its socket.
    pub fn services(&self) -> Services {
        self.refusal.services.clone()
    }

    /// Waits until the server ends by itself.
    ///
    /// - From then on it serves nobody, whether or not this is called; [`Running::stop`] ends what is
    ///   open.
    pub async fn wait(&mut self) -> Ended {
        tokio::select! {
            ended = self.warden.ended() => ended,
            _ = &mut self.serving => {
                self.refusal.refuse();
                Ended::ListenerFailed
            }
        }
    }

    /// Stops the server.
    ///
    /// - New calls and open streams fail with UNAVAILABLE at once.
    /// - Whoever watches the health is told that nobody is served, and the watch ends.
    /// - Open requests may finish for as long as the configuration lets them.
    /// - Afterwards the database is closed.
    pub async fn stop(mut self) {
        self.refusal.refuse();
        self.stop.send_replace(true);
        self.refusal.health.stop();
        if !self.serving.is_finished() {
            let drained = tokio::time::timeout(self.max_drain_duration, &mut self.serving).await;
            if drained.is_err() {
                tracing::warn!("open requests did not finish in time");
                self.serving.abort();
            }
        }
        self.refusal.services.close().await;
        tracing::info!("the server has stopped");
    }
}
