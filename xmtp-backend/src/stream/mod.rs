//! Subscription streams: the registry of topics, and the shell that runs a session.

mod mailbox;
mod registry;
mod shell;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use self::registry::Registry;
use crate::config::Config;
use crate::hooks::Hooks;
use crate::limits::{FETCH_TURNS, FRAME_BYTES, TURN_BYTES, TURN_QUANTUM_BYTES, TURN_ROWS};
use crate::session::SessionLimits;
use crate::store::{Store, Tail, TurnBudget};

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
    Open,
    /// The store can no longer say what becomes visible.
    Failed,
    ShutDown,
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
    pub(crate) fn start(
        store: Arc<dyn Store>,
        settings: StreamSettings,
        hooks: Arc<dyn Hooks>,
    ) -> Self {
        let tail = store.tail();
        let shared = Arc::new(Shared {
            store,
            settings,
            hooks,
            registry: Registry::default(),
            turns: Arc::new(Semaphore::new(FETCH_TURNS)),
            gate: watch::Sender::new(Gate::Open),
        });
        let follower = tokio::spawn(follow(tail, shared.clone()));
        Self { shared, follower }
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

/// Tells sessions what becomes visible. The store's tail never waits for a session.
async fn follow(mut tail: Box<dyn Tail>, shared: Arc<Shared>) {
    loop {
        match tail.next().await {
            Ok(rows) => rows.iter().for_each(|row| shared.registry.tell(row)),
            Err(error) => {
                shared.gate.send_if_modified(|gate| {
                    let open = *gate == Gate::Open;
                    if open {
                        tracing::error!(%error, "the store no longer tells what becomes visible");
                        *gate = Gate::Failed;
                    }
                    open
                });
                return;
            }
        }
    }
}
