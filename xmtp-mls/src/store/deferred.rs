//! The message secrets that a turn holds back.

use std::cell::{Cell, RefCell};
use std::time::UNIX_EPOCH;

use openmls::group::{MlsGroup, PastEpochDeletion};
use xmtp_core::storage::{StorageError, WriteTxn};

use crate::Provider;

/// Tells whether a turn holds back the message secrets of its group.
///
/// # Behavior
/// - While it is dirty, the transaction cannot commit and the secrets cannot be read.
/// - It belongs to the `MlsGroup` of one turn: drop both together, and after a rollback at once.
#[derive(Debug, Default)]
pub struct Deferred {
    is_dirty: Cell<bool>,
    owner: RefCell<Vec<u8>>,
}

impl Deferred {
    /// Makes a clean one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tells whether secrets are held back.
    pub fn is_dirty(&self) -> bool {
        self.is_dirty.get()
    }

    /// Writes what is held back and lets the transaction commit.
    ///
    /// openmls has no call that only stores; deleting the past epochs older than the Unix epoch
    /// deletes none and stores the rest.
    pub fn flush(&self, group: &mut MlsGroup, txn: &mut WriteTxn<'_>) -> Result<(), StorageError> {
        if !self.is_dirty() {
            return Ok(());
        }
        debug_assert_eq!(*self.owner.borrow(), group.group_id().as_slice());
        let provider = Provider::deferring(txn, self);
        provider.store().is_flushing.set(true);
        let deletion = PastEpochDeletion::before_timestamp(UNIX_EPOCH);
        let written = group.delete_past_epoch_secrets(&provider, deletion);
        if let Some(fault) = provider.store().take_fault() {
            return Err(fault);
        }
        if written.is_err() {
            return Err(StorageError::HeldBack);
        }
        drop(provider);
        self.is_dirty.set(false);
        txn.release_held_back();
        Ok(())
    }

    /// Notes that the secrets of `owner` are held back. One turn has one group.
    pub(super) fn mark(&self, owner: &[u8]) {
        let mut marked = self.owner.borrow_mut();
        debug_assert!(!self.is_dirty() || *marked == owner, "one turn, two groups");
        if *marked != owner {
            *marked = owner.to_vec();
        }
        self.is_dirty.set(true);
    }
}
