//! Processors that do what a test says, with a ratchet in memory as MLS has one.
//!
//! Every application message moves the ratchet of its group as soon as it is looked at, whatever
//! its verdict; it is held back until a flush writes it. So the stored ratchet counts exactly the
//! application messages that are part of the committed prefix, or a rule of the turn is broken.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message;
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::backend::v1::welcome_message::Version;
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{GroupId, InboxId, InstallationId, MessageId, SequenceId, Topic, envelope};

use crate::processor::{
    Candidate, Dependency, Effects, GroupChange, GroupProcessor, IdentityProcessor, JoinAnchor,
    Joined, NewMessage, OwedWelcomes, PendingItem, PrepareError, Prepared, Rejected, Turn, Verdict,
    WelcomeProcessor, put_identity_state,
};
use crate::runtime::SimulatedClock;
use crate::storage::schema::MLS;
use crate::storage::{Raw, Read, StorageError, WriteTxn};
use crate::testing::scripted::group_envelope;
use crate::welcome;

/// What happens to one look at a text.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Is(Verdict),
    Panics,
    /// The panic comes when held-back state is written.
    PanicsLater,
    Fails,
    /// It applies, and time passes meanwhile.
    Takes(SimulatedClock, Duration),
    /// The own commit owes Welcomes.
    Owes(Vec<Bytes>),
    /// Preparing answers this.
    Unprepared(PrepareError),
}

#[derive(Debug, Default)]
pub(crate) struct Play {
    once: Mutex<BTreeMap<String, VecDeque<Act>>>,
    always: Mutex<BTreeMap<String, Act>>,
    looked: Mutex<Vec<String>>,
    discarded: Mutex<usize>,
}

impl Play {
    /// Plays acts for the next looks at a text, one for each.
    pub(crate) fn on(&self, text: &str, acts: impl IntoIterator<Item = Act>) {
        self.once
            .lock()
            .entry(text.to_owned())
            .or_default()
            .extend(acts);
    }

    /// Plays an act for every look at a text; `None` ends that.
    pub(crate) fn always(&self, text: &str, act: impl Into<Option<Act>>) {
        match act.into() {
            Some(act) => self.always.lock().insert(text.to_owned(), act),
            None => self.always.lock().remove(text),
        };
    }

    /// Takes the texts that were looked at since the last call.
    pub(crate) fn looked(&self) -> Vec<String> {
        std::mem::take(&mut self.looked.lock())
    }

    /// Counts attempts whose staged state was discarded.
    pub(crate) fn discarded(&self) -> usize {
        *self.discarded.lock()
    }

    fn act(&self, text: &str) -> Option<Act> {
        self.looked.lock().push(text.to_owned());
        let next = self.once.lock().get_mut(text).and_then(VecDeque::pop_front);
        next.or_else(|| self.always.lock().get(text).cloned())
    }

    /// Plays what stops an envelope.
    fn stops(&self, text: &str) -> Result<Option<Act>, Result<Verdict, StorageError>> {
        match self.act(text) {
            Some(Act::Is(verdict)) => Err(Ok(verdict)),
            Some(Act::Panics) => panic!("a scripted panic"),
            Some(Act::Fails) => Err(Err(failure())),
            Some(Act::Takes(clock, time)) => {
                clock.advance(time);
                Ok(None)
            }
            other => Ok(other),
        }
    }
}

pub(crate) fn failure() -> StorageError {
    StorageError::Invariant {
        rule: "a scripted failure",
    }
}

fn ratchet_key(group: &GroupId) -> (Vec<u8>, (u8, Vec<u8>)) {
    (group.as_bytes().to_vec(), (0, Vec::new()))
}

/// Reads the stored ratchet of a group.
pub(crate) fn ratchet(read: &(impl Read + ?Sized), group: &GroupId) -> Result<u64, StorageError> {
    let row = read.row(MLS, &ratchet_key(group))?;
    Ok(row.map_or(0, |Raw(bytes)| bytes.len() as u64))
}

struct PlayTurn<'p> {
    play: &'p Play,
    group: GroupId,
    ratchet: u64,
    is_held: bool,
    panics_later: bool,
}

fn script(item: &PendingItem) -> String {
    let data = item.group_bytes().and_then(|bytes| bytes.get(16..));
    let text = String::from_utf8_lossy(data.unwrap_or_default()).into_owned();
    text.split('\n').next().unwrap_or_default().to_owned()
}

impl GroupProcessor for Play {
    fn turn(
        &self,
        txn: &mut WriteTxn<'_>,
        group: &GroupId,
    ) -> Result<Box<dyn Turn + '_>, StorageError> {
        Ok(Box::new(PlayTurn {
            play: self,
            group: *group,
            ratchet: ratchet(txn, group)?,
            is_held: false,
            panics_later: false,
        }))
    }

    fn prepare(
        &self,
        txn: &mut WriteTxn<'_>,
        intent: &stored::Intent,
    ) -> Result<Result<Prepared, PrepareError>, StorageError> {
        let body = String::from_utf8_lossy(&intent.body).into_owned();
        match self.act(&format!("prepare {body}")) {
            Some(Act::Unprepared(error)) => return Ok(Err(error)),
            Some(Act::Fails) => return Err(failure()),
            _ => {}
        }
        let group = GroupId::try_from(&intent.group_id[..]).expect("a group");
        let record = welcome::store::group(txn, &group)?.unwrap_or_default();
        // The epoch is part of the bytes: an attempt is built for one.
        let text = format!("{body}\n{} at {}", intent.intent_id, record.epoch);
        let envelope = group_envelope(&group, &text);
        let inner = envelope::inner_payload(&envelope).expect("a group message");
        Ok(Ok(Prepared {
            attempt: stored::Attempt {
                payload_hash: envelope::payload_hash(inner).to_vec().into(),
                envelopes: vec![envelope.encode_to_vec().into()],
                base_epoch: record.epoch,
                base_authenticator: record.epoch_authenticator,
                staged: Bytes::from_static(b"staged"),
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
        *self.discarded.lock() += 1;
        Ok(())
    }
}

impl Turn for PlayTurn<'_> {
    fn apply(
        &mut self,
        txn: &mut WriteTxn<'_>,
        item: &PendingItem,
    ) -> Result<Verdict, StorageError> {
        let text = script(item);
        let is_application = self.is_application(item);
        if is_application {
            // It moves whatever comes of it; a turn that is undone takes it back.
            self.ratchet += 1;
            self.is_held = true;
            txn.hold_back();
        } else {
            // A trace, if this were not undone.
            txn.put(
                MLS,
                &ratchet_key(&GroupId::from_bytes([0xee; 16])),
                &Raw(vec![1]),
            )?;
        }
        // As a secret that is used: the same bytes apply once.
        let used = (item.payload_hash().to_vec(), (1, Vec::new()));
        if txn.row(MLS, &used)?.is_some() {
            return Ok(Verdict::Rejected(Rejected::AlreadyApplied));
        }
        let mut effects = Effects::default();
        match self.play.stops(&text) {
            Err(verdict) => return verdict,
            Ok(Some(Act::PanicsLater)) => self.panics_later = true,
            Ok(Some(Act::Owes(welcomes))) => effects.welcomes = Some(OwedWelcomes(welcomes)),
            Ok(_) => {}
        }
        if is_application {
            txn.put(MLS, &used, &Raw(vec![1]))?;
            effects.messages.push(message(&self.group, item, &text));
        } else {
            txn.delete(MLS, &ratchet_key(&GroupId::from_bytes([0xee; 16])))?;
            let record = welcome::store::group(txn, &self.group)?.unwrap_or_default();
            effects.group = Some(GroupChange {
                epoch: record.epoch + 1,
                epoch_authenticator: item.payload_hash().to_vec(),
                name: None,
                removed: text.starts_with("remove"),
            });
        }
        Ok(Verdict::Applied(Box::new(effects)))
    }

    fn flush(&mut self, txn: &mut WriteTxn<'_>) -> Result<(), StorageError> {
        assert!(!self.panics_later, "a scripted panic");
        if self.is_held {
            let ratchet = vec![0; self.ratchet as usize];
            txn.put(MLS, &ratchet_key(&self.group), &Raw(ratchet))?;
            txn.release_held_back();
            self.is_held = false;
        }
        Ok(())
    }

    fn is_application(&self, item: &PendingItem) -> bool {
        let text = script(item);
        !text.starts_with("commit") && !text.starts_with("remove")
    }
}

fn message(group: &GroupId, item: &PendingItem, text: &str) -> NewMessage {
    let own = item.own.as_ref().map(|intent| intent.message_id.clone());
    let derived = MessageId::derive(group, &item.sequence_id.to_string(), text.as_bytes());
    NewMessage {
        message: stored::StoredMessage {
            group_id: Bytes::copy_from_slice(group.as_bytes()),
            message_id: own.unwrap_or(Bytes::copy_from_slice(derived.as_bytes())),
            sequence_id: item.sequence_id.get(),
            server_ns: item.server_ns,
            kind: stored::MessageKind::Application.into(),
            content: Bytes::copy_from_slice(text.as_bytes()),
            ..Default::default()
        },
    }
}

impl IdentityProcessor for Play {
    fn apply(
        &self,
        txn: &mut WriteTxn<'_>,
        inbox: &InboxId,
        item: &PendingItem,
    ) -> Result<Verdict, StorageError> {
        let time = match &item.envelope.payload {
            Some(Payload::IdentityUpdate(update)) => update.client_timestamp_ns,
            _ => 0,
        };
        if let Err(verdict) = self.stops(&format!("identity {time}")) {
            return verdict;
        }
        put_identity_state(txn, inbox, item.sequence_id, b"state")?;
        Ok(Verdict::Applied(Box::default()))
    }
}

struct PlayCandidate<'p>(&'p Play, JoinAnchor);

impl Candidate for PlayCandidate<'_> {
    fn anchor(&self) -> JoinAnchor {
        self.1
    }

    fn install(self: Box<Self>, txn: &mut WriteTxn<'_>) -> Result<Joined, StorageError> {
        txn.put(MLS, &ratchet_key(&self.1.group), &Raw(Vec::new()))?;
        match self.0.stops("install") {
            Err(Err(error)) => Err(error),
            _ => Ok(Joined {
                record: stored::GroupRecord::default(),
                messages: vec![joined_message(&self.1)],
            }),
        }
    }
}

fn joined_message(found: &JoinAnchor) -> NewMessage {
    let id = MessageId::derive(&found.group, &found.anchor.to_string(), b"joined");
    NewMessage {
        message: stored::StoredMessage {
            group_id: Bytes::copy_from_slice(found.group.as_bytes()),
            message_id: Bytes::copy_from_slice(id.as_bytes()),
            sequence_id: found.anchor.get(),
            kind: stored::MessageKind::MembershipChange.into(),
            content: Bytes::from_static(b"joined"),
            ..Default::default()
        },
    }
}

fn welcome_text(item: &PendingItem) -> String {
    match &item.envelope.payload {
        Some(Payload::WelcomeMessage(welcome)) => match &welcome.version {
            Some(Version::V1(welcome)) => String::from_utf8_lossy(&welcome.data).into_owned(),
            _ => String::new(),
        },
        _ => String::new(),
    }
}

impl WelcomeProcessor for Play {
    fn inspect(
        &self,
        _txn: &mut WriteTxn<'_>,
        item: &PendingItem,
        pointee: Option<&PendingItem>,
    ) -> Result<Result<Box<dyn Candidate + '_>, Verdict>, StorageError> {
        let mut text = welcome_text(item);
        if let Some(name) = text.strip_prefix("point ") {
            let destination = destination(name.parse().expect("a name"));
            let Some(pointee) = pointee else {
                self.looked.lock().push(text);
                return Ok(Err(Verdict::Waits(vec![Dependency::Pointee {
                    destination,
                }])));
            };
            text = welcome_text(pointee);
        }
        if let Err(verdict) = self.stops(&text) {
            return verdict.map(Err);
        }
        let numbers: Vec<u64> = text
            .split(' ')
            .filter_map(|word| word.parse().ok())
            .collect();
        let [name, epoch, anchor] = numbers[..] else {
            return Ok(Err(Verdict::Rejected(Rejected::WelcomeMalformed)));
        };
        Ok(Ok(Box::new(PlayCandidate(
            self,
            JoinAnchor {
                group: GroupId::from_bytes([name as u8; 16]),
                epoch,
                anchor: SequenceId::saturating(anchor),
            },
        ))))
    }
}

/// The topic of a pointee.
pub(crate) fn destination(name: u8) -> Topic {
    Topic::welcome(&pointee_key(name))
}

/// The key that a pointee is addressed to.
pub(crate) fn pointee_key(name: u8) -> InstallationId {
    InstallationId::from_bytes([name; 32])
}
