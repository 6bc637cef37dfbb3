//! A clock that is ahead, for what only time can end.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use xmtp_core::runtime::{Job, Lane, NativeRuntime, Runtime};

/// The native runtime with a wall clock that is ahead of the machine's.
///
/// A lease that a killed process left lapses at once for whoever opens the database with it.
pub struct AheadRuntime {
    native: Arc<NativeRuntime>,
    ahead: Duration,
}

impl AheadRuntime {
    /// Makes a runtime on the current tokio runtime, `ahead` of the machine's clock.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn current(ahead: Duration) -> Arc<Self> {
        Arc::new(Self {
            native: NativeRuntime::current(),
            ahead,
        })
    }
}

impl fmt::Debug for AheadRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "native, {} s ahead", self.ahead.as_secs())
    }
}

impl Runtime for AheadRuntime {
    fn now_ns(&self) -> u64 {
        self.native
            .now_ns()
            .saturating_add(self.ahead.as_nanos() as u64)
    }

    fn monotonic(&self) -> Duration {
        self.native.monotonic()
    }

    fn sleep_until(&self, deadline: Duration) -> BoxFuture<'static, ()> {
        self.native.sleep_until(deadline)
    }

    fn start(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        self.native.start(name, task);
    }

    fn lane(&self, name: &'static str) -> Arc<dyn Lane> {
        self.native.lane(name)
    }

    fn offload(&self, job: Job) {
        self.native.offload(job);
    }

    fn fill(&self, buffer: &mut [u8]) {
        self.native.fill(buffer);
    }
}
