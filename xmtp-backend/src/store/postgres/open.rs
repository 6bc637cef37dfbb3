//! Opening the database: whose it is, what version its tables have, and whether its history is whole.

use std::future::Future;

use deadpool_postgres::ClientWrapper;
use tokio::time::timeout;
use tokio_postgres::Error;

use super::connect::Server;
use super::endpoint::{Identity, identity};
use super::fault::{Trouble, code, within};
use super::statements::{LOCK, MIGRATION};
use super::tls;
use crate::limits::{DATABASE_ANSWER_TIME, DATABASE_SETUP_TIME};

/// The steps from an empty database to the tables of this build; step N leads to version N.
const MIGRATIONS: [&str; 1] = [include_str!("migrations/0001.sql")];

/// The oldest server that has all that the statements use.
const OLDEST_SERVER: i32 = 150_000;

/// Reports why a database was not opened.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The address can not be read.
    #[error("database.url or database.replica_url is not an address of PostgreSQL")]
    Address,
    /// What an address names for TLS can not be used.
    #[error(
        "sslrootcert of database.url or database.replica_url holds no certificates that can be used"
    )]
    Authorities,
    /// No connection with TLS, where the address asks for it.
    #[error("no TLS with the database: {why}")]
    Tls {
        /// What went wrong, and what to do.
        why: String,
    },
    /// The server is too old.
    #[error("the database server has version {found}; 15 is the oldest that works")]
    OldServer {
        /// The major version of the server.
        found: i32,
    },
    /// The address leads to a replica.
    #[error("database.url leads to a replica; it must lead to the primary")]
    Replica,
    /// The address for reads leads to another database than the one for publishes.
    #[error(
        "database.replica_url leads to another database than database.url, or to a replica that was \
         promoted; it must lead to a physical replica of that database, or be left out"
    )]
    OtherDatabase,
    /// A newer version of this program owns the tables.
    #[error("the tables have version {found}; this build knows version {known}")]
    Newer {
        /// The version of the tables.
        found: i32,
        /// The version of this build.
        known: i32,
    },
    /// The database belongs to another deployment.
    #[error("server.identifier is not the identifier that the database was created with")]
    OtherDeployment,
    /// The database was restored or a replica was promoted, and ids may have been lost with it.
    #[error(
        "the history of the database was cut; run `xmtp-backend fence` before serving it again"
    )]
    Unfenced,
    /// The database can not be reached or refuses.
    #[error("the database can not be used: {}", code(.0))]
    Database(Error),
    /// The database accepts connections and does not answer.
    #[error("the database does not answer in time; see that it runs and is not stopped")]
    Silent,
}

impl From<Error> for SetupError {
    fn from(error: Error) -> Self {
        match tls::failure(&error) {
            Some(why) => Self::Tls { why },
            None => Self::Database(error),
        }
    }
}

impl From<Trouble> for SetupError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Database(error) => error.into(),
            Trouble::Silent => Self::Silent,
        }
    }
}

/// Creates or updates the tables and checks whose they are; returns the version of the server
/// and which one it is.
///
/// - Servers that start at the same time do this one after another.
pub(super) async fn prepare(
    server: &Server,
    identifier: &str,
) -> Result<(i32, Identity), SetupError> {
    let client = server.connect("setup").await?;
    let version = server_version(&client).await?;
    let here = identity(&client).await?;
    if here.is_replica {
        return Err(SetupError::Replica);
    }
    let setup = transaction(&client, || async {
        client.query(LOCK, &[&MIGRATION]).await?;
        migrate(&client).await?;
        claim(&client, identifier, &here).await
    });
    let setup = timeout(DATABASE_SETUP_TIME, setup).await;
    setup.unwrap_or(Err(SetupError::Silent))?;
    Ok((version, here))
}

async fn server_version(client: &ClientWrapper) -> Result<i32, SetupError> {
    let sql = "SELECT current_setting('server_version_num')::integer";
    let row = within(DATABASE_ANSWER_TIME, client.query_one(sql, &[])).await?;
    let version: i32 = row.try_get(0)?;
    if version < OLDEST_SERVER {
        let found = version / 10_000;
        return Err(SetupError::OldServer { found });
    }
    Ok(version)
}

/// Runs `work` in one transaction, which is undone if the work fails.
pub(super) async fn transaction<T, F>(
    client: &ClientWrapper,
    work: impl FnOnce() -> F,
) -> Result<T, SetupError>
where
    F: Future<Output = Result<T, SetupError>>,
{
    client
        .batch_execute("BEGIN; SET LOCAL synchronous_commit = on")
        .await?;
    match work().await {
        Ok(value) => {
            client.batch_execute("COMMIT").await?;
            Ok(value)
        }
        Err(error) => {
            // The first error is the one that tells; closing the connection undoes the rest.
            let _ = client.batch_execute("ROLLBACK").await;
            Err(error)
        }
    }
}

async fn migrate(client: &ClientWrapper) -> Result<(), SetupError> {
    let sql = "CREATE TABLE IF NOT EXISTS migration (
        version integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())";
    client.batch_execute(sql).await?;
    let sql = "SELECT coalesce(max(version), 0) FROM migration";
    let found: i32 = client.query_one(sql, &[]).await?.try_get(0)?;
    let known = MIGRATIONS.len() as i32;
    if found > known {
        return Err(SetupError::Newer { found, known });
    }
    for (version, step) in (1..)
        .zip(MIGRATIONS)
        .filter(|(version, _)| *version > found)
    {
        client.batch_execute(step).await?;
        let sql = "INSERT INTO migration (version) VALUES ($1)";
        client.execute(sql, &[&version]).await?;
    }
    Ok(())
}

/// Takes an empty database for this deployment, or checks that it belongs to it.
async fn claim(
    client: &ClientWrapper,
    identifier: &str,
    here: &Identity,
) -> Result<(), SetupError> {
    let sql = "INSERT INTO deployment (identifier, system_identifier, timeline)
        VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
    let row = (&identifier, &here.system_identifier, &here.timeline);
    client.execute(sql, &[row.0, row.1, row.2]).await?;
    let sql = "SELECT identifier FROM deployment";
    let stored: String = client.query_one(sql, &[]).await?.try_get(0)?;
    if stored != identifier {
        return Err(SetupError::OtherDeployment);
    }
    check_history(client, here).await
}

/// Checks that this is the history that was last fenced, and not a branch of it.
pub(super) async fn check_history(
    client: &ClientWrapper,
    here: &Identity,
) -> Result<(), SetupError> {
    let sql = "SELECT system_identifier, timeline FROM deployment";
    let row = within(DATABASE_ANSWER_TIME, client.query_one(sql, &[])).await?;
    let stored: (i64, i32) = (row.try_get(0)?, row.try_get(1)?);
    if stored == (here.system_identifier, here.timeline) {
        Ok(())
    } else {
        Err(SetupError::Unfenced)
    }
}
