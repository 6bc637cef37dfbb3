//! The runtime of simulations: one thread, virtual time, seeded randomness.
//!
//! Time moves only when every task waits: then it jumps to the earliest timer. Tokio's paused
//! clock would fire timers while a thread still works, so this executor is its own.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::{Job, Lane, Runtime};

/// Polls of one run before it is taken for a livelock.
const MAX_POLLS_PER_RUN: u64 = 50_000_000;
/// Where the virtual wall clock starts: 2026-12-01 00:00:00 UTC, in nanoseconds.
const SIMULATED_START_NS: u64 = 1_796_083_200_000_000_000;

struct State {
    now: Duration,
    ready: VecDeque<Arc<SimulatedTask>>,
    timers: BTreeMap<(Duration, u64), Waker>,
    next_timer: u64,
    seed: [u8; 32],
    drawn: u64,
}

/// One thread, virtual time, seeded randomness, the writer inline.
#[derive(Clone)]
pub struct SimulatedRuntime {
    state: Arc<Mutex<State>>,
}

/// Reads and moves the virtual clock of a [`SimulatedRuntime`].
#[derive(Clone)]
pub struct SimulatedClock {
    state: Arc<Mutex<State>>,
}

struct SimulatedTask {
    future: Mutex<Option<BoxFuture<'static, ()>>>,
    queued: AtomicBool,
    state: Weak<Mutex<State>>,
}

impl Wake for SimulatedTask {
    fn wake(self: Arc<Self>) {
        let Some(state) = self.state.upgrade() else {
            return;
        };
        if !self.queued.swap(true, Ordering::SeqCst) {
            state.lock().ready.push_back(self);
        }
    }
}

impl fmt::Debug for SimulatedRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("simulated")
    }
}

impl fmt::Debug for SimulatedClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("simulated clock")
    }
}

impl SimulatedClock {
    /// Answers the time since the start.
    pub fn now(&self) -> Duration {
        self.state.lock().now
    }

    /// Moves the clock forward and wakes what was due.
    pub fn advance(&self, by: Duration) {
        let target = self.now().saturating_add(by);
        advance_to(&self.state, target);
    }
}

impl SimulatedRuntime {
    /// Makes a runtime from a seed; the same seed and the same calls give the same run.
    pub fn new(seed: u64) -> Self {
        let state = State {
            now: Duration::ZERO,
            ready: VecDeque::new(),
            timers: BTreeMap::new(),
            next_timer: 0,
            seed: Sha256::digest(seed.to_be_bytes()).into(),
            drawn: 0,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Answers the clock of this runtime.
    pub fn clock(&self) -> SimulatedClock {
        SimulatedClock {
            state: self.state.clone(),
        }
    }

    /// Runs `main` and every task until `main` is done; time jumps whenever all wait.
    ///
    /// # Panics
    /// When every task waits and no timer is left, or when tasks never stop being ready.
    pub fn run<T: Send + 'static>(&self, main: impl Future<Output = T> + Send + 'static) -> T {
        let output = Arc::new(Mutex::new(None));
        let slot = output.clone();
        self.start(
            "main",
            Box::pin(async move {
                let value = main.await;
                *slot.lock() = Some(value);
            }),
        );
        for _ in 0..MAX_POLLS_PER_RUN {
            if let Some(value) = output.lock().take() {
                return value;
            }
            let task = self.state.lock().ready.pop_front();
            match task {
                Some(task) => poll(&task),
                None => self.jump(),
            }
        }
        panic!("the simulation never came to rest");
    }

    fn jump(&self) {
        let next = self.state.lock().timers.keys().next().map(|(due, _)| *due);
        let next = next.expect("every task waits and no timer is left: a deadlock");
        advance_to(&self.state, next);
    }
}

fn poll(task: &Arc<SimulatedTask>) {
    task.queued.store(false, Ordering::SeqCst);
    let mut slot = task.future.lock();
    let Some(future) = slot.as_mut() else {
        return;
    };
    let waker = Waker::from(task.clone());
    if future
        .as_mut()
        .poll(&mut Context::from_waker(&waker))
        .is_ready()
    {
        *slot = None;
    }
}

fn advance_to(state: &Mutex<State>, target: Duration) {
    let due: Vec<Waker> = {
        let mut state = state.lock();
        state.now = state.now.max(target);
        let now = state.now;
        let later = state.timers.split_off(&(now, u64::MAX));
        std::mem::replace(&mut state.timers, later)
            .into_values()
            .collect()
    };
    due.into_iter().for_each(Waker::wake);
}

impl Runtime for SimulatedRuntime {
    fn now_ns(&self) -> u64 {
        SIMULATED_START_NS + self.state.lock().now.as_nanos() as u64
    }

    fn monotonic(&self) -> Duration {
        self.state.lock().now
    }

    fn sleep_until(&self, deadline: Duration) -> BoxFuture<'static, ()> {
        Box::pin(SimulatedSleep {
            state: self.state.clone(),
            deadline,
            timer: None,
        })
    }

    fn start(&self, _name: &'static str, task: BoxFuture<'static, ()>) {
        let task = Arc::new(SimulatedTask {
            future: Mutex::new(Some(task)),
            queued: AtomicBool::new(false),
            state: Arc::downgrade(&self.state),
        });
        task.wake();
    }

    fn lane(&self, _name: &'static str) -> Arc<dyn Lane> {
        Arc::new(InlineLane)
    }

    fn offload(&self, job: Job) {
        job();
    }

    fn fill(&self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(32) {
            let mut state = self.state.lock();
            state.drawn += 1;
            let mut hash = Sha256::new();
            hash.update(state.seed);
            hash.update(state.drawn.to_be_bytes());
            chunk.copy_from_slice(&hash.finalize()[..chunk.len()]);
        }
    }
}

#[derive(Debug)]
struct InlineLane;

impl Lane for InlineLane {
    fn run(&self, job: Job) {
        job();
    }
}

struct SimulatedSleep {
    state: Arc<Mutex<State>>,
    deadline: Duration,
    timer: Option<(Duration, u64)>,
}

impl Future for SimulatedSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let shared = self.state.clone();
        let mut state = shared.lock();
        if state.now >= self.deadline {
            return Poll::Ready(());
        }
        let timer = self.timer.unwrap_or_else(|| {
            state.next_timer += 1;
            (self.deadline, state.next_timer)
        });
        state.timers.insert(timer, context.waker().clone());
        self.timer = Some(timer);
        Poll::Pending
    }
}

impl Drop for SimulatedSleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            self.state.lock().timers.remove(&timer);
        }
    }
}
