//! Attempts every pending Welcome of this installation, each by itself.

use tracing::Instrument;
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{SequenceId, Topic};

use super::context::Context;
use crate::error::Coded;
use crate::limits::{MAX_LOCAL_READ_BYTES, MAX_LOCAL_READ_ROWS};
use crate::processing::Processors;
use crate::storage::{Domain, Durability, Priority, Read, StorageError, WriteTxn};
use crate::welcome::{self, WelcomeOutcome};
use crate::{processing, receipt};

/// What wakes the Welcome worker.
const WAKES: u64 = Domain::Progress.bit() | Domain::Welcomes.bit();

/// Most earlier Welcomes looked at before one is attempted; all of them have their own turn too.
const MAX_EARLIER: u32 = 16;

/// Runs until the database closes. A new coordinator looks at blocked Welcomes at once (STR-115).
pub(super) async fn run(context: Context) {
    let mut changes = context.database.changes();
    let mut first = true;
    loop {
        match round(&context, first).await {
            Ok(()) => first = false,
            Err(error) => tracing::warn!(code = error.code(), "Welcomes could not be read"),
        }
        if changes.changed_or_poll(WAKES).await.is_err() {
            return;
        }
    }
}

/// Attempts every Welcome that is due, or every one when `force` says so.
async fn round(context: &Context, force: bool) -> Result<(), StorageError> {
    let mut after = SequenceId::ZERO;
    loop {
        let (due, last, more) = due(context, after, force).await?;
        for sequence in due {
            // One that fails keeps none of the others (STR-080).
            match attempt(context, sequence, force).await {
                Ok(outcome) => tracing::debug!(?outcome, "a Welcome was attempted"),
                Err(error) => tracing::warn!(code = error.code(), "a Welcome could not be tried"),
            }
        }
        after = last;
        if !more {
            return Ok(());
        }
    }
}

/// Reads one page of Welcomes that are due.
async fn due(
    context: &Context,
    after: SequenceId,
    force: bool,
) -> Result<(Vec<SequenceId>, SequenceId, bool), StorageError> {
    let topic = context.welcome_topic;
    let now = context.runtime.now_ns();
    context
        .database
        .read_queued(move |snapshot| {
            let (rows, more) = receipt::store::pending_page(
                snapshot,
                &topic,
                after,
                MAX_LOCAL_READ_ROWS,
                MAX_LOCAL_READ_BYTES,
            )?;
            let last = rows.last().map_or(after, |(sequence, _)| *sequence);
            let mut due = Vec::new();
            for (sequence, _) in rows {
                if is_due(snapshot, sequence, now, force)? {
                    due.push(sequence);
                }
            }
            Ok::<_, StorageError>((due, last, more))
        })
        .await
}

/// Tells whether a Welcome is to be attempted now, or at the next chance when `force` says so.
///
/// One that is expired and still lacks something gets its last attempt from the dependency worker,
/// which asks the backend for it first.
fn is_due(
    snapshot: &(impl Read + ?Sized),
    sequence: SequenceId,
    now: u64,
    force: bool,
) -> Result<bool, StorageError> {
    let Some(retry) = welcome::store::retry(snapshot, sequence)? else {
        return Ok(true);
    };
    let is_missing = is_missing(snapshot, &retry)?;
    let is_expired = welcome::is_expired(&retry, now);
    if is_missing && is_expired {
        return Ok(false);
    }
    // What it waits for may have come before its pause ended.
    let has_come = !retry.dependencies.is_empty() && !is_missing;
    Ok(force || has_come || retry.not_before_ns <= now)
}

/// Tells whether something that a Welcome waits for is not there.
fn is_missing(
    snapshot: &(impl Read + ?Sized),
    retry: &stored::WelcomeRetry,
) -> Result<bool, StorageError> {
    for dependency in &retry.dependencies {
        if let Some(dependency) = processing::dependency::from_stored(dependency)
            && !processing::dependency::is_ready(snapshot, &dependency)?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Attempts a Welcome, and before it earlier ones whose needs have come meanwhile.
///
/// What has come for one has often come for the others. A later Welcome into the same group that
/// overtook an earlier one would make it stale, and what was said between the two would be lost.
pub(super) fn attempt_in_order(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    sequence: SequenceId,
    processors: &Processors,
) -> Result<WelcomeOutcome, StorageError> {
    let start = SequenceId::ZERO;
    let (rows, _) =
        receipt::store::pending_page(txn, topic, start, MAX_EARLIER, MAX_LOCAL_READ_BYTES)?;
    for (earlier, _) in rows {
        if earlier >= sequence {
            break;
        }
        let Some(retry) = welcome::store::retry(txn, earlier)? else {
            continue;
        };
        if retry.dependencies.is_empty() || is_missing(txn, &retry)? {
            continue;
        }
        let tried = txn.savepoint(|txn| welcome::attempt(txn, topic, earlier, processors, true));
        if let Err(error) = tried {
            // One that fails keeps none of the others (STR-080).
            tracing::warn!(code = error.code(), "an earlier Welcome could not be tried");
        }
    }
    welcome::attempt(txn, topic, sequence, processors, true)
}

async fn attempt(
    context: &Context,
    sequence: SequenceId,
    force: bool,
) -> Result<WelcomeOutcome, StorageError> {
    let processors = context.processors.clone();
    let topic = context.welcome_topic;
    context
        .database
        .write_queued(Priority::Background, Durability::Ordered, move |txn| {
            let now = txn.now_ns();
            if !is_due(txn, sequence, now, force)? {
                return Ok(WelcomeOutcome::NotDue);
            }
            attempt_in_order(txn, &topic, sequence, &processors)
        })
        .instrument(tracing::debug_span!("welcome", sequence = sequence.get()))
        .await
}
