//! Subscription streams: the registry of topics, and the shell that runs a session.

mod admission;
mod ending;
mod ledger;
mod line;
mod mailbox;
mod registry;
mod shell;
mod wire;

#[cfg(test)]
mod pruned;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::Status;

use self::admission::Admission;
use self::ending::Ending;
use self::ledger::Ledger;
use self::registry::Registry;
use crate::config::Config;
use crate::hooks::Hooks;
use crate::limits::{
    ADMITTED_TOPICS_BURST, ADMITTED_TOPICS_PER_SECOND, FETCHED_BYTES, FRAME_BYTES, STREAM_READS,
    TAIL_PAUSE, TURN_BYTES, TURN_QUANTUM_BYTES, TURN_ROWS, UNSHARED_OUTBOUND_BYTES,
};
use crate::services::unavailable;
use crate::session::{SessionLimits, Tick};
use crate::store::{Store, Tail, TailError, TurnBudget};
use crate::telemetry::metrics;

pub(crate) use self::line::RawFrames;
pub use self::line::{Frames, StaticFrames};
pub(crate) use self::wire::{Changing, Fixed, Kind, encode};

/// What streams are bound by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamSettings {
    session: SessionLimits,
    turn: TurnBudget,
    all: Together,
    /// How long a shutdown waits for what is open.
    drain: Duration,
}

/// What all streams together are bound by.
#[derive(Clone, Copy, Debug)]
struct Together {
    fetched_bytes: usize,
    unshared_bytes: usize,
    admitted_per_second: u32,
    admitted_burst: u32,
}

impl StreamSettings {
    pub(crate) fn new(config: &Config) -> Self {
        let limits = &config.limits;
        let max_frame_bytes = usize::try_from(limits.max_response_bytes).unwrap_or(usize::MAX);
        let frame = FRAME_BYTES.min(max_frame_bytes);
        Self {
            session: SessionLimits {
                keepalive_interval: millis(config.streams.keepalive_interval_ms),
                max_pong_wait: millis(config.streams.max_pong_wait_ms),
                max_update_adds: limits.max_update_adds as usize,
                max_update_removes: limits.max_update_removes as usize,
                max_stream_topics: limits.max_stream_topics as usize,
                update_rate: limits.max_update_frames_per_second,
                update_burst: limits.max_update_burst,
                ping_rate: limits.max_ping_frames_per_second,
                ping_burst: limits.max_ping_burst,
                max_frame_bytes,
                #[cfg(test)]
                deviation: None,
            },
            turn: TurnBudget {
                topic_rows: TURN_ROWS,
                topic_bytes: TURN_QUANTUM_BYTES.min(frame),
                bytes: TURN_BYTES,
            },
            all: Together {
                fetched_bytes: FETCHED_BYTES,
                unshared_bytes: UNSHARED_OUTBOUND_BYTES,
                admitted_per_second: ADMITTED_TOPICS_PER_SECOND,
                admitted_burst: ADMITTED_TOPICS_BURST,
            },
            drain: config.server.max_drain_duration,
        }
    }
}

fn millis(value: u32) -> Duration {
    Duration::from_millis(value.into())
}

/// Whether streams may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    /// They run on the tail of this number; a stream ends with the tail it began on.
    Open(u64),
    /// The tail is lost, and another one is being opened.
    Recovering(TailError),
    /// The store can no longer say what becomes visible.
    Failed,
    ShutDown,
}

impl Gate {
    /// Returns what a stream fails with that can not run.
    fn status(self) -> Status {
        match self {
            Self::Recovering(TailError::Overflow) => {
                Status::resource_exhausted("the server is behind its database, connect again")
            }
            _ => unavailable(),
        }
    }
}

/// Runs all streams of a server; dropping it ends them.
pub(crate) struct Engine {
    shared: Arc<Shared>,
    follower: JoinHandle<()>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shut_down();
        self.follower.abort();
    }
}

struct Shared {
    store: Arc<dyn Store>,
    settings: StreamSettings,
    hooks: Arc<dyn Hooks>,
    registry: Arc<Registry>,
    /// Counts turns and reads of heads, which wait here without a limit and in the order they came.
    reads: Semaphore,
    /// Counts the bytes of turns.
    fetched: Arc<Semaphore>,
    ledger: Arc<Ledger>,
    admission: Admission,
    ending: Ending,
    gate: watch::Sender<Gate>,
    started: Instant,
}

impl Engine {
    /// Begins to follow the store.
    pub(crate) async fn start(
        store: Arc<dyn Store>,
        settings: StreamSettings,
        hooks: Arc<dyn Hooks>,
    ) -> Result<Self, TailError> {
        let registry = Arc::new(Registry::default());
        store.attend(registry.clone());
        let tail = store.tail().await?;
        let shared = Arc::new(Shared {
            store,
            settings,
            hooks,
            registry,
            reads: Semaphore::new(STREAM_READS),
            fetched: Arc::new(Semaphore::new(settings.all.fetched_bytes)),
            ledger: Arc::new(Ledger::new(settings.all.unshared_bytes)),
            admission: Admission::new(
                settings.all.admitted_per_second,
                settings.all.admitted_burst,
            ),
            ending: Ending::default(),
            gate: watch::Sender::new(Gate::Open(FIRST_TAIL)),
            started: Instant::now(),
        });
        // Told before the task runs: a stream may begin, and be measured, before its first turn.
        metrics::tailer_ready(true);
        let follower = tokio::spawn(follow(tail, shared.clone()));
        Ok(Self { shared, follower })
    }

    pub(crate) fn shut_down(&self) {
        self.shared.gate.send_replace(Gate::ShutDown);
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        *self.shared.gate.borrow() == Gate::ShutDown
    }

    /// Counts the topics of all streams.
    #[cfg(test)]
    pub(crate) fn registrations(&self) -> usize {
        self.shared.registry.len()
    }

    /// Waits until the store can no longer say what becomes visible.
    pub(crate) async fn failed(&self) {
        let mut gate = self.shared.gate.subscribe();
        // The sender lives as long as this engine.
        let _ = gate.wait_for(|gate| *gate == Gate::Failed).await;
    }
}

impl Shared {
    /// Returns the time since the start.
    fn now(&self) -> Tick {
        self.started.elapsed()
    }

    fn instant(&self, tick: Tick) -> Instant {
        self.started + tick
    }

    /// Moves the gate unless the server is shutting down.
    fn turn_gate(&self, to: Gate) {
        self.gate.send_if_modified(|gate| {
            let moves = *gate != Gate::ShutDown;
            if moves {
                *gate = to;
            }
            moves
        });
    }
}

const FIRST_TAIL: u64 = 0;

/// Tells sessions what becomes visible, on one tail after the other.
///
/// - A tail that is lost ends every stream that began on it; calls without a stream go on.
async fn follow(mut tail: Box<dyn Tail>, shared: Arc<Shared>) {
    let mut number = FIRST_TAIL;
    loop {
        let error = tell_all(tail, number, &shared.registry).await;
        tracing::warn!(%error, "the tail of the store ended");
        metrics::tailer_ready(false);
        let reopened = match error {
            TailError::Final => None,
            TailError::Lost | TailError::Behind | TailError::Overflow => {
                shared.turn_gate(Gate::Recovering(error));
                reopen(shared.store.as_ref()).await
            }
        };
        let Some(reopened) = reopened else {
            shared.turn_gate(Gate::Failed);
            return;
        };
        number += 1;
        tail = reopened;
        metrics::tailer_restarted();
        metrics::tailer_ready(true);
        shared.turn_gate(Gate::Open(number));
        tracing::info!("streams run again");
    }
}

/// Tells until the tail ends. The tail never waits for a session.
async fn tell_all(mut tail: Box<dyn Tail>, number: u64, registry: &Registry) -> TailError {
    loop {
        match tail.next().await {
            Ok(rows) => {
                metrics::tailer_polled("ok", rows.len() as u64);
                rows.iter().for_each(|row| registry.tell(row, number));
            }
            Err(error) => {
                metrics::tailer_polled("failed", 0);
                return error;
            }
        }
    }
}

/// Opens a tail as soon as the store allows, or learns that it never will.
async fn reopen(store: &dyn Store) -> Option<Box<dyn Tail>> {
    loop {
        match store.tail().await {
            Ok(tail) => return Some(tail),
            Err(TailError::Final) => return None,
            Err(TailError::Lost | TailError::Behind | TailError::Overflow) => {
                tokio::time::sleep(TAIL_PAUSE).await;
            }
        }
    }
}
