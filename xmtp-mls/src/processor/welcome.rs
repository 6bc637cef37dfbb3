//! Welcomes: opened, checked against the identity log, installed exactly as validated.

use std::collections::BTreeSet;
use std::fmt;

use semver::Version;
use xmtp_core::processor::{
    Blocked, Candidate, Dependency, JoinAnchor, Joined, PendingItem, Rejected, Verdict,
    WelcomeProcessor,
};
use xmtp_core::storage::{StorageError, WriteTxn};
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::content::ConversationType;
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{COMPATIBLE_LIBXMTP_VERSION, InboxId, InstallationId, SequenceId};

use super::MlsProcessor;
use super::group::transcript_message;
use super::identity::state_at;
use super::verdict::{Failure, of_join, of_welcome};
use crate::content::{join_transcript_id, joined};
use crate::group::{Attribute, GroupFault, StagedJoin, is_closed, stage_join};
use crate::key_package::{named_key, note_welcome};
use crate::welcome::{Opened, UnwrappedWelcome, WelcomeFault, check_anchor, open};

/// The version whose rules this build implements, for version floors.
pub(super) fn own_version() -> Version {
    Version::parse(COMPATIBLE_LIBXMTP_VERSION).unwrap_or(Version::new(0, 0, 0))
}

impl WelcomeProcessor for MlsProcessor {
    fn inspect(
        &self,
        txn: &mut WriteTxn<'_>,
        item: &PendingItem,
        pointee: Option<&PendingItem>,
    ) -> Result<Result<Box<dyn Candidate + '_>, Verdict>, StorageError> {
        match self.candidate(txn, item, pointee) {
            Ok(candidate) => Ok(Ok(Box::new(candidate))),
            Err(failure) => failure.verdict().map(Err),
        }
    }
}

impl MlsProcessor {
    fn candidate(
        &self,
        txn: &mut WriteTxn<'_>,
        item: &PendingItem,
        pointee: Option<&PendingItem>,
    ) -> Result<JoinCandidate<'_>, Failure> {
        let unwrapped = unwrap(txn, item, pointee)?;
        let staged = stage_join(txn, unwrapped.welcome).map_err(of_join)?;
        let anchor =
            check_anchor(unwrapped.anchor, item.sequence_id, staged.epoch()).map_err(of_welcome)?;
        staged
            .check(&self.installation, item.sequence_id)
            .map_err(of_join)?;
        if staged
            .context()
            .floor()
            .is_some_and(|floor| floor > own_version())
        {
            return Err(Blocked::VersionFloor.into());
        }
        check_members(txn, &staged)?;
        check_kind(&staged, &self.installation.inbox())?;
        Ok(JoinCandidate {
            processor: self,
            staged,
            anchor,
            item: item.clone(),
        })
    }
}

/// Why a Welcome does not open.
enum OpenFault {
    Storage(StorageError),
    Welcome(WelcomeFault),
}

impl From<WelcomeFault> for OpenFault {
    fn from(fault: WelcomeFault) -> Self {
        Self::Welcome(fault)
    }
}

fn unwrap(
    txn: &mut WriteTxn<'_>,
    item: &PendingItem,
    pointee: Option<&PendingItem>,
) -> Result<UnwrappedWelcome, Failure> {
    let Some(Payload::WelcomeMessage(message)) = &item.envelope.payload else {
        return Err(Rejected::WelcomeMalformed.into());
    };
    let opened = open(message, |public| {
        named_key(txn, public).map_err(OpenFault::Storage)
    });
    let pointer = match opened {
        Ok(Opened::Welcome(welcome)) => return Ok(welcome),
        Ok(Opened::Pointer(pointer)) => pointer,
        Err(OpenFault::Storage(error)) => return Err(error.into()),
        Err(OpenFault::Welcome(fault)) => return Err(of_welcome(fault)),
    };
    let Some(pointee) = pointee else {
        let destination = pointer.topic();
        return Err(Failure::Verdict(Verdict::Waits(vec![
            Dependency::Pointee { destination },
        ])));
    };
    let Some(Payload::WelcomeMessage(found)) = &pointee.envelope.payload else {
        return Err(Rejected::PointeeInvalid.into());
    };
    let version = found.version.as_ref().ok_or(Rejected::PointeeInvalid)?;
    pointer
        .open(version)
        .map_err(|_| Rejected::PointeeInvalid.into())
}

/// Every leaf is backed by the exact identity state, and every installation of that state is a
/// leaf or listed as failed.
fn check_members(txn: &WriteTxn<'_>, staged: &StagedJoin) -> Result<(), Failure> {
    let in_tree = staged.installations();
    let context = staged.context();
    let mut missing = Vec::new();
    let mut listed: BTreeSet<InstallationId> = BTreeSet::new();
    for (inbox, sequence) in &context.members {
        let Some(state) = state_at(txn, inbox, *sequence)? else {
            missing.push(Dependency::Identity {
                inbox: *inbox,
                sequence: *sequence,
            });
            continue;
        };
        let installations: BTreeSet<InstallationId> = state.installations().into_iter().collect();
        let leaves = staged.leaves().iter().filter(|leaf| leaf.inbox == *inbox);
        if leaves
            .into_iter()
            .any(|leaf| !installations.contains(&leaf.installation))
        {
            return Err(Rejected::WelcomeMembership.into());
        }
        listed.extend(installations);
    }
    if !missing.is_empty() {
        return Err(Failure::Verdict(Verdict::Waits(missing)));
    }
    let absent = listed
        .iter()
        .any(|id| !in_tree.contains(id) && !context.failed.contains(id));
    if absent {
        return Err(Rejected::WelcomeMembership.into());
    }
    Ok(())
}

/// The rules of a two-party conversation, whoever added this installation, and of a group of the
/// installations of one inbox.
fn check_kind(staged: &StagedJoin, own: &InboxId) -> Result<(), Failure> {
    let context = staged.context();
    let is_sound = match context.conversation_type {
        ConversationType::Dm => is_dm(staged, own),
        ConversationType::Sync => staged.leaves().iter().all(|leaf| leaf.inbox == *own),
        _ => true,
    };
    match is_sound {
        true => Ok(()),
        false => Err(Rejected::WelcomeMembership.into()),
    }
}

/// Two different inboxes, of which this is one, nobody else, no roles, and rules that keep it so.
fn is_dm(staged: &StagedJoin, own: &InboxId) -> bool {
    let context = staged.context();
    let Some((first, second)) = context.dm else {
        return false;
    };
    let in_pair = |inbox: &InboxId| *inbox == first || *inbox == second;
    first != second
        && in_pair(own)
        && context.members.keys().all(in_pair)
        && staged.leaves().iter().all(|leaf| in_pair(&leaf.inbox))
        && context.admins.is_empty()
        && context.super_admins.is_empty()
        && is_closed(&context.policies)
}

/// A Welcome that passed every check.
struct JoinCandidate<'p> {
    processor: &'p MlsProcessor,
    staged: StagedJoin,
    anchor: SequenceId,
    item: PendingItem,
}

impl fmt::Debug for JoinCandidate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinCandidate")
    }
}

impl Candidate for JoinCandidate<'_> {
    fn anchor(&self) -> JoinAnchor {
        JoinAnchor {
            group: *self.staged.group_id(),
            epoch: self.staged.epoch(),
            anchor: self.anchor,
        }
    }

    fn install(self: Box<Self>, txn: &mut WriteTxn<'_>) -> Result<Joined, StorageError> {
        let group_id = *self.staged.group_id();
        let context = self.staged.context().clone();
        let adder = self.staged.adder().inbox;
        let group = self.staged.install(txn).map_err(|fault| match fault {
            GroupFault::Storage(error) => error,
            _ => StorageError::Invariant {
                rule: "a validated Welcome installs",
            },
        })?;
        note_welcome(txn)?;
        let record = stored::GroupRecord {
            conversation_type: context.conversation_type as u32,
            added_by_inbox: adder.to_hex(),
            created_ns: self.item.server_ns,
            epoch: group.epoch().as_u64(),
            name: context
                .attribute(Attribute::Name)
                .unwrap_or_default()
                .to_owned(),
            dm_id: context.dm_id().unwrap_or_default(),
            epoch_authenticator: group.epoch_authenticator().as_slice().to_vec().into(),
            ..Default::default()
        };
        let updated = joined(&self.processor.installation.inbox(), &adder);
        let transcript = join_transcript_id(&group_id, &updated, self.item.server_ns);
        let message = transcript_message(&group_id, &self.item, adder.to_hex(), &transcript);
        Ok(Joined {
            record,
            messages: vec![message],
        })
    }
}
