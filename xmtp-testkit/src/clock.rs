//! A wall clock of one's own, for what only time can end.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use xmtp_core::runtime::{Job, Lane, NativeRuntime, Runtime};

/// The native runtime with a wall clock that is ahead of the machine's or behind it, and that can
/// be moved.
///
/// # Behavior
/// - A lease that a killed process left lapses at once for whoever opens the database ahead.
/// - Whoever looks at the clock at intervals finds what became due by an
///   [`advance`](Self::advance) at its next look; timers keep the machine's time,
///   or its pace times a speed.
/// - What is also checked by the machine's clock, such as the lifetime of a key package, must hold
///   by both: begin [`behind`](Self::behind) to move on without passing it.
pub struct ShiftedRuntime {
    native: Arc<NativeRuntime>,
    /// How far the wall clock is ahead of the machine's, in nanoseconds.
    shift: AtomicI64,
    /// How many seconds of timers pass in one of the machine's.
    speed: u32,
}

impl ShiftedRuntime {
    /// Makes a runtime on the current tokio runtime, `by` ahead of the machine's clock.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn ahead(by: Duration) -> Arc<Self> {
        Self::shifted(nanoseconds(by), 1)
    }

    /// Makes a runtime like [`ahead`](Self::ahead) whose timers run so many times faster than the
    /// machine's: what waits for half a minute waits for a second.
    ///
    /// # Panics
    /// Outside a tokio runtime, and for a speed of 0.
    pub fn hasty(by: Duration, speed: u32) -> Arc<Self> {
        assert!(speed > 0, "time that stands still ends nothing");
        Self::shifted(nanoseconds(by), speed)
    }

    /// Makes a runtime on the current tokio runtime, `by` behind the machine's clock.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn behind(by: Duration) -> Arc<Self> {
        Self::shifted(-nanoseconds(by), 1)
    }

    /// Moves the wall clock forward at once, as the sleep of a device does.
    pub fn advance(&self, by: Duration) {
        self.shift.fetch_add(nanoseconds(by), Ordering::SeqCst);
    }

    fn shifted(shift: i64, speed: u32) -> Arc<Self> {
        Arc::new(Self {
            native: NativeRuntime::current(),
            shift: AtomicI64::new(shift),
            speed,
        })
    }
}

fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).expect("a shift of less than 292 years")
}

impl fmt::Debug for ShiftedRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shift = self.shift.load(Ordering::SeqCst);
        write!(f, "native, shifted by {} s", shift / 1_000_000_000)
    }
}

impl Runtime for ShiftedRuntime {
    fn now_ns(&self) -> u64 {
        let shift = self.shift.load(Ordering::SeqCst);
        self.native.now_ns().saturating_add_signed(shift)
    }

    fn monotonic(&self) -> Duration {
        self.native.monotonic() * self.speed
    }

    fn sleep_until(&self, deadline: Duration) -> BoxFuture<'static, ()> {
        self.native.sleep_until(deadline / self.speed)
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
