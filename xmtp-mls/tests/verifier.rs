//! Identity updates that only a chain could verify, while there is no way to ask it.

use std::sync::Arc;

use xmtp_core::processing::{self, Left, TurnReport};
use xmtp_core::processor::identity_state;
use xmtp_core::receipt::{admit, check};
use xmtp_core::runtime::{Runtime, SimulatedRuntime};
use xmtp_core::storage::{
    All, Database, Durability, Order, Page, Read, Snapshot, StorageError, WriteTxn, schema, verify,
};
use xmtp_core::testing::memory::MemoryDisk;
use xmtp_identity::{
    AccountId, Identifier, InstallationKey, LocalWallet, SignatureKind, UpdateBuilder,
};
use xmtp_mls::Installation;
use xmtp_mls::processor::MlsProcessor;
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::backend::v1::message_hash::Hash;
use xmtp_proto::backend::v1::{ClientEnvelope, Cursor, EnvelopeMeta, MessageHash, ServerEnvelope};
use xmtp_proto::identity::{IdentityUpdate, Signature, SmartContractWalletSignature};
use xmtp_proto::storage::v1::HeadKind;
use xmtp_proto::{InboxId, SequenceId, Topic};

const CHAIN: u64 = 8453;
/// The place of every update in the order of its inbox.
const AT: u64 = 3;

/// Makes an inbox with one installation; `sign` signs for its first identifier.
fn inbox(
    first: Identifier,
    seed: u8,
    sign: impl FnOnce(&str) -> Signature,
) -> (InboxId, IdentityUpdate) {
    let key = InstallationKey::from_seed(&[seed; 32]);
    let builder = UpdateBuilder::create_inbox(first, 1).add_installation(key.id());
    let inbox = builder.inbox_id();
    let unsigned = builder.build(1_000_000_000).expect("an update");
    let text = unsigned.signature_text().to_owned();
    let by_key = key.sign_text(&text).expect("a signature");
    let signed = unsigned
        .with_signature(sign(&text))
        .and_then(|unsigned| unsigned.with_signature(by_key))
        .and_then(xmtp_identity::UnsignedUpdate::finish);
    (inbox, signed.expect("it is signed"))
}

/// An inbox whose first identifier is a contract wallet.
fn of_a_contract() -> (InboxId, IdentityUpdate) {
    let address = Identifier::ethereum_bytes([7; 20]);
    let account = AccountId::new(CHAIN, address.clone()).expect("an account");
    inbox(address, 1, |_| Signature {
        signature: Some(SignatureKind::Erc6492(SmartContractWalletSignature {
            account_id: account.text(),
            block_number: 7,
            signature: vec![9; 65].into(),
        })),
    })
}

/// An inbox whose first identifier is a key.
fn of_a_key() -> (InboxId, IdentityUpdate) {
    let wallet = LocalWallet::from_secret(&[8; 32]).expect("a secret");
    let first = wallet.identifier().clone();
    inbox(first, 2, |text| wallet.sign_text(text).expect("signed"))
}

struct Process {
    clock: xmtp_core::runtime::SimulatedClock,
    runtime: Arc<dyn Runtime>,
    database: Database,
    processors: processing::Processors,
}

impl Process {
    fn start() -> Self {
        let simulated = SimulatedRuntime::new(1);
        let clock = simulated.clock();
        let runtime: Arc<dyn Runtime> = Arc::new(simulated);
        let database = Database::open(MemoryDisk::new().open(), runtime.clone());
        let installation = Installation::from_seed(&[5; 32], InboxId::from_bytes([5; 32]));
        Self {
            clock,
            runtime,
            database: database.expect("it opens"),
            processors: MlsProcessor::new(Arc::new(installation)).processors(),
        }
    }

    fn read<T>(&self, f: impl FnOnce(&dyn Snapshot) -> Result<T, StorageError>) -> T {
        self.database.read(f).expect("it is read")
    }

    /// Receives an update as the first of its inbox.
    fn receive(&self, topic: Topic, update: IdentityUpdate) {
        let envelope = ServerEnvelope {
            meta: Some(EnvelopeMeta {
                cursor: Some(Cursor { sequence_id: AT }),
                message_hash: Some(MessageHash {
                    hash: Some(Hash::Sha256(vec![1; 32].into())),
                }),
                topic: Some(topic.to_proto()),
                ..Default::default()
            }),
            envelope: Some(ClientEnvelope {
                payload: Some(Payload::IdentityUpdate(update)),
            }),
        };
        let batch = check(topic, SequenceId::ZERO, vec![envelope]).expect("in order");
        let admitted = self
            .database
            .write(Durability::Ordered, |txn| admit(txn, &batch));
        assert_eq!(admitted.expect("it fits").new, 1);
    }

    fn turn(&self, topic: &Topic) -> TurnReport {
        let turn = |txn: &mut WriteTxn<'_>| processing::turn(txn, topic, &self.processors, false);
        self.database
            .write(Durability::Ordered, turn)
            .expect("a turn")
    }
}

/// An update that only a chain could verify is tried again, after pauses that grow, for as long as
/// there is no way to ask: it is neither rejected nor blocked, no state stands in for it, and other
/// inboxes go on.
///
/// covers: CFG-097, STR-074
#[test]
fn a_missing_route_is_tried_again_and_never_a_verdict() {
    let process = Process::start();
    let (inbox, update) = of_a_contract();
    let topic = Topic::identity(&inbox);
    process.receive(topic, update);
    let mut pauses = Vec::new();
    for attempts in 1..=12 {
        let report = process.turn(&topic);
        assert_eq!((report.handled, report.left), (0, Left::Stopped));
        let head = process.read(|snapshot| snapshot.row(schema::HEAD, &topic));
        let head = head.expect("it stays");
        assert_eq!(head.kind(), HeadKind::Retry);
        assert_eq!(
            (head.code.as_str(), head.attempts),
            ("dependency", attempts)
        );
        let pause = head.not_before_ns - process.runtime.now_ns();
        pauses.push(pause);
        process
            .clock
            .advance(std::time::Duration::from_nanos(pause));
    }
    assert!(pauses.is_sorted() && pauses[0] < pauses[5], "{pauses:?}");
    let record = process.read(|snapshot| snapshot.row(schema::TOPIC, &topic));
    let record = record.expect("positions");
    assert_eq!(
        (record.received, record.processed, record.pending_rows),
        (AT, 0, 1)
    );
    let page = Page {
        rows: 10,
        bytes: u32::MAX,
        order: Order::Ascending,
    };
    let rejections = process.read(|snapshot| snapshot.page(schema::REJECTION, &All, None, page));
    assert!(rejections.rows.is_empty());
    let state = |inbox: &InboxId| {
        process.read(|snapshot| identity_state(snapshot, inbox, SequenceId::saturating(AT)))
    };
    assert_eq!(state(&inbox), None);

    let (other, update) = of_a_key();
    process.receive(Topic::identity(&other), update);
    assert_eq!(process.turn(&Topic::identity(&other)).handled, 1);
    assert!(state(&other).is_some());
    assert_eq!(verify::verify_database(&process.database), Ok(()));
}
