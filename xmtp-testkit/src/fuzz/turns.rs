//! The processors of a client: whole turns over what others may have written to its topics.
//!
//! There are two members. What one of them makes is what a fuzzer begins from, and the other
//! decides on it in a transaction that is taken back, so each input meets the same state.

use std::sync::Arc;

use openmls::group::MlsGroup;
use prost::Message;
use xmtp_core::processing::Processors;
use xmtp_core::processor::{PendingItem, Verdict, identity_state};
use xmtp_core::runtime::{Runtime, SimulatedRuntime};
use xmtp_core::storage::{Database, Durability, StorageError, WriteTxn};
use xmtp_core::testing::memory::MemoryDisk;
use xmtp_mls::content::{encode_payload, encode_text};
use xmtp_mls::group::{
    CommitPlan, GroupContext, NewConversation, NewGroup, Preset, build_commit, create_group,
    encrypt, merge_pending, stage_join,
};
use xmtp_mls::key_package::{FetchedPackage, check, make, named_key};
use xmtp_mls::processor::MlsProcessor;
use xmtp_mls::welcome::{Opened, WelcomeFault, open, wrap};
use xmtp_mls::{Installation, Provider};
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::backend::v1::{ClientEnvelope, WelcomeMessage};
use xmtp_proto::identity::IdentityUpdate;
use xmtp_proto::{GroupId, InboxId, SequenceId, Topic};

use crate::rogue::group_envelope;

/// Where the commit that adds the second member is.
const ANCHOR: u32 = 9;
/// Where every input is.
const HERE: u32 = 20;

/// One member with a database in memory.
struct Side {
    runtime: Arc<dyn Runtime>,
    database: Database,
    installation: Arc<Installation>,
}

/// Two members of one group, and what the first sent.
struct Pair {
    reader: Side,
    processors: Processors,
    group: GroupId,
    messages: Vec<Vec<u8>>,
    welcome: WelcomeMessage,
}

thread_local! {
    static PAIR: Pair = Pair::new();
}

impl Side {
    fn new(seed: u8) -> Self {
        let runtime: Arc<dyn Runtime> = Arc::new(SimulatedRuntime::new(seed.into()));
        let disk = MemoryDisk::new().open();
        let database = Database::open(disk, runtime.clone()).expect("a database");
        let inbox = InboxId::from_bytes([seed; 32]);
        let installation = Arc::new(Installation::generate(runtime.as_ref(), inbox));
        Self {
            runtime,
            database,
            installation,
        }
    }

    fn write<T>(&self, f: impl FnOnce(&mut WriteTxn<'_>) -> T) -> T {
        let write = |txn: &mut WriteTxn<'_>| Ok::<_, StorageError>(f(txn));
        let written = self.database.write(Durability::Ordered, write);
        written.expect("the database in memory writes")
    }

    /// Runs `f` and takes back what it wrote.
    fn look<T>(&self, f: impl FnOnce(&mut WriteTxn<'_>) -> T) -> T {
        let mut found = None;
        let over: Result<(), StorageError> = self.database.write(Durability::Ordered, |txn| {
            found = Some(f(txn));
            Err(StorageError::Closed)
        });
        assert!(over.is_err());
        found.expect("it ran")
    }

    fn package(&self) -> FetchedPackage {
        let made = self.write(|txn| make(txn, &self.installation).expect("a key package"));
        let Some(Payload::KeyPackage(package)) = made.envelope.payload else {
            panic!("no key package");
        };
        let (id, inbox) = (self.installation.id(), self.installation.inbox());
        let bytes = package.key_package_tls_serialized;
        check(&bytes, &id, &inbox, self.runtime.now_ns()).expect("a sound key package")
    }
}

impl Pair {
    fn new() -> Self {
        let (writer, reader) = (Side::new(1), Side::new(2));
        let package = reader.package();
        let (group, mut state, welcome) = writer.write(|txn| begin(txn, &writer, &package));
        let recipients = [package.recipient.clone()];
        let anchor = SequenceId::from(ANCHOR);
        let wrapped = wrap(writer.runtime.as_ref(), &recipients, &welcome, anchor);
        let welcome = wrapped.expect("a wrapped Welcome").remove(0);
        reader.write(|txn| join(txn, &welcome));
        let messages = writer.write(|txn| said(txn, &writer, group, &mut state));
        let processors = MlsProcessor::new(reader.installation.clone()).processors();
        Self {
            reader,
            processors,
            group,
            messages,
            welcome,
        }
    }
}

/// Creates a group and adds the owner of a key package.
fn begin(
    txn: &mut WriteTxn<'_>,
    writer: &Side,
    package: &FetchedPackage,
) -> (GroupId, MlsGroup, Vec<u8>) {
    let new = NewGroup {
        conversation: NewConversation::Group(Preset::AllMembers),
        creator_sequence: SequenceId::from(3),
        name: String::new(),
        description: String::new(),
        image_url: String::new(),
        app_data: String::new(),
        disappearing: None,
    };
    let (id, mut group) = create_group(txn, &writer.installation, &new).expect("a group");
    let mut context = GroupContext::of(&group).expect("a context");
    context.members.insert(package.inbox, SequenceId::from(4));
    let plan = CommitPlan {
        adds: vec![package.package.clone()],
        membership: Some(context.to_membership()),
        ..CommitPlan::default()
    };
    let provider = Provider::new(txn);
    let built = build_commit(&mut group, &provider, &writer.installation, plan);
    let built = built.expect("a commit");
    merge_pending(&mut group, &provider).expect("it merges");
    (id, group, built.welcome.expect("a Welcome"))
}

fn join(txn: &mut WriteTxn<'_>, welcome: &WelcomeMessage) {
    let opened = open(welcome, |public| {
        let named = named_key(txn, public).expect("the database reads");
        Ok::<_, WelcomeFault>(named)
    });
    let Ok(Opened::Welcome(unwrapped)) = opened else {
        panic!("the Welcome does not open");
    };
    let staged = stage_join(txn, unwrapped.welcome).expect("a sound Welcome");
    staged.install(txn).expect("it installs");
}

/// A text, a commit that renews keys, and one that changes the name.
fn said(txn: &mut WriteTxn<'_>, writer: &Side, id: GroupId, group: &mut MlsGroup) -> Vec<Vec<u8>> {
    let (_, plain) = encode_payload(&id, &encode_text("hello"), "key");
    let provider = Provider::new(txn);
    let by = &writer.installation;
    let mut said = vec![encrypt(group, &provider, by, &plain).expect("a message")];
    let mut metadata = GroupContext::of(group)
        .expect("a context")
        .to_mutable_metadata();
    let named = ("group_name".to_owned(), "named".to_owned());
    metadata.attributes.extend([named]);
    let rename = CommitPlan {
        metadata: Some(metadata),
        ..CommitPlan::default()
    };
    for plan in [CommitPlan::default(), rename] {
        let built = build_commit(group, &provider, by, plan).expect("a commit");
        xmtp_mls::group::clear_pending(group, &provider).expect("it is dropped");
        said.push(built.commit);
    }
    said
}

/// What a fuzzer of turns begins from.
pub(super) fn messages() -> Vec<Vec<u8>> {
    PAIR.with(|pair| pair.messages.clone())
}

/// What a fuzzer of joins begins from.
pub(super) fn welcomes() -> Vec<Vec<u8>> {
    PAIR.with(|pair| vec![pair.welcome.encode_to_vec()])
}

fn item(topic: Topic, envelope: ClientEnvelope) -> PendingItem {
    PendingItem {
        topic,
        sequence_id: SequenceId::from(HERE),
        server_ns: 1,
        envelope,
        own: None,
    }
}

/// One envelope of a group: what the other member made applies or waits, all else is rejected.
pub(super) fn group(bytes: &[u8]) {
    PAIR.with(|pair| {
        let verdict = pair.reader.look(|txn| {
            let group = &pair.processors.group;
            let mut turn = group.turn(txn, &pair.group).expect("a turn begins");
            let item = item(Topic::group(&pair.group), group_envelope(bytes.to_vec(), 0));
            let _ = turn.is_application(&item);
            let verdict = turn.apply(txn, &item).expect("no fault of the database");
            if matches!(verdict, Verdict::Applied(_) | Verdict::Rejected(_)) {
                turn.flush(txn).expect("it flushes");
            }
            verdict
        });
        let is_genuine = pair.messages.iter().any(|genuine| genuine == bytes);
        match verdict {
            Verdict::Rejected(_) => assert!(!is_genuine, "{verdict:?}"),
            Verdict::Applied(_) | Verdict::Waits(_) => assert!(is_genuine, "{verdict:?}"),
            Verdict::Retry(_) | Verdict::Blocked(_) => panic!("{verdict:?}"),
        }
    });
}

/// One identity update: never rejected, and applied only with its state at exactly its place.
pub(super) fn identity(bytes: &[u8]) {
    let Ok(update) = IdentityUpdate::decode(bytes) else {
        return;
    };
    let named = InboxId::parse_hex(&update.inbox_id);
    let inbox = named.unwrap_or(InboxId::from_bytes([7; 32]));
    let envelope = ClientEnvelope {
        payload: Some(Payload::IdentityUpdate(update)),
    };
    let item = item(Topic::identity(&inbox), envelope);
    PAIR.with(|pair| {
        pair.reader.look(|txn| {
            let applied = pair.processors.identity.apply(txn, &inbox, &item);
            let verdict = applied.expect("no fault of the database");
            let state = identity_state(txn, &inbox, item.sequence_id).expect("it reads");
            let is_applied = matches!(verdict, Verdict::Applied(_));
            assert_eq!(is_applied, state.is_some(), "{verdict:?}");
            assert!(!matches!(verdict, Verdict::Rejected(_)), "{verdict:?}");
        });
    });
}

/// One Welcome: the genuine one waits for identity states, and no other gets that far.
pub(super) fn welcome(bytes: &[u8]) {
    let Ok(message) = WelcomeMessage::decode(bytes) else {
        return;
    };
    PAIR.with(|pair| {
        let is_genuine = message == pair.welcome;
        let topic = Topic::welcome(&pair.reader.installation.id());
        let item = item(topic, crate::rogue::welcome_envelope(message));
        let verdict = pair.reader.look(|txn| {
            let inspected = pair.processors.welcome.inspect(txn, &item, None);
            let inspected = inspected.expect("no fault of the database");
            inspected.map(drop).expect_err("no identity state is held")
        });
        match verdict {
            Verdict::Rejected(_) | Verdict::Blocked(_) => assert!(!is_genuine, "{verdict:?}"),
            Verdict::Waits(_) => assert!(is_genuine, "{verdict:?}"),
            Verdict::Applied(_) | Verdict::Retry(_) => panic!("{verdict:?}"),
        }
    });
}
