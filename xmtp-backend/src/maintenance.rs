//! What keeps a database small and honest: pruning, and the fence after a restore.
//!
//! A server prunes by itself, slowly and for as long as it runs. As commands both are for a
//! database without a server; SQLite refuses them while one has it open.

use std::sync::Arc;

use tokio::task::JoinHandle;

use crate::config::{Config, ConfigError, Database};
use crate::hooks::Clock;
use crate::limits::{PRUNE_INTERVAL, PRUNE_PAUSE, PRUNE_ROWS, PRUNE_WRAP};
use crate::server::{Backend, StartError, open_store};
use crate::store::{
    Fenced, OpenError, PostgresOptions, PruneBudget, PruneError, PrunePosition, SqliteStore, Store,
    fence as fence_postgres,
};
use xmtp_proto::id::SequenceId;

impl Backend {
    /// Deletes everything that has expired from the database of a configuration, and returns how
    /// many envelopes are gone.
    ///
    /// - Fails if a server has the SQLite database open; it prunes by itself.
    pub async fn prune(config: &Config) -> Result<u64, StartError> {
        config.check()?;
        let store = open_store(config).await?;
        let mut walk = Walk::default();
        let now_ns = config.clock.now_ns();
        let pruned = walk.step_to_end(store.as_ref(), now_ns).await;
        store.close().await;
        Ok(pruned?)
    }

    /// Raises the ids of a restored database far above all that was given out from it.
    ///
    /// - Fails if a server has the SQLite database open; on PostgreSQL it waits for publishes.
    /// - Run it before clients reach a database that came from a backup.
    pub async fn fence(config: &Config) -> Result<Fenced, StartError> {
        config.check()?;
        let path = match &config.database {
            Database::Sqlite(path) => path.clone(),
            Database::Memory => return Err(unfit("memory: keeps nothing that could be fenced")),
            Database::Postgres(database) => {
                let to = fence_postgres(&PostgresOptions::new(config, database)).await?;
                return Ok(Fenced { from: None, to });
            }
        };
        let (identifier, clock) = (config.server.identifier.clone(), config.clock.clone());
        let fence = move || SqliteStore::fence(&path, &identifier, clock.as_ref());
        let fenced = tokio::task::spawn_blocking(fence).await;
        Ok(fenced.map_err(|_| OpenError::Files(std::io::ErrorKind::Other))??)
    }
}

fn unfit(problem: &str) -> StartError {
    ConfigError::new("database.url", problem).into()
}

/// A task that prunes for as long as it is kept.
#[derive(Debug)]
pub(crate) struct Pruner(JoinHandle<()>);

impl Pruner {
    /// Starts it; the first walk begins at once.
    pub(crate) fn start(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self(tokio::spawn(async move {
            let mut walk = Walk::default();
            loop {
                match walk.step_to_end(store.as_ref(), clock.now_ns()).await {
                    Ok(0) => {}
                    Ok(deleted) => tracing::info!(deleted, "expired envelopes are gone"),
                    Err(PruneError::Unavailable) => tracing::warn!("pruning waits for the store"),
                }
                tokio::time::sleep(PRUNE_INTERVAL).await;
            }
        }))
    }

    /// Stops it; a step that has begun ends in the store.
    pub(crate) fn stop(&self) {
        self.0.abort();
    }
}

impl Drop for Pruner {
    fn drop(&mut self) {
        self.stop();
    }
}

/// How far the expired rows have been walked.
///
/// Rows that stay because they are the newest of their topic are not looked at in each walk, only
/// when it begins anew.
#[derive(Debug, Default)]
struct Walk {
    after: Option<PrunePosition>,
    began_ns: u64,
}

impl Walk {
    /// Walks to the last row that has expired at `now_ns`, with a pause after each step.
    async fn step_to_end(&mut self, store: &dyn Store, now_ns: u64) -> Result<u64, PruneError> {
        let since = now_ns.checked_sub(self.began_ns);
        if since.is_none_or(|since| u128::from(since) >= PRUNE_WRAP.as_nanos()) {
            (self.after, self.began_ns) = (None, now_ns);
        }
        let mut deleted = 0;
        loop {
            let budget = PruneBudget {
                rows: PRUNE_ROWS,
                after: self.after,
            };
            let pruned = store.prune(now_ns, budget).await?;
            deleted += pruned.deleted as u64;
            if pruned.next.is_none() {
                break;
            }
            self.after = pruned.next;
            tokio::time::sleep(PRUNE_PAUSE).await;
        }
        // All that expired before now is seen.
        self.after = now_ns.checked_sub(1).map(|expiry_ns| PrunePosition {
            expiry_ns,
            sequence_id: SequenceId::MAX,
        });
        Ok(deleted)
    }
}
