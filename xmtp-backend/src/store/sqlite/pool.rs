//! Connections that read, each in a snapshot of its own.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use parking_lot::Mutex;
use rusqlite::{Connection, Transaction};
use tokio::sync::Semaphore;
use xmtp_proto::id::SequenceId;

use super::fault::of_read;
use super::open::open_for_reading;
use super::{OpenError, read};
use crate::limits::{DATABASE_SLACK, READ_CHECK_STEPS, READ_CONNECTIONS};
use crate::store::ReadError;
use crate::store::feed::Positions;
use crate::store::record::Envelope;

/// A fixed number of connections that read.
#[derive(Debug)]
pub(super) struct ReadPool {
    permits: Arc<Semaphore>,
    connections: Arc<Mutex<Vec<Connection>>>,
    /// How long a read may wait for a connection, and how long it may then take.
    time: Duration,
}

impl ReadPool {
    pub(super) fn open(path: &Path, time: Duration) -> Result<Self, OpenError> {
        let connections = (0..READ_CONNECTIONS).map(|_| open_for_reading(path));
        let connections = connections.collect::<rusqlite::Result<Vec<_>>>()?;
        Ok(Self {
            permits: Arc::new(Semaphore::new(READ_CONNECTIONS)),
            connections: Arc::new(Mutex::new(connections)),
            time,
        })
    }

    /// Runs `read` in one snapshot on a thread that may wait.
    ///
    /// - The engine itself ends a read that takes too long, so that no snapshot is older than that:
    ///   the log can not be emptied past one.
    pub(super) async fn run<T, F>(&self, read: F) -> Result<T, ReadError>
    where
        T: Send + 'static,
        F: FnOnce(&Transaction<'_>) -> Result<T, ReadError> + Send + 'static,
    {
        let permit = self.permits.clone().acquire_owned();
        let permit = tokio::time::timeout(self.time, permit).await;
        let permit = permit
            .map_err(|_| ReadError::TimedOut)?
            .map_err(|_| ReadError::Unavailable)?;
        let (connections, time) = (self.connections.clone(), self.time);
        let work = move || {
            let _permit = permit;
            let mut connection = connections.lock().pop().ok_or(ReadError::Unavailable)?;
            let result = in_snapshot(&mut connection, time, read);
            connections.lock().push(connection);
            result
        };
        let work = tokio::task::spawn_blocking(work);
        match tokio::time::timeout(time + DATABASE_SLACK, work).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(ReadError::Unavailable),
            Err(_) => Err(ReadError::TimedOut),
        }
    }

    /// Waits for reads to end and closes the connections; later reads fail.
    pub(super) async fn close(&self) {
        let all = u32::try_from(READ_CONNECTIONS).unwrap_or(u32::MAX);
        let idle = self.permits.acquire_many(all).await;
        self.permits.close();
        self.connections.lock().clear();
        drop(idle);
    }
}

fn in_snapshot<T>(
    connection: &mut Connection,
    time: Duration,
    read: impl FnOnce(&Transaction<'_>) -> Result<T, ReadError>,
) -> Result<T, ReadError> {
    let deadline = Instant::now() + time;
    let is_over = move || Instant::now() >= deadline;
    let set = connection.progress_handler(READ_CHECK_STEPS, Some(is_over));
    set.map_err(of_read)?;
    let transaction = connection.transaction().map_err(of_read)?;
    let result = read(&transaction);
    transaction.rollback().map_err(of_read)?;
    result
}

#[async_trait]
impl Positions for ReadPool {
    async fn rows_after(
        &self,
        after: SequenceId,
        through: SequenceId,
        max_rows: usize,
        max_bytes: usize,
    ) -> Result<Vec<Envelope>, ReadError> {
        self.run(move |snapshot| read::rows_after(snapshot, after, through, max_rows, max_bytes))
            .await
    }
}
