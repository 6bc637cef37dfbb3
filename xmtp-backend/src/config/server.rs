//! The section `[server]`.
//!
//! ```toml
//! [server]
//! identifier = "org.example.chat"   # CHANGE IT once, before the first client connects
//! min_libxmtp_version = "1.12.0"
//! listen = "0.0.0.0:5050"
//! log_level = "info"                # error, warn, info, debug, trace
//! log_format = "text"               # text, json
//! request_logger = true
//! max_drain_duration_ms = 10000
//! ```

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ConfigError, refuse};

/// The port that clients connect to unless the file says otherwise.
pub const DEFAULT_PORT: u16 = 5050;

/// How long open requests may finish after a stop, in milliseconds, unless the file says otherwise.
pub const DEFAULT_MAX_DRAIN_DURATION_MS: u32 = 10_000;

/// The longest identifier, in bytes.
const MAX_IDENTIFIER_BYTES: usize = 256;

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
    /// How a line of the log is written.
    pub log_format: LogFormat,
    /// Whether each finished request is logged.
    pub request_logger: bool,
    /// How long open requests may finish after a stop.
    pub max_drain_duration: Duration,
}

/// How a line of the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl Server {
    pub(super) fn new(identifier: impl Into<String>) -> Self {
        Self {
            identifier: identifier.into(),
            min_libxmtp_version: None,
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, DEFAULT_PORT)),
            log_level: tracing::Level::INFO,
            log_format: LogFormat::default(),
            request_logger: true,
            max_drain_duration: Duration::from_millis(DEFAULT_MAX_DRAIN_DURATION_MS.into()),
        }
    }
}

/// Whom clients talk to, where, and what is logged of it.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "server", extend("required" = ["identifier"]))]
pub(super) struct ServerFile {
    /// What every client database is bound to: 1 to 256 bytes without whitespace and control
    /// characters, such as `org.example.chat`. Change it before the first client connects, and
    /// never again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 256))]
    identifier: Option<String>,
    /// The lowest client version that may connect, a semantic version of which major, minor and
    /// patch count. Absent: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    min_libxmtp_version: Option<String>,
    /// The address and port that clients connect to, in plain text: TLS ends at a balancer.
    listen: String,
    /// The least severe level that is logged.
    log_level: LogLevel,
    /// How a line of the log is written.
    log_format: LogFormat,
    /// Whether each finished request is logged, without anything of its content.
    request_logger: bool,
    /// How long open requests may finish after a stop, in milliseconds.
    max_drain_duration_ms: u32,
}

#[derive(Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl Default for ServerFile {
    fn default() -> Self {
        Self {
            identifier: None,
            min_libxmtp_version: None,
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, DEFAULT_PORT)).to_string(),
            log_level: LogLevel::Info,
            log_format: LogFormat::default(),
            request_logger: true,
            max_drain_duration_ms: DEFAULT_MAX_DRAIN_DURATION_MS,
        }
    }
}

impl ServerFile {
    pub(super) fn read(self) -> Result<Server, ConfigError> {
        let field = "server.identifier";
        let identifier = self.identifier;
        let identifier = identifier.ok_or_else(|| ConfigError::new(field, "is required"))?;
        let problem = "must be an address and a port, such as 0.0.0.0:5050";
        let listen = self.listen.parse();
        Ok(Server {
            identifier,
            min_libxmtp_version: self.min_libxmtp_version,
            listen: listen.map_err(|_| ConfigError::new("server.listen", problem))?,
            log_level: match self.log_level {
                LogLevel::Error => tracing::Level::ERROR,
                LogLevel::Warn => tracing::Level::WARN,
                LogLevel::Info => tracing::Level::INFO,
                LogLevel::Debug => tracing::Level::DEBUG,
                LogLevel::Trace => tracing::Level::TRACE,
            },
            log_format: self.log_format,
            request_logger: self.request_logger,
            max_drain_duration: Duration::from_millis(self.max_drain_duration_ms.into()),
        })
    }
}

pub(super) fn check(server: &Server) -> Result<(), ConfigError> {
    let identifier = &server.identifier;
    let field = "server.identifier";
    if identifier.is_empty() || identifier.len() > MAX_IDENTIFIER_BYTES {
        let problem = format!("must have 1 to {MAX_IDENTIFIER_BYTES} bytes");
        return refuse(field, problem);
    }
    let is_blank = |c: char| c.is_whitespace() || c.is_control();
    if identifier.chars().any(is_blank) {
        return refuse(field, "must not contain whitespace or control characters");
    }
    let version = server.min_libxmtp_version.as_deref();
    if version.is_some_and(|version| semver::Version::parse(version).is_err()) {
        let problem = "must be a semantic version, such as 1.2.3";
        return refuse("server.min_libxmtp_version", problem);
    }
    Ok(())
}
