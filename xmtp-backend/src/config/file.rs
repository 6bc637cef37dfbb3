//! The configuration file: TOML in which every unknown field is an error.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;

use super::{Config, ConfigError, Database, Secret};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    server: Server,
    #[serde(default)]
    database: DatabaseSection,
    #[serde(default)]
    limits: Limits,
    #[serde(default)]
    retention: Retention,
    #[serde(default)]
    streams: Streams,
    #[serde(default)]
    mls: Mls,
    #[serde(default)]
    chains: BTreeMap<String, String>,
    auth: Option<Auth>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Server {
    identifier: Option<String>,
    min_libxmtp_version: Option<String>,
    listen: Option<String>,
    log_level: Option<String>,
    max_drain_duration_ms: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct DatabaseSection {
    url: Option<String>,
}

/// While `enabled` is false every other field is allowed and ignored (CFG-004).
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Auth {
    enabled: Option<bool>,
    #[serde(rename = "jwks_url")]
    _jwks_url: Option<toml::Value>,
    #[serde(rename = "keys")]
    _keys: Option<toml::Value>,
    #[serde(rename = "api_keys")]
    _api_keys: Option<toml::Value>,
    #[serde(rename = "audiences")]
    _audiences: Option<toml::Value>,
    #[serde(rename = "issuers")]
    _issuers: Option<toml::Value>,
    #[serde(rename = "required_scopes")]
    _required_scopes: Option<toml::Value>,
    #[serde(rename = "leeway_seconds")]
    _leeway_seconds: Option<toml::Value>,
    #[serde(rename = "jwks_refresh_seconds")]
    _jwks_refresh_seconds: Option<toml::Value>,
    #[serde(rename = "jwks_max_stale_seconds")]
    _jwks_max_stale_seconds: Option<toml::Value>,
}

/// Declares a section whose fields each replace one default.
macro_rules! section {
    ($name:ident for $target:ty { $($field:ident: $kind:ty),* $(,)? }) => {
        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct $name {
            $($field: Option<$kind>,)*
        }

        impl $name {
            fn apply(self, target: &mut $target) {
                $(if let Some(value) = self.$field {
                    target.$field = value;
                })*
            }
        }
    };
}

section!(Retention for xmtp_proto::backend::v1::RetentionConfiguration {
    group_message_seconds: u64,
    welcome_seconds: u64,
    key_package_seconds: u64,
});

section!(Streams for super::Streams {
    keepalive_interval_ms: u32,
    max_pong_wait_ms: u32,
});

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mls {
    max_group_members: Option<u32>,
    max_installations_per_inbox: Option<u32>,
    commit_log_enabled: Option<bool>,
}

section!(Limits for Bounds {
    max_envelope_bytes: u64,
    max_request_bytes: u64,
    max_response_bytes: u64,
    max_publish_topics: u32,
    max_query_topics: u32,
    max_query_limit: u32,
    default_query_limit: u32,
    max_newest_metadata_topics: u32,
    max_newest_full_topics: u32,
    max_update_adds: u32,
    max_update_removes: u32,
    max_stream_topics: u32,
    max_static_topics: u32,
    max_lookup_identifiers: u32,
    max_scw_signatures: u32,
    max_identity_entries: u32,
    max_update_frames_per_second: u32,
    max_update_burst: u32,
    max_ping_frames_per_second: u32,
    max_ping_burst: u32,
    max_http2_streams: u32,
});

/// The fields of `[limits]`: the published ones and the one that is a detail of the transport.
macro_rules! bounds {
    ($($field:ident: $kind:ty),* $(,)?) => {
        struct Bounds {
            $($field: $kind,)*
            max_http2_streams: u32,
        }

        impl Bounds {
            fn read(config: &Config) -> Self {
                Self {
                    $($field: config.limits.$field,)*
                    max_http2_streams: config.max_http2_streams,
                }
            }

            fn write(self, config: &mut Config) {
                $(config.limits.$field = self.$field;)*
                config.max_http2_streams = self.max_http2_streams;
            }
        }
    };
}

bounds! {
    max_envelope_bytes: u64,
    max_request_bytes: u64,
    max_response_bytes: u64,
    max_publish_topics: u32,
    max_query_topics: u32,
    max_query_limit: u32,
    default_query_limit: u32,
    max_newest_metadata_topics: u32,
    max_newest_full_topics: u32,
    max_update_adds: u32,
    max_update_removes: u32,
    max_stream_topics: u32,
    max_static_topics: u32,
    max_lookup_identifiers: u32,
    max_scw_signatures: u32,
    max_identity_entries: u32,
    max_update_frames_per_second: u32,
    max_update_burst: u32,
    max_ping_frames_per_second: u32,
    max_ping_burst: u32,
}

/// Reads a file; the values are not checked yet, except those that have no value without it.
pub(super) fn parse(text: &str) -> Result<Config, ConfigError> {
    let file: File = toml::from_str(text).map_err(|error| syntax_error(text, &error))?;
    check_auth(file.auth.as_ref())?;
    let identifier = file.server.identifier;
    let identifier = identifier.ok_or_else(|| ConfigError::new("server.identifier", REQUIRED))?;
    let url = file
        .database
        .url
        .ok_or_else(|| ConfigError::new("database.url", REQUIRED))?;
    let database = database(&resolve("database.url", url)?)?;

    let mut config = Config::new(identifier, database);
    config.server.min_libxmtp_version = file.server.min_libxmtp_version;
    if let Some(listen) = file.server.listen {
        config.server.listen = address(&listen)?;
    }
    if let Some(level) = file.server.log_level {
        config.server.log_level = level.parse().map_err(|_| {
            let levels = "must be one of error, warn, info, debug, trace";
            ConfigError::new("server.log_level", levels)
        })?;
    }
    if let Some(duration) = file.server.max_drain_duration_ms {
        config.server.max_drain_duration = Duration::from_millis(duration.into());
    }
    let mut bounds = Bounds::read(&config);
    file.limits.apply(&mut bounds);
    bounds.write(&mut config);
    file.retention.apply(&mut config.retention);
    file.streams.apply(&mut config.streams);
    let mls = &mut config.mls;
    mls.max_group_members = file.mls.max_group_members.unwrap_or(mls.max_group_members);
    let installations = file.mls.max_installations_per_inbox;
    mls.max_installations_per_inbox = installations.unwrap_or(mls.max_installations_per_inbox);
    mls.commit_log_enabled = file.mls.commit_log_enabled.or(mls.commit_log_enabled);
    for (chain, url) in file.chains {
        let url = resolve(&format!("chains.{chain}"), url)?;
        config.chains.insert(chain, Secret::new(url));
    }
    Ok(config)
}

const REQUIRED: &str = "is required";

fn check_auth(auth: Option<&Auth>) -> Result<(), ConfigError> {
    let Some(auth) = auth else { return Ok(()) };
    match auth.enabled {
        Some(false) => Ok(()),
        None => Err(ConfigError::new(
            "auth.enabled",
            "is required when [auth] is present",
        )),
        Some(true) => Err(ConfigError::new(
            "auth.enabled",
            "authentication is not available in this build",
        )),
    }
}

fn address(listen: &str) -> Result<SocketAddr, ConfigError> {
    let problem = "must be an address and a port, such as 0.0.0.0:5050";
    listen
        .parse()
        .map_err(|_| ConfigError::new("server.listen", problem))
}

fn database(url: &str) -> Result<Database, ConfigError> {
    match url.split_once(':') {
        Some(("memory", "")) => Ok(Database::Memory),
        Some(("sqlite", path)) if !path.is_empty() => Ok(Database::Sqlite(path.into())),
        _ => Err(ConfigError::new(
            "database.url",
            "must be memory: or sqlite:PATH",
        )),
    }
}

/// Replaces `env:NAME` by the value of that environment variable.
fn resolve(field: &str, value: String) -> Result<String, ConfigError> {
    let Some(name) = value.strip_prefix("env:") else {
        return Ok(value);
    };
    let problem = "names an environment variable that is not set";
    std::env::var(name).map_err(|_| ConfigError::new(field, problem))
}

/// Turns a parser's error into one that names the field and shows no value.
fn syntax_error(text: &str, error: &toml::de::Error) -> ConfigError {
    let offset = error.span().map_or(0, |span| span.start);
    let message = error.message();
    // The parser quotes values only in messages about their type, and names fields in others.
    let shown = ["unknown field", "missing field", "duplicate key"];
    let problem = match shown.iter().any(|start| message.starts_with(start)) {
        true => message.to_owned(),
        false => "has a value of the wrong type, or is no TOML".to_owned(),
    };
    ConfigError::new(field_at(text, offset), problem)
}

/// Finds the field on the line of `offset`, with the section it stands in.
fn field_at(text: &str, offset: usize) -> String {
    let before = text.get(..offset).unwrap_or(text);
    let start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = text[start..].lines().next().unwrap_or("");
    let is_header = |line: &&str| line.starts_with('[');
    let section = before.lines().map(str::trim).rfind(is_header);
    let section = section.unwrap_or("").trim_matches(['[', ']']);
    match line.split_once('=') {
        Some((key, _)) if section.is_empty() => key.trim().to_owned(),
        Some((key, _)) => format!("{section}.{}", key.trim()),
        None if line.trim_start().starts_with('[') => {
            line.trim().trim_matches(['[', ']']).to_owned()
        }
        None => format!("line {}", before.matches('\n').count() + 1),
    }
}
