//! The section `[database]`.
//!
//! ```toml
//! [database]
//! url = "sqlite:/var/lib/xmtp/backend.db3"    # or memory:, or postgres://user@host/name?sslmode=...
//! replica_url = "env:REPLICA_URL"             # PostgreSQL only
//! max_connections = 20
//! max_statement_timeout_ms = 5000
//! ```

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::file::resolve;
use super::{Address, ConfigError, Secret, check_positive, refuse};

/// Where envelopes are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Database {
    /// In memory; gone with the process (`memory:`).
    Memory,
    /// In one SQLite database (`sqlite:PATH`).
    Sqlite(PathBuf),
    /// In PostgreSQL (`postgres://USER@HOST/NAME`).
    Postgres(PostgresSettings),
}

/// How PostgreSQL is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresSettings {
    /// The primary.
    pub url: Secret,
    /// One physical replica, for reads that may lag; `None` reads from the primary.
    pub replica_url: Option<Secret>,
}

/// The bounds of the section `[database]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatabaseLimits {
    /// Connections of one server to a PostgreSQL database; SQLite has a fixed number.
    pub max_connections: u32,
    /// How long one statement may take, in milliseconds.
    pub max_statement_timeout_ms: u32,
}

impl Default for DatabaseLimits {
    fn default() -> Self {
        Self {
            max_connections: 20,
            max_statement_timeout_ms: 5_000,
        }
    }
}

/// Where envelopes are kept.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "database", extend("required" = ["url"]))]
pub(super) struct DatabaseFile {
    /// `sqlite:PATH`, `memory:` (gone with the process), `postgres://USER:PASSWORD@HOST/NAME`, or
    /// `env:NAME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    url: Option<String>,
    /// One physical PostgreSQL replica for reads that may lag, or `env:NAME`. Absent: the primary.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    replica_url: Option<String>,
    /// Connections of one server to a PostgreSQL database.
    #[schemars(range(min = 1))]
    max_connections: u32,
    /// How long one statement may take, in milliseconds.
    #[schemars(range(min = 1))]
    max_statement_timeout_ms: u32,
}

impl Default for DatabaseFile {
    fn default() -> Self {
        let limits = DatabaseLimits::default();
        Self {
            url: None,
            replica_url: None,
            max_connections: limits.max_connections,
            max_statement_timeout_ms: limits.max_statement_timeout_ms,
        }
    }
}

impl DatabaseFile {
    pub(super) fn read(self) -> Result<(Database, DatabaseLimits), ConfigError> {
        let limits = DatabaseLimits {
            max_connections: self.max_connections,
            max_statement_timeout_ms: self.max_statement_timeout_ms,
        };
        let url = self.url;
        let url = url.ok_or_else(|| ConfigError::new("database.url", "is required"))?;
        let url = resolve("database.url", url)?;
        let replica = self.replica_url;
        let replica = replica.map(|url| resolve("database.replica_url", url));
        Ok((database(url, replica.transpose()?)?, limits))
    }
}

fn database(url: String, replica: Option<String>) -> Result<Database, ConfigError> {
    let database = match url.split_once(':') {
        Some(("memory", "")) => Database::Memory,
        Some(("sqlite", path)) if !path.is_empty() => Database::Sqlite(path.into()),
        Some(("postgres" | "postgresql", _)) => {
            return Ok(Database::Postgres(PostgresSettings {
                url: Secret::new(url),
                replica_url: replica.map(Secret::new),
            }));
        }
        _ => {
            let problem = "must be memory:, sqlite:PATH or postgres://USER@HOST/NAME";
            return Err(ConfigError::new("database.url", problem));
        }
    };
    match replica {
        None => Ok(database),
        Some(_) => {
            let problem = "is only for PostgreSQL";
            Err(ConfigError::new("database.replica_url", problem))
        }
    }
}

pub(super) fn check(database: &Database, limits: &DatabaseLimits) -> Result<(), ConfigError> {
    if let Database::Postgres(settings) = database {
        let urls = [
            ("database.url", Some(&settings.url)),
            ("database.replica_url", settings.replica_url.as_ref()),
        ];
        for (field, url) in urls {
            if let Some(Err(problem)) = url.map(Address::read) {
                return refuse(field, problem);
            }
        }
    }
    check_positive([
        ("database.max_connections", limits.max_connections.into()),
        (
            "database.max_statement_timeout_ms",
            limits.max_statement_timeout_ms.into(),
        ),
    ])
}
