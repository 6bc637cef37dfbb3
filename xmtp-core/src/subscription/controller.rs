//! Keeps one stream open while anybody wants a topic, and tells how it stands.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tracing::Instrument;
use xmtp_proto::{SequenceId, Topic};

use super::connection::{self, Ended};
use super::pause::Paused;
use super::reconnect::Backoff;
use crate::engine::context::Context;
use crate::error::{Class, Coded};
use crate::receipt::Capacity;
use crate::runtime::{RuntimeExt, TaskHandle};
use crate::storage::StorageError;

/// How the connection stands. It says nothing about processing (STR-015).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// The first stream is not open yet.
    Connecting,
    /// A stream is open.
    Connected,
    /// A stream ended for a passing reason; the next one is tried.
    Reconnecting,
    /// The backend gave an answer that a repeat cannot change; slow tries go on.
    Failed {
        /// The stable code of the answer.
        code: &'static str,
    },
    /// No stream will be opened any more.
    Closed,
}

/// What the controller tells of itself; cheap to clone.
#[derive(Clone, Debug)]
pub struct Subscriptions {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    connection: watch::Sender<ConnectionState>,
    registered: Mutex<Registered>,
    revision: watch::Sender<u64>,
}

/// The registrations of the stream that is open.
#[derive(Debug, Default)]
struct Registered {
    active: BTreeMap<Topic, SequenceId>,
    paused: Paused,
    gone_back: BTreeSet<Topic>,
}

impl Subscriptions {
    fn new() -> Self {
        Self {
            shared: Arc::new(Shared {
                connection: watch::Sender::new(ConnectionState::Connecting),
                registered: Mutex::default(),
                revision: watch::Sender::new(0),
            }),
        }
    }

    /// Starts the controller.
    ///
    /// # Behavior
    /// - While nobody wants a topic, no stream is opened.
    /// - A database that is closed ends it.
    pub fn start(context: Context) -> SubscriptionHandle {
        let subscriptions = Self::new();
        let controller = Controller {
            context: context.clone(),
            subscriptions: subscriptions.clone(),
            backoff: Backoff::default(),
        };
        let span = tracing::debug_span!("subscription");
        let task = context
            .runtime
            .spawn("subscription", controller.run().instrument(span));
        SubscriptionHandle {
            subscriptions,
            task: Some(task),
        }
    }

    /// Follows the connection's state.
    pub fn connection(&self) -> watch::Receiver<ConnectionState> {
        self.shared.connection.subscribe()
    }

    /// Answers a receiver that changes whenever a registration begins or ends.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.shared.revision.subscribe()
    }

    /// Answers the fixed target H of a topic's present registration; `None` while there is none.
    pub fn target(&self, topic: &Topic) -> Option<SequenceId> {
        self.shared.registered.lock().active.get(topic).copied()
    }

    /// Answers every present registration with its fixed target.
    pub fn targets(&self) -> BTreeMap<Topic, SequenceId> {
        self.shared.registered.lock().active.clone()
    }

    /// Tells whether a healthy receiver covers a topic.
    pub fn covers(&self, topic: &Topic) -> bool {
        *self.shared.connection.borrow() == ConnectionState::Connected
            && self.target(topic).is_some()
    }

    /// Answers the bound that pauses a topic's receipt, if one does.
    pub fn paused(&self, topic: &Topic) -> Option<Capacity> {
        self.shared.registered.lock().paused.get(topic).copied()
    }

    /// Tells whether receipt of a topic ended because the backend was put back to an earlier state
    /// (EXT-002).
    pub fn has_gone_back(&self, topic: &Topic) -> bool {
        self.shared.registered.lock().gone_back.contains(topic)
    }

    pub(super) fn went_back(&self, topic: Topic) {
        self.shared.registered.lock().gone_back.insert(topic);
        self.tell();
    }

    pub(super) fn connected(&self) {
        self.set(ConnectionState::Connected);
    }

    pub(super) fn activated(&self, added: &[(Topic, SequenceId)], removed: &[Topic]) {
        let mut registered = self.shared.registered.lock();
        for topic in removed {
            registered.active.remove(topic);
        }
        registered.active.extend(added.iter().copied());
        drop(registered);
        self.tell();
    }

    pub(super) fn withdrawn(&self, topic: &Topic) {
        self.shared.registered.lock().active.remove(topic);
        self.tell();
    }

    pub(super) fn set_paused(&self, paused: &Paused) {
        self.shared.registered.lock().paused.clone_from(paused);
        self.tell();
    }

    fn disconnected(&self, state: ConnectionState) {
        *self.shared.registered.lock() = Registered::default();
        self.set(state);
        self.tell();
    }

    fn set(&self, state: ConnectionState) {
        self.shared.connection.send_if_modified(|current| {
            let is_new = *current != state && *current != ConnectionState::Closed;
            if is_new {
                *current = state;
            }
            is_new
        });
    }

    fn tell(&self) {
        self.shared.revision.send_modify(|revision| *revision += 1);
    }
}

/// Owns the controller. Dropping it ends the controller without waiting.
#[derive(Debug)]
pub struct SubscriptionHandle {
    subscriptions: Subscriptions,
    task: Option<TaskHandle>,
}

impl SubscriptionHandle {
    /// Answers what the controller tells of itself.
    pub fn subscriptions(&self) -> Subscriptions {
        self.subscriptions.clone()
    }

    /// Follows the connection's state.
    pub fn connection(&self) -> watch::Receiver<ConnectionState> {
        self.subscriptions.connection()
    }

    /// Answers every present registration with its fixed target.
    pub fn targets(&self) -> BTreeMap<Topic, SequenceId> {
        self.subscriptions.targets()
    }

    /// Tells whether a healthy receiver covers a topic.
    pub fn covers(&self, topic: &Topic) -> bool {
        self.subscriptions.covers(topic)
    }

    /// Ends the controller and waits until it is gone. What is committed stays.
    pub async fn close(mut self) {
        if let Some(task) = self.task.take() {
            task.stop().await;
        }
        self.subscriptions.disconnected(ConnectionState::Closed);
    }
}

impl Drop for SubscriptionHandle {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            self.subscriptions.disconnected(ConnectionState::Closed);
        }
    }
}

struct Controller {
    context: Context,
    subscriptions: Subscriptions,
    backoff: Backoff,
}

impl Controller {
    async fn run(mut self) {
        loop {
            if !self.wait_until_wanted().await {
                break;
            }
            let ended = connection::serve(&self.context, &self.subscriptions, &mut self.backoff);
            let nothing = Duration::ZERO;
            let (state, is_retryable, asked) = match ended.await {
                Ended::Storage(StorageError::Closed) => break,
                Ended::Storage(error) => (passing(&error), true, nothing),
                Ended::Transport(error) if error.class() == Class::Retry => {
                    (passing(&error), true, error.asked_pause())
                }
                Ended::Transport(error) => (lasting(&error), false, nothing),
                Ended::Clean => (ConnectionState::Reconnecting, true, nothing),
            };
            self.subscriptions.disconnected(state);
            let now = self.context.runtime.monotonic();
            let random = self.context.runtime.random();
            let pause = self.backoff.pause(now, is_retryable, asked, random);
            self.context.runtime.sleep(pause).await;
        }
        self.subscriptions.disconnected(ConnectionState::Closed);
    }

    /// Waits locally while nobody wants a topic; answers whether the database is still open.
    async fn wait_until_wanted(&self) -> bool {
        let mut interests = self.context.interests.watch();
        let mut changes = self.context.database.changes();
        while self.context.interests.wanted().is_empty() {
            tokio::select! {
                // The sender lives as long as the interests of this context.
                _ = interests.changed() => {}
                // No domain at all: this ends only when the database closes.
                _ = changes.changed(0) => return false,
            }
        }
        true
    }
}

fn passing(error: &dyn Coded) -> ConnectionState {
    tracing::info!(code = error.code(), "the stream ended; it is opened again");
    ConnectionState::Reconnecting
}

fn lasting(error: &dyn Coded) -> ConnectionState {
    let code = error.code();
    tracing::warn!(code, "the stream is refused; it is tried again slowly");
    ConnectionState::Failed { code }
}
