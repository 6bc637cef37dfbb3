//! Computes catch-up snapshots from committed state and the registrations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::watch;
use xmtp_proto::{SequenceId, Topic, TopicKind};

use super::catchup::{Cancelled, CatchUp, Processing, Registration, Scope, TopicCatchUp};
use super::controller::Subscriptions;
use super::progress::{self, Completion, Position, TopicProgress};
use crate::engine::context::Context;
use crate::error::Coded;
use crate::limits::MAX_LOCAL_READ_ROWS;
use crate::storage::{Domain, Snapshot, StorageError};
use crate::welcome;

/// What wakes the tracker.
const WAKES: u64 =
    Domain::Progress.bit() | Domain::Welcomes.bit() | Domain::Groups.bit() | Domain::Identity.bit();
/// The fraction of a generation that is nearly done: only completion is 1.
const NEARLY: f32 = 0.999;

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

/// Computes the snapshots of one watch.
pub(super) struct Tracker {
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
    pub(super) fn new(
        context: Context,
        subscriptions: Subscriptions,
        scope: watch::Receiver<Scope>,
    ) -> Self {
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

    pub(super) async fn run(mut self, sender: watch::Sender<Arc<CatchUp>>) {
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
                    Ok(()) => {
                        // What leaves the scope complete is not cancelled.
                        let _ = self.refresh().await;
                        self.change_scope();
                    }
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
    pub(super) fn change_scope(&mut self) {
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

    pub(super) fn snapshot(&mut self) -> CatchUp {
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
