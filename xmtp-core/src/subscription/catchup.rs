//! How far the wanted topics have caught up, as a snapshot that can be watched (STR-025).
//!
//! A generation is one set of topics. Within it each topic has one fixed target, the first that
//! the backend acknowledged: a reconnect changes the connection alone, so progress never goes
//! back. The targets of the present stream are [`Subscriptions::targets`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::watch;
use tracing::Instrument;
use xmtp_proto::{SequenceId, Topic};

use super::controller::{ConnectionState, Subscriptions};
use super::progress::Position;
use super::tracker::Tracker;
use crate::engine::context::Context;
use crate::error::{Class, Coded};
use crate::runtime::{Runtime, RuntimeExt};

/// The topics whose catch-up is watched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// The topics.
    pub topics: BTreeSet<Topic>,
    /// Whether every group that a Welcome leads to belongs here: then discovery is pending while
    /// one is missing from `topics`.
    pub all_groups: bool,
}

/// Whether a topic is registered at the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// Not acknowledged yet.
    Pending,
    /// Acknowledged in this generation.
    Active,
    /// No longer wanted.
    Removed,
}

/// How processing through the target stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Processing {
    /// Something is left.
    Pending,
    /// Everything through the target is processed.
    Complete,
    /// It cannot go on.
    Blocked {
        /// The stable code of the cause.
        code: String,
    },
    /// The topic left the scope before it was complete.
    Cancelled,
}

/// How far one topic has caught up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicCatchUp {
    /// The topic.
    pub topic: Topic,
    /// Whether it is registered.
    pub registration: Registration,
    /// Its fixed target H; `None` until it is acknowledged.
    pub target: Option<SequenceId>,
    /// F.
    pub received: SequenceId,
    /// P, or the Welcomes that are not completed.
    pub position: Position,
    /// How processing stands.
    pub processing: Processing,
}

/// An obligation that a change of scope ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cancelled {
    /// The generation it belonged to.
    pub generation: u64,
    /// How far it had come.
    pub topic: TopicCatchUp,
}

/// How far a scope has caught up.
#[derive(Clone, Debug, PartialEq)]
pub struct CatchUp {
    /// Counts the sets of topics.
    pub generation: u64,
    /// How the connection stands; it says nothing about processing.
    pub connection: ConnectionState,
    /// Every topic of the scope.
    pub topics: Vec<TopicCatchUp>,
    /// What the last change of scope cancelled.
    pub cancelled: Vec<Cancelled>,
    /// Whether a group may still join the scope.
    pub discovery_pending: bool,
    pub(super) fraction: Option<f32>,
}

impl CatchUp {
    /// Answers how much of the way from where the generation began is processed; `None` while a
    /// target is unknown. Sequence ids have gaps, so it is an estimate; it never goes back within
    /// a generation, and is 1 exactly when the scope is caught up.
    pub fn processed_fraction(&self) -> Option<f32> {
        self.fraction
    }

    /// Tells whether everything is processed, with no registration or discovery pending.
    pub fn is_caught_up(&self) -> bool {
        !self.discovery_pending
            && self.topics.iter().all(|topic| {
                topic.registration == Registration::Active
                    && topic.processing == Processing::Complete
            })
    }
}

/// The handle that was watched is gone.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the stream that was watched is closed; open another")]
pub struct CatchUpEnded;

/// The scope was not caught up in time.
#[derive(Clone, Debug, Error, PartialEq)]
#[error("{open} of {topics} topics have not caught up; they go on in the background")]
pub struct NotCaughtUp {
    /// Topics that are not complete.
    pub open: usize,
    /// Topics of the scope.
    pub topics: usize,
    /// The snapshot at that time.
    pub catch_up: Arc<CatchUp>,
}

impl Coded for NotCaughtUp {
    fn code(&self) -> &'static str {
        "catch_up.incomplete"
    }

    fn class(&self) -> Class {
        Class::Wait
    }
}

/// Follows a scope's catch-up; cheap to clone. The tracker behind it ends with the last one.
#[derive(Clone, Debug)]
pub struct StatusWatch {
    current: watch::Receiver<Arc<CatchUp>>,
    runtime: Arc<dyn Runtime>,
}

impl StatusWatch {
    /// Follows a scope, which may change. The end of `scope`'s sender ends the watch.
    pub fn start(
        context: Context,
        subscriptions: Subscriptions,
        scope: watch::Receiver<Scope>,
    ) -> Self {
        let runtime = context.runtime.clone();
        let mut tracker = Tracker::new(context, subscriptions, scope);
        tracker.change_scope();
        let (sender, current) = watch::channel(Arc::new(tracker.snapshot()));
        let task = async move { tracker.run(sender).await };
        let span = tracing::debug_span!("catch_up");
        drop(runtime.spawn("catch_up", task.instrument(span)));
        Self { current, runtime }
    }

    /// Answers the latest snapshot.
    pub fn current(&self) -> Arc<CatchUp> {
        self.current.borrow().clone()
    }

    /// Waits until the snapshot differs from the one last waited for.
    ///
    /// # Errors
    /// When what was watched is closed.
    pub async fn changed(&mut self) -> Result<(), CatchUpEnded> {
        self.current.changed().await.map_err(|_| CatchUpEnded)
    }

    /// Waits until the scope is caught up.
    ///
    /// # Errors
    /// When it is not by the end of `timeout`, or what was watched is closed.
    pub async fn caught_up(&mut self, timeout: Duration) -> Result<(), NotCaughtUp> {
        let caught_up = self.current.wait_for(|current| current.is_caught_up());
        tokio::select! {
            biased;
            Ok(_) = caught_up => return Ok(()),
            () = self.runtime.sleep(timeout) => {}
        }
        let catch_up = self.current();
        let is_open = |topic: &&TopicCatchUp| topic.processing != Processing::Complete;
        Err(NotCaughtUp {
            open: catch_up.topics.iter().filter(is_open).count(),
            topics: catch_up.topics.len(),
            catch_up,
        })
    }
}
