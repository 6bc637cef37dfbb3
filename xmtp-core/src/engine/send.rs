//! Drives every group that has something to send, also what an earlier process left behind.

use std::collections::BTreeMap;
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
/// Groups with a pause of their own; those beyond share one.
const MAX_RESTING_GROUPS: usize = 4_096;

/// Runs until the database closes.
pub(super) async fn run(context: Context, sender: Sender) {
    let mut changes = context.database.changes();
    let mut resting = Resting::default();
    loop {
        let asked = match round(&context, &sender, &mut resting).await {
            Ok(asked) => asked,
            Err(error) => {
                tracing::warn!(code = error.code(), "a send round failed");
                Duration::ZERO
            }
        };
        if changes.changed_or_poll(WAKES).await.is_err() {
            return;
        }
        // What the backend asks for holds for all; attempts wait in the database meanwhile.
        context.runtime.sleep(asked).await;
    }
}

/// Drives each group once that does not rest; answers the least pause that the backend asks for.
async fn round(
    context: &Context,
    sender: &Sender,
    resting: &mut Resting,
) -> Result<Duration, StorageError> {
    let mut after: Option<GroupId> = None;
    let mut asked = Duration::ZERO;
    resting.begin_round();
    loop {
        let groups = context
            .database
            .read_queued(move |snapshot| {
                send::store::groups_with_work(snapshot, after, GROUPS_PER_READ)
            })
            .await?;
        for group in &groups {
            if resting.rests(group, context.runtime.monotonic()) {
                continue;
            }
            match sender.drive(*group).await {
                Ok(()) => resting.end(group),
                Err(error) => {
                    tracing::debug!(code = error.code(), "a group's sends wait");
                    resting.failed(group, context.runtime.monotonic());
                    asked = asked.max(error.asked_pause());
                }
            }
        }
        match groups.last() {
            Some(last) if groups.len() == GROUPS_PER_READ => after = Some(*last),
            _ => break,
        }
    }
    resting.end_round();
    Ok(asked)
}

/// Groups whose sends failed, so that none of them delays another's.
#[derive(Debug, Default)]
struct Resting {
    groups: BTreeMap<GroupId, Rest>,
    /// The rest of those that have no place of their own.
    shared: Rest,
    round: u64,
}

#[derive(Debug, Default)]
struct Rest {
    pause: Duration,
    until: Duration,
    /// The last round in which its group had work.
    round: u64,
}

impl Resting {
    fn begin_round(&mut self) {
        self.round += 1;
    }

    /// Forgets the groups that have no more work.
    fn end_round(&mut self) {
        let round = self.round;
        self.groups.retain(|_, rest| rest.round == round);
    }

    /// Tells whether a group rests; called for every group with work in every round.
    fn rests(&mut self, group: &GroupId, now: Duration) -> bool {
        let is_full = self.groups.len() >= MAX_RESTING_GROUPS;
        match self.groups.get_mut(group) {
            Some(rest) => {
                rest.round = self.round;
                now < rest.until
            }
            None => is_full && now < self.shared.until,
        }
    }

    /// Lets a group rest, longer after each failure.
    fn failed(&mut self, group: &GroupId, now: Duration) {
        let has_place = self.groups.len() < MAX_RESTING_GROUPS || self.groups.contains_key(group);
        let rest = match has_place {
            true => self.groups.entry(*group).or_default(),
            false => &mut self.shared,
        };
        rest.pause = (rest.pause * 2).clamp(RECONNECT_FIRST_PAUSE, RECONNECT_LONGEST_PAUSE);
        rest.until = now + rest.pause;
        rest.round = self.round;
    }

    fn end(&mut self, group: &GroupId) {
        if self.groups.remove(group).is_none() {
            self.shared.pause = Duration::ZERO;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(number: usize) -> GroupId {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&(number as u64).to_be_bytes());
        GroupId::from_bytes(id)
    }

    /// The groups that rest have a bound; those beyond it share one rest, and a group without work
    /// makes its place free.
    #[test]
    fn the_groups_that_rest_have_a_bound() {
        let mut resting = Resting::default();
        resting.begin_round();
        for number in 0..MAX_RESTING_GROUPS + 9 {
            resting.failed(&group(number), Duration::ZERO);
        }
        assert_eq!(resting.groups.len(), MAX_RESTING_GROUPS);
        let beyond = group(MAX_RESTING_GROUPS + 10);
        assert!(resting.rests(&beyond, Duration::ZERO));
        assert!(!resting.rests(&beyond, RECONNECT_LONGEST_PAUSE));
        resting.begin_round();
        assert!(resting.rests(&group(1), Duration::ZERO));
        resting.end_round();
        assert_eq!(resting.groups.len(), 1);
        assert!(!resting.rests(&beyond, Duration::ZERO));
    }
}
