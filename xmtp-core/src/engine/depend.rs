//! Resolves what pending parents wait for, outside any transaction, with bounded concurrency.
//!
//! Identity prefixes and Welcome pointees come by Query through the one receive path. What is
//! unresolved is read from the database each time, so a restart forgets nothing (STR-075). Each
//! dependency is resolved once however many parents wait for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use parking_lot::Mutex;
use tracing::Instrument;
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{InboxId, SequenceId, Topic};

use super::context::Context;
use super::fetch::{FetchError, fetch_page};
use super::welcomes::attempt_in_order;
use crate::error::Coded;
use crate::limits::{
    IDENTITY_REFERENCE_WAIT, IDENTITY_RETRY_PAUSE, MAX_DEPENDENCY_REQUESTS,
    MAX_PENDING_ROWS_PER_TOPIC, STANDARD_REQUEST_TIMEOUT, WELCOME_POINTER_FIRST_PAUSE,
    WELCOME_ROOM_WAIT,
};
use crate::processing::dependency::{self, Place, Waiting};
use crate::processing::{self, Processors};
use crate::processor::{Dependency, Rejected};
use crate::receipt;
use crate::runtime::RuntimeExt;
use crate::storage::{Domain, Durability, Priority, StorageError};
use crate::transport::TransportError;
use crate::welcome;

/// What wakes the dependency worker.
const WAKES: u64 = Domain::Progress.bit() | Domain::Welcomes.bit() | Domain::Identity.bit();
/// What is looked at in one round, of the heads of topics and again of Welcomes.
pub(super) const MAX_WAITING_PER_ROUND: usize = 1_024;
/// Dependencies that are remembered between rounds; beyond, only those of the round itself.
const MAX_ABSENCES: usize = 16 * MAX_WAITING_PER_ROUND;
/// How long a dependency that is not asked for any more is remembered.
const ABSENCE_KEPT: Duration = Duration::from_secs(60);
/// Pages fetched for one dependency in one round.
const MAX_PAGES_PER_ROUND: usize = MAX_PENDING_ROWS_PER_TOPIC as usize;
/// Most time between two healthy reads that counts as healthy.
const LONGEST_BETWEEN_READS: Duration = Duration::from_secs(2);

/// Pause before something is asked for again that could not be taken in.
const UNREAD_PAUSE: Duration = Duration::from_secs(5);

/// When each absent identity update was first read as absent, by healthy reads only.
type Absences = Arc<Mutex<BTreeMap<Dependency, Absence>>>;

#[derive(Clone, Copy, Debug, Default)]
struct Absence {
    /// Healthy time that has counted so far.
    counted: Duration,
    /// The last healthy read.
    last_healthy: Option<Duration>,
    /// Not asked again before this time.
    not_before: Duration,
}

/// Runs until the database closes.
pub(super) async fn run(context: Context) {
    let mut changes = context.database.changes();
    let absences = Absences::default();
    let mut place = Place::default();
    loop {
        if let Err(error) = round(&context, &absences, &mut place).await {
            tracing::warn!(
                code = error.code(),
                "a dependency round failed; it is repeated"
            );
        }
        if changes.changed_or_poll(WAKES).await.is_err() {
            return;
        }
    }
}

async fn round(
    context: &Context,
    absences: &Absences,
    place: &mut Place,
) -> Result<(), StorageError> {
    let topic = context.welcome_topic;
    let mut next = *place;
    let (waiting, next) = context
        .database
        .read_queued(move |snapshot| {
            let found =
                dependency::waiting(snapshot, Some(&topic), &mut next, MAX_WAITING_PER_ROUND)?;
            Ok::<_, StorageError>((found, next))
        })
        .await?;
    *place = next;
    // Once for each dependency, however many parents wait for it.
    let mut needed: BTreeMap<Dependency, Vec<Waiting>> = BTreeMap::new();
    for parent in waiting {
        needed.entry(parent.dependency).or_default().push(parent);
    }
    forget(absences, &needed, context.runtime.monotonic());
    let mut answers = stream::iter(needed)
        .map(|(dependency, parents)| async move {
            let pause = pause(&dependency, &parents, context.runtime.now_ns());
            let answer = resolve(context, &dependency, pause, absences).await;
            (parents, answer)
        })
        .buffer_unordered(MAX_DEPENDENCY_REQUESTS);
    // Each answer is used as it comes: one that is slow keeps none of the others (STR-075).
    while let Some((parents, answer)) = answers.next().await {
        for parent in parents {
            if let Err(error) = settle_parent(context, &parent, &answer).await {
                tracing::warn!(code = error.code(), "a parent could not be settled");
            }
        }
    }
    Ok(())
}

/// Forgets what is needed no more. What another round asks for is kept, so that its time goes on.
fn forget(absences: &Absences, needed: &BTreeMap<Dependency, Vec<Waiting>>, now: Duration) {
    let mut absences = absences.lock();
    let is_crowded = absences.len() > MAX_ABSENCES;
    absences.retain(|dependency, absence| {
        let is_recent = absence.not_before + ABSENCE_KEPT > now;
        needed.contains_key(dependency) || (is_recent && !is_crowded)
    });
}

/// The pause before something absent is asked for again: for a pointee the one of its pointer, but
/// not beyond the pointer's deadline, whose last attempt comes after a look.
fn pause(needed: &Dependency, parents: &[Waiting], now_ns: u64) -> Duration {
    let Dependency::Pointee { .. } = needed else {
        return IDENTITY_RETRY_PAUSE;
    };
    let of_parent = |parent: &Waiting| {
        let pause = welcome::pointer_pause(parent.attempts);
        let left = parent.deadline_ns.saturating_sub(now_ns);
        match parent.deadline_ns {
            0 => pause,
            _ => pause.min(Duration::from_nanos(left)),
        }
    };
    let shortest = parents.iter().map(of_parent).min();
    shortest.unwrap_or_default().max(IDENTITY_RETRY_PAUSE)
}

/// What one look for a dependency says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It is there.
    Ready,
    /// The backend answered, and it is not there.
    Absent,
    /// The backend answered, but what it has could not be taken in as far as it goes: there is no
    /// room for it, or its order went back. That says nothing of what is in it.
    Unread,
    /// It will never be there.
    Permanent(Rejected),
    /// Nobody was asked, or nobody answered.
    Unknown,
}

/// Resolves one dependency; its failure is its own (STR-075).
async fn resolve(
    context: &Context,
    needed: &Dependency,
    pause: Duration,
    absences: &Absences,
) -> Answer {
    let now = context.runtime.monotonic();
    let paused = absences
        .lock()
        .get(needed)
        .map(|absence| absence.not_before);
    if paused.is_some_and(|until| until > now) {
        return Answer::Unknown;
    }
    let span = tracing::debug_span!("dependency");
    let fetched = fetch_for(context, needed).instrument(span);
    let outcome = tokio::select! {
        biased;
        outcome = fetched => outcome,
        () = context.runtime.sleep(STANDARD_REQUEST_TIMEOUT) => {
            Err(TransportError::DeadlineExceeded.into())
        }
    };
    match outcome {
        Ok(Answer::Absent) => absent(context, needed, pause, absences),
        Ok(Answer::Unread) => {
            let pause = match needed {
                Dependency::Pointee { .. } => WELCOME_POINTER_FIRST_PAUSE,
                _ => UNREAD_PAUSE,
            };
            put_off(context, needed, pause, absences);
            Answer::Unread
        }
        Ok(answer) => answer,
        Err(error) => {
            tracing::debug!(code = error.code(), "a dependency is not resolved yet");
            let pause = IDENTITY_RETRY_PAUSE.max(error.asked_pause());
            put_off(context, needed, pause, absences);
            Answer::Unknown
        }
    }
}

/// Asks again after a pause. Time without a healthy connection does not count, and neither does
/// time in which what came could not be read (STR-076).
fn put_off(context: &Context, needed: &Dependency, pause: Duration, absences: &Absences) {
    let now = context.runtime.monotonic();
    let mut absences = absences.lock();
    let absence = absences.entry(*needed).or_default();
    absence.last_healthy = None;
    absence.not_before = now + pause;
}

/// Fetches what a dependency names; answers whether it is there now. It is absent only when its
/// topic was read to the end.
pub(crate) async fn fetch_for(
    context: &Context,
    needed: &Dependency,
) -> Result<Answer, FetchError> {
    let (topic, through) = match needed {
        Dependency::Identity { inbox, sequence } => (Topic::identity(inbox), *sequence),
        Dependency::GroupPrefix { group, through } => (Topic::group(group), *through),
        Dependency::Pointee { destination } => {
            (*destination, SequenceId::ZERO.next().unwrap_or_default())
        }
    };
    let mut otherwise = Answer::Unread;
    for _ in 0..MAX_PAGES_PER_ROUND {
        if is_ready(context, needed).await? {
            return Ok(Answer::Ready);
        }
        let received = super::receive::received(context, vec![topic]).await?[0];
        if received >= through {
            otherwise = Answer::Absent;
            break;
        }
        let fetched = fetch_page(context, &[topic]).await?;
        if !fetched.is_whole() {
            break;
        }
        if fetched.new == 0 && !fetched.more {
            otherwise = Answer::Absent;
            break;
        }
    }
    Ok(match is_ready(context, needed).await? {
        true => Answer::Ready,
        false => otherwise,
    })
}

async fn is_ready(context: &Context, needed: &Dependency) -> Result<bool, StorageError> {
    let needed = *needed;
    context
        .database
        .read_queued(move |snapshot| dependency::is_ready(snapshot, &needed))
        .await
}

/// Counts healthy time in which an identity update stayed absent. A longer silence between two
/// reads, such as the sleep of a device, proves no more than the longest time between them.
fn absent(context: &Context, needed: &Dependency, pause: Duration, absences: &Absences) -> Answer {
    let now = context.runtime.monotonic();
    let mut absences = absences.lock();
    let absence = absences.entry(*needed).or_default();
    if let Some(last) = absence.last_healthy {
        absence.counted += now.saturating_sub(last).min(LONGEST_BETWEEN_READS);
    }
    absence.last_healthy = Some(now);
    absence.not_before = now + pause;
    let is_identity = matches!(needed, Dependency::Identity { .. });
    if is_identity && absence.counted >= IDENTITY_REFERENCE_WAIT {
        return Answer::Permanent(Rejected::IdentityReferenceMissing);
    }
    Answer::Absent
}

/// Tries a parent again whose dependency came, or rejects it where it never will.
async fn settle_parent(
    context: &Context,
    parent: &Waiting,
    answer: &Answer,
) -> Result<(), StorageError> {
    let (parent, answer) = (*parent, *answer);
    let processors = context.processors.clone();
    let is_welcome = parent.topic == context.welcome_topic;
    // An update of an inbox has a wait of its own (STR-076).
    let is_identity = matches!(parent.dependency, Dependency::Identity { .. });
    let is_open = matches!(answer, Answer::Absent | Answer::Unread);
    if answer == Answer::Unknown || (is_open && (is_identity || !is_welcome)) {
        return Ok(());
    }
    context
        .database
        .write_queued(Priority::Background, Durability::Ordered, move |txn| {
            match answer {
                Answer::Ready if is_welcome => {
                    attempt_in_order(txn, &parent.topic, parent.sequence, &processors)?;
                }
                Answer::Ready => {
                    processing::turn(txn, &parent.topic, &processors, true)?;
                }
                // The last attempt at an expired Welcome comes after a look that was answered.
                Answer::Absent | Answer::Unread => {
                    let retry = welcome::store::retry(txn, parent.sequence)?;
                    let now = txn.now_ns();
                    if retry.is_some_and(|retry| is_given_up(&retry, answer, now)) {
                        welcome::attempt(txn, &parent.topic, parent.sequence, &processors, true)?;
                    }
                }
                Answer::Permanent(reason) => {
                    // The identity may have come, or be invalid, since the answer was formed.
                    if !dependency::is_ready(txn, &parent.dependency)?
                        && !identity_is_unsettled(txn, &parent.dependency)?
                    {
                        reject(txn, &parent, is_welcome, &processors, reason)?;
                    }
                }
                Answer::Unknown => {}
            }
            Ok::<_, StorageError>(())
        })
        .await
}

/// Tells whether a Welcome is given up after an answer. What there is no room for is waited for
/// beyond the deadline, until whatever was read along with the Welcome has made room; then a crowd
/// of pointers makes room for one another.
fn is_given_up(retry: &stored::WelcomeRetry, answer: Answer, now_ns: u64) -> bool {
    let room_wait = match answer {
        Answer::Unread => WELCOME_ROOM_WAIT.as_nanos() as u64,
        _ => 0,
    };
    welcome::is_expired(retry, now_ns) && retry.first_read_ns.saturating_add(room_wait) <= now_ns
}

fn reject(
    txn: &mut crate::storage::WriteTxn<'_>,
    parent: &Waiting,
    is_welcome: bool,
    processors: &Processors,
    reason: Rejected,
) -> Result<(), StorageError> {
    if is_welcome {
        welcome::reject(txn, &parent.topic, parent.sequence, processors, reason)
    } else {
        processing::reject_head(txn, &parent.topic, parent.sequence, reason).map(|_| ())
    }
}

/// Tells whether earlier updates of the inbox are still pending or blocked: then the update is
/// not absent but unverified.
fn identity_is_unsettled(
    txn: &crate::storage::WriteTxn<'_>,
    needed: &Dependency,
) -> Result<bool, StorageError> {
    let Dependency::Identity { inbox, .. } = needed else {
        return Ok(false);
    };
    let inbox: &InboxId = inbox;
    let record = receipt::store::topic(txn, &Topic::identity(inbox))?;
    Ok(record.pending_rows > 0)
}
