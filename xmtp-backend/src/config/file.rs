//! The configuration file: TOML in which every unknown field is an error.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use toml::de::{DeTable, DeValue};

use super::auth::AuthFile;
use super::database::DatabaseFile;
use super::limits::LimitsFile;
use super::mls::MlsFile;
use super::retention::RetentionFile;
use super::server::ServerFile;
use super::telemetry::TelemetryFile;
use super::{Config, ConfigError, Publishing, Streams, Validation, chains};

/// The configuration of `xmtp-backend --config FILE`.
#[derive(Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[derive(Default)]
#[schemars(rename = "xmtp-backend", extend("required" = ["server", "database"]))]
struct File {
    server: ServerFile,
    telemetry: TelemetryFile,
    database: DatabaseFile,
    publishing: Publishing,
    streams: Streams,
    retention: RetentionFile,
    /// The RPC address of each chain whose contract wallets are accepted, or `env:NAME`. The name
    /// is `eip155:` and the number of the chain.
    chains: BTreeMap<String, String>,
    validation: Validation,
    #[schemars(with = "AuthFile")]
    auth: Option<AuthSwitch>,
    limits: LimitsFile,
    mls: MlsFile,
}

/// The section `[auth]` as far as it is read before it is known to be switched on: while `enabled`
/// is false every other field is allowed and ignored (CFG-004).
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct AuthSwitch {
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

/// The file once more, for the section `[auth]` alone.
#[derive(Deserialize)]
struct OnlyAuth {
    auth: AuthFile,
}

/// Returns the JSON schema of the configuration file.
///
/// - Holds every section and field with its meaning, its bounds and its default.
/// - Relations between fields are not in it; [`Config::check`] knows them.
pub fn schema() -> Schema {
    let mut schema = schemars::schema_for!(File);
    // The default of a section says nothing that the defaults of its fields do not say.
    let sections = schema.get_mut("properties");
    let sections = sections.and_then(|sections| sections.as_object_mut());
    for section in sections.into_iter().flat_map(|map| map.values_mut()) {
        if let Some(section) = section.as_object_mut() {
            section.remove("default");
        }
    }
    schema
}

/// Reads a file; the values are not checked yet, except those that have no value without it.
pub(super) fn parse(text: &str) -> Result<Config, ConfigError> {
    let file: File = toml::from_str(text).map_err(|error| syntax_error(text, &error))?;
    let is_on = match &file.auth {
        None => false,
        Some(auth) => auth.enabled.ok_or_else(|| {
            ConfigError::new("auth.enabled", "is required when [auth] is present")
        })?,
    };
    let server = file.server.read()?;
    let (database, database_limits) = file.database.read()?;
    let mut config = Config::new(server.identifier.clone(), database);
    config.server = server;
    config.telemetry = file.telemetry.read()?;
    config.database_limits = database_limits;
    config.publishing = file.publishing;
    config.streams = file.streams;
    config.retention = file.retention.read();
    config.chains = chains::read(file.chains)?;
    config.validation = file.validation;
    (config.limits, config.max_http2_streams) = file.limits.read();
    config.mls = file.mls.read();
    if is_on {
        let file: OnlyAuth = toml::from_str(text).map_err(|error| syntax_error(text, &error))?;
        config.auth = Some(file.auth.read()?);
    }
    Ok(config)
}

/// Replaces `env:NAME` by the value of that environment variable.
pub(super) fn resolve(field: &str, value: String) -> Result<String, ConfigError> {
    let Some(name) = value.strip_prefix("env:") else {
        return Ok(value);
    };
    let problem = "names an environment variable that is not set";
    std::env::var(name).map_err(|_| ConfigError::new(field, problem))
}

/// Tells whether `url` is an address with one of the schemes and a host.
pub(super) fn has_host(url: &str, schemes: &[&str]) -> bool {
    let Ok(url) = url.parse::<http::Uri>() else {
        return false;
    };
    let scheme = url.scheme_str().unwrap_or("");
    schemes.contains(&scheme) && url.host().is_some_and(|host| !host.is_empty())
}

/// Turns a parser's error into one that names the field and shows no value.
fn syntax_error(text: &str, error: &toml::de::Error) -> ConfigError {
    let offset = error.span().map_or(0, |span| span.start);
    let message = error.message();
    // The parser quotes values only in messages about them, and names fields in others.
    let shown = ["unknown field", "missing field", "duplicate key"];
    let problem = match message.split_once(", expected ") {
        _ if shown.iter().any(|start| message.starts_with(start)) => message.to_owned(),
        Some((_, names)) if message.starts_with("unknown variant") => format!("must be {names}"),
        _ => "has a value of the wrong type or out of range, or is no TOML".to_owned(),
    };
    ConfigError::new(field_at(text, offset), problem)
}

/// Finds the field that stands at `offset`, with the section it stands in.
fn field_at(text: &str, offset: usize) -> String {
    let mut path = Vec::new();
    // A text that is no TOML has fields too, up to where it goes wrong.
    let (table, _) = DeTable::parse_recoverable(text);
    if find_in_table(table.get_ref(), offset, &mut path) {
        return path.join(".");
    }
    let before = text.get(..offset).unwrap_or(text);
    format!("line {}", before.matches('\n').count() + 1)
}

/// Walks to the deepest key or value whose text holds `offset`. The text of a table is its header
/// alone, so every table is walked.
fn find_in_table(table: &DeTable<'_>, offset: usize, path: &mut Vec<String>) -> bool {
    for (key, value) in table {
        path.push(key.get_ref().to_string());
        if find_in_value(value.get_ref(), offset, path)
            || key.span().contains(&offset)
            || value.span().contains(&offset)
        {
            return true;
        }
        path.pop();
    }
    false
}

fn find_in_value(value: &DeValue<'_>, offset: usize, path: &mut Vec<String>) -> bool {
    match value {
        DeValue::Table(table) => find_in_table(table, offset, path),
        DeValue::Array(items) => items
            .iter()
            .any(|item| find_in_value(item.get_ref(), offset, path)),
        _ => false,
    }
}
