//! Welcomes: independent of one another, each with durable retry state, installed only from fresh
//! state inside one transaction.
//!
//! A Welcome topic has no P. Its progress is F and the set of Welcomes at or below F that are not
//! completed, which are its pending rows. A later success never hides an earlier one (STR-080).

mod decide;
mod install;
pub(crate) mod store;
#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{GroupId, SequenceId, Topic};

use crate::limits::{
    WELCOME_POINTER_FIRST_PAUSE, WELCOME_POINTER_LONGEST_PAUSE, WELCOME_POINTER_WINDOW,
    WELCOME_RECHECK_INTERVAL, WELCOME_RETENTION, WELCOME_UPGRADE_RETENTION,
};
use crate::processing::{Processors, dependency};
use crate::processor::{
    Blocked, Candidate, Dependency, PendingItem, Rejected, RetryCause, Verdict,
};
use crate::receipt;
use crate::storage::{StorageError, WriteTxn};

use decide::{Decision, LocalGroup};
pub use install::{CREATED_DURABILITY, install_created};

/// What became of one attempt at a Welcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WelcomeOutcome {
    /// It was completed earlier, here or by another process.
    Gone,
    /// It is not due yet.
    NotDue,
    /// The group is installed and discoverable.
    Joined(GroupId),
    /// It is completed without a group, for a recorded reason.
    Rejected(Rejected),
    /// It stays unresolved, with durable retry state.
    Kept,
}

/// Attempts one pending Welcome.
///
/// # Behavior
/// - `force` says that something it waited for changed; otherwise a pause is kept.
/// - A deadline is written once and never moved (STR-081, STR-115). At or after it, one attempt is
///   made, and the Welcome is completed if it does not succeed. An attempt that a local failure
///   ended has decided nothing, and is repeated. So has one that lacks nothing but updates of
///   inboxes: they were not asked for before it opened, and their own wait ends it (STR-076).
/// - Everything an installation writes commits together or not at all (STR-084).
pub fn attempt(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    sequence: SequenceId,
    processors: &Processors,
    force: bool,
) -> Result<WelcomeOutcome, StorageError> {
    let Some(pending) = receipt::store::pending(txn, topic, sequence)? else {
        return Ok(WelcomeOutcome::Gone);
    };
    let now = txn.now_ns();
    let mut retry = store::retry(txn, sequence)?.unwrap_or(stored::WelcomeRetry {
        first_read_ns: now,
        ..Default::default()
    });
    let expired = is_expired(&retry, now);
    if !force && retry.not_before_ns > now {
        return Ok(WelcomeOutcome::NotDue);
    }
    let mut destination = None;
    let result = txn.savepoint(|txn| {
        let Some(item) = crate::processing::pending_item(txn, topic, sequence, &pending)? else {
            return Err(Stop::Verdict(Verdict::Rejected(Rejected::Malformed)));
        };
        try_join(txn, topic, &item, &mut destination, processors)
    });
    let verdict = match result {
        Ok(group) => return Ok(WelcomeOutcome::Joined(group)),
        Err(Stop::Storage(error)) => return Err(error),
        Err(Stop::Verdict(verdict)) => verdict,
    };
    let reason = match verdict {
        Verdict::Rejected(reason) => Some(reason),
        Verdict::Retry(_) => None,
        Verdict::Waits(ref needed) if is_for_identities_only(needed) => None,
        _ => expired.then_some(Rejected::WelcomeExpired),
    };
    if let Some(reason) = reason {
        install::complete(txn, topic, sequence, &pending, Some(reason))?;
        drop_pointee(txn, destination)?;
        return Ok(WelcomeOutcome::Rejected(reason));
    }
    keep(&mut retry, &verdict, pending.server_ns, now);
    store::put_retry(txn, sequence, &retry)?;
    Ok(WelcomeOutcome::Kept)
}

/// Tells whether a received Welcome is unresolved: its private keys are still needed (STR-081).
pub fn has_unresolved(
    snapshot: &(impl crate::storage::Read + ?Sized),
    topic: &Topic,
) -> Result<bool, StorageError> {
    Ok(receipt::store::topic(snapshot, topic)?.pending_rows > 0)
}

/// Tells whether a Welcome is past its deadline: its next attempt is its last (STR-115).
pub(crate) fn is_expired(retry: &stored::WelcomeRetry, now_ns: u64) -> bool {
    retry.deadline_ns != 0 && retry.deadline_ns <= now_ns
}

/// Completes a Welcome whose dependency will never be there.
pub(crate) fn reject(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    sequence: SequenceId,
    processors: &Processors,
    reason: Rejected,
) -> Result<(), StorageError> {
    let Some(pending) = receipt::store::pending(txn, topic, sequence)? else {
        return Ok(());
    };
    let destination = match crate::processing::pending_item(txn, topic, sequence, &pending)? {
        Some(item) => match inspect(txn, processors, &item, None)? {
            Err(Verdict::Waits(needed)) => destination_in(&needed),
            _ => None,
        },
        None => None,
    };
    install::complete(txn, topic, sequence, &pending, Some(reason))?;
    drop_pointee(txn, destination)
}

/// Why a join attempt is undone.
enum Stop {
    Storage(StorageError),
    Verdict(Verdict),
}

impl From<StorageError> for Stop {
    fn from(error: StorageError) -> Self {
        Self::Storage(error)
    }
}

fn try_join(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    item: &PendingItem,
    destination: &mut Option<Topic>,
    processors: &Processors,
) -> Result<GroupId, Stop> {
    let mut inspected = inspect(txn, processors, item, None)?;
    // What a pointer leads to is in the pointer: nothing of it is remembered between attempts.
    if let Err(Verdict::Waits(needed)) = &inspected
        && let Some(found) = destination_in(needed)
    {
        *destination = Some(found);
        if let Some(pointee) = install::pointee(txn, &found)? {
            inspected = inspect(txn, processors, item, Some(&pointee))?;
        }
    }
    let candidate = inspected.map_err(Stop::Verdict)?;
    let found = candidate.anchor();
    if found.anchor >= item.sequence_id || (found.anchor == SequenceId::ZERO && found.epoch != 0) {
        return Err(Stop::Verdict(Verdict::Rejected(Rejected::WelcomeAnchor)));
    }
    let local = store::group(txn, &found.group)?.map(|group| LocalGroup {
        active: group.active,
        epoch: group.epoch,
    });
    let group_topic = Topic::group(&found.group);
    let processed = SequenceId::saturating(receipt::store::topic(txn, &group_topic)?.processed);
    match decide::decide(local, processed, found.anchor, found.epoch) {
        Decision::Install => {
            install_candidate(txn, topic, item, candidate)?;
            drop_pointee(txn, *destination)?;
            Ok(found.group)
        }
        Decision::PrefixFirst => Err(Stop::Verdict(Verdict::Waits(vec![
            Dependency::GroupPrefix {
                group: found.group,
                through: found.anchor,
            },
        ]))),
        Decision::Reject(reason) => Err(Stop::Verdict(Verdict::Rejected(reason))),
    }
}

/// Opens a Welcome; a panic blocks it alone.
fn inspect<'p>(
    txn: &mut WriteTxn<'_>,
    processors: &'p Processors,
    item: &PendingItem,
    pointee: Option<&PendingItem>,
) -> Result<Result<Box<dyn Candidate + 'p>, Verdict>, StorageError> {
    let run = AssertUnwindSafe(|| processors.welcome.inspect(txn, item, pointee));
    catch_unwind(run).unwrap_or(Ok(Err(PANICKED)))
}

fn install_candidate(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    item: &PendingItem,
    candidate: Box<dyn Candidate + '_>,
) -> Result<(), Stop> {
    let found = candidate.anchor();
    let Ok(joined) = catch_unwind(AssertUnwindSafe(|| candidate.install(txn))) else {
        return Err(Stop::Verdict(PANICKED));
    };
    install::install(txn, topic, item, found, joined?)?;
    Ok(())
}

/// The verdict of a processor that panicked: that Welcome alone is blocked.
const PANICKED: Verdict = Verdict::Blocked(Blocked::Panic);

/// Removes what waits on the destination of a completed pointer: nothing else asks for it.
fn drop_pointee(txn: &mut WriteTxn<'_>, destination: Option<Topic>) -> Result<(), StorageError> {
    match destination {
        Some(destination) => install::drop_pending(txn, &destination, SequenceId::MAX),
        None => Ok(()),
    }
}

/// The destination among what a Welcome waits for, if it is a pointer.
fn destination_in(needed: &[Dependency]) -> Option<Topic> {
    needed.iter().find_map(|dependency| match dependency {
        Dependency::Pointee { destination } => Some(*destination),
        _ => None,
    })
}

/// Tells whether a Welcome lacks nothing but updates of inboxes.
fn is_for_identities_only(needed: &[Dependency]) -> bool {
    let is_identity = |needed: &Dependency| matches!(needed, Dependency::Identity { .. });
    !needed.is_empty() && needed.iter().all(is_identity)
}

/// Updates the retry state of a Welcome that stays.
fn keep(retry: &mut stored::WelcomeRetry, verdict: &Verdict, server_ns: u64, now: u64) {
    retry.attempts = retry.attempts.saturating_add(1);
    retry.blocked = false;
    // Only what is missing now is listed: something that is there would ask for a next attempt.
    retry.dependencies.clear();
    let after = |base: u64, window: Duration| base.saturating_add(window.as_nanos() as u64);
    match verdict {
        Verdict::Retry(cause) => {
            retry.code = cause.code().to_owned();
            retry.not_before_ns = after(now, crate::processing::retry_pause(retry.attempts));
        }
        Verdict::Waits(needed) => {
            retry.code = "dependency".to_owned();
            retry.dependencies = needed.iter().map(dependency::to_stored).collect();
            retry.not_before_ns = after(now, pointer_pause(retry.attempts));
            if destination_in(needed).is_some() && retry.deadline_ns == 0 {
                retry.deadline_ns = after(server_ns, WELCOME_POINTER_WINDOW);
            }
        }
        Verdict::Blocked(cause) => {
            retry.code = cause.code().to_owned();
            retry.blocked = true;
            retry.not_before_ns = after(now, WELCOME_RECHECK_INTERVAL);
            if retry.deadline_ns == 0 {
                retry.deadline_ns = after(retry.first_read_ns, retention(*cause));
            }
        }
        Verdict::Applied(_) | Verdict::Rejected(_) => {
            retry.code = RetryCause::Local { what: "welcome" }.code().to_owned();
        }
    }
    // The last attempt comes at the deadline, not a pause later.
    if retry.deadline_ns > now {
        retry.not_before_ns = retry.not_before_ns.min(retry.deadline_ns);
    }
}

/// How long a blocked Welcome is kept: one that opens says what it needs, any other is noise for
/// all that is known.
fn retention(cause: Blocked) -> Duration {
    match cause {
        Blocked::VersionFloor => WELCOME_UPGRADE_RETENTION,
        _ => WELCOME_RETENTION,
    }
}

/// The pause before a dependency of a Welcome is asked for again: half as long again each time.
pub(crate) fn pointer_pause(attempts: u32) -> Duration {
    let mut pause = WELCOME_POINTER_FIRST_PAUSE;
    for _ in 1..attempts.min(32) {
        pause = (pause * 3 / 2).min(WELCOME_POINTER_LONGEST_PAUSE);
    }
    pause
}
