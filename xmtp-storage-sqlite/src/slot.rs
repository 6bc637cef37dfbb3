//! A connection that `close` can take away from whoever uses it.

use parking_lot::Mutex;
use rusqlite::Connection;
use xmtp_core::storage::StorageError;

use crate::fault;

/// Holds a connection until it is closed. Snapshots and writers hold the slot, not the
/// connection, so that closing never waits for a caller that keeps one.
#[derive(Debug)]
pub(crate) struct Slot(Mutex<Option<Connection>>);

impl Slot {
    pub(crate) fn new(connection: Connection) -> Self {
        Self(Mutex::new(Some(connection)))
    }

    /// Uses the connection for one call.
    pub(crate) fn with<T>(
        &self,
        call: impl FnOnce(&Connection) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        match &*self.0.lock() {
            Some(connection) => call(connection),
            None => Err(StorageError::Closed),
        }
    }

    /// Closes the connection, which rolls back what it has open; idempotent.
    pub(crate) fn close(&self) -> Result<(), StorageError> {
        let Some(connection) = self.0.lock().take() else {
            return Ok(());
        };
        connection
            .close()
            .map_err(|(_, error)| fault::storage("close the database", &error))
    }
}
