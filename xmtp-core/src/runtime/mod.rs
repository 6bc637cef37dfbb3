//! Time, tasks and randomness come from one place, so that a test can own all three.
//!
//! `native` runs on tokio with real threads and clocks; `simulated` runs on one thread with a
//! virtual clock, a seeded source of randomness, and the writer inline.

mod native;
mod simulated;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{AbortHandle, BoxFuture};
use tokio::sync::oneshot;

pub use native::NativeRuntime;
pub use simulated::{SimulatedClock, SimulatedRuntime};

/// A piece of synchronous work.
pub type Job = Box<dyn FnOnce() + Send>;

/// Time, tasks and randomness.
///
/// # Behavior
/// - `monotonic` never goes back; `now_ns` may.
/// - A spawned task runs until it ends, is aborted, or its runtime ends.
/// - Jobs of one [`Lane`] run one at a time, in the order in which they were handed in.
pub trait Runtime: fmt::Debug + Send + Sync {
    /// Answers the wall clock, in nanoseconds since the Unix epoch.
    fn now_ns(&self) -> u64;

    /// Answers the time since the runtime started.
    fn monotonic(&self) -> Duration;

    /// Completes once [`Runtime::monotonic`] is at or past `deadline`. Dropping it is harmless.
    fn sleep_until(&self, deadline: Duration) -> BoxFuture<'static, ()>;

    /// Starts a task. `name` is for traces.
    fn start(&self, name: &'static str, task: BoxFuture<'static, ()>);

    /// Makes a lane for synchronous work in order: a thread of its own, or inline.
    fn lane(&self, name: &'static str) -> Arc<dyn Lane>;

    /// Runs synchronous work off the async threads, in no order: a reader's query.
    fn offload(&self, job: Job);

    /// Fills the buffer with random bytes fit for keys.
    fn fill(&self, buffer: &mut [u8]);
}

/// Synchronous work in order.
pub trait Lane: fmt::Debug + Send + Sync {
    /// Hands in a job. It runs after all jobs handed in earlier. A job that panics ends alone.
    fn run(&self, job: Job);
}

/// Convenience over any runtime.
pub trait RuntimeExt: Runtime {
    /// Completes after `duration`.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.sleep_until(self.monotonic().saturating_add(duration))
    }

    /// Starts a task and keeps a handle with which it can be ended and awaited.
    fn spawn(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> TaskHandle {
        let (task, abort) = futures_util::future::abortable(task);
        let (ended, done) = oneshot::channel::<()>();
        self.start(
            name,
            Box::pin(async move {
                let _ = task.await;
                drop(ended);
            }),
        );
        TaskHandle { abort, done }
    }

    /// Makes `N` random bytes.
    fn random<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.fill(&mut bytes);
        bytes
    }
}

impl<R: Runtime + ?Sized> RuntimeExt for R {}

/// A started task. Dropping the handle leaves the task running.
#[derive(Debug)]
pub struct TaskHandle {
    abort: AbortHandle,
    done: oneshot::Receiver<()>,
}

impl TaskHandle {
    /// Ends the task at its next await point and waits until it is gone.
    pub async fn stop(self) {
        self.abort.abort();
        let _ = self.done.await;
    }

    /// Waits until the task has ended by itself.
    pub async fn join(self) {
        let _ = self.done.await;
    }

    /// Ends the task at its next await point without waiting.
    pub fn abort(&self) {
        self.abort.abort();
    }
}
