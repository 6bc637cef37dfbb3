//! What became of an envelope at somebody's, read from the database alone.

use std::time::Duration;

use xmtp_core::storage::schema::{DISCOVERY, HEAD, PENDING, REJECTION, TOPIC, WELCOME};
use xmtp_core::storage::{Read, Snapshot, StorageError};
use xmtp_proto::storage::v1::HeadKind;
use xmtp_proto::{SequenceId, Topic, TopicKind};

use super::{PlayError, Told, World};

/// How long an assertion waits to become true.
const PATIENCE: Duration = Duration::from_secs(60);
/// What wakes an assertion that waits: everything.
const WAKES: u64 = u64::MAX;

/// Why a Welcome into a group that is held is rejected: which of them depends on how much of the
/// group was processed before.
const BY_POSITION: [&str; 3] = ["welcome_superseded", "welcome_stale", "welcome_conflicting"];

/// Lists the verdicts that are as good as the one that is told.
///
/// - After a power loss a Welcome and its group are received again, in whatever order.
fn as_good(world: &World, who: &str, told: &Told) -> Vec<Told> {
    let is_by_position =
        matches!(told, Told::Rejected(code) if BY_POSITION.contains(&code.as_str()));
    match is_by_position && world.has_lost_power(who) {
        true => BY_POSITION
            .map(|code| Told::Rejected(code.to_owned()))
            .into(),
        false => vec![told.clone()],
    }
}

/// Waits until an envelope has the verdict that is told.
///
/// # Errors
/// What was found instead at the end of the patience.
pub(super) async fn expect(
    world: &mut World,
    who: &str,
    label: &str,
    told: &Told,
) -> Result<(), PlayError> {
    let (topic, sequence) = world.posted(label)?;
    let database = world.client(who).await?.engine().context().database.clone();
    let mut changes = database.changes();
    let as_good = as_good(world, who, told);
    let mut found = Err(String::new());
    let waiting = async {
        loop {
            for told in &as_good {
                let read = database.read(|snapshot| look(snapshot, &topic, sequence, told));
                match read {
                    Ok(Ok(())) => return Ok(()),
                    Ok(Err(other)) => found = Err(other),
                    Err(error) => return Err(PlayError::Storage(error)),
                }
            }
            let ended = || PlayError::Told("the database closed".to_owned());
            changes.changed_or_poll(WAKES).await.map_err(|_| ended())?;
        }
    };
    match tokio::time::timeout(PATIENCE, waiting).await {
        Ok(ended) => ended?,
        Err(_) => {
            let found: Result<(), String> = found;
            let found = found.err().unwrap_or_default();
            let told = format!("told {told:?} of {label}, found {found}");
            return Err(PlayError::Told(told));
        }
    }
    // What is final has to be so at the end, too.
    if matches!(told, Told::Applied | Told::Rejected(_) | Told::Joined) {
        let key = (who.to_owned(), label.to_owned());
        world.verdicts.insert(key, told.clone());
    }
    Ok(())
}

/// Compares what is told with what the database says; answers what it says where they differ.
pub(super) fn look(
    snapshot: &dyn Snapshot,
    topic: &Topic,
    sequence: SequenceId,
    told: &Told,
) -> Result<Result<(), String>, StorageError> {
    let record = snapshot.row(TOPIC, topic)?.unwrap_or_default();
    let is_pending = snapshot.row(PENDING, &(*topic, sequence))?.is_some();
    let rejection = snapshot.row(REJECTION, &(*topic, sequence))?;
    let reason = rejection.map(|rejection| rejection.reason);
    let at = sequence.get();
    let is_welcome = topic.kind() == TopicKind::Welcome;
    let through = match is_welcome {
        true => record.received,
        false => record.processed,
    };
    let is_handled = through >= at && !is_pending;
    let stays = stays(snapshot, topic, sequence)?;
    let is_joined = snapshot.row(DISCOVERY, &sequence)?.is_some();
    let holds = match told {
        Told::Applied => is_handled && reason.is_none() && (!is_welcome || is_joined),
        Told::Rejected(code) => is_handled && reason.as_deref() == Some(code),
        Told::Blocked(code) => {
            is_pending && stays.as_ref() == Some(&(HeadKind::Blocked, code.clone()))
        }
        Told::Waits => is_pending && matches!(&stays, Some((HeadKind::Waits, _))),
        Told::Held => is_pending && record.received >= at && reason.is_none(),
        Told::Joined => is_handled && reason.is_none() && is_joined,
        Told::Received => record.received == at,
        Told::Processed => record.processed == at,
    };
    if holds {
        return Ok(Ok(()));
    }
    let (f, p) = (record.received, record.processed);
    Ok(Err(format!(
        "it is {at}, F is {f}, P is {p}, pending {is_pending}, rejected {reason:?}, stays {stays:?}"
    )))
}

/// Answers why an envelope stays, when it is the head of its topic or a Welcome.
fn stays(
    snapshot: &dyn Snapshot,
    topic: &Topic,
    sequence: SequenceId,
) -> Result<Option<(HeadKind, String)>, StorageError> {
    if topic.kind() != TopicKind::Welcome {
        let head = snapshot.row(HEAD, topic)?;
        let head = head.filter(|head| head.sequence_id == sequence.get());
        return Ok(head.map(|head| (head.kind(), head.code.clone())));
    }
    let retry = snapshot.row(WELCOME, &sequence)?;
    Ok(retry.map(|retry| {
        let kind = match (retry.blocked, retry.dependencies.is_empty()) {
            (true, _) => HeadKind::Blocked,
            (false, false) => HeadKind::Waits,
            (false, true) => HeadKind::Retry,
        };
        (kind, retry.code)
    }))
}
