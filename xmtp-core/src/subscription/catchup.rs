//! How far the wanted topics have caught up, as a snapshot that can be watched (STR-025).
//!
//! A generation is one set of topics. Within it each topic has one fixed target, the first that
//! the backend acknowledged: a reconnect changes the connection alone, so progress never goes
//! back. The targets of the present stream are [`Subscriptions::targets`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::watch;
use tracing::Instrument;
use xmtp_proto::{SequenceId, Topic, TopicKind};

use super::controller::{ConnectionState, Subscriptions};
use super::progress::{self, Completion, Position, TopicProgress};
use crate::engine::context::Context;
use crate::error::{Class, Coded};
use crate::limits::MAX_LOCAL_READ_ROWS;
use crate::runtime::{Runtime, RuntimeExt};
use crate::storage::{Domain, Snapshot, StorageError};
use crate::welcome;

/// What wakes the tracker.
const WAKES: u64 =
    Domain::Progress.bit() | Domain::Welcomes.bit() | Domain::Groups.bit() | Domain::Identity.bit();
/// The fraction of a generation that is nearly done: only completion is 1.
const NEARLY: f32 = 0.999;

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
    fraction: Option<f32>,
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

/// One topic's obligation in a generation.
#[derive(Clone, Debug)]
struct Obligation {
    target: Option<SequenceId>,
    /// P or F when the generation began, for the fraction.
    start: Option<SequenceId>,
    progress: TopicProgress,
    completion: Completion,
}

impl Obligation {
    fn new(topic: &Topic) -> Self {
        let position = match topic.kind() {
            TopicKind::Welcome => Position::Welcomes {
                unresolved: Vec::new(),
            },
            _ => Position::Processed {
                processed: SequenceId::ZERO,
                is_left: false,
            },
        };
        Self {
            target: None,
            start: None,
            progress: TopicProgress {
                received: SequenceId::ZERO,
                position,
                blocked: None,
                waiting: None,
            },
            completion: Completion::Pending,
        }
    }

    /// How far it is, as a sequence id.
    fn reached(&self) -> SequenceId {
        match &self.progress.position {
            Position::Processed { processed, .. } => *processed,
            Position::Welcomes { unresolved } => match unresolved.first() {
                Some(first) => SequenceId::saturating(first.get().saturating_sub(1)),
                None => self.progress.received,
            },
        }
    }

    /// The distance covered and the whole distance; `None` while the target is unknown.
    fn distance(&self) -> Option<(u64, u64)> {
        let target = self.target?.get();
        let start = self.start.unwrap_or_default().get();
        let whole = target.saturating_sub(start);
        let covered = match self.completion {
            Completion::Complete => whole,
            _ => self.reached().get().min(target).saturating_sub(start),
        };
        Some((covered, whole))
    }

    fn view(&self, topic: Topic) -> TopicCatchUp {
        let registration = match self.target {
            Some(_) => Registration::Active,
            None => Registration::Pending,
        };
        let processing = match (&self.completion, self.target) {
            (Completion::Complete, Some(_)) => Processing::Complete,
            (Completion::Blocked { code }, _) => Processing::Blocked { code: code.clone() },
            _ => Processing::Pending,
        };
        TopicCatchUp {
            topic,
            registration,
            target: self.target,
            received: self.progress.received,
            position: self.progress.position.clone(),
            processing,
        }
    }
}

struct Tracker {
    context: Context,
    subscriptions: Subscriptions,
    scope: watch::Receiver<Scope>,
    generation: u64,
    obligations: BTreeMap<Topic, Obligation>,
    cancelled: Vec<Cancelled>,
    discovery_pending: bool,
    /// The greatest fraction told in this generation.
    told: f32,
}

impl Tracker {
    fn new(context: Context, subscriptions: Subscriptions, scope: watch::Receiver<Scope>) -> Self {
        Self {
            context,
            subscriptions,
            scope,
            generation: 0,
            obligations: BTreeMap::new(),
            cancelled: Vec::new(),
            discovery_pending: true,
            told: 0.0,
        }
    }

    async fn run(mut self, sender: watch::Sender<Arc<CatchUp>>) {
        let mut changes = self.context.database.changes();
        let mut connection = self.subscriptions.connection();
        let mut registrations = self.subscriptions.watch();
        loop {
            if let Err(error) = self.refresh().await {
                tracing::debug!(code = error.code(), "catch-up could not be read");
            }
            let snapshot = Arc::new(self.snapshot());
            sender.send_if_modified(|current| {
                let is_new = *current != snapshot;
                *current = snapshot;
                is_new
            });
            tokio::select! {
                biased;
                () = sender.closed() => return,
                changed = self.scope.changed() => match changed {
                    Ok(()) => self.change_scope(),
                    Err(_) => return,
                },
                _ = connection.changed() => {}
                _ = registrations.changed() => {}
                commit = changes.changed_or_poll(WAKES) => if commit.is_err() {
                    return;
                },
            }
        }
    }

    /// Begins a generation when the set of topics differs. What is complete stays so.
    fn change_scope(&mut self) {
        let scope = self.scope.borrow_and_update().clone();
        let is_same = self.obligations.keys().eq(scope.topics.iter());
        if is_same && self.generation > 0 {
            return;
        }
        let (kept, removed): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.obligations)
                .into_iter()
                .partition(|(topic, _)| scope.topics.contains(topic));
        self.cancelled = removed
            .into_iter()
            .map(|(topic, obligation)| obligation.view(topic))
            .filter(|view| view.processing != Processing::Complete)
            .map(|view| Cancelled {
                generation: self.generation,
                topic: TopicCatchUp {
                    registration: Registration::Removed,
                    processing: Processing::Cancelled,
                    ..view
                },
            })
            .collect();
        self.obligations = kept;
        for topic in scope.topics {
            let new = || Obligation::new(&topic);
            self.obligations.entry(topic).or_insert_with(new);
        }
        self.begin_generation();
        self.discovery_pending |= scope.all_groups;
    }

    fn begin_generation(&mut self) {
        self.generation += 1;
        self.told = 0.0;
        for obligation in self.obligations.values_mut() {
            obligation.start = None;
        }
    }

    /// Reads what is not complete yet, in one committed version.
    async fn refresh(&mut self) -> Result<(), StorageError> {
        for (topic, obligation) in &mut self.obligations {
            obligation.target = obligation.target.or(self.subscriptions.target(topic));
        }
        let open: Vec<(Topic, SequenceId)> = self
            .obligations
            .iter()
            .filter(|(_, obligation)| {
                obligation.start.is_none() || obligation.completion != Completion::Complete
            })
            .map(|(topic, obligation)| (*topic, obligation.target.unwrap_or_default()))
            .collect();
        let scope = self.scope.borrow().clone();
        let (read, discovery_pending) = self
            .context
            .database
            .read_queued(move |snapshot| {
                let mut read = Vec::with_capacity(open.len());
                for (topic, through) in open {
                    read.push((topic, progress::read(snapshot, &topic, through)?));
                }
                let missing = scope.all_groups && has_missing_group(snapshot, &scope.topics)?;
                Ok::<_, StorageError>((read, missing))
            })
            .await?;
        for (topic, progress) in read {
            self.update(&topic, progress);
        }
        let all_groups = self.scope.borrow().all_groups;
        let was_pending = self.discovery_pending;
        let welcomes_open = self.obligations.iter().any(|(topic, obligation)| {
            topic.kind() == TopicKind::Welcome && obligation.completion != Completion::Complete
        });
        self.discovery_pending = all_groups && (discovery_pending || welcomes_open);
        if self.discovery_pending && !was_pending {
            // The set of topics is about to grow: what was caught up was the set before.
            self.begin_generation();
        }
        Ok(())
    }

    fn update(&mut self, topic: &Topic, progress: TopicProgress) {
        let Some(obligation) = self.obligations.get_mut(topic) else {
            return;
        };
        // What was complete in an earlier generation is not taken back.
        if obligation.completion != Completion::Complete {
            obligation.completion = match obligation.target {
                Some(target) => progress::completion(&progress, target),
                None => Completion::Pending,
            };
        }
        obligation.progress = progress;
        let reached = obligation.reached();
        obligation.start.get_or_insert(reached);
    }

    fn snapshot(&mut self) -> CatchUp {
        let views = self.obligations.iter();
        let mut catch_up = CatchUp {
            generation: self.generation,
            connection: *self.subscriptions.connection().borrow(),
            topics: views.map(|(topic, open)| open.view(*topic)).collect(),
            cancelled: self.cancelled.clone(),
            discovery_pending: self.discovery_pending,
            fraction: None,
        };
        let is_caught_up = catch_up.is_caught_up();
        catch_up.fraction = self.fraction(is_caught_up);
        catch_up
    }

    fn fraction(&mut self, is_caught_up: bool) -> Option<f32> {
        let mut sums = (0_u64, 0_u64);
        for obligation in self.obligations.values() {
            let (covered, whole) = obligation.distance()?;
            sums = (sums.0.saturating_add(covered), sums.1.saturating_add(whole));
        }
        if is_caught_up {
            self.told = 1.0;
        } else if sums.1 > 0 {
            let share = (sums.0 as f64 / sums.1 as f64) as f32;
            self.told = self.told.max(share.min(NEARLY));
        }
        Some(self.told)
    }
}

/// Tells whether a Welcome led to an active group that the scope does not name yet.
fn has_missing_group(
    snapshot: &dyn Snapshot,
    topics: &BTreeSet<Topic>,
) -> Result<bool, StorageError> {
    let mut after = SequenceId::ZERO;
    loop {
        let (rows, more) = welcome::store::discoveries(snapshot, after, MAX_LOCAL_READ_ROWS)?;
        for (sequence, group) in rows {
            after = sequence;
            if topics.contains(&Topic::group(&group)) {
                continue;
            }
            let record = welcome::store::group(snapshot, &group)?;
            if record.is_some_and(|record| record.active) {
                return Ok(true);
            }
        }
        if !more {
            return Ok(false);
        }
    }
}
