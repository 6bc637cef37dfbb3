//! What an operator decides, checked before anything starts.
//!
//! A [`Config`] comes from a TOML file or from code; either way [`Config::check`] runs before the
//! server starts, so that no later part has to ask whether a value makes sense. An error names the
//! field as `section.field` and never shows a value, because a value may be a secret.
//!
//! Each section of the file has its own module: the shape it has in TOML, its defaults, and the
//! relations that its values must keep. The schema of the whole file is generated from the same
//! types ([`schema`]).

mod address;
mod auth;
mod chains;
mod database;
mod file;
mod limits;
mod mls;
mod postgres;
mod publish;
mod retention;
mod server;
mod streams;
mod telemetry;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use xmtp_proto::backend::v1::{LimitsConfiguration, MlsConfiguration, RetentionConfiguration};

use crate::hooks::{Clock, Hooks, NoHooks, SystemClock};

pub use auth::{Auth, InlineKey, JwksSettings, KeySource, SigningAlgorithm};
pub use chains::Validation;
pub use database::{Database, DatabaseLimits, PostgresSettings};
pub use file::schema;
pub use server::{DEFAULT_MAX_DRAIN_DURATION_MS, DEFAULT_PORT, LogFormat, Server};
pub use streams::{Publishing, Streams};
pub use telemetry::{DEFAULT_METRICS_PORT, Telemetry};

pub(crate) use address::check_address;
pub(crate) use postgres::{Address, Authorities, Proof};
pub(crate) use publish::published;

/// Everything the server is told from outside.
#[derive(Clone, Debug)]
pub struct Config {
    /// The section `[server]`.
    pub server: Server,
    /// The section `[telemetry]`.
    pub telemetry: Telemetry,
    /// Where envelopes are kept (`database.url`, `database.replica_url`).
    pub database: Database,
    /// The bounds of the section `[database]`.
    pub database_limits: DatabaseLimits,
    /// The section `[publishing]`.
    pub publishing: Publishing,
    /// The section `[streams]`.
    pub streams: Streams,
    /// The section `[retention]`, as it is published.
    pub retention: RetentionConfiguration,
    /// The section `[chains]`: the address of each chain's RPC, by CAIP-2 name.
    pub chains: BTreeMap<String, Secret>,
    /// The section `[validation]`.
    pub validation: Validation,
    /// The section `[auth]`; `None` while it is switched off, whatever else it says.
    pub auth: Option<Auth>,
    /// The section `[limits]`, as it is published.
    pub limits: LimitsConfiguration,
    /// The most requests and streams of one connection (`limits.max_http2_streams`).
    pub max_http2_streams: u32,
    /// The section `[mls]`, as it is published.
    pub mls: MlsConfiguration,
    /// Tells the time of day; no setting.
    pub clock: Arc<dyn Clock>,
    /// Holds or fails the server in tests; no setting.
    pub hooks: Arc<dyn Hooks>,
}

/// A value that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a value.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// Shows the value to code that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// Reports why a configuration is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct ConfigError {
    /// The field, as `section.field`, or the path of a file that can not be read.
    pub field: String,
    /// What is wrong, in words that show no value.
    pub problem: String,
}

impl ConfigError {
    pub(crate) fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            problem: problem.into(),
        }
    }
}

impl Config {
    /// Returns the defaults for a deployment, listening on every address.
    pub fn new(identifier: impl Into<String>, database: Database) -> Self {
        Self {
            server: Server::new(identifier),
            telemetry: Telemetry::default(),
            database,
            database_limits: DatabaseLimits::default(),
            publishing: Publishing::default(),
            streams: Streams::default(),
            retention: xmtp_proto::limits::default_retention(),
            chains: BTreeMap::new(),
            validation: Validation::default(),
            auth: None,
            limits: xmtp_proto::limits::default_limits(),
            max_http2_streams: xmtp_proto::limits::BACKEND_DEFAULT_MAX_HTTP2_STREAMS,
            mls: xmtp_proto::limits::default_mls(),
            clock: Arc::new(SystemClock),
            hooks: Arc::new(NoHooks),
        }
    }

    /// Returns the defaults for a server in memory on a free loopback port, without metrics.
    pub fn ephemeral(identifier: impl Into<String>) -> Self {
        let mut config = Self::new(identifier, Database::Memory);
        config.server.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        config.telemetry.metrics_listen = None;
        config
    }

    /// Reads and checks a configuration file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| {
            let problem = format!("the file can not be read: {}", error.kind());
            ConfigError::new(path.display().to_string(), problem)
        })?;
        Self::from_toml(&text)
    }

    /// Reads and checks the text of a configuration file.
    ///
    /// - Refuses fields it does not know.
    /// - A value that may be a secret may be written as `env:NAME`, which stands for that
    ///   environment variable.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let config = file::parse(text)?;
        config.check()?;
        Ok(config)
    }

    /// Checks the values and their relations.
    pub fn check(&self) -> Result<(), ConfigError> {
        server::check(&self.server)?;
        telemetry::check(&self.telemetry)?;
        database::check(&self.database, &self.database_limits)?;
        streams::check(&self.publishing, &self.streams, &self.database_limits)?;
        retention::check(&self.retention, self.clock.now_ns())?;
        limits::check(&self.limits, self.max_http2_streams)?;
        mls::check(&self.mls)?;
        chains::check(&self.chains, &self.validation)?;
        if let Some(auth) = &self.auth {
            auth::check(auth)?;
        }
        // Last, because it builds the response from the values above.
        published(self, &[]).map(|_| ())
    }
}

/// Refuses a field.
fn refuse(field: impl Into<String>, problem: impl Into<String>) -> Result<(), ConfigError> {
    Err(ConfigError::new(field, problem))
}

/// Checks that each value is at least 1 and can be told to every client as it is.
fn check_positive<'f>(values: impl IntoIterator<Item = (&'f str, u64)>) -> Result<(), ConfigError> {
    let most = xmtp_proto::limits::MAX_PUBLISHED_INTEGER;
    for (field, value) in values {
        if value == 0 {
            return refuse(field, "must be at least 1");
        }
        if value > most {
            return refuse(field, format!("must be at most {most}"));
        }
    }
    Ok(())
}
