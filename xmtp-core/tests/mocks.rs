//! The mocks, each behind the part of core that calls its trait.

use std::sync::Arc;
use std::time::Duration;

use mockall::Sequence;
use xmtp_core::processing::{self, Left, Processors};
use xmtp_core::processor::{JoinAnchor, Joined, Verdict, identity_state, put_identity_state};
use xmtp_core::receipt;
use xmtp_core::runtime::{Runtime, RuntimeExt, SimulatedRuntime};
use xmtp_core::storage::{Database, Durability, StorageError, WriteTxn};
use xmtp_core::testing::memory::MemoryDisk;
use xmtp_core::testing::mock::{
    MockCandidate, MockGroupProcessor, MockIdentityProcessor, MockLane, MockRuntime, MockTransport,
    MockTurn, MockWelcomeProcessor,
};
use xmtp_core::testing::scripted::{
    INSTALLATION, group_envelope, identity_envelope, welcome_envelope,
};
use xmtp_core::transport::layer::Retry;
use xmtp_core::transport::{Transport, TransportError};
use xmtp_core::welcome::{self, CREATED_DURABILITY, WelcomeOutcome, install_created};
use xmtp_proto::backend::v1;
use xmtp_proto::backend::v1::message_hash::Hash;
use xmtp_proto::{GroupId, InboxId, SequenceId, Topic};

const GROUP: GroupId = GroupId::from_bytes([1; 16]);

/// Processors of which none expects a call.
fn unexpected() -> Processors {
    Processors {
        group: Arc::new(MockGroupProcessor::new()),
        identity: Arc::new(MockIdentityProcessor::new()),
        welcome: Arc::new(MockWelcomeProcessor::new()),
    }
}

fn database() -> Database {
    let runtime: Arc<dyn Runtime> = Arc::new(SimulatedRuntime::new(1));
    Database::open(MemoryDisk::new().open(), runtime).expect("it opens")
}

fn write<T>(
    database: &Database,
    f: impl FnOnce(&mut WriteTxn<'_>) -> Result<T, StorageError>,
) -> T {
    database
        .write(Durability::Ordered, f)
        .expect("it is written")
}

fn joined() -> Joined {
    Joined {
        record: Default::default(),
        messages: Vec::new(),
    }
}

/// Admits envelopes of one topic, with sequence ids from 1 on.
fn receive(database: &Database, topic: Topic, envelopes: Vec<v1::ClientEnvelope>) {
    let served = (1..).zip(envelopes).map(|(sequence_id, envelope)| {
        let hash = Hash::Sha256(vec![sequence_id as u8; 32].into());
        v1::ServerEnvelope {
            meta: Some(v1::EnvelopeMeta {
                cursor: Some(v1::Cursor { sequence_id }),
                server_ns: sequence_id,
                message_hash: Some(v1::MessageHash { hash: Some(hash) }),
                topic: Some(topic.to_proto()),
                ..Default::default()
            }),
            envelope: Some(envelope),
        }
    });
    let batch = receipt::check(topic, SequenceId::ZERO, served.collect()).expect("in order");
    let admit = |txn: &mut WriteTxn<'_>| receipt::admit(txn, &batch);
    let admitted = database.write(Durability::Ordered, admit);
    assert_eq!(admitted.expect("it fits").left_out, None);
}

#[test]
fn a_turn_loads_its_group_once_and_flushes() {
    let database = database();
    let install = |txn: &mut WriteTxn<'_>| install_created(txn, GROUP, joined());
    let installed: Result<_, StorageError> = database.write(CREATED_DURABILITY, install);
    installed.expect("it is written");
    let texts = ["one", "two"].map(|text| group_envelope(&GROUP, text));
    receive(&database, Topic::group(&GROUP), texts.to_vec());
    let mut group = MockGroupProcessor::new();
    group.expect_turn().times(1).returning(|_, _| {
        let mut turn = MockTurn::new();
        let applied = |_: &mut WriteTxn<'_>, _: &_| Ok(Verdict::Applied(Box::default()));
        turn.expect_is_application().return_const(true);
        turn.expect_apply().times(2).returning(applied);
        turn.expect_flush().times(1..).returning(|_| Ok(()));
        Ok(Box::new(turn))
    });
    let processors = Processors {
        group: Arc::new(group),
        ..unexpected()
    };
    let report = write(&database, |txn| {
        processing::turn(txn, &Topic::group(&GROUP), &processors, false)
    });
    assert_eq!((report.handled, report.left), (2, Left::Nothing));
}

#[test]
fn an_identity_update_reaches_its_processor_with_its_inbox() {
    let database = database();
    let inbox = InboxId::from_bytes([2; 32]);
    let topic = Topic::identity(&inbox);
    receive(&database, topic, vec![identity_envelope(&inbox, 1)]);
    let mut identity = MockIdentityProcessor::new();
    identity
        .expect_apply()
        .times(1)
        .withf(move |_, found, _| *found == inbox)
        .returning(|txn, inbox, item| {
            put_identity_state(txn, inbox, item.sequence_id, b"state")?;
            Ok(Verdict::Applied(Box::default()))
        });
    let processors = Processors {
        identity: Arc::new(identity),
        ..unexpected()
    };
    write(&database, |txn| {
        processing::turn(txn, &topic, &processors, false)?;
        let state = identity_state(txn, &inbox, SequenceId::saturating(1))?;
        assert_eq!(state.as_deref(), Some(&b"state"[..]));
        Ok(())
    });
}

#[test]
fn a_welcome_is_inspected_and_then_installed() {
    let database = database();
    let topic = Topic::welcome(&INSTALLATION);
    let envelope = welcome_envelope(&INSTALLATION, "a Welcome");
    receive(&database, topic, vec![envelope]);
    let mut welcome = MockWelcomeProcessor::new();
    welcome
        .expect_inspect()
        .times(1)
        .returning(|_, _, pointee| {
            assert!(pointee.is_none());
            let mut candidate = MockCandidate::new();
            candidate.expect_anchor().return_const(JoinAnchor {
                group: GROUP,
                epoch: 0,
                anchor: SequenceId::ZERO,
            });
            candidate
                .expect_install()
                .times(1)
                .returning(|_| Ok(joined()));
            Ok(Ok(Box::new(candidate)))
        });
    let processors = Processors {
        welcome: Arc::new(welcome),
        ..unexpected()
    };
    let outcome = write(&database, |txn| {
        welcome::attempt(txn, &topic, SequenceId::saturating(1), &processors, false)
    });
    assert_eq!(outcome, WelcomeOutcome::Joined(GROUP));
}

/// The pause that the mocked backend asks for.
const ASKED: Duration = Duration::from_secs(7);

#[test]
fn a_read_is_repeated_and_a_publish_is_not() {
    let unavailable = || TransportError::Unavailable {
        detail: "mocked".to_owned(),
        retry_after: Some(ASKED),
    };
    let mut wire = MockTransport::new();
    let mut order = Sequence::new();
    let failing = move |_| Err(unavailable());
    wire.expect_publish()
        .times(1)
        .in_sequence(&mut order)
        .returning(move |_| Err(unavailable()));
    wire.expect_query()
        .times(2)
        .in_sequence(&mut order)
        .returning(failing);
    wire.expect_query()
        .times(1)
        .in_sequence(&mut order)
        .returning(|_| Ok(Default::default()));
    let runtime = SimulatedRuntime::new(1);
    let retrying = Retry::new(Box::new(wire), Arc::new(runtime.clone()));
    runtime.clone().run(async move {
        let began = runtime.monotonic();
        let published = retrying.publish(Default::default()).await;
        assert_eq!(published, Err(unavailable()));
        let read = retrying.query(Default::default()).await;
        assert_eq!(read, Ok(Default::default()));
        let paused = runtime.monotonic() - began;
        assert!(paused >= ASKED * 2, "the backend's pauses are kept");
    });
}

#[test]
fn a_database_takes_time_and_randomness_from_its_runtime() {
    let mut runtime = MockRuntime::new();
    runtime.expect_now_ns().return_const(7_u64);
    runtime.expect_monotonic().return_const(Duration::ZERO);
    runtime
        .expect_lane()
        .times(1)
        .returning(|_| Arc::new(MockLane::new()));
    runtime.expect_fill().returning(|buffer| buffer.fill(9));
    let database = Database::open(MemoryDisk::new().open(), Arc::new(runtime));
    write(&database.expect("it opens"), |txn| {
        assert_eq!(txn.now_ns(), 7);
        assert_eq!(txn.runtime().random::<4>(), [9; 4]);
        Ok(())
    });
}
