//! The ownership of the default consumer: one row, a random token, an expiry (STR-096).
//!
//! The wall clock decides only when another consumer may take over. Who may move D is decided by
//! the token, within the transaction that moves it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use xmtp_proto::storage::v1 as stored;

use super::error::StreamError;
use super::store;
use crate::limits::DEFAULT_CONSUMER_LEASE_DURATION;
use crate::runtime::RuntimeExt;
use crate::storage::{Database, Durability, Priority, Processes, Read, StorageError, WriteTxn};

const TOKEN_LEN: usize = 16;

/// The random name of one ownership.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LeaseToken(pub(super) [u8; TOKEN_LEN]);

impl fmt::Debug for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseToken")
    }
}

/// Tokens of consumers of this process that are gone, until their release is stored.
pub(super) type Released = Arc<Mutex<BTreeSet<LeaseToken>>>;

/// Ends an ownership that a dead process left behind, where the engine proves that it is dead.
///
/// To be called when a database was opened, before its first consumer. An engine that several
/// processes share proves nothing: there the lease has to lapse.
pub fn clear_if_single(database: &Database) -> Result<(), StorageError> {
    if database.capability().processes != Processes::One {
        return Ok(());
    }
    database.write(Durability::Ordered, |txn| {
        let lease = store::lease(txn)?;
        match lease.token.is_empty() {
            true => Ok(()),
            false => vacate(txn, &lease),
        }
    })
}

/// Takes the lease, or answers how long another owner holds it.
fn acquire(
    txn: &mut WriteTxn<'_>,
    token: LeaseToken,
    released: &Released,
) -> Result<Option<Duration>, StorageError> {
    let now = txn.now_ns();
    let lease = store::lease(txn)?;
    let holder = LeaseToken::of(&lease);
    let is_released = holder.is_some_and(|holder| released.lock().contains(&holder));
    let left = lease.expires_ns.saturating_sub(now);
    if holder.is_none() || is_released || left == 0 {
        let generation = lease.generation.saturating_add(1);
        put(txn, token, generation)?;
        return Ok(None);
    }
    // The clock went back: whoever lives renews before the shortened lease lapses.
    let longest = duration_ns();
    if left > longest {
        let expires_ns = now.saturating_add(longest);
        store::put_lease(
            txn,
            &stored::Lease {
                expires_ns,
                ..lease
            },
        )?;
    }
    Ok(Some(Duration::from_nanos(left.min(longest))))
}

/// Checks within a transaction that the token owns the lease and that it has not lapsed.
pub(super) fn check(
    snapshot: &(impl Read + ?Sized),
    token: LeaseToken,
    now_ns: u64,
) -> Result<stored::Lease, StreamError> {
    let lease = store::lease(snapshot)?;
    let is_owner = LeaseToken::of(&lease) == Some(token);
    if !is_owner || lease.expires_ns <= now_ns {
        return Err(StreamError::OwnershipLost);
    }
    Ok(lease)
}

/// Checks the lease and extends it.
pub(super) fn renew(txn: &mut WriteTxn<'_>, token: LeaseToken) -> Result<(), StreamError> {
    let lease = check(txn, token, txn.now_ns())?;
    Ok(put(txn, token, lease.generation)?)
}

fn release(txn: &mut WriteTxn<'_>, token: LeaseToken) -> Result<(), StorageError> {
    let lease = store::lease(txn)?;
    match LeaseToken::of(&lease) == Some(token) {
        true => vacate(txn, &lease),
        false => Ok(()),
    }
}

/// Leaves the row without an owner; the generation stays, so that it keeps growing.
fn vacate(txn: &mut WriteTxn<'_>, lease: &stored::Lease) -> Result<(), StorageError> {
    let generation = lease.generation;
    store::put_lease(
        txn,
        &stored::Lease {
            generation,
            ..stored::Lease::default()
        },
    )
}

fn put(txn: &mut WriteTxn<'_>, token: LeaseToken, generation: u64) -> Result<(), StorageError> {
    let lease = stored::Lease {
        token: token.0.to_vec().into(),
        generation,
        expires_ns: txn.now_ns().saturating_add(duration_ns()),
    };
    store::put_lease(txn, &lease)
}

fn duration_ns() -> u64 {
    u64::try_from(DEFAULT_CONSUMER_LEASE_DURATION.as_nanos()).unwrap_or(u64::MAX)
}

impl LeaseToken {
    fn of(lease: &stored::Lease) -> Option<Self> {
        <[u8; TOKEN_LEN]>::try_from(&lease.token[..]).ok().map(Self)
    }
}

/// An ownership; dropping it gives the lease back as soon as the writer is free.
pub(super) struct Ownership {
    pub(super) token: LeaseToken,
    database: Database,
    released: Released,
    is_released: AtomicBool,
}

impl fmt::Debug for Ownership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ownership")
    }
}

impl Ownership {
    /// Takes the lease of a database, over all its processes.
    pub(super) async fn acquire(
        database: &Database,
        released: &Released,
    ) -> Result<Self, StreamError> {
        let ownership = Self {
            token: LeaseToken(database.runtime().random()),
            database: database.clone(),
            released: released.clone(),
            is_released: AtomicBool::new(false),
        };
        let (token, released) = (ownership.token, released.clone());
        let taken = database
            .write_queued(Priority::Foreground, Durability::Ordered, move |txn| {
                acquire(txn, token, &released)
            })
            .await?;
        match taken {
            None => Ok(ownership),
            Some(expires_in) => {
                ownership.is_released.store(true, Ordering::SeqCst);
                Err(StreamError::AlreadyActive { expires_in })
            }
        }
    }

    /// Gives the lease back; D stays as it is.
    pub(super) async fn release(&self) -> Result<(), StorageError> {
        if self.is_released.load(Ordering::SeqCst) {
            return Ok(());
        }
        store_release(&self.database, self.token).await?;
        self.is_released.store(true, Ordering::SeqCst);
        Ok(())
    }
}

async fn store_release(database: &Database, token: LeaseToken) -> Result<(), StorageError> {
    database
        .write_queued(Priority::Foreground, Durability::Ordered, move |txn| {
            release(txn, token)
        })
        .await
}

impl Drop for Ownership {
    fn drop(&mut self) {
        if self.is_released.load(Ordering::SeqCst) {
            return;
        }
        // A consumer that starts before the row is written finds the token here.
        self.released.lock().insert(self.token);
        let (database, token) = (self.database.clone(), self.token);
        let released = self.released.clone();
        let runtime = database.runtime().clone();
        let task = async move {
            if let Err(error) = store_release(&database, token).await {
                tracing::debug!(%error, "a lease was not given back; it lapses");
                return;
            }
            released.lock().remove(&token);
        };
        runtime.start("consumer-release", Box::pin(task));
    }
}
