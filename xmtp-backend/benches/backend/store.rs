//! The stores that are measured.

use tempfile::TempDir;
use xmtp_backend::config::Database;
use xmtp_backend::testing::Postgres;
use xmtp_backend::{Backend, Config, Running};

use crate::common::{IDENTIFIER, on_postgres};

/// Memory of the PostgreSQL server: what is measured is read from it, and not from the disk.
const POSTGRES_SETTINGS: &str = "shared_buffers = 256MB\nmax_wal_size = 4GB\n";

/// Where both sides keep their rows. Both sync their disk.
pub(crate) enum Store {
    Sqlite(TempDir),
    Postgres(Postgres),
}

impl Store {
    /// Returns SQLite, and PostgreSQL where it is installed.
    pub(crate) fn all() -> Vec<Self> {
        let postgres = Postgres::start(POSTGRES_SETTINGS).map(Self::Postgres);
        let sqlite = Self::Sqlite(tempfile::tempdir().expect("a folder"));
        [Some(sqlite), postgres].into_iter().flatten().collect()
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Sqlite(_) => "sqlite",
            Self::Postgres(_) => "postgres",
        }
    }

    /// Returns the place of an empty database.
    pub(crate) fn database(&self) -> Database {
        match self {
            Self::Sqlite(folder) => {
                let folder = tempfile::tempdir_in(folder.path()).expect("a folder");
                Database::Sqlite(folder.keep().join("backend.db3"))
            }
            Self::Postgres(server) => on_postgres(&server.database()),
        }
    }
}

/// Starts a server on a database.
pub(crate) async fn serve(database: &Database) -> Running {
    let mut config = Config::ephemeral(IDENTIFIER);
    config.database = database.clone();
    config.limits.max_ping_frames_per_second = 100_000;
    config.limits.max_ping_burst = 100_000;
    Backend::start(config).await.expect("it starts")
}
