//! What an operator decides, checked before anything starts.
//!
//! A [`Config`] comes from a TOML file or from code; either way [`Config::check`] runs before the
//! server starts, so that no later part has to ask whether a value makes sense. An error names the
//! field as `section.field` and never shows a value, because a value may be a secret.

mod check;
mod file;
mod publish;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use xmtp_proto::backend::v1::{LimitsConfiguration, MlsConfiguration, RetentionConfiguration};
use xmtp_proto::limits;

use crate::hooks::{Clock, Hooks, NoHooks, SystemClock};

pub(crate) use publish::published;

/// The port that clients connect to unless the file says otherwise.
pub const DEFAULT_PORT: u16 = 5050;

/// How long open requests may finish after a stop, in milliseconds, unless the file says otherwise.
pub const DEFAULT_MAX_DRAIN_DURATION_MS: u32 = 10_000;

/// Everything the server is told from outside.
#[derive(Clone, Debug)]
pub struct Config {
    /// The section `[server]`.
    pub server: Server,
    /// Where envelopes are kept.
    pub database: Database,
    /// The section `[limits]`, as it is published.
    pub limits: LimitsConfiguration,
    /// The most requests and streams of one connection (`limits.max_http2_streams`).
    pub max_http2_streams: u32,
    /// The section `[retention]`, as it is published.
    pub retention: RetentionConfiguration,
    /// The section `[streams]`.
    pub streams: Streams,
    /// The section `[mls]`, as it is published.
    pub mls: MlsConfiguration,
    /// The section `[chains]`: the address of each chain's RPC, by CAIP-2 name.
    pub chains: BTreeMap<String, Secret>,
    /// Tells the time of day; no setting.
    pub clock: Arc<dyn Clock>,
    /// Holds or fails the server in tests; no setting.
    pub hooks: Arc<dyn Hooks>,
}

/// The section `[server]`.
#[derive(Clone, Debug)]
pub struct Server {
    /// What client databases are bound to; it must never change.
    pub identifier: String,
    /// The lowest client version that may connect, published to clients; `None` for any.
    pub min_libxmtp_version: Option<String>,
    /// Where to listen; port 0 takes any free one.
    pub listen: SocketAddr,
    /// The least severe level that is logged.
    pub log_level: tracing::Level,
    /// How long open requests may finish after a stop.
    pub max_drain_duration: Duration,
}

/// Where envelopes are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Database {
    /// In memory; gone with the process (`memory:`).
    Memory,
    /// In one SQLite database (`sqlite:PATH`).
    Sqlite(PathBuf),
}

/// The section `[streams]`.
#[derive(Clone, Copy, Debug)]
pub struct Streams {
    /// The longest silence before a ping, in milliseconds.
    pub keepalive_interval_ms: u32,
    /// How long a ping may stay unanswered, in milliseconds.
    pub max_pong_wait_ms: u32,
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
    /// The field, as `section.field`.
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

impl Default for Streams {
    fn default() -> Self {
        Self {
            keepalive_interval_ms: limits::BACKEND_DEFAULT_KEEPALIVE_INTERVAL_MS,
            max_pong_wait_ms: limits::BACKEND_DEFAULT_MAX_PONG_WAIT_MS,
        }
    }
}

impl Config {
    /// Returns the defaults for a deployment, listening on every address.
    pub fn new(identifier: impl Into<String>, database: Database) -> Self {
        Self {
            server: Server {
                identifier: identifier.into(),
                min_libxmtp_version: None,
                listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, DEFAULT_PORT)),
                log_level: tracing::Level::INFO,
                max_drain_duration: Duration::from_millis(DEFAULT_MAX_DRAIN_DURATION_MS.into()),
            },
            database,
            limits: limits::default_limits(),
            max_http2_streams: limits::BACKEND_DEFAULT_MAX_HTTP2_STREAMS,
            retention: limits::default_retention(),
            streams: Streams::default(),
            mls: limits::default_mls(),
            chains: BTreeMap::new(),
            clock: Arc::new(SystemClock),
            hooks: Arc::new(NoHooks),
        }
    }

    /// Returns the defaults for a server in memory on a free loopback port.
    pub fn ephemeral(identifier: impl Into<String>) -> Self {
        let mut config = Self::new(identifier, Database::Memory);
        config.server.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        config
    }

    /// Reads and checks a configuration file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| {
            ConfigError::new(
                "--config",
                format!("the file can not be read: {}", error.kind()),
            )
        })?;
        Self::from_toml(&text)
    }

    /// Reads and checks the text of a configuration file.
    ///
    /// - Refuses fields it does not know.
    /// - A secret may be written as `env:NAME`, which stands for that environment variable.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let config = file::parse(text)?;
        config.check()?;
        Ok(config)
    }

    /// Checks the values and their relations.
    pub fn check(&self) -> Result<(), ConfigError> {
        check::check(self)
    }
}
