//! Subscription streams: the registry of topics, and the shell that runs a session.

mod mailbox;
mod registry;
mod shell;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tonic::Status;

use self::registry::Registry;
use crate::config::Config;
use crate::hooks::Hooks;
use crate::limits::{
    FETCH_TURNS, FRAME_BYTES, TAIL_PAUSE, TURN_BYTES, TURN_QUANTUM_BYTES, TURN_ROWS,
};
use crate::services::unavailable;
use crate::session::SessionLimits;
use crate::store::{Store, Tail, TailError, TurnBudget};

pub use self::shell::Frames;

/// What streams are bound by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamSettings {
    session: SessionLimits,
    turn: TurnBudget,
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
            },
            turn: TurnBudget {
                topic_rows: TURN_ROWS,
                topic_bytes: TURN_QUANTUM_BYTES.min(frame),
                bytes: TURN_BYTES,
            },
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
    registry: Registry,
    turns: Arc<Semaphore>,
    gate: watch::Sender<Gate>,
}

impl Engine {
    /// Begins to follow the store.
    pub(crate) async fn start(
        store: Arc<dyn Store>,
        settings: StreamSettings,
        hooks: Arc<dyn Hooks>,
    ) -> Result<Self, TailError> {
        let tail = store.tail().await?;
        let shared = Arc::new(Shared {
            store,
            settings,
            hooks,
            registry: Registry::default(),
            turns: Arc::new(Semaphore::new(FETCH_TURNS)),
            gate: watch::Sender::new(Gate::Open(FIRST_TAIL)),
        });
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
        let reopened = match error {
            TailError::Final => None,
            TailError::Lost | TailError::Overflow => {
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
        shared.turn_gate(Gate::Open(number));
        tracing::info!("streams run again");
    }
}

/// Tells until the tail ends. The tail never waits for a session.
async fn tell_all(mut tail: Box<dyn Tail>, number: u64, registry: &Registry) -> TailError {
    loop {
        match tail.next().await {
            Ok(rows) => rows.iter().for_each(|row| registry.tell(row, number)),
            Err(error) => return error,
        }
    }
}

/// Opens a tail as soon as the store allows, or learns that it never will.
async fn reopen(store: &dyn Store) -> Option<Box<dyn Tail>> {
    loop {
        match store.tail().await {
            Ok(tail) => return Some(tail),
            Err(TailError::Final) => return None,
            Err(TailError::Lost | TailError::Overflow) => tokio::time::sleep(TAIL_PAUSE).await,
        }
    }
}
