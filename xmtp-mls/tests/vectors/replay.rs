//! Replaying the recordings as each recorded client.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use openmls::group::{MlsGroup, StagedCommit};
use openmls::prelude::ProcessedMessageContent;
use openmls_traits::storage::StorageProvider;
use prost::Message;
use tls_codec::Serialize;
use xmtp_core::runtime::{Runtime, SimulatedRuntime};
use xmtp_core::storage::{Database, Durability, WriteTxn, schema};
use xmtp_core::testing::memory::MemoryDisk;
use xmtp_mls::content::{Payload, decode_payload, group_updated};
use xmtp_mls::group::{
    ContextForm, Frame, FrameKind, GroupContext, GroupFault, LifetimeFault, StagedJoin,
    extension_type, process, resolve_updates, stage_join,
};
use xmtp_mls::key_package::{PackageFault, PackageRule, check, named_key};
use xmtp_mls::processor::judge;
use xmtp_mls::store::Deferred;
use xmtp_mls::welcome::{Opened, Pointer, UnwrappedWelcome, WelcomeFault, open};
use xmtp_mls::{Leaf, Provider};
use xmtp_proto::backend::v1::WelcomeMessage;
use xmtp_proto::content::EncodedContent;
use xmtp_proto::id::{InboxId, InstallationId};
use xmtp_proto::storage::v1::KeyPackageRecord;

use super::recorded::{GroupMessage, KeyPackage, Recorded};

/// The client that never sends.
const OBSERVER: &str = "olga";
/// The group that the observer follows furthest.
const MAIN_GROUP: &str = "ff9c06fbb00cfd45c50c115fdd003c72";

/// What a replay reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) key_packages: usize,
    pub(crate) welcomes_opened: usize,
    pub(crate) joins: usize,
    pub(crate) commits: usize,
    pub(crate) own_removals: usize,
    pub(crate) messages: usize,
    pub(crate) distinct_commits: usize,
    pub(crate) distinct_messages: usize,
    pub(crate) observer_commits: usize,
    pub(crate) observer_messages: usize,
    pub(crate) transcripts: usize,
    /// Merged commits that led to a context in the dictionary form.
    pub(crate) dictionary_contexts: usize,
    /// Merged commits that updated a dictionary.
    pub(crate) dictionary_updates: usize,
    /// Commits in the extension form that our rules allow.
    pub(crate) judged: usize,
    pub(crate) expired: usize,
    pub(crate) not_yet: usize,
}

/// A replay of all clients.
pub(crate) struct Replay {
    recorded: &'static Recorded,
    counts: Counts,
    commits: BTreeSet<u64>,
    messages: BTreeSet<u64>,
    /// Inboxes that asked to leave, by group.
    leaving: BTreeMap<Vec<u8>, BTreeSet<InboxId>>,
}

/// What became of one message.
enum Outcome {
    Next,
    Stop,
}

fn database() -> Database {
    let runtime: Arc<dyn Runtime> = Arc::new(SimulatedRuntime::new(1));
    Database::open(MemoryDisk::new().open(), runtime).unwrap()
}

impl Replay {
    pub(crate) fn new(recorded: &'static Recorded) -> Self {
        Self {
            recorded,
            counts: Counts::default(),
            commits: BTreeSet::new(),
            messages: BTreeSet::new(),
            leaving: BTreeMap::new(),
        }
    }

    pub(crate) fn run(mut self) -> Counts {
        for package in self.recorded.key_packages() {
            self.check_package(&package);
        }
        for (installation, (client, _)) in self.recorded.clients() {
            self.replay_client(&installation, &client);
        }
        self.counts.distinct_commits = self.commits.len();
        self.counts.distinct_messages = self.messages.len();
        self.counts
    }

    fn check_package(&mut self, package: &KeyPackage) {
        let installation = InstallationId::try_from(package.installation.as_slice()).unwrap();
        let inbox = InboxId::parse_hex(&package.inbox).unwrap();
        let now = std::time::SystemTime::now();
        let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
        let now = u64::try_from(now.as_nanos()).unwrap();
        match check(&package.tls, &installation, &inbox, now) {
            Ok(checked) => {
                assert_eq!(
                    checked.package.tls_serialize_detached().unwrap(),
                    package.tls
                );
                assert!(checked.recipient.reads_pointers);
                self.counts.key_packages += 1;
            }
            Err(PackageFault(PackageRule::Lifetime(_))) => {}
            Err(fault) => panic!("{fault}"),
        }
    }

    fn replay_client(&mut self, installation: &[u8], client: &str) {
        let database = database();
        let write = |txn: &mut WriteTxn<'_>| {
            let packages = self.recorded.key_packages();
            packages
                .iter()
                .filter(|package| package.installation == installation)
                .for_each(|package| keep_package(txn, package));
            Ok::<_, xmtp_core::storage::StorageError>(())
        };
        database.write(Durability::Flushed, write).unwrap();
        let mut joined: BTreeMap<Vec<u8>, (MlsGroup, u64)> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for welcome in self.recorded.welcomes() {
            let Some(inner) = &welcome.inner else {
                continue;
            };
            if welcome.installation != installation {
                continue;
            }
            let group = database
                .write(Durability::Ordered, |txn| {
                    let unwrapped = open_welcome(txn, &welcome.message, self.recorded)?;
                    assert_eq!(unwrapped.anchor.map(u64::from), Some(inner.anchor));
                    let bytes = welcome_bytes(unwrapped.welcome.clone());
                    assert_eq!(bytes, inner.mls);
                    if !seen.insert(bytes) {
                        return Ok(None);
                    }
                    let staged = stage_join(txn, unwrapped.welcome).unwrap();
                    self.check_join(&staged, inner.epoch, &inner.group);
                    Ok::<_, Failure>(Some(staged.install(txn)?))
                })
                .unwrap();
            self.counts.welcomes_opened += 1;
            let Some(group) = group else { continue };
            self.check_authenticator(&group, 0);
            self.counts.joins += 1;
            assert!(
                joined
                    .insert(inner.group.clone(), (group, inner.anchor))
                    .is_none()
            );
        }
        for (id, (group, anchor)) in joined {
            self.follow(&database, client, &id, group, anchor);
        }
    }

    fn check_join(&self, staged: &StagedJoin, epoch: u64, group: &[u8]) {
        assert_eq!(staged.epoch(), epoch);
        assert_eq!(staged.group_id().as_ref(), group);
        assert!(staged.context().members.contains_key(&staged.adder().inbox));
        for leaf in staged.leaves() {
            assert!(staged.context().members.contains_key(&leaf.inbox));
        }
    }

    /// What released clients applied is allowed by the rules that we judge by.
    fn check_rules(
        &mut self,
        group: &MlsGroup,
        before: &GroupContext,
        staged: &StagedCommit,
        sender: &Leaf,
    ) {
        let new = staged.group_context().extensions();
        let after = GroupContext::read(new).unwrap();
        if let Some(leaf) = staged.update_path_leaf_node() {
            let renewed = Leaf::at(sender.index, leaf).unwrap();
            assert_eq!(renewed.inbox, sender.inbox);
        }
        if before.form == ContextForm::Extensions && after.form == before.form {
            assert_eq!(judge(before, &after, &sender.inbox), Ok(()));
            let old = group.extensions();
            let fixed = extension_type::IMMUTABLE_METADATA;
            assert_eq!(old.unknown(fixed), new.unknown(fixed));
            assert_eq!(old.required_capabilities(), new.required_capabilities());
            self.counts.judged += 1;
        }
    }

    fn check_authenticator(&self, group: &MlsGroup, commit: u64) {
        let reached = self.recorded.authenticators();
        let epoch = group.epoch().as_u64();
        let authenticator = group.epoch_authenticator().as_slice().to_vec();
        let id = group.group_id().to_vec();
        // Not every client wrote its join down; whoever reached the epoch did.
        let mut at = reached
            .iter()
            .filter(|((other, at), _)| *other == id && (*at == commit || commit == 0));
        assert!(at.any(|(_, reached)| reached.contains(&(epoch, authenticator.clone()))));
    }

    fn follow(
        &mut self,
        database: &Database,
        client: &str,
        id: &[u8],
        group: MlsGroup,
        anchor: u64,
    ) {
        let mut group = group;
        let deferred = Deferred::new();
        let messages = self.recorded.messages();
        let messages = messages
            .iter()
            .filter(|message| message.group == id && message.sequence > anchor);
        database
            .write(Durability::Ordered, |txn| {
                for message in messages {
                    let outcome = self.one(txn, &deferred, client, &mut group, message);
                    if matches!(outcome, Outcome::Stop) {
                        break;
                    }
                }
                Ok::<_, Failure>(deferred.flush(&mut group, txn)?)
            })
            .unwrap();
    }

    fn one(
        &mut self,
        txn: &mut WriteTxn<'_>,
        deferred: &Deferred,
        client: &str,
        group: &mut MlsGroup,
        message: &GroupMessage,
    ) -> Outcome {
        let frame = Frame::decode(&message.data).unwrap();
        assert_eq!(frame.kind() == FrameKind::Commit, message.content_type == 3);
        let provider = Provider::deferring(txn, deferred);
        let processed = match process(group, &provider, frame) {
            Ok(processed) => processed,
            Err(GroupFault::Lifetime(LifetimeFault::Expired)) => {
                self.counts.expired += 1;
                return Outcome::Stop;
            }
            Err(GroupFault::Lifetime(LifetimeFault::NotYet { .. })) => {
                self.counts.not_yet += 1;
                return Outcome::Stop;
            }
            // Made for an epoch that a later commit of the recording has ended.
            Err(GroupFault::WrongEpoch) => return Outcome::Next,
            Err(fault) => panic!("{client} at {}: {fault:?}", message.sequence),
        };
        let index = match processed.sender() {
            openmls::prelude::Sender::Member(index) => *index,
            sender => panic!("{sender:?}"),
        };
        let sender = Leaf::at(index, group.public_group().leaf(index).unwrap()).unwrap();
        let staged = match processed.into_content() {
            ProcessedMessageContent::ApplicationMessage(application) => {
                self.application(client, group, message, &sender, &application.into_bytes());
                return Outcome::Next;
            }
            // A client cannot follow its own commit: its secrets are nowhere. Late messages of the
            // epoch before it are still read; the rest is of another epoch.
            ProcessedMessageContent::OwnPrivateMessage => return Outcome::Next,
            ProcessedMessageContent::StagedCommitMessage(staged) => staged,
            ProcessedMessageContent::UnresolvedAppDataCommit(unresolved) => {
                self.counts.dictionary_updates += 1;
                let updates = resolve_updates(group, &unresolved).unwrap();
                let staged = group.stage_app_data_commit(&provider, *unresolved, updates);
                Box::new(staged.unwrap())
            }
            content => panic!("{content:?}"),
        };
        let at = (message.group.clone(), message.sequence);
        if !self.recorded.authenticators().contains_key(&at) && !staged.self_removed() {
            // Refused by a rule above MLS; every recorded client agreed.
            return Outcome::Next;
        }
        let before = GroupContext::of(group).unwrap();
        self.check_rules(group, &before, &staged, &sender);
        let is_removal = staged.self_removed();
        provider
            .settle(group.merge_staged_commit(&provider, *staged))
            .unwrap();
        if is_removal {
            assert!(!group.is_active());
            self.counts.own_removals += 1;
            return Outcome::Stop;
        }
        self.check_authenticator(group, message.sequence);
        self.transcript(group, message, &before, &sender);
        self.counts.commits += 1;
        self.commits.insert(message.sequence);
        if client == OBSERVER && hex::encode(&message.group) == MAIN_GROUP {
            self.counts.observer_commits += 1;
        }
        Outcome::Next
    }

    fn application(
        &mut self,
        client: &str,
        group: &MlsGroup,
        message: &GroupMessage,
        sender: &Leaf,
        plaintext: &[u8],
    ) {
        let id = group.group_id().as_slice().try_into().unwrap();
        let Payload::Message {
            id,
            idempotency_key,
            bytes,
            content,
        } = decode_payload(&id, plaintext)
        else {
            panic!("{client} at {}: no message", message.sequence);
        };
        let seen = self.recorded.seen();
        let seen = &seen[&(message.group.clone(), message.sequence)];
        let seen = seen.iter().find(|seen| seen.is_application).unwrap();
        assert_eq!(id.as_bytes().as_slice(), seen.id);
        assert_eq!(bytes, seen.content);
        assert_eq!(idempotency_key, seen.key);
        assert_eq!(sender.inbox.to_hex(), seen.sender);
        let content = content.unwrap();
        assert_eq!(
            content,
            EncodedContent::decode(seen.content.as_slice()).unwrap()
        );
        if content
            .r#type
            .is_some_and(|kind| kind.type_id == "leave_request")
        {
            self.leaving
                .entry(message.group.clone())
                .or_default()
                .insert(sender.inbox);
        }
        self.counts.messages += 1;
        self.messages.insert(message.sequence);
        if client == OBSERVER && hex::encode(&message.group) == MAIN_GROUP {
            self.counts.observer_messages += 1;
        }
    }

    /// Compares the derived transcript, in any order of its lists, with the recorded one.
    fn transcript(
        &mut self,
        group: &MlsGroup,
        message: &GroupMessage,
        before: &GroupContext,
        sender: &Leaf,
    ) {
        let after = GroupContext::of(group).unwrap();
        if after.form == ContextForm::Dictionary {
            self.counts.dictionary_contexts += 1;
        }
        let leaving = self
            .leaving
            .get(&message.group)
            .cloned()
            .unwrap_or_default();
        let derived = group_updated(before, &after, &sender.inbox, &leaving);
        let seen = self.recorded.seen();
        let seen = seen.get(&(message.group.clone(), message.sequence));
        let Some(seen) = seen.and_then(|seen| seen.iter().find(|seen| !seen.is_application)) else {
            return;
        };
        assert_eq!(seen.key, message.server_ns.to_string());
        let content = EncodedContent::decode(seen.content.as_slice()).unwrap();
        let mut recorded =
            xmtp_proto::content::GroupUpdated::decode(content.content.as_ref()).unwrap();
        recorded
            .added_inboxes
            .sort_by(|one, two| one.inbox_id.cmp(&two.inbox_id));
        recorded
            .removed_inboxes
            .sort_by(|one, two| one.inbox_id.cmp(&two.inbox_id));
        recorded
            .metadata_field_changes
            .sort_by(|one, two| one.field_name.cmp(&two.field_name));
        assert_eq!(derived, Some(recorded), "at {}", message.sequence);
        self.counts.transcripts += 1;
    }
}

/// Any failure of a transaction of the replay.
#[derive(Debug)]
struct Failure(#[allow(dead_code)] String);

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

fn keep_package(txn: &mut WriteTxn<'_>, package: &KeyPackage) {
    let bundle = package.bundle();
    let public = bundle.key_package();
    let wrapper = public.extensions().unknown(0xff03).unwrap();
    let wrapper =
        xmtp_proto::content::WelcomeWrapperEncryption::decode(wrapper.0.as_slice()).unwrap();
    let record = KeyPackageRecord {
        hash_ref: package.hash_ref.clone().into(),
        created_ns: 1,
        wrapper_public_key: wrapper.pub_key,
        wrapper_private_key: package.xwing_seed.clone().into(),
        init_key: public.hpke_init_key().as_slice().to_vec().into(),
        last_resort: public.last_resort(),
        ..KeyPackageRecord::default()
    };
    txn.put(schema::KEY_PACKAGE, &package.hash_ref, &record)
        .unwrap();
    let provider = Provider::new(txn);
    let hash_ref = public
        .hash_ref(&openmls_rust_crypto::RustCrypto::default())
        .unwrap();
    assert_eq!(hash_ref.as_slice(), package.hash_ref);
    provider
        .store()
        .write_key_package(&hash_ref, &bundle)
        .unwrap();
}

fn open_welcome(
    txn: &mut WriteTxn<'_>,
    message: &WelcomeMessage,
    recorded: &Recorded,
) -> Result<UnwrappedWelcome, Failure> {
    let opened = open(message, |public| -> Result<_, OpenFailure> {
        Ok(named_key(txn, public)?)
    })?;
    match opened {
        Opened::Welcome(welcome) => Ok(welcome),
        Opened::Pointer(pointer) => Ok(pointee(&pointer, recorded)?),
    }
}

fn pointee(pointer: &Pointer, recorded: &Recorded) -> Result<UnwrappedWelcome, WelcomeFault> {
    let all = recorded.welcomes();
    let found = all
        .iter()
        .find(|welcome| pointer.topic().identifier() == welcome.installation)
        .unwrap();
    pointer.open(found.message.version.as_ref().unwrap())
}

#[derive(Debug, thiserror::Error)]
enum OpenFailure {
    #[error(transparent)]
    Welcome(#[from] WelcomeFault),
    #[error(transparent)]
    Storage(#[from] xmtp_core::storage::StorageError),
}

fn welcome_bytes(welcome: openmls::prelude::Welcome) -> Vec<u8> {
    use openmls::prelude::{MlsMessageOut, ProtocolVersion};
    MlsMessageOut::from_welcome(welcome, ProtocolVersion::Mls10)
        .tls_serialize_detached()
        .unwrap()
}
