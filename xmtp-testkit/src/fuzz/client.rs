//! The client: what a backend, or whoever writes to its topics, may send.

use std::sync::Arc;

use prost::Message;
use xmtp_core::receipt::{self, AdmissionError, Batch};
use xmtp_core::runtime::{Runtime, SimulatedRuntime};
use xmtp_core::storage::{Database, Durability};
use xmtp_core::testing::memory::MemoryDisk;
use xmtp_mls::content::decode_payload;
use xmtp_mls::group::{
    Frame, GroupFault, NewConversation, NewGroup, Preset, create_group, load, process,
};
use xmtp_mls::welcome::{WelcomeFault, open};
use xmtp_mls::{Installation, Provider};
use xmtp_proto::backend::v1::{QueryResponse, WelcomeMessage};
use xmtp_proto::id::{GroupId, InboxId, InstallationId, SequenceId, Topic};
use xmtp_proto::identity::IdentityUpdate;

/// A time in the year 2023, in nanoseconds.
const NOW_NS: u64 = 1_700_000_000_000_000_000;

const GROUP: [u8; 16] = [7; 16];

/// A page that a backend sends: what is admitted rises strictly and is of its topic.
pub(super) fn admission(bytes: &[u8]) {
    let Ok(page) = QueryResponse::decode(bytes) else {
        return;
    };
    let topic = Topic::group(&GroupId::from_bytes(GROUP));
    let after = SequenceId::from(3);
    let Ok(batch) = receipt::check(topic, after, page.envelopes) else {
        return;
    };
    let mut last = after;
    for envelope in &batch.envelopes {
        assert!(envelope.sequence_id > last);
        last = envelope.sequence_id;
    }
    admit(&batch, last);
}

/// Admits a batch that was checked, whose start is F, and takes it back.
fn admit(batch: &Batch, last: SequenceId) {
    let batch = Batch {
        after: SequenceId::ZERO,
        ..batch.clone()
    };
    MEMBER.with(|member| {
        let admitted: Result<(), AdmissionError> =
            member.database.write(Durability::Ordered, |txn| {
                let admitted = receipt::admit(txn, &batch)?;
                assert_eq!(admitted.new, batch.envelopes.len());
                assert!(batch.envelopes.is_empty() || admitted.received == last);
                let again = receipt::admit(txn, &batch)?;
                assert_eq!((again.new, again.received), (0, admitted.received));
                Err(AdmissionError::Shape { rule: "over" })
            });
        let refused = AdmissionError::Shape { rule: "over" };
        match admitted {
            Err(error) if error == refused => {}
            Err(AdmissionError::Capacity(_)) => {}
            other => panic!("{other:?}"),
        }
    });
}

/// A member of one group, with a database in memory.
struct Member {
    database: Database,
    group: GroupId,
}

impl Member {
    fn new() -> Self {
        let runtime: Arc<dyn Runtime> = Arc::new(SimulatedRuntime::new(7));
        let disk = MemoryDisk::new().open();
        let database = Database::open(disk, runtime.clone()).expect("a database");
        let installation = Installation::generate(runtime.as_ref(), InboxId::from_bytes([7; 32]));
        let new = NewGroup {
            conversation: NewConversation::Group(Preset::AllMembers),
            creator_sequence: SequenceId::from(3),
            name: String::new(),
            description: String::new(),
            image_url: String::new(),
            app_data: String::new(),
            disappearing: None,
        };
        let made = database.write(Durability::Ordered, |txn| {
            create_group(txn, &installation, &new)
        });
        let (group, _) = made.expect("a group");
        Self { database, group }
    }
}

thread_local! {
    static MEMBER: Member = Member::new();
}

/// The bytes of a message for a group, in a frame of that group and without one.
pub(super) fn group_message(bytes: &[u8]) {
    let framed = |kind| {
        let group = MEMBER.with(|member| *member.group.as_bytes());
        crate::mls_bytes::private_message(group, 0, kind, bytes)
    };
    take(bytes);
    take(&framed(crate::mls_bytes::ContentType::Application));
    take(&framed(crate::mls_bytes::ContentType::Commit));
}

/// Nobody else is in the group, so nothing is ever taken.
fn take(bytes: &[u8]) {
    let Ok(frame) = Frame::decode(bytes) else {
        return;
    };
    MEMBER.with(|member| {
        let taken = member.database.write(Durability::Ordered, |txn| {
            let provider = Provider::new(txn);
            let mut group = load(&provider, &member.group)?;
            process(&mut group, &provider, frame).map(drop)
        });
        let fault: GroupFault = taken.expect_err("it can not be of a member");
        assert!(!matches!(fault, GroupFault::Storage(_)), "{fault:?}");
    });
}

/// A Welcome that no key of this installation opens.
pub(super) fn welcome(bytes: &[u8]) {
    if let Ok(message) = WelcomeMessage::decode(bytes) {
        let opened = open::<WelcomeFault>(&message, |_| Ok(None));
        assert!(opened.is_err());
    }
}

/// A key package that was fetched.
pub(super) fn key_package(bytes: &[u8]) {
    let installation = InstallationId::from_bytes([7; 32]);
    let inbox = InboxId::from_bytes([7; 32]);
    // Only its faults are looked for: a sound package of that installation can not be made up.
    let _ = xmtp_mls::key_package::check(bytes, &installation, &inbox, NOW_NS);
}

/// An identity update, as the first of its inbox.
pub(super) fn identity_update(bytes: &[u8]) {
    let Ok(update) = IdentityUpdate::decode(bytes) else {
        return;
    };
    let asked = xmtp_identity::required_verifications(&update);
    assert!(asked.len() <= bytes.len());
    let _ = xmtp_identity::replay([&update], &xmtp_identity::NoSmartContractWallets);
}

/// The plaintext of a message.
pub(super) fn content(bytes: &[u8]) {
    let payload = decode_payload(&GroupId::from_bytes(GROUP), bytes);
    assert!(!format!("{payload:?}").is_empty());
}
