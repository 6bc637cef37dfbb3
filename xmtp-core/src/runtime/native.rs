//! The runtime of real programs: tokio, threads, the system clock, the system's randomness.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::BoxFuture;

use super::{Job, Lane, Runtime};

/// Runs on the tokio runtime that was current when it was made.
pub struct NativeRuntime {
    handle: tokio::runtime::Handle,
    start: Instant,
}

impl NativeRuntime {
    /// Makes a runtime on the current tokio runtime.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn current() -> Arc<Self> {
        Arc::new(Self {
            handle: tokio::runtime::Handle::current(),
            start: Instant::now(),
        })
    }
}

impl fmt::Debug for NativeRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("native")
    }
}

impl Runtime for NativeRuntime {
    fn now_ns(&self) -> u64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |elapsed| elapsed.as_nanos() as u64)
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    fn sleep_until(&self, deadline: Duration) -> BoxFuture<'static, ()> {
        let deadline = self.start + deadline;
        Box::pin(tokio::time::sleep_until(deadline.into()))
    }

    fn start(&self, _name: &'static str, task: BoxFuture<'static, ()>) {
        self.handle.spawn(task);
    }

    fn lane(&self, name: &'static str) -> Arc<dyn Lane> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let spawned = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                while let Ok(job) = queue.recv() {
                    run_contained(job);
                }
            });
        if let Err(error) = spawned {
            tracing::error!(%error, "a lane's thread did not start; its jobs run on their callers");
        }
        Arc::new(ThreadLane { name, jobs })
    }

    fn offload(&self, job: Job) {
        self.handle.spawn_blocking(move || run_contained(job));
    }

    fn fill(&self, buffer: &mut [u8]) {
        getrandom::fill(buffer).expect("the system's source of randomness works");
    }
}

fn run_contained(job: Job) {
    // The job's own drop guards have rolled back; whoever waits sees its channel close.
    if std::panic::catch_unwind(AssertUnwindSafe(job)).is_err() {
        tracing::error!("a job panicked");
    }
}

struct ThreadLane {
    name: &'static str,
    jobs: mpsc::Sender<Job>,
}

impl fmt::Debug for ThreadLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Lane for ThreadLane {
    fn run(&self, job: Job) {
        if let Err(mpsc::SendError(job)) = self.jobs.send(job) {
            run_contained(job);
        }
    }
}
