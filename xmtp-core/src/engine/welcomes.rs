//! Attempts every pending Welcome of this installation, each by itself.

use tracing::Instrument;
use xmtp_proto::SequenceId;

use super::context::Context;
use crate::error::Coded;
use crate::limits::{MAX_LOCAL_READ_BYTES, MAX_LOCAL_READ_ROWS};
use crate::storage::{Domain, Durability, Priority, StorageError};
use crate::welcome::{self, WelcomeOutcome};
use crate::{processing, receipt};

/// What wakes the Welcome worker.
const WAKES: u64 = Domain::Progress.bit() | Domain::Welcomes.bit();

/// Runs until the database closes. A new coordinator looks at blocked Welcomes at once (STR-115).
pub(super) async fn run(context: Context) {
    let mut changes = context.database.changes();
    let mut first = true;
    loop {
        match round(&context, first).await {
            Ok(()) => first = false,
            Err(error) => {
                tracing::warn!(
                    code = error.code(),
                    "a Welcome round failed; it is repeated"
                );
            }
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
            let outcome = attempt(context, sequence, force).await?;
            tracing::debug!(?outcome, "a Welcome was attempted");
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
                if force || is_due(snapshot, sequence, now)? {
                    due.push(sequence);
                }
            }
            Ok::<_, StorageError>((due, last, more))
        })
        .await
}

fn is_due(
    snapshot: &dyn crate::storage::Snapshot,
    sequence: SequenceId,
    now: u64,
) -> Result<bool, StorageError> {
    let Some(retry) = welcome::store::retry(snapshot, sequence)? else {
        return Ok(true);
    };
    let expired = retry.deadline_ns != 0 && retry.deadline_ns <= now;
    if expired || retry.not_before_ns <= now {
        return Ok(true);
    }
    // What it waits for may have come before its pause ended.
    let mut dependencies = retry.dependencies.iter().peekable();
    if dependencies.peek().is_none() {
        return Ok(false);
    }
    for dependency in dependencies {
        let known = processing::dependency::from_stored(dependency);
        let ready = match known {
            Some(dependency) => processing::dependency::is_ready(snapshot, &dependency)?,
            None => true,
        };
        if !ready {
            return Ok(false);
        }
    }
    Ok(true)
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
            let force = force || is_due(&*txn, sequence, now)?;
            welcome::attempt(txn, &topic, sequence, &processors, force)
        })
        .instrument(tracing::debug_span!("welcome", sequence = sequence.get()))
        .await
}
