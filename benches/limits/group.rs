//! Groups that have lived: every path of the tree in use, past epochs kept, one member who sends
//! and one who receives into an encrypted database.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use openmls::group::MlsGroup;
use openmls::prelude::{MlsMessageBodyIn, MlsMessageIn, ProcessedMessageContent, Welcome};
use prost::Message as _;
use tls_codec::DeserializeBytes;
use xmtp_core::engine::receive::{is_to_go_on, receive_in};
use xmtp_core::processing::Processors;
use xmtp_core::processor::Joined;
use xmtp_core::receipt;
use xmtp_core::runtime::{NativeRuntime, RuntimeExt};
use xmtp_core::storage::schema::{COUNTER, CounterName, GROUP, MLS, TOPIC};
use xmtp_core::storage::{Database, Durability, Order, Page, Read, Snapshot, Storage, WriteTxn};
use xmtp_core::testing::memory::MemoryDisk;
use xmtp_core::welcome::install_created;
use xmtp_mls::content::encode_payload;
use xmtp_mls::group::{
    CommitPlan, Frame, GroupContext, NewConversation, NewGroup, Preset, build_commit, create_group,
    encrypt, load, merge_pending, process, stage_join,
};
use xmtp_mls::key_package::{FetchedPackage, check, make};
use xmtp_mls::processor::MlsProcessor;
use xmtp_mls::store::Deferred;
use xmtp_mls::{Installation, Provider};
use xmtp_proto::backend::v1;
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::content::{ConversationType, EncodedContent};
use xmtp_proto::envelope::{canonical_bytes, message_hash};
use xmtp_proto::id::{GroupId, InboxId, SequenceId, Topic};
use xmtp_proto::storage::v1 as stored;
use xmtp_storage_sqlite::{DatabaseKey, SqliteStorage};

use crate::bare::{Bare, Guest};
use crate::counted::Counted;
use crate::report::Failure;
use crate::sqlite::KEY;

/// Commits that a group has seen, each by another member while there are so many.
const COMMITS: usize = 24;
/// Bytes of content of each message.
const CONTENT_BYTES: usize = 1024;
/// Idle groups that one transaction adds.
const IDLE_GROUPS_PER_WRITE: usize = 100;

/// A member with a database of its own.
pub(crate) struct Member {
    database: Database,
    pub(crate) installation: Arc<Installation>,
}

impl Member {
    /// Makes a member whose database is in memory.
    pub(crate) fn in_memory() -> Result<Self, Failure> {
        Self::over(MemoryDisk::new().open())
    }

    fn over(storage: Arc<dyn Storage>) -> Result<Self, Failure> {
        let database = Database::open(storage, NativeRuntime::current())?;
        let installation = Arc::new(new_installation(&database));
        Ok(Self {
            database,
            installation,
        })
    }

    fn write<T>(
        &self,
        work: impl FnOnce(&mut WriteTxn<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.database.write(Durability::Ordered, work)
    }

    /// Creates a group with this member alone.
    pub(crate) fn create(&self) -> Result<(GroupId, MlsGroup), Failure> {
        let new = NewGroup {
            conversation: NewConversation::Group(Preset::AllMembers),
            creator_sequence: SequenceId::ZERO,
            name: "bench".to_owned(),
            description: String::new(),
            image_url: String::new(),
            app_data: String::new(),
            disappearing: None,
        };
        self.write(|txn| Ok(create_group(txn, &self.installation, &new)?))
    }

    /// Makes a key package of an installation, checked as one that was fetched.
    fn package(&self, installation: &Installation) -> Result<FetchedPackage, Failure> {
        let made = self.write(|txn| Ok(make(txn, installation)?))?;
        let Some(Payload::KeyPackage(package)) = made.envelope.payload else {
            return Err("a key package is none".into());
        };
        let bytes = package.key_package_tls_serialized;
        let (id, inbox) = (installation.id(), installation.inbox());
        let now_ns = self.database.runtime().now_ns();
        Ok(check(&bytes, &id, &inbox, now_ns)?)
    }

    fn add(&self, group: &mut MlsGroup, added: &[FetchedPackage]) -> Result<Vec<u8>, Failure> {
        let mut context = GroupContext::of(group)?;
        for package in added {
            // Zero asks for no identity log: there is none here.
            context.members.insert(package.inbox, SequenceId::ZERO);
        }
        let plan = CommitPlan {
            adds: added.iter().map(|added| added.package.clone()).collect(),
            membership: Some(context.to_membership()),
            ..CommitPlan::default()
        };
        self.write(|txn| {
            let provider = Provider::new(txn);
            let built = build_commit(group, &provider, &self.installation, plan)?;
            merge_pending(group, &provider)?;
            built.welcome.ok_or_else(|| "nobody was added".into())
        })
    }

    fn join(&self, welcome: Welcome) -> Result<MlsGroup, Failure> {
        self.write(|txn| Ok(stage_join(txn, welcome)?.install(txn)?))
    }

    /// Renews the own keys, and moves on at once.
    fn commit(&self, group: &mut MlsGroup) -> Result<Vec<u8>, Failure> {
        self.write(|txn| {
            let provider = Provider::new(txn);
            let plan = CommitPlan::default();
            let built = build_commit(group, &provider, &self.installation, plan)?;
            merge_pending(group, &provider)?;
            Ok(built.commit)
        })
    }

    fn follow(&self, group: &mut MlsGroup, commit: &[u8]) -> Result<(), Failure> {
        self.write(|txn| {
            let provider = Provider::new(txn);
            let processed = process(group, &provider, Frame::decode(commit)?)?;
            match processed.into_content() {
                ProcessedMessageContent::StagedCommitMessage(staged) => {
                    let merged = group.merge_staged_commit(&provider, *staged);
                    Ok(provider.settle(merged)?)
                }
                _ => Err("a commit is none".into()),
            }
        })
    }
}

fn new_installation(database: &Database) -> Installation {
    let runtime = database.runtime();
    let inbox = InboxId::from_bytes(runtime.random());
    Installation::generate(&**runtime, inbox)
}

/// The member who receives, as the engine does it.
pub(crate) struct Receiver {
    member: Member,
    group: GroupId,
    topic: Topic,
    processors: Processors,
    /// F.
    received: SequenceId,
    /// Its storage engine.
    pub(crate) counted: Arc<Counted>,
    /// Batches that took more than one transaction.
    pub(crate) split_batches: usize,
}

impl Receiver {
    fn join(member: Member, counted: Arc<Counted>, welcome: Welcome) -> Result<Self, Failure> {
        let group = member.write(|txn| {
            let joined = stage_join(txn, welcome)?;
            let id = *joined.group_id();
            let group = joined.install(txn)?;
            let record = stored::GroupRecord {
                conversation_type: ConversationType::Group as u32,
                created_ns: txn.now_ns(),
                epoch: group.epoch().as_u64(),
                epoch_authenticator: group.epoch_authenticator().as_slice().to_vec().into(),
                ..Default::default()
            };
            let messages = Vec::new();
            install_created(txn, id, Joined { record, messages })?;
            Ok(id)
        })?;
        Ok(Self {
            processors: MlsProcessor::new(member.installation.clone()).processors(),
            topic: Topic::group(&group),
            received: SequenceId::ZERO,
            counted,
            split_batches: 0,
            member,
            group,
        })
    }

    /// Admits wire bytes and processes them, until all of it is committed.
    pub(crate) fn receive(&mut self, batch: &[Message]) -> Result<(), Failure> {
        let envelopes = batch
            .iter()
            .map(|message| v1::ServerEnvelope::decode(message.wire.clone()))
            .collect::<Result<Vec<_>, _>>()?;
        let batch = [receipt::check(self.topic, self.received, envelopes)?];
        for transaction in 0.. {
            let received = self
                .member
                .write(|txn| Ok(receive_in(txn, &batch, &self.processors)?))?;
            // A turn that took its time leaves the rest to the next.
            let goes_on = received.iter().any(is_to_go_on);
            for outcome in received {
                self.received = outcome?.received;
            }
            self.split_batches += usize::from(transaction == 0 && goes_on);
            if !goes_on {
                break;
            }
        }
        match self
            .member
            .database
            .read(|read| pending_rows(read, &self.topic))?
        {
            0 => Ok(()),
            _ => Err("an envelope stays".into()),
        }
    }

    /// Adds groups that have the state of this one and nothing to do.
    pub(crate) fn add_idle_groups(&self, count: usize) -> Result<(), Failure> {
        let page = Page {
            rows: u32::MAX,
            bytes: u32::MAX,
            order: Order::Ascending,
        };
        let (record, topic, entities) = self.member.database.read(|snapshot| {
            let owner = self.group.as_bytes().to_vec();
            let entities = snapshot.page(MLS, &owner, None, page)?.rows;
            let record = snapshot.row(GROUP, &self.group)?.unwrap_or_default();
            let topic = snapshot.row(TOPIC, &self.topic)?.unwrap_or_default();
            Ok::<_, Failure>((record, topic, entities))
        })?;
        let numbers: Vec<usize> = (0..count).collect();
        for numbers in numbers.chunks(IDLE_GROUPS_PER_WRITE) {
            self.member.write(|txn| {
                for number in numbers {
                    let mut id = [0; 16];
                    id[..8].copy_from_slice(&number.to_be_bytes());
                    let group = GroupId::from_bytes(id);
                    txn.put_new(GROUP, &group, &record)?;
                    txn.put_new(TOPIC, &Topic::group(&group), &topic)?;
                    for ((_, label), entity) in &entities {
                        txn.put_new(MLS, &(id.to_vec(), label.clone()), entity)?;
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Counts the delivery numbers given so far.
    pub(crate) fn delivery_numbers(&self) -> Result<u64, Failure> {
        let key = CounterName::Delivery as u8;
        self.member.database.read(|snapshot| {
            let counter = snapshot.row(COUNTER, &key)?.unwrap_or_default();
            Ok(counter.next)
        })
    }

    /// Loads the group as it is now: an equal member.
    pub(crate) fn equal(&self) -> Result<MlsGroup, Failure> {
        let group = &self.group;
        self.member
            .write(|txn| Ok(load(&Provider::new(txn), group)?))
    }
}

fn pending_rows(snapshot: &dyn Snapshot, topic: &Topic) -> Result<u32, Failure> {
    let record = snapshot.row(TOPIC, topic)?.unwrap_or_default();
    Ok(record.pending_rows)
}

/// One message of a group.
pub(crate) struct Message {
    /// The `ServerEnvelope`, as the wire carries it.
    pub(crate) wire: Bytes,
    /// The MLS message in it.
    pub(crate) mls: Bytes,
}

/// A group with one member who sends and one who receives.
pub(crate) struct AgedGroup {
    sender: Member,
    group: MlsGroup,
    id: GroupId,
    sequence: u64,
    pub(crate) receiver: Receiver,
}

impl AgedGroup {
    /// Makes a group of so many members in which so many have committed as [`COMMITS`] says.
    pub(crate) fn make(folder: &Path, members: usize) -> Result<Self, Failure> {
        Ok(Self::make_with(folder, members, None)?.0)
    }

    /// Makes the same group with one member more, who is openmls alone.
    pub(crate) fn make_with_bare(folder: &Path, members: usize) -> Result<(Self, Bare), Failure> {
        let host = Member::in_memory()?;
        let like = host.package(&host.installation)?;
        let (guest, package) = Guest::new(&host.installation, like)?;
        let (group, welcome, commits) = Self::make_with(folder, members, Some(package))?;
        let mut bare = guest.join(parse_welcome(&welcome)?)?;
        for commit in commits {
            bare.follow(&commit.mls)?;
        }
        Ok((group, bare))
    }

    /// Makes a group; answers the Welcome that all came by, and the commits since.
    fn make_with(
        folder: &Path,
        members: usize,
        guest: Option<FetchedPackage>,
    ) -> Result<(Self, Vec<u8>, Vec<Message>), Failure> {
        let storage = SqliteStorage::options(folder.join("receiver.db"));
        let counted = Counted::new(storage.key(DatabaseKey::new(KEY)).open()?);
        let receiver = Member::over(counted.clone())?;
        let sender = Member::in_memory()?;
        let committers = (COMMITS - 1).min(members - 2);
        let committers = (0..committers).map(|_| Member::in_memory());
        let committers = committers.collect::<Result<Vec<_>, _>>()?;

        let mut packages = vec![receiver.package(&receiver.installation)?];
        for member in &committers {
            packages.push(member.package(&member.installation)?);
        }
        packages.extend(guest);
        while packages.len() < members - 1 {
            packages.push(sender.package(&new_installation(&sender.database))?);
        }
        let (id, mut group) = sender.create()?;
        let welcome = sender.add(&mut group, &packages)?;
        let mut joined = Vec::new();
        for member in committers {
            let group = member.join(parse_welcome(&welcome)?)?;
            joined.push((member, group));
        }
        let mut made = Self {
            receiver: Receiver::join(receiver, counted, parse_welcome(&welcome)?)?,
            sender,
            group,
            id,
            sequence: 0,
        };
        let commits = made.age(joined)?;
        Ok((made, welcome, commits))
    }

    fn age(&mut self, mut others: Vec<(Member, MlsGroup)>) -> Result<Vec<Message>, Failure> {
        let mut commits = Vec::new();
        for round in 0..COMMITS {
            let turn = round % (others.len() + 1);
            let commit = match turn.checked_sub(1) {
                None => self.sender.commit(&mut self.group)?,
                Some(other) => {
                    let (member, group) = &mut others[other];
                    let commit = member.commit(group)?;
                    self.sender.follow(&mut self.group, &commit)?;
                    commit
                }
            };
            for (place, (member, group)) in others.iter_mut().enumerate() {
                if Some(place) != turn.checked_sub(1) {
                    member.follow(group, &commit)?;
                }
            }
            commits.push(self.message(commit, true));
        }
        self.receiver.receive(&commits)?;
        let (ours, theirs) = (self.group.epoch(), self.receiver.equal()?.epoch());
        if ours != theirs {
            return Err("the receiver did not follow the commits".into());
        }
        Ok(commits)
    }

    /// Makes a commit that nobody else has applied yet.
    pub(crate) fn commit(&mut self) -> Result<Message, Failure> {
        let commit = self.sender.commit(&mut self.group)?;
        Ok(self.message(commit, true))
    }

    /// Makes messages that nobody has read yet.
    pub(crate) fn messages(&mut self, count: usize) -> Result<Vec<Message>, Failure> {
        let runtime = self.sender.database.runtime().clone();
        let plaintexts: Vec<_> = (0..count)
            .map(|_| plaintext(&self.id, &runtime.random::<CONTENT_BYTES>()))
            .collect();
        let (group, sender) = (&mut self.group, &self.sender);
        let encrypted = sender.write(|txn| {
            let deferred = Deferred::new();
            let mut encrypted = Vec::with_capacity(count);
            for plaintext in &plaintexts {
                let provider = Provider::deferring(txn, &deferred);
                encrypted.push(encrypt(group, &provider, &sender.installation, plaintext)?);
            }
            deferred.flush(group, txn)?;
            Ok(encrypted)
        })?;
        let messages = encrypted.into_iter();
        Ok(messages.map(|bytes| self.message(bytes, false)).collect())
    }

    fn message(&mut self, mls: Vec<u8>, is_commit_or_proposal: bool) -> Message {
        self.sequence += 1;
        let mls = Bytes::from(mls);
        let message = v1::GroupMessage {
            data: mls.clone(),
            ..Default::default()
        };
        let envelope = v1::ClientEnvelope {
            payload: Some(Payload::GroupMessage(message)),
        };
        let hash = message_hash(&canonical_bytes(&envelope)).to_vec();
        let meta = v1::EnvelopeMeta {
            topic: Some(Topic::group(&self.id).to_proto()),
            cursor: Some(v1::Cursor {
                sequence_id: self.sequence,
            }),
            server_ns: self.sender.database.runtime().now_ns(),
            message_hash: Some(v1::MessageHash {
                hash: Some(v1::message_hash::Hash::Sha256(hash.into())),
            }),
            is_commit_or_proposal,
            ..Default::default()
        };
        let wire = v1::ServerEnvelope {
            meta: Some(meta),
            envelope: Some(envelope),
        };
        Message {
            wire: wire.encode_to_vec().into(),
            mls,
        }
    }
}

/// Makes the plaintext of a message with some content.
pub(crate) fn plaintext(group: &GroupId, content: &[u8]) -> Vec<u8> {
    let content = EncodedContent {
        content: content.to_vec().into(),
        ..Default::default()
    };
    encode_payload(group, &content, "bench").1
}

fn parse_welcome(bytes: &[u8]) -> Result<Welcome, Failure> {
    let message = MlsMessageIn::tls_deserialize_exact_bytes(bytes)?;
    match message.extract() {
        MlsMessageBodyIn::Welcome(welcome) => Ok(welcome),
        _ => Err("a Welcome is none".into()),
    }
}
