//! Group envelopes: one turn with the group loaded once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use openmls::framing::{ProcessedMessage, ProcessedMessageContent, Sender};
use openmls::group::MlsGroup;
use openmls::prelude::LeafNodeIndex;
use prost::Message;
use xmtp_core::processor::{
    Blocked, Effects, GroupProcessor, NewMessage, PendingItem, PrepareError, Prepared, Rejected,
    Turn, Verdict,
};
use xmtp_core::storage::{StorageError, WriteTxn};
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::storage::v1::MessageKind;
use xmtp_proto::{GroupId, SequenceId};

use super::verdict::{self, Failure};
use super::{MlsProcessor, commit, prepare};
use crate::content::carried;
use crate::group::{Frame, FrameKind, GroupContext, GroupFault, MAX_PAST_EPOCHS, load, process};
use crate::store::{Deferred, join_epoch};
use crate::{Installation, Leaf, Provider};

impl GroupProcessor for MlsProcessor {
    fn turn(
        &self,
        txn: &mut WriteTxn<'_>,
        group: &GroupId,
    ) -> Result<Box<dyn Turn + '_>, StorageError> {
        let loaded = load(&Provider::new(txn), group);
        let group = match loaded {
            Ok(loaded) => Some(loaded),
            Err(GroupFault::Storage(error)) => return Err(error),
            Err(_) => None,
        };
        Ok(Box::new(GroupTurn {
            installation: &self.installation,
            group,
            deferred: Deferred::new(),
            frame: RefCell::default(),
            senders: Senders::default(),
        }))
    }

    fn prepare(
        &self,
        txn: &mut WriteTxn<'_>,
        intent: &stored::Intent,
    ) -> Result<Result<Prepared, PrepareError>, StorageError> {
        prepare::prepare(&self.installation, txn, intent)
    }

    fn discard(
        &self,
        txn: &mut WriteTxn<'_>,
        group: &GroupId,
        attempt: &stored::Attempt,
    ) -> Result<(), StorageError> {
        prepare::discard(txn, group, attempt)
    }
}

/// A group for one turn. Without state, every envelope of it is blocked.
struct GroupTurn<'p> {
    installation: &'p Installation,
    group: Option<MlsGroup>,
    deferred: Deferred,
    /// The frame that was looked at last, so that it is decoded once.
    frame: RefCell<Option<(SequenceId, Frame)>>,
    senders: Senders,
}

impl fmt::Debug for GroupTurn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GroupTurn")
    }
}

impl Turn for GroupTurn<'_> {
    fn apply(
        &mut self,
        txn: &mut WriteTxn<'_>,
        item: &PendingItem,
    ) -> Result<Verdict, StorageError> {
        match self.decide(txn, item) {
            Ok(effects) => Ok(Verdict::Applied(Box::new(effects))),
            Err(failure) => failure.verdict(),
        }
    }

    fn flush(&mut self, txn: &mut WriteTxn<'_>) -> Result<(), StorageError> {
        match &mut self.group {
            Some(group) => self.deferred.flush(group, txn),
            None => Ok(()),
        }
    }

    fn is_application(&self, item: &PendingItem) -> bool {
        let frame = item
            .group_bytes()
            .and_then(|bytes| Frame::decode(bytes).ok());
        let is_application =
            matches!(&frame, Some(frame) if frame.kind() == FrameKind::Application);
        *self.frame.borrow_mut() = frame.map(|frame| (item.sequence_id, frame));
        is_application
    }
}

impl GroupTurn<'_> {
    fn decide(&mut self, txn: &mut WriteTxn<'_>, item: &PendingItem) -> Result<Effects, Failure> {
        let Some(group) = self.group.as_mut() else {
            return Err(Blocked::StorageMissing.into());
        };
        let frame = match self.frame.take() {
            Some((sequence, frame)) if sequence == item.sequence_id => frame,
            _ => {
                let bytes = item.group_bytes().ok_or(Rejected::Malformed)?;
                Frame::decode(bytes).map_err(|_| Rejected::Malformed)?
            }
        };
        if Some(*frame.group_id()) != item.topic.group_id() {
            return Err(Rejected::WrongGroup.into());
        }
        let current = group.epoch().as_u64();
        check_epoch(current, &frame)?;
        if frame.epoch() < current && frame.epoch() < join_epoch(txn, frame.group_id())? {
            return Err(Rejected::BeforeJoin.into());
        }
        if let Some(intent) = &item.own {
            return match frame.kind() {
                FrameKind::Application => own_message(self.installation, item, intent),
                FrameKind::Commit => {
                    commit::own(self.installation, group, &self.deferred, txn, item, intent)
                }
                FrameKind::Proposal => Err(Rejected::UnsupportedProposal.into()),
            };
        }
        let kind = frame.kind();
        let provider = Provider::deferring(txn, &self.deferred);
        let processed = match process(group, &provider, frame) {
            Ok(processed) => processed,
            Err(GroupFault::ProposalMissing) => {
                drop(provider);
                return Err(commit::missing_proposal(group, txn, item)?);
            }
            Err(GroupFault::Lifetime(fault)) => {
                let form = GroupContext::of(group).ok().map(|context| context.form);
                return Err(verdict::of_lifetime(fault, kind, form, item.server_ns));
            }
            Err(fault) => return Err(verdict::of_group(fault, kind)),
        };
        drop(provider);
        self.applied(txn, item, processed)
    }

    fn applied(
        &mut self,
        txn: &mut WriteTxn<'_>,
        item: &PendingItem,
        processed: ProcessedMessage,
    ) -> Result<Effects, Failure> {
        let Some(group) = self.group.as_mut() else {
            return Err(Blocked::StorageMissing.into());
        };
        let sender = self.senders.find(group, &processed);
        let inbox = sender
            .map(|leaf| leaf.inbox)
            .or_else(|| crate::leaf::inbox_of(processed.credential()).ok())
            .ok_or(Rejected::Unauthenticated)?;
        match processed.into_content() {
            ProcessedMessageContent::ApplicationMessage(message) => {
                let group_id = item.topic.group_id().ok_or(Rejected::WrongGroup)?;
                let installation = sender.map(|leaf| leaf.installation.as_bytes().to_vec());
                Ok(message_effects(
                    item,
                    &group_id,
                    message.into_bytes().into(),
                    inbox.to_hex(),
                    installation.unwrap_or_default(),
                    item.server_ns,
                ))
            }
            ProcessedMessageContent::StagedCommitMessage(staged) => {
                let leaf = sender.ok_or(Rejected::Unauthenticated)?;
                commit::foreign(
                    self.installation,
                    group,
                    &self.deferred,
                    txn,
                    item,
                    leaf,
                    *staged,
                )
            }
            ProcessedMessageContent::UnresolvedAppDataCommit(_) => Err(Blocked::Unsupported.into()),
            ProcessedMessageContent::ProposalMessage(proposal) => {
                commit::proposal(group, txn, item, *proposal)
            }
            ProcessedMessageContent::ExternalJoinProposalMessage(_) => {
                Err(Rejected::UnsupportedProposal.into())
            }
            ProcessedMessageContent::OwnPendingCommit
            | ProcessedMessageContent::OwnPrivateMessage => Err(Rejected::OwnUnmatched.into()),
        }
    }
}

/// Checks an envelope's epoch against the group's, with the prefix complete (STR-074).
fn check_epoch(current: u64, frame: &Frame) -> Result<(), Rejected> {
    let epoch = frame.epoch();
    match frame.kind() {
        _ if epoch > current => Err(Rejected::EpochFuture),
        FrameKind::Application if epoch + (MAX_PAST_EPOCHS as u64) < current => {
            Err(Rejected::EpochTooOld)
        }
        FrameKind::Application => Ok(()),
        _ if epoch < current => Err(Rejected::CommitStale),
        _ => Ok(()),
    }
}

/// The members who sent, as the epoch of a turn has them: each leaf is read once.
#[derive(Default)]
struct Senders {
    epoch: u64,
    leaves: BTreeMap<LeafNodeIndex, Leaf>,
}

impl Senders {
    /// Answers who sent a message, when it is still a member.
    fn find(&mut self, group: &MlsGroup, processed: &ProcessedMessage) -> Option<Leaf> {
        let epoch = group.epoch();
        let Sender::Member(index) = processed.sender() else {
            return None;
        };
        if processed.epoch() != epoch {
            return member(group, processed);
        }
        if self.epoch != epoch.as_u64() {
            self.epoch = epoch.as_u64();
            self.leaves.clear();
        }
        if let Some(leaf) = self.leaves.get(index) {
            return Some(*leaf);
        }
        let leaf = member(group, processed)?;
        self.leaves.insert(*index, leaf);
        Some(leaf)
    }
}

/// The member that sent a message, when it is still a member.
fn member(group: &MlsGroup, processed: &ProcessedMessage) -> Option<Leaf> {
    let Sender::Member(index) = processed.sender() else {
        return None;
    };
    let member = group.member_at(*index)?;
    let leaf = Leaf::of(&member).ok()?;
    // In a past epoch the same place may have had another member.
    let inbox = crate::leaf::inbox_of(processed.credential()).ok()?;
    (leaf.inbox == inbox).then_some(leaf)
}

/// The effects of an own message: its content is what was prepared, since nobody can decrypt
/// their own message.
fn own_message(
    installation: &Installation,
    item: &PendingItem,
    intent: &stored::Intent,
) -> Result<Effects, Failure> {
    let group = item.topic.group_id().ok_or(Rejected::WrongGroup)?;
    Ok(message_effects(
        item,
        &group,
        intent.body.clone(),
        installation.inbox().to_hex(),
        installation.id().as_bytes().to_vec(),
        intent.created_ns,
    ))
}

fn message_effects(
    item: &PendingItem,
    group: &GroupId,
    plaintext: Bytes,
    sender_inbox: String,
    sender_installation: Vec<u8>,
    sent_ns: u64,
) -> Effects {
    let Some(message) = carried(group, plaintext) else {
        return Effects::default();
    };
    let message = stored::StoredMessage {
        group_id: item.topic.identifier().to_vec().into(),
        message_id: message.id.as_bytes().to_vec().into(),
        sequence_id: item.sequence_id.get(),
        sender_inbox,
        sender_installation: sender_installation.into(),
        sent_ns,
        server_ns: item.server_ns,
        kind: MessageKind::Application.into(),
        content: message.content,
        idempotency_key: message.idempotency_key,
        ..Default::default()
    };
    Effects {
        messages: vec![NewMessage { message }],
        ..Default::default()
    }
}

/// Makes the message of a transcript.
pub(super) fn transcript_message(
    group: &GroupId,
    item: &PendingItem,
    sender_inbox: String,
    transcript: &crate::content::Transcript,
) -> NewMessage {
    let message = stored::StoredMessage {
        group_id: group.as_bytes().to_vec().into(),
        message_id: transcript.id.as_bytes().to_vec().into(),
        sequence_id: item.sequence_id.get(),
        sender_inbox,
        sent_ns: item.server_ns,
        server_ns: item.server_ns,
        kind: MessageKind::MembershipChange.into(),
        content: transcript.content.encode_to_vec().into(),
        idempotency_key: transcript.idempotency_key.clone(),
        ..Default::default()
    };
    NewMessage { message }
}
