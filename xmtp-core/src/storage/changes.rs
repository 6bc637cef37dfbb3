//! Commit wakes: hints about what changed, from this process at once and from others by polling.
//!
//! A hint may be early, late or too broad, never the only way to learn of a change (STR-078):
//! whoever waits looks at the database again at the latest after the poll interval.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;
use tokio::sync::{oneshot, watch};

use super::database::Inner;
use super::{Read, StorageError, schema};
use crate::limits::ACTIVE_DATABASE_POLL_INTERVAL;
use crate::runtime::RuntimeExt;

/// Says that the database is closed; nothing more will change.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the database is closed; open it again")]
pub struct Closed;

impl From<Closed> for StorageError {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}

/// What changed since the last answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The newest revision.
    pub revision: u64,
    /// Every domain that changed up to it, as bits.
    pub domains: u64,
}

#[derive(Clone, Debug)]
struct Published {
    revision: u64,
    /// The newest revision that changed each domain, by bit number.
    by_domain: [u64; u64::BITS as usize],
    is_closed: bool,
}

impl Published {
    fn since(&self, seen: u64, domains: u64) -> Option<Commit> {
        let bits = self.by_domain.iter().enumerate();
        let changed = bits.filter(|(_, revision)| **revision > seen);
        let changed = changed.fold(0, |all, (bit, _)| all | (1 << bit));
        (changed & domains != 0).then_some(Commit {
            revision: self.revision,
            domains: changed,
        })
    }
}

/// The process-local end that commits write to.
#[derive(Debug)]
pub(super) struct Publisher {
    published: watch::Sender<Published>,
}

impl Publisher {
    pub(super) fn new(revision: u64) -> Self {
        let published = Published {
            revision,
            by_domain: [0; u64::BITS as usize],
            is_closed: false,
        };
        Self {
            published: watch::Sender::new(published),
        }
    }

    /// Tells of a commit. The highest revision wins; a gap means that others committed too.
    pub(super) fn publish(&self, revision: u64, domains: u64) {
        self.published.send_modify(|published| {
            let is_next = revision <= published.revision + 1;
            let domains = if is_next { domains } else { u64::MAX };
            for (bit, newest) in published.by_domain.iter_mut().enumerate() {
                if domains & (1 << bit) != 0 {
                    *newest = revision.max(*newest);
                }
            }
            published.revision = revision.max(published.revision);
        });
    }

    /// Tells that the database is closed, for good.
    pub(super) fn close(&self) {
        self.published
            .send_modify(|published| published.is_closed = true);
    }

    fn revision(&self) -> u64 {
        self.published.borrow().revision
    }
}

/// Follows the commits of a database.
///
/// # Behavior
/// - Each answer covers everything since the one before, in every domain; use one per set of
///   domains.
/// - Dropping a wait loses nothing.
pub struct Changes {
    database: Arc<Inner>,
    published: watch::Receiver<Published>,
    seen: u64,
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").field("seen", &self.seen).finish()
    }
}

impl Changes {
    pub(super) fn new(database: Arc<Inner>) -> Self {
        let published = database.publisher.published.subscribe();
        let seen = published.borrow().revision;
        Self {
            database,
            published,
            seen,
        }
    }

    /// Answers the newest revision known to this process.
    pub fn revision(&self) -> u64 {
        self.published.borrow().revision
    }

    /// Waits for a hint that one of `domains` changed; sees other processes only through those
    /// who poll.
    pub async fn changed(&mut self, domains: u64) -> Result<Commit, Closed> {
        loop {
            if let Some(commit) = self.take(domains)? {
                return Ok(commit);
            }
            self.published.changed().await.map_err(|_| Closed)?;
        }
    }

    /// Waits like [`Changes::changed`], but at most for the poll interval, and then looks for
    /// commits of other processes. `None` means that no change is known; check again anyway.
    pub async fn changed_or_poll(&mut self, domains: u64) -> Result<Option<Commit>, Closed> {
        let pause = self.database.runtime.sleep(ACTIVE_DATABASE_POLL_INTERVAL);
        tokio::select! {
            biased;
            commit = self.changed(domains) => return commit.map(Some),
            () = pause => {}
        }
        let (done, polled) = oneshot::channel();
        let database = self.database.clone();
        self.database.runtime.offload(Box::new(move || {
            if let Err(error) = database.look_for_others() {
                tracing::debug!(%error, "looking for other processes' commits failed");
            }
            let _ = done.send(());
        }));
        let _ = polled.await;
        self.take(domains)
    }

    fn take(&mut self, domains: u64) -> Result<Option<Commit>, Closed> {
        let published = self.published.borrow_and_update();
        if published.is_closed {
            return Err(Closed);
        }
        let commit = published.since(self.seen, domains);
        if let Some(commit) = commit {
            self.seen = commit.revision;
        }
        Ok(commit)
    }
}

impl Inner {
    /// Publishes what other processes committed since the last look.
    fn look_for_others(&self) -> Result<(), StorageError> {
        // The version first: a commit after it changes it again.
        let version = self.storage.version()?;
        if *self.seen_version.lock() == Some(version) {
            return Ok(());
        }
        let last = self.read(|snapshot| snapshot.row(schema::REVISION, &()))?;
        let last = last.unwrap_or_default();
        if last.revision > self.publisher.revision() {
            self.publisher.publish(last.revision, last.domains);
        }
        *self.seen_version.lock() = Some(version);
        Ok(())
    }
}
