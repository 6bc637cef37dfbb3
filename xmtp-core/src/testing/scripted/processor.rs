//! Processors that do what payloads say, so that a test reads as its own script.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message;
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::backend::v1::welcome_message::Version;
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{GroupId, InboxId, MessageId, SequenceId, Topic, envelope};

use super::group_envelope;
use crate::processing::Processors;
use crate::processor::{
    Blocked, Candidate, Dependency, Effects, GroupChange, GroupProcessor, IdentityProcessor,
    JoinAnchor, Joined, NewMessage, PendingItem, PrepareError, Prepared, Rejected, RetryCause,
    Turn, Verdict, WelcomeProcessor, identity_state, put_identity_state,
};
use crate::storage::{StorageError, WriteTxn};
use crate::welcome;

/// Decides by the first word of a payload.
///
/// | payload | verdict |
/// | --- | --- |
/// | `reject` | rejected |
/// | `retry:<n>` | fails n times, then applies |
/// | `wait:<inbox hex>:<n>` | waits for the inbox at exactly n, then applies |
/// | `block` | blocked until [`ScriptedProcessor::heal`] |
/// | `commit` | the next epoch; no application message |
/// | `remove` | this installation is removed; no application message |
/// | `join:<group hex>:<epoch>:<anchor>` | a Welcome that joins |
/// | anything else | an application message with that content |
#[derive(Debug, Default)]
pub struct ScriptedProcessor {
    is_healed: AtomicBool,
    tries: Mutex<BTreeMap<(Topic, SequenceId), u32>>,
    applied: Mutex<Vec<(Topic, SequenceId)>>,
}

/// Makes the processors of a client out of one scripted processor.
pub fn processors(processor: &Arc<ScriptedProcessor>) -> Processors {
    Processors {
        group: processor.clone(),
        identity: processor.clone(),
        welcome: processor.clone(),
    }
}

impl ScriptedProcessor {
    /// Makes what was blocked apply from now on, as an upgrade would.
    pub fn heal(&self) {
        self.is_healed.store(true, Ordering::SeqCst);
    }

    /// Answers what was applied so far, attempts that were rolled back included.
    pub fn applied(&self) -> Vec<(Topic, SequenceId)> {
        self.applied.lock().clone()
    }

    /// Plays what stops an envelope; `None` when nothing does.
    fn stops(
        &self,
        txn: &WriteTxn<'_>,
        item: &PendingItem,
        text: &str,
    ) -> Result<Option<Verdict>, StorageError> {
        let mut words = text.split(':');
        Ok(match words.next() {
            Some("reject") => Some(Verdict::Rejected(Rejected::Malformed)),
            Some("block") if !self.is_healed.load(Ordering::SeqCst) => {
                Some(Verdict::Blocked(Blocked::Unsupported))
            }
            Some("retry") => {
                let most = words.next().and_then(|word| word.parse().ok());
                let mut tries = self.tries.lock();
                let tried = tries.entry((item.topic, item.sequence_id)).or_default();
                *tried += 1;
                let is_over = *tried > most.unwrap_or(u32::MAX);
                (!is_over).then_some(Verdict::Retry(RetryCause::Local { what: "scripted" }))
            }
            Some("wait") => {
                let inbox = words.next().and_then(|word| InboxId::parse_hex(word).ok());
                let sequence = words.next().and_then(|word| word.parse().ok());
                let (Some(inbox), Some(sequence)) = (inbox, sequence) else {
                    return Ok(Some(Verdict::Rejected(Rejected::Malformed)));
                };
                let sequence = SequenceId::saturating(sequence);
                let is_there = identity_state(txn, &inbox, sequence)?.is_some();
                (!is_there).then(|| Verdict::Waits(vec![Dependency::Identity { inbox, sequence }]))
            }
            _ => None,
        })
    }
}

/// Reads the script of a group message: what follows the group, up to a line end.
fn script(item: &PendingItem) -> String {
    let data = item.group_bytes().and_then(|bytes| bytes.get(16..));
    let text = String::from_utf8_lossy(data.unwrap_or_default()).into_owned();
    text.split('\n').next().unwrap_or_default().to_owned()
}

struct ScriptedTurn<'p> {
    processor: &'p ScriptedProcessor,
    group: GroupId,
}

impl GroupProcessor for ScriptedProcessor {
    fn turn(
        &self,
        _txn: &mut WriteTxn<'_>,
        group: &GroupId,
    ) -> Result<Box<dyn Turn + '_>, StorageError> {
        Ok(Box::new(ScriptedTurn {
            processor: self,
            group: *group,
        }))
    }

    fn prepare(
        &self,
        txn: &mut WriteTxn<'_>,
        intent: &stored::Intent,
    ) -> Result<Result<Prepared, PrepareError>, StorageError> {
        let Ok(group) = GroupId::try_from(&intent.group_id[..]) else {
            return Ok(Err(PrepareError::Unsendable { reason: "group" }));
        };
        let Some(record) = welcome::store::group(txn, &group)?.filter(|record| record.active)
        else {
            return Ok(Err(PrepareError::Inactive));
        };
        let body = String::from_utf8_lossy(&intent.body).into_owned();
        // The number keeps the payload identities of equal bodies apart.
        let envelope = group_envelope(&group, &format!("{body}\n{}", intent.intent_id));
        let hash = envelope::inner_payload(&envelope).map(|inner| envelope::payload_hash(inner));
        Ok(Ok(Prepared {
            attempt: stored::Attempt {
                envelopes: vec![envelope.encode_to_vec().into()],
                payload_hash: hash.unwrap_or_default().to_vec().into(),
                base_epoch: record.epoch,
                base_authenticator: record.epoch_authenticator,
                ..Default::default()
            },
        }))
    }

    fn discard(
        &self,
        _txn: &mut WriteTxn<'_>,
        _group: &GroupId,
        _attempt: &stored::Attempt,
    ) -> Result<(), StorageError> {
        Ok(())
    }
}

impl Turn for ScriptedTurn<'_> {
    fn apply(
        &mut self,
        txn: &mut WriteTxn<'_>,
        item: &PendingItem,
    ) -> Result<Verdict, StorageError> {
        let text = script(item);
        if let Some(verdict) = self.processor.stops(txn, item, &text)? {
            return Ok(verdict);
        }
        let position = (item.topic, item.sequence_id);
        self.processor.applied.lock().push(position);
        let mut effects = Effects::default();
        if self.is_application(item) {
            effects.messages.push(message(&self.group, item, &text));
        } else {
            let epoch = welcome::store::group(txn, &self.group)?.map_or(0, |group| group.epoch);
            effects.group = Some(GroupChange {
                epoch: epoch + 1,
                epoch_authenticator: item.payload_hash().to_vec(),
                name: None,
                removed: text.starts_with("remove"),
            });
        }
        Ok(Verdict::Applied(Box::new(effects)))
    }

    fn flush(&mut self, _txn: &mut WriteTxn<'_>) -> Result<(), StorageError> {
        Ok(())
    }

    fn is_application(&self, item: &PendingItem) -> bool {
        let text = script(item);
        !text.starts_with("commit") && !text.starts_with("remove")
    }
}

fn message(group: &GroupId, item: &PendingItem, text: &str) -> NewMessage {
    let key = item.sequence_id.to_string();
    let own = item.own.as_ref().map(|intent| intent.message_id.clone());
    let derived = MessageId::derive(group, &key, text.as_bytes());
    let derived = Bytes::copy_from_slice(derived.as_bytes());
    NewMessage {
        message: stored::StoredMessage {
            group_id: Bytes::copy_from_slice(group.as_bytes()),
            message_id: own.unwrap_or(derived),
            sequence_id: item.sequence_id.get(),
            server_ns: item.server_ns,
            kind: stored::MessageKind::Application.into(),
            content: Bytes::copy_from_slice(text.as_bytes()),
            ..Default::default()
        },
    }
}

impl IdentityProcessor for ScriptedProcessor {
    fn apply(
        &self,
        txn: &mut WriteTxn<'_>,
        inbox: &InboxId,
        item: &PendingItem,
    ) -> Result<Verdict, StorageError> {
        let Some(Payload::IdentityUpdate(update)) = &item.envelope.payload else {
            return Ok(Verdict::Rejected(Rejected::Malformed));
        };
        if update.client_timestamp_ns == u64::MAX {
            return Ok(Verdict::Blocked(Blocked::IdentityInvalid));
        }
        put_identity_state(txn, inbox, item.sequence_id, b"scripted")?;
        Ok(Verdict::Applied(Box::default()))
    }
}

struct ScriptedCandidate(JoinAnchor);

impl Candidate for ScriptedCandidate {
    fn anchor(&self) -> JoinAnchor {
        self.0
    }

    fn install(self: Box<Self>, _txn: &mut WriteTxn<'_>) -> Result<Joined, StorageError> {
        Ok(Joined {
            record: stored::GroupRecord::default(),
            messages: Vec::new(),
        })
    }
}

impl WelcomeProcessor for ScriptedProcessor {
    fn inspect(
        &self,
        txn: &mut WriteTxn<'_>,
        item: &PendingItem,
        _pointee: Option<&PendingItem>,
    ) -> Result<Result<Box<dyn Candidate + '_>, Verdict>, StorageError> {
        let malformed = Verdict::Rejected(Rejected::WelcomeMalformed);
        let Some(Payload::WelcomeMessage(welcome)) = &item.envelope.payload else {
            return Ok(Err(malformed));
        };
        let Some(Version::V1(welcome)) = &welcome.version else {
            return Ok(Err(malformed));
        };
        let text = String::from_utf8_lossy(&welcome.data).into_owned();
        // A stop may come before the join: `block join:...`.
        let (stop, join) = text.split_once(' ').unwrap_or((&text, &text));
        if let Some(verdict) = self.stops(txn, item, stop)? {
            return Ok(Err(verdict));
        }
        match parse_join(join) {
            Some(anchor) => Ok(Ok(Box::new(ScriptedCandidate(anchor)))),
            None => Ok(Err(malformed)),
        }
    }
}

fn parse_join(text: &str) -> Option<JoinAnchor> {
    let mut words = text.strip_prefix("join:")?.split(':');
    Some(JoinAnchor {
        group: GroupId::parse_hex(words.next()?).ok()?,
        epoch: words.next()?.parse().ok()?,
        anchor: SequenceId::checked(words.next()?.parse().ok()?).ok()?,
    })
}
