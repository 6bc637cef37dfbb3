//! One run: captures targets, fetches what is short, waits for processing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;
use xmtp_proto::limits::{
    BACKEND_DEFAULT_MAX_NEWEST_METADATA_TOPICS, BACKEND_DEFAULT_MAX_QUERY_TOPICS,
};
use xmtp_proto::{GroupId, SequenceId, Topic, TopicKind};

use super::fetch::{Rounds, Visit};
use super::obligation::{Enrolled, Obstacle};
use super::{
    Incomplete, Reason, SyncControls, SyncError, SyncProgress, SyncReport, SyncRequest, capture,
    store,
};
use crate::engine::context::Context;
use crate::engine::fetch::{FetchError, Fetched, fetch_page};
use crate::error::{Class, Coded};
use crate::limits::{ACTIVE_DATABASE_POLL_INTERVAL, MAX_LOCAL_READ_ROWS};
use crate::receipt::AdmissionError;
use crate::runtime::RuntimeExt;
use crate::storage::{Changes, Domain, Snapshot, StorageError};
use crate::subscription::progress::{self, Completion, TopicProgress};
use crate::subscription::{Backoff, Interest};
use crate::transport::TransportError;
use crate::welcome;

/// What wakes a run.
const WAKES: u64 =
    Domain::Progress.bit() | Domain::Welcomes.bit() | Domain::Groups.bit() | Domain::Identity.bit();
/// Pause before a topic is asked for again whose target is not visible yet, or has no room.
const REST: Duration = ACTIVE_DATABASE_POLL_INTERVAL;

/// Runs a request to its end.
pub(super) async fn run(
    context: &Context,
    request: SyncRequest,
    controls: SyncControls,
) -> Result<SyncReport, SyncError> {
    let deadline = context.runtime.monotonic().saturating_add(request.timeout);
    let cancel = controls.cancel;
    let cancelled = async {
        match cancel {
            Some(cancel) => cancel.await,
            None => std::future::pending().await,
        }
    };
    let mut run = Run::start(context, &request, controls.progress).await?;
    let span = tracing::debug_span!("sync", topics = request.topics.len());
    let reason = tokio::select! {
        biased;
        ended = run.drive().instrument(span) => ended?,
        () = cancelled => Some(Reason::Cancelled),
        () = context.runtime.sleep_until(deadline) => Some(Reason::Deadline),
    };
    run.end(reason).await
}

struct Run<'a> {
    context: &'a Context,
    /// Ends with the run, and only its own (STR-015, STR-041).
    interest: Interest,
    changes: Changes,
    enrolled: BTreeMap<Topic, Enrolled>,
    /// Topics without a target, by request.
    uncaptured: VecDeque<Vec<Topic>>,
    rounds: Rounds,
    /// The Welcome topic whose discoveries are enrolled, as last read.
    discovering: Option<Topic>,
    backoff: Backoff,
    /// The backend is not asked before this time.
    not_before: Duration,
    first_number: u64,
    progress: Option<tokio::sync::watch::Sender<Arc<SyncProgress>>>,
}

/// What one look at the database found, in one committed version.
#[derive(Default)]
struct Look {
    progress: Vec<(Topic, TopicProgress)>,
    /// Groups with the newest Welcome that led to each.
    discovered: BTreeMap<GroupId, SequenceId>,
}

impl<'a> Run<'a> {
    async fn start(
        context: &'a Context,
        request: &SyncRequest,
        progress: Option<tokio::sync::watch::Sender<Arc<SyncProgress>>>,
    ) -> Result<Self, StorageError> {
        let first_number = context
            .database
            .read_queued(|snapshot| store::next_number(snapshot))
            .await?;
        let topics: BTreeSet<Topic> = request.topics.iter().copied().collect();
        let mut run = Self {
            context,
            interest: context.interests.owner(),
            changes: context.database.changes(),
            enrolled: BTreeMap::new(),
            uncaptured: VecDeque::new(),
            rounds: Rounds::default(),
            discovering: topics
                .contains(&context.welcome_topic)
                .then_some(context.welcome_topic)
                .filter(|_| request.include_discovered),
            backoff: Backoff::default(),
            not_before: Duration::ZERO,
            first_number,
            progress,
        };
        run.enroll(topics).await?;
        Ok(run)
    }

    /// Enrolls topics; their targets are captured next, the Welcome topic's before all others.
    async fn enroll(&mut self, topics: BTreeSet<Topic>) -> Result<(), StorageError> {
        let new: Vec<Topic> = topics
            .into_iter()
            .filter(|topic| !self.enrolled.contains_key(topic))
            .collect();
        self.interest.add(new.iter().copied());
        let asked = new.into_iter().map(|topic| (topic, SequenceId::ZERO));
        let asked = asked.collect();
        let read = self
            .context
            .database
            .read_queued(move |snapshot| look(snapshot, asked, None))
            .await?;
        let mut asked = Vec::new();
        for (topic, progress) in read.progress {
            let mut enrolled = Enrolled::new(progress);
            let kind = topic.kind();
            if matches!(kind, TopicKind::KeyPackage | TopicKind::CommitLog) {
                enrolled.obstacle = Some(Obstacle::InvalidTopic);
            } else if self.discovering == Some(topic) {
                self.uncaptured.push_front(vec![topic]);
            } else {
                asked.push(topic);
            }
            self.enrolled.insert(topic, enrolled);
        }
        let most = BACKEND_DEFAULT_MAX_NEWEST_METADATA_TOPICS as usize;
        self.uncaptured
            .extend(asked.chunks(most).map(<[Topic]>::to_vec));
        Ok(())
    }

    /// Works until everything is complete (`None`) or nothing that is left can go on.
    async fn drive(&mut self) -> Result<Option<Reason>, StorageError> {
        loop {
            let did_capture = self.capture().await?;
            let did_fetch = self.fetch().await?;
            if !did_fetch && !did_capture {
                self.look(self.open()).await?;
            }
            self.tell();
            if did_capture || did_fetch || self.can_work_now() {
                continue;
            }
            let open = self.enrolled.values().filter(|one| !one.is_complete());
            let open: Vec<&Enrolled> = open.collect();
            if open.is_empty() {
                return Ok(None);
            }
            if open.iter().all(|one| one.is_stuck()) {
                let is_blocked =
                    |one: &&Enrolled| matches!(one.completion, Completion::Blocked { .. });
                return Ok(Some(if open.iter().any(is_blocked) {
                    Reason::Blocked
                } else {
                    Reason::Connection
                }));
            }
            self.changes.changed_or_poll(WAKES).await?;
        }
    }

    /// Tells whether the backend can be asked for something that was just enrolled.
    fn can_work_now(&self) -> bool {
        !self.uncaptured.is_empty() && self.context.runtime.monotonic() >= self.not_before
    }

    /// Captures the targets of one request; answers whether it did.
    async fn capture(&mut self) -> Result<bool, StorageError> {
        if !self.can_work_now() {
            return Ok(false);
        }
        let Some(topics) = self.uncaptured.pop_front() else {
            return Ok(false);
        };
        match capture::heads(self.context, &topics).await {
            Ok(heads) => {
                for (topic, head) in heads {
                    if let Some(enrolled) = self.enrolled.get_mut(&topic) {
                        enrolled.target = Some(head);
                        enrolled.obstacle = None;
                    }
                }
                self.look(topics).await?;
            }
            Err(TransportError::InvalidArgument { .. }) if topics.len() > 1 => {
                // One of them is refused; the others are asked for without it.
                let (first, second) = topics.split_at(topics.len() / 2);
                self.uncaptured.push_front(second.to_vec());
                self.uncaptured.push_front(first.to_vec());
            }
            Err(TransportError::InvalidArgument { .. }) => {
                self.hinder(&topics, Obstacle::InvalidTopic);
            }
            Err(error) => {
                let obstacle = Obstacle::of(&error);
                self.hinder(&topics, obstacle);
                if error.is_retryable() {
                    self.uncaptured.push_back(topics);
                    self.back_off(error.asked_pause());
                }
            }
        }
        Ok(true)
    }

    fn hinder(&mut self, topics: &[Topic], obstacle: Obstacle) {
        for topic in topics {
            if let Some(enrolled) = self.enrolled.get_mut(topic) {
                enrolled.obstacle = Some(obstacle);
            }
        }
    }

    fn back_off(&mut self, asked: Duration) {
        let now = self.context.runtime.monotonic();
        let random = self.context.runtime.random();
        self.not_before = now + self.backoff.pause(now, true, asked, random);
    }

    /// Fetches one page for topics that are short; answers whether it did.
    async fn fetch(&mut self) -> Result<bool, StorageError> {
        let now = self.context.runtime.monotonic();
        if now < self.not_before {
            return Ok(false);
        }
        let topics = self
            .rounds
            .take(BACKEND_DEFAULT_MAX_QUERY_TOPICS as usize, now);
        if topics.is_empty() {
            return Ok(false);
        }
        let before: BTreeMap<Topic, SequenceId> = topics
            .iter()
            .filter_map(|topic| Some((*topic, self.enrolled.get(topic)?.progress.received)))
            .collect();
        // A live receiver may have been faster: what is received is not asked for.
        self.look(topics.clone()).await?;
        let short = |topic: &Topic| self.enrolled.get(topic).is_some_and(Enrolled::is_short);
        let asked: Vec<Topic> = topics.iter().copied().filter(short).collect();
        let fetched = match asked.is_empty() {
            true => Ok(None),
            false => fetch_page(self.context, &asked).await.map(Some),
        };
        match fetched {
            Ok(fetched) => {
                self.look(asked).await?;
                self.visited(topics, &before, fetched);
            }
            Err(error) => self.failed(topics, error)?,
        }
        Ok(true)
    }

    /// Decides where the topics of a page go.
    fn visited(
        &mut self,
        topics: Vec<Topic>,
        before: &BTreeMap<Topic, SequenceId>,
        fetched: Option<Fetched>,
    ) {
        let until = self.context.runtime.monotonic() + REST;
        let paused: BTreeSet<Topic> = fetched
            .iter()
            .flat_map(|page| &page.paused)
            .map(|(topic, _)| *topic)
            .collect();
        let gone_back: BTreeSet<Topic> = fetched
            .iter()
            .flat_map(|page| &page.gone_back)
            .copied()
            .collect();
        let is_read = fetched
            .as_ref()
            .is_none_or(|page| page.new == 0 || !page.more);
        let mut visits = Vec::with_capacity(topics.len());
        for topic in topics {
            let Some(enrolled) = self.enrolled.get_mut(&topic) else {
                continue;
            };
            enrolled.obstacle = paused.contains(&topic).then_some(Obstacle::Capacity);
            if gone_back.contains(&topic) {
                enrolled.obstacle = Some(Obstacle::GoneBack);
            }
            let got_further = Some(&enrolled.progress.received) > before.get(&topic);
            let visit = if !enrolled.is_short() {
                Visit::Done
            } else if paused.contains(&topic) {
                Visit::Rests { until }
            } else if got_further {
                Visit::Served
            } else if is_read {
                // The head was seen and is not to be read: the database lags, or it is gone.
                Visit::Rests { until }
            } else {
                Visit::Unvisited
            };
            visits.push((topic, visit));
        }
        self.rounds.give_back(visits.into_iter());
    }

    fn failed(&mut self, topics: Vec<Topic>, error: FetchError) -> Result<(), StorageError> {
        tracing::debug!(code = error.code(), "a page failed");
        if let FetchError::Storage(StorageError::Closed)
        | FetchError::Admission(AdmissionError::Storage(StorageError::Closed)) = error
        {
            return Err(StorageError::Closed);
        }
        let is_retryable = error.class() == Class::Retry || error.class() == Class::Wait;
        let (obstacle, visit) = if is_retryable {
            self.back_off(error.asked_pause());
            (Obstacle::Passing(error.code()), Visit::Unvisited)
        } else {
            (Obstacle::Lasting(error.code()), Visit::Done)
        };
        self.hinder(&topics, obstacle);
        self.rounds
            .give_back(topics.into_iter().map(|topic| (topic, visit)));
        Ok(())
    }

    fn open(&self) -> Vec<Topic> {
        let open = self.enrolled.iter().filter(|(_, one)| !one.is_complete());
        open.map(|(topic, _)| *topic).collect()
    }

    /// Reads how far topics are, with what Welcomes led to in the same committed version, so that
    /// a Welcome target is never complete before its groups are enrolled (STR-014).
    async fn look(&mut self, topics: Vec<Topic>) -> Result<(), StorageError> {
        let asked: Vec<(Topic, SequenceId)> = topics
            .into_iter()
            .filter_map(|topic| Some((topic, self.enrolled.get(&topic)?.target?)))
            .collect();
        let welcome = self.discovering.and_then(|topic| {
            let asked = asked.iter().find(|(asked, _)| *asked == topic);
            asked.copied()
        });
        let look = self
            .context
            .database
            .read_queued(move |snapshot| look(snapshot, asked, welcome))
            .await?;
        self.enroll_discovered(&look.discovered).await?;
        for (topic, progress) in look.progress {
            if let Some(enrolled) = self.enrolled.get_mut(&topic) {
                enrolled.update(progress);
                if enrolled.is_short() {
                    self.rounds.offer(topic);
                }
            }
        }
        Ok(())
    }

    /// Enrolls groups that Welcomes led to. A group that was left, and complete for that, is
    /// enrolled anew when a later Welcome led back into it.
    async fn enroll_discovered(
        &mut self,
        discovered: &BTreeMap<GroupId, SequenceId>,
    ) -> Result<(), StorageError> {
        let mut topics = BTreeSet::new();
        for (group, welcome) in discovered {
            let topic = Topic::group(group);
            let is_rejoined = |one: &Enrolled| one.is_left() && one.welcome < *welcome;
            if self.enrolled.get(&topic).is_some_and(is_rejoined) {
                self.enrolled.remove(&topic);
            }
            topics.insert(topic);
        }
        self.enroll(topics).await?;
        for (group, welcome) in discovered {
            if let Some(enrolled) = self.enrolled.get_mut(&Topic::group(group)) {
                enrolled.welcome = enrolled.welcome.max(*welcome);
            }
        }
        Ok(())
    }

    fn tell(&self) {
        if let Some(progress) = &self.progress {
            let topics = self.enrolled.iter();
            progress.send_replace(Arc::new(SyncProgress {
                topics: topics.map(|(topic, one)| one.view(*topic)).collect(),
            }));
        }
    }

    /// Says how the run ended, from a last look at the database.
    async fn end(mut self, reason: Option<Reason>) -> Result<SyncReport, SyncError> {
        self.look(self.open()).await?;
        self.tell();
        let reason = reason.unwrap_or(Reason::Deadline);
        let open = self.enrolled.iter().filter(|(_, one)| !one.is_complete());
        let obligations: Vec<_> = open
            .map(|(topic, one)| one.failure(*topic, reason))
            .collect();
        let completed = self.enrolled.len() - obligations.len();
        if !obligations.is_empty() {
            return Err(SyncError::Incomplete(Box::new(Incomplete {
                reason,
                obligations,
                completed,
            })));
        }
        let groups: Vec<GroupId> = self.enrolled.keys().filter_map(Topic::group_id).collect();
        let first_number = self.first_number;
        let messages = self
            .context
            .database
            .read_queued(move |snapshot| {
                let mut messages = 0;
                for group in groups {
                    messages += store::count_messages(snapshot, &group, first_number)?;
                }
                Ok::<_, StorageError>(messages)
            })
            .await?;
        Ok(SyncReport {
            topics: completed,
            messages,
        })
    }
}

fn look(
    snapshot: &dyn Snapshot,
    asked: Vec<(Topic, SequenceId)>,
    welcome: Option<(Topic, SequenceId)>,
) -> Result<Look, StorageError> {
    let mut look = Look::default();
    for (topic, through) in asked {
        let progress = progress::read(snapshot, &topic, through)?;
        look.progress.push((topic, progress));
    }
    if let Some((_, through)) = welcome {
        look.discovered = discovered(snapshot, through)?;
    }
    Ok(look)
}

/// Lists the groups that Welcomes at or below `through` led to.
fn discovered(
    snapshot: &dyn Snapshot,
    through: SequenceId,
) -> Result<BTreeMap<GroupId, SequenceId>, StorageError> {
    let mut groups = BTreeMap::new();
    let mut after = SequenceId::ZERO;
    loop {
        let (rows, more) = welcome::store::discoveries(snapshot, after, MAX_LOCAL_READ_ROWS)?;
        for (sequence, group) in rows {
            if sequence > through {
                return Ok(groups);
            }
            after = sequence;
            groups.insert(group, sequence);
        }
        if !more {
            return Ok(groups);
        }
    }
}
