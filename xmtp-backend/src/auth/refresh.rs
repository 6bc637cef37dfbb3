//! Keeps the keys fresh, and tells when they are not.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::jwks::Source;
use super::key_set::KeySet;
use crate::hooks::Clock;
use crate::limits::KEY_SET_JITTER_DIVISOR;

/// The keys in force; clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Keys(Arc<RwLock<Arc<KeySet>>>);

impl Keys {
    pub(super) fn new(keys: KeySet) -> Self {
        keys.count();
        Self(Arc::new(RwLock::new(Arc::new(keys))))
    }

    pub(super) fn current(&self) -> Arc<KeySet> {
        self.0.read().clone()
    }

    fn replace(&self, keys: KeySet) {
        keys.count();
        *self.0.write() = Arc::new(keys);
    }
}

/// When keys are fetched again, and until when they may be used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) refresh: Duration,
    pub(super) max_stale: Duration,
}

/// Fetches the keys again and again until they are stale.
///
/// - Dropping it stops it.
#[derive(Debug)]
pub(crate) struct Refresher {
    task: JoinHandle<()>,
    stale: watch::Receiver<bool>,
}

impl Refresher {
    /// Starts it; `fetched_ns` tells when the fetch of the keys in force began.
    pub(super) fn start(
        source: Source,
        keys: Keys,
        pace: Pace,
        clock: Arc<dyn Clock>,
        fetched_ns: u64,
    ) -> Self {
        let (told, stale) = watch::channel(false);
        let work = Work {
            source,
            keys,
            pace,
            clock,
            jitter: RandomState::new(),
        };
        let task = tokio::spawn(async move {
            work.run(fetched_ns).await;
            told.send_replace(true);
        });
        Self { task, stale }
    }

    /// Waits until the keys are too old to be used; for ever if that never happens.
    pub(crate) async fn stale(&self) {
        let mut stale = self.stale.clone();
        if stale.wait_for(|stale| *stale).await.is_err() {
            // Only a task that was stopped says nothing, and then nobody serves any more.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Refresher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Work {
    source: Source,
    keys: Keys,
    pace: Pace,
    clock: Arc<dyn Clock>,
    jitter: RandomState,
}

impl Work {
    /// Ends when the keys are stale.
    ///
    /// - Keys are as old as the beginning of the fetch that brought them.
    async fn run(&self, mut fetched_ns: u64) {
        for round in 0_u64.. {
            let age = Duration::from_nanos(self.clock.now_ns().saturating_sub(fetched_ns));
            let Some(left) = self
                .pace
                .max_stale
                .checked_sub(age)
                .filter(|left| !left.is_zero())
            else {
                break;
            };
            tokio::select! {
                fetched = self.next(round) => fetched_ns = fetched.unwrap_or(fetched_ns),
                () = self.clock.wait(left) => {}
            }
        }
        tracing::error!("the key set is too old to be used");
    }

    /// Waits for its time and fetches the keys once; a failure leaves the old ones.
    async fn next(&self, round: u64) -> Option<u64> {
        self.clock.wait(self.pause(round)).await;
        match self.source.fetch().await {
            Ok(fetched) => {
                self.keys.replace(fetched.keys);
                Some(fetched.began_ns)
            }
            Err(failure) => {
                tracing::warn!(%failure, "the key set could not be refreshed, the old one stays");
                None
            }
        }
    }

    /// Returns the time to the next fetch: up to a tenth more than asked for, so that servers
    /// that started together do not fetch together.
    fn pause(&self, round: u64) -> Duration {
        let most = self.pace.refresh / KEY_SET_JITTER_DIVISOR;
        let share = self.jitter.hash_one(round) as f64 / u64::MAX as f64;
        self.pace.refresh + most.mul_f64(share)
    }
}
