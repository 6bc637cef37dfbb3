//! Drives every group that has something to send, also what an earlier process left behind.

use std::time::Duration;

use xmtp_proto::GroupId;

use super::context::Context;
use crate::error::Coded;
use crate::limits::{RECONNECT_FIRST_PAUSE, RECONNECT_LONGEST_PAUSE};
use crate::runtime::RuntimeExt;
use crate::send::{self, Sender};
use crate::storage::{Domain, StorageError};

/// What wakes the send worker.
const WAKES: u64 = Domain::Outgoing.bit() | Domain::Groups.bit();
/// Groups looked at in one read.
const GROUPS_PER_READ: usize = 64;

/// Runs until the database closes.
pub(super) async fn run(context: Context, sender: Sender) {
    let mut changes = context.database.changes();
    let mut pause = Duration::ZERO;
    loop {
        match round(&context, &sender).await {
            Ok(None) => pause = Duration::ZERO,
            Ok(Some(asked)) => {
                pause = (pause * 2).clamp(RECONNECT_FIRST_PAUSE, RECONNECT_LONGEST_PAUSE);
                pause = pause.max(asked);
            }
            Err(error) => tracing::warn!(code = error.code(), "a send round failed"),
        }
        if changes.changed_or_poll(WAKES).await.is_err() {
            return;
        }
        // Attempts wait in the database while the backend does not answer.
        context.runtime.sleep(pause).await;
    }
}

/// Drives each group once; answers the least pause where the backend did not take everything.
async fn round(context: &Context, sender: &Sender) -> Result<Option<Duration>, StorageError> {
    let mut after: Option<GroupId> = None;
    let mut left: Option<Duration> = None;
    loop {
        let groups = context
            .database
            .read_queued(move |snapshot| {
                send::store::groups_with_work(snapshot, after, GROUPS_PER_READ)
            })
            .await?;
        for group in &groups {
            if let Err(error) = sender.drive(*group).await {
                tracing::debug!(code = error.code(), "a group's sends wait");
                left = left.max(Some(error.asked_pause()));
            }
        }
        match groups.last() {
            Some(last) if groups.len() == GROUPS_PER_READ => after = Some(*last),
            _ => return Ok(left),
        }
    }
}
