//! The one physical database that streams read.
//!
//! A head that is read from a database behind the tail's would miss an envelope that the tail has
//! given out already, and a stream would wait for it for ever. So the tail says which server it reads,
//! and a connection of a turn to any other server is refused.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_postgres::Client;

use super::SetupError;
use super::connect::{Lane, Server};
use super::fault::{Trouble, within};
use super::guard;
use crate::limits::DATABASE_ANSWER_TIME;

/// The timeline of a replica is the one of its last checkpoint; the present one is not told there.
const IDENTITY: &str = "
SELECT (SELECT system_identifier FROM pg_control_system()),
    CASE WHEN pg_is_in_recovery() THEN (SELECT timeline_id FROM pg_control_checkpoint())
    ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::integer END,
    coalesce(host(inet_server_addr()), ''), coalesce(inet_server_port(), 0), pg_is_in_recovery(),
    extract(epoch FROM pg_postmaster_start_time())::text,
    (SELECT oid FROM pg_database WHERE datname = current_database())";

/// Tells one database of a running server from every other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) system_identifier: i64,
    pub(super) timeline: i32,
    address: String,
    port: i32,
    pub(super) is_replica: bool,
    started: String,
    /// The number of the database, which is the same on its physical replicas.
    database: u32,
}

impl Identity {
    /// Says whether this can be the primary's database or a replica of it: a promoted replica is on a
    /// timeline of its own.
    pub(super) fn shares_history(&self, primary: &Self) -> bool {
        (self.system_identifier, self.database) == (primary.system_identifier, primary.database)
            && self.timeline <= primary.timeline
    }

    /// Says whether this shows what the primary stores: it replays it, or is the primary.
    fn shows(&self, primary: &Self) -> bool {
        let is_primary = || (self.timeline, &self.started) == (primary.timeline, &primary.started);
        self.shares_history(primary) && (self.is_replica || is_primary())
    }
}

/// Asks a connection which server it leads to.
pub(super) async fn identity(client: &Client) -> Result<Identity, Trouble> {
    let row = within(DATABASE_ANSWER_TIME, client.query_one(IDENTITY, &[])).await?;
    Ok(Identity {
        system_identifier: row.try_get(0)?,
        timeline: row.try_get(1)?,
        address: row.try_get(2)?,
        port: row.try_get(3)?,
        is_replica: row.try_get(4)?,
        started: row.try_get(5)?,
        database: row.try_get(6)?,
    })
}

/// Where streams read.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) server: Server,
    size: usize,
    max_statement_time: Duration,
    serving: Mutex<(Lane, Identity)>,
    /// The primary as it was known last.
    primary: Arc<Mutex<Identity>>,
    /// Counts connections that led elsewhere.
    strays: Arc<watch::Sender<u64>>,
}

impl Endpoint {
    /// Refuses a server that does not show what the primary stores.
    pub(super) async fn open(
        server: Server,
        primary: Identity,
        size: usize,
        max_statement_time: Duration,
    ) -> Result<Self, SetupError> {
        let client = server.connect("setup").await?;
        let identity = identity(&client).await?;
        if !identity.shows(&primary) {
            return Err(SetupError::OtherDatabase);
        }
        let strays = Arc::new(watch::Sender::new(0));
        let lane = lane(&server, size, max_statement_time, &identity, &strays);
        Ok(Self {
            server,
            size,
            max_statement_time,
            serving: Mutex::new((lane, identity)),
            primary: Arc::new(Mutex::new(primary)),
            strays,
        })
    }

    /// Returns the connections to the server that the tail reads.
    pub(super) fn lane(&self) -> Lane {
        self.serving.lock().0.clone()
    }

    /// Returns the primary as it is known last.
    pub(super) fn primary(&self) -> &Arc<Mutex<Identity>> {
        &self.primary
    }

    /// Learns which server is the primary, and refuses one that does not show what it stores.
    pub(super) fn check(&self, found: &Identity, primary: Identity) -> Result<(), SetupError> {
        let shows = found.shows(&primary);
        *self.primary.lock() = primary;
        if shows {
            return Ok(());
        }
        self.lane().renew();
        Err(SetupError::OtherDatabase)
    }

    /// Learns which server a new tail reads; connections to another one are let go.
    pub(super) fn follow(&self, identity: Identity) {
        let mut serving = self.serving.lock();
        if serving.1 == identity {
            return;
        }
        serving.0.close();
        let (size, time) = (self.size, self.max_statement_time);
        let lane = lane(&self.server, size, time, &identity, &self.strays);
        *serving = (lane, identity);
    }

    /// Tells when a connection led to another server than the tail's.
    pub(super) fn strays(&self) -> watch::Receiver<u64> {
        self.strays.subscribe()
    }
}

fn lane(
    server: &Server,
    size: usize,
    max_statement_time: Duration,
    expected: &Identity,
    strays: &Arc<watch::Sender<u64>>,
) -> Lane {
    let hook = guard::same_server(expected, strays);
    // Streams bound how many of them read at a time.
    Lane::for_few(server, size, max_statement_time, Some(hook))
}
