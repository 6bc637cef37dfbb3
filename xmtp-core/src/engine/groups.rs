//! Keeps network interest in every active group, the Welcome topic and the own inbox.
//!
//! It reads the stored groups at its start and at every check, so a join whose wake was missed,
//! or that another process wrote, is found all the same (STR-085).

use std::collections::BTreeSet;

use tokio::sync::watch;
use xmtp_proto::{GroupId, Topic};

use super::context::Context;
use crate::error::Coded;
use crate::limits::MAX_LOCAL_READ_ROWS;
use crate::storage::{Domain, StorageError};
use crate::subscription::Scope;
use crate::welcome;

/// What wakes the controller.
const WAKES: u64 = Domain::Groups.bit();

/// Runs until the database closes. `also` are topics wanted besides the groups; `scope` is told
/// of every topic that is wanted.
pub(super) async fn run(context: Context, also: Vec<Topic>, scope: watch::Sender<Scope>) {
    let mut changes = context.database.changes();
    let interest = context.interests.owner();
    interest.add(also.iter().copied());
    let mut held = BTreeSet::new();
    loop {
        match active_topics(&context).await {
            Ok(wanted) => {
                interest.add(wanted.difference(&held).copied());
                interest.remove(held.difference(&wanted).copied());
                scope.send_if_modified(|scope| follow(scope, &also, &wanted));
                held = wanted;
            }
            Err(error) => tracing::warn!(code = error.code(), "groups could not be read"),
        }
        if changes.changed_or_poll(WAKES).await.is_err() {
            return;
        }
    }
}

/// Brings the watched scope up to what is wanted; answers whether it changed.
fn follow(scope: &mut Scope, also: &[Topic], groups: &BTreeSet<Topic>) -> bool {
    let topics: BTreeSet<Topic> = also.iter().chain(groups).copied().collect();
    let is_new = scope.topics != topics;
    scope.topics = topics;
    is_new
}

/// Reads the topics of all active groups.
async fn active_topics(context: &Context) -> Result<BTreeSet<Topic>, StorageError> {
    let mut topics = BTreeSet::new();
    let mut after: Option<GroupId> = None;
    loop {
        let (groups, more) = context
            .database
            .read_queued(move |snapshot| {
                welcome::store::groups(snapshot, after.as_ref(), MAX_LOCAL_READ_ROWS)
            })
            .await?;
        after = groups.last().map(|(group, _)| *group);
        let active = groups.iter().filter(|(_, record)| record.active);
        topics.extend(active.map(|(group, _)| Topic::group(group)));
        if !more {
            return Ok(topics);
        }
    }
}
