//! Resolves what pending parents wait for, outside any transaction, with bounded concurrency.
//!
//! Identity prefixes and Welcome pointees come by Query through the one receive path. What is
//! unresolved is read from the database each time, so a restart forgets nothing (STR-075). Each
//! dependency is resolved once however many parents wait for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use parking_lot::Mutex;
use tracing::Instrument;
use xmtp_proto::{InboxId, SequenceId, Topic};

use super::context::Context;
use super::fetch::{FetchError, fetch_page};
use crate::error::Coded;
use crate::limits::{
    IDENTITY_REFERENCE_WAIT, IDENTITY_RETRY_PAUSE, MAX_DEPENDENCY_REQUESTS,
    MAX_PENDING_ROWS_PER_TOPIC,
};
use crate::processing::{self, dependency};
use crate::processor::{Dependency, Rejected, Resolution};
use crate::receipt;
use crate::storage::{Domain, Durability, Priority, StorageError};
use crate::welcome;

/// What wakes the dependency worker.
const WAKES: u64 = Domain::Progress.bit() | Domain::Welcomes.bit() | Domain::Identity.bit();
/// Parents looked at in one round.
const MAX_PARENTS_PER_ROUND: usize = 1_024;
/// Pages fetched for one dependency in one round.
const MAX_PAGES_PER_ROUND: usize = MAX_PENDING_ROWS_PER_TOPIC as usize;
/// Pause before an absent pointee is asked for again within a running process.
const POINTEE_PAUSE: Duration = Duration::from_secs(30);

/// When each absent identity update was first read as absent, by healthy reads only.
type Absences = Arc<Mutex<BTreeMap<Dependency, Absence>>>;

#[derive(Clone, Copy, Debug)]
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
    loop {
        if let Err(error) = round(&context, &absences).await {
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

async fn round(context: &Context, absences: &Absences) -> Result<(), StorageError> {
    let topic = context.welcome_topic;
    let waiting = context
        .database
        .read_queued(move |snapshot| {
            dependency::waiting(snapshot, Some(&topic), MAX_PARENTS_PER_ROUND)
        })
        .await?;
    let needed: BTreeSet<Dependency> = waiting.iter().map(|parent| parent.dependency).collect();
    absences
        .lock()
        .retain(|dependency, _| needed.contains(dependency));
    let answers: BTreeMap<Dependency, Resolution> = stream::iter(needed)
        .map(
            |dependency| async move { (dependency, resolve(context, &dependency, absences).await) },
        )
        .buffer_unordered(MAX_DEPENDENCY_REQUESTS)
        .collect()
        .await;
    for parent in waiting {
        let Some(answer) = answers.get(&parent.dependency) else {
            continue;
        };
        settle_parent(context, &parent, answer).await?;
    }
    Ok(())
}

/// Resolves one dependency; its failure is its own (STR-075).
async fn resolve(context: &Context, needed: &Dependency, absences: &Absences) -> Resolution {
    let now = context.runtime.monotonic();
    let paused = absences
        .lock()
        .get(needed)
        .map(|absence| absence.not_before);
    if paused.is_some_and(|until| until > now) {
        return Resolution::Retry(IDENTITY_RETRY_PAUSE);
    }
    let span = tracing::debug_span!("dependency");
    let outcome = fetch_for(context, needed).instrument(span).await;
    match outcome {
        Ok(true) => Resolution::Ready,
        Ok(false) => absent(context, needed, absences),
        Err(error) => {
            tracing::debug!(code = error.code(), "a dependency is not resolved yet");
            if let Some(absence) = absences.lock().get_mut(needed) {
                // Time without a healthy connection does not count (STR-076).
                absence.last_healthy = None;
            }
            Resolution::Retry(IDENTITY_RETRY_PAUSE)
        }
    }
}

/// Fetches what a dependency names; answers whether it is there now.
async fn fetch_for(context: &Context, needed: &Dependency) -> Result<bool, FetchError> {
    let (topic, through) = match needed {
        Dependency::Identity { inbox, sequence } => (Topic::identity(inbox), *sequence),
        Dependency::GroupPrefix { group, through } => (Topic::group(group), *through),
        Dependency::Pointee { destination } => {
            (*destination, SequenceId::ZERO.next().unwrap_or_default())
        }
    };
    for _ in 0..MAX_PAGES_PER_ROUND {
        if is_ready(context, needed).await? {
            return Ok(true);
        }
        let received = super::receive::received(context, vec![topic]).await?[0];
        if received >= through {
            break;
        }
        let fetched = fetch_page(context, &[topic]).await?;
        if !fetched.paused.is_empty() || (fetched.new == 0 && !fetched.more) {
            break;
        }
    }
    Ok(is_ready(context, needed).await?)
}

async fn is_ready(context: &Context, needed: &Dependency) -> Result<bool, StorageError> {
    let needed = *needed;
    context
        .database
        .read_queued(move |snapshot| dependency::is_ready(snapshot, &needed))
        .await
}

/// Counts healthy time in which an identity update stayed absent.
fn absent(context: &Context, needed: &Dependency, absences: &Absences) -> Resolution {
    let now = context.runtime.monotonic();
    let mut absences = absences.lock();
    let absence = absences.entry(*needed).or_insert(Absence {
        counted: Duration::ZERO,
        last_healthy: None,
        not_before: now,
    });
    if let Some(last) = absence.last_healthy {
        absence.counted += now.saturating_sub(last);
    }
    absence.last_healthy = Some(now);
    let pause = match needed {
        Dependency::Pointee { .. } => POINTEE_PAUSE,
        _ => IDENTITY_RETRY_PAUSE,
    };
    absence.not_before = now + pause;
    let is_identity = matches!(needed, Dependency::Identity { .. });
    if is_identity && absence.counted >= IDENTITY_REFERENCE_WAIT {
        return Resolution::Permanent(Rejected::IdentityReferenceMissing);
    }
    Resolution::Retry(pause)
}

/// Tries a parent again whose dependency came, or rejects it where it never will.
async fn settle_parent(
    context: &Context,
    parent: &dependency::Waiting,
    answer: &Resolution,
) -> Result<(), StorageError> {
    let parent = *parent;
    let processors = context.processors.clone();
    let welcome_topic = context.welcome_topic;
    let answer = answer.clone();
    if matches!(answer, Resolution::Retry(_)) {
        return Ok(());
    }
    context
        .database
        .write_queued(Priority::Background, Durability::Ordered, move |txn| {
            let is_welcome = parent.topic == welcome_topic;
            match answer {
                Resolution::Ready if is_welcome => {
                    welcome::attempt(txn, &parent.topic, parent.sequence, &processors, true)?;
                }
                Resolution::Ready => {
                    processing::turn(txn, &parent.topic, &processors, true)?;
                }
                Resolution::Permanent(reason) => {
                    // The identity may have come, or be invalid, since the answer was formed.
                    if !dependency::is_ready(txn, &parent.dependency)?
                        && !identity_is_unsettled(txn, &parent.dependency)?
                    {
                        reject(txn, &parent, is_welcome, reason)?;
                    }
                }
                Resolution::Retry(_) => {}
            }
            Ok::<_, StorageError>(())
        })
        .await
}

fn reject(
    txn: &mut crate::storage::WriteTxn<'_>,
    parent: &dependency::Waiting,
    is_welcome: bool,
    reason: Rejected,
) -> Result<(), StorageError> {
    if is_welcome {
        welcome::reject(txn, &parent.topic, parent.sequence, reason)
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
