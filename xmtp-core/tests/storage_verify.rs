//! Each rule of `verify`, broken on its own, is found by its name.

use std::sync::Arc;

use prost::Message;
use xmtp_core::runtime::SimulatedRuntime;
use xmtp_core::storage::schema::{
    ATTEMPT, COUNTER, CounterName, DELIVERED, DISCOVERY, GROUP, HEAD, INTENT, INTENT_BY_GROUP,
    KIND_BUDGET, MESSAGE, MESSAGE_BY_GROUP, MESSAGE_ID, PENDING, REJECTION, TOPIC, WELCOME,
};
use xmtp_core::storage::{
    Database, Domain, Durability, Key, Layout, Raw, Read, StorageError, Table, WriteTxn, verify,
};
use xmtp_core::testing::memory::MemoryStorage;
use xmtp_proto::storage::v1::{
    Attempt, Counter, Delivered, GroupRecord, HeadState, Intent, IntentState, KindBudget,
    MessageNumbers, PendingEnvelope, StoredMessage, TopicRecord, WelcomeRetry,
};
use xmtp_proto::{GroupId, InstallationId, SequenceId, Topic, TopicKind};

type Done = Result<(), StorageError>;

const GROUP_ID: GroupId = GroupId::from_bytes([1; 16]);
const MESSAGE_KEY: [u8; 8] = [2; 8];
const PAYLOAD: [u8; 32] = [3; 32];

fn group() -> Topic {
    Topic::group(&GROUP_ID)
}

fn welcome() -> Topic {
    Topic::welcome(&InstallationId::from_bytes([4; 32]))
}

fn at(number: u64) -> SequenceId {
    SequenceId::checked(number).expect("in range")
}

fn envelope() -> PendingEnvelope {
    PendingEnvelope {
        server_ns: 9,
        ..PendingEnvelope::default()
    }
}

fn waiting(received: u64, processed: u64, rows: u32) -> TopicRecord {
    TopicRecord {
        received,
        processed,
        anchor: 0,
        pending_rows: rows,
        pending_bytes: u64::from(rows) * envelope().encoded_len() as u64,
        ..TopicRecord::default()
    }
}

fn budget(rows: u64) -> KindBudget {
    KindBudget {
        rows,
        bytes: rows * envelope().encoded_len() as u64,
    }
}

fn message(group: u8) -> StoredMessage {
    StoredMessage {
        group_id: vec![group; 16].into(),
        message_id: vec![2; 32].into(),
        ..StoredMessage::default()
    }
}

fn intent(number: u64, state: IntentState) -> Intent {
    Intent {
        intent_id: number,
        group_id: vec![1; 16].into(),
        state: state.into(),
        attempt: Some(Attempt {
            payload_hash: PAYLOAD.to_vec().into(),
            ..Attempt::default()
        }),
        ..Intent::default()
    }
}

/// One of everything, with every rule kept.
fn build(txn: &mut WriteTxn<'_>) -> Done {
    txn.put(TOPIC, &group(), &waiting(12, 10, 2))?;
    txn.put(TOPIC, &welcome(), &waiting(30, 0, 1))?;
    for (topic, number) in [(group(), 11), (group(), 12), (welcome(), 20)] {
        txn.put(PENDING, &(topic, at(number)), &envelope())?;
    }
    txn.put(KIND_BUDGET, &TopicKind::Group.byte(), &budget(2))?;
    txn.put(KIND_BUDGET, &TopicKind::Welcome.byte(), &budget(1))?;
    let head = HeadState {
        sequence_id: 11,
        ..HeadState::default()
    };
    txn.put(HEAD, &group(), &head)?;
    txn.put(REJECTION, &(group(), at(10)), &Default::default())?;
    txn.put(REJECTION, &(welcome(), at(30)), &Default::default())?;
    txn.put(WELCOME, &at(20), &WelcomeRetry::default())?;
    txn.put(GROUP, &GROUP_ID, &GroupRecord::default())?;
    txn.put(DISCOVERY, &at(19), &Raw(vec![1; 16]))?;
    let number = txn.take_number(CounterName::Delivery)?;
    assert_eq!(number, 1);
    txn.put(MESSAGE, &1, &message(1))?;
    txn.put(MESSAGE_BY_GROUP, &(GROUP_ID, 1), &Raw::default())?;
    let numbers = vec![1];
    txn.put(
        MESSAGE_ID,
        &(GROUP_ID, MESSAGE_KEY),
        &MessageNumbers { numbers },
    )?;
    txn.put(DELIVERED, &GROUP_ID, &Delivered { number: 1 })?;
    for (number, state) in [(1, IntentState::Prepared), (2, IntentState::Processed)] {
        assert_eq!(txn.take_number(CounterName::Intent)?, number);
        txn.put(INTENT, &number, &intent(number, state))?;
    }
    txn.put(INTENT_BY_GROUP, &(GROUP_ID, 1), &Raw::default())?;
    txn.put(ATTEMPT, &PAYLOAD, &Raw(1u64.to_bytes()))
}

fn built() -> Database {
    let runtime = Arc::new(SimulatedRuntime::new(1));
    let database = Database::open(MemoryStorage::new(), runtime).expect("open");
    let built = database.write(Durability::Ordered, build);
    built.expect("build");
    database
}

fn number(txn: &mut WriteTxn<'_>, name: CounterName, next: u64, ceiling: u64) -> Done {
    txn.put(COUNTER, &(name as u8), &Counter { next, ceiling })
}

/// Enough rows of one topic for several pages; the last one is beyond F.
fn many_pending(txn: &mut WriteTxn<'_>) -> Done {
    for number in 13..=613 {
        txn.put(PENDING, &(group(), at(number)), &envelope())?;
    }
    txn.put(TOPIC, &group(), &waiting(612, 10, 603))?;
    txn.put(KIND_BUDGET, &TopicKind::Group.byte(), &budget(603))
}

fn two_numbers(txn: &mut WriteTxn<'_>) -> Done {
    txn.put(MESSAGE, &2, &message(1))?;
    txn.put(MESSAGE_BY_GROUP, &(GROUP_ID, 2), &Raw::default())?;
    number(txn, CounterName::Delivery, 3, 10)?;
    let numbers = vec![1, 2];
    txn.put(
        MESSAGE_ID,
        &(GROUP_ID, MESSAGE_KEY),
        &MessageNumbers { numbers },
    )
}

/// How to break a rule, and the rules that it breaks.
type Break = (fn(&mut WriteTxn<'_>) -> Done, &'static [&'static str]);

const PROGRESS: &[Break] = &[
    (many_pending, &["pending <= F"]),
    (
        |txn| txn.put(TOPIC, &group(), &waiting(12, 13, 2)),
        &["pending > P", "pending > P", "P <= F"],
    ),
    (
        |txn| txn.put(TOPIC, &group(), &waiting(12, 11, 2)),
        &["pending > P"],
    ),
    (|txn| txn.put(TOPIC, &welcome(), &waiting(30, 25, 1)), &[]),
    (
        |txn| txn.put(TOPIC, &group(), &waiting(12, 10, 1)),
        &["topic counts = pending rows"],
    ),
    (
        |txn| {
            let record = TopicRecord {
                pending_bytes: 1,
                ..waiting(12, 10, 2)
            };
            txn.put(TOPIC, &group(), &record)
        },
        &["topic counts = pending rows"],
    ),
    (
        |txn| txn.put(KIND_BUDGET, &TopicKind::Group.byte(), &budget(3)),
        &["budget = pending rows"],
    ),
    (
        |txn| txn.delete(KIND_BUDGET, &TopicKind::Welcome.byte()),
        &["budget = pending rows"],
    ),
    (
        |txn| txn.put(KIND_BUDGET, &77, &budget(0)),
        &["budget = pending rows"],
    ),
    (
        |txn| {
            txn.put(
                HEAD,
                &welcome(),
                &HeadState {
                    sequence_id: 21,
                    ..Default::default()
                },
            )
        },
        &["head is pending"],
    ),
    (
        |txn| txn.put(REJECTION, &(group(), at(11)), &Default::default()),
        &["rejection is behind", "rejection is not pending"],
    ),
    (
        |txn| txn.put(REJECTION, &(welcome(), at(31)), &Default::default()),
        &["rejection is behind"],
    ),
    (
        |txn| txn.put(REJECTION, &(welcome(), at(20)), &Default::default()),
        &["rejection is not pending"],
    ),
    (
        |txn| txn.put(WELCOME, &at(12), &WelcomeRetry::default()),
        &["welcome is pending"],
    ),
    (
        |txn| txn.delete(GROUP, &GROUP_ID),
        &["discovery has a group"],
    ),
    (
        |txn| txn.put(DISCOVERY, &at(18), &Raw(vec![1])),
        &["discovery has a group"],
    ),
];

const MESSAGES: &[Break] = &[
    (
        |txn| number(txn, CounterName::Delivery, 11, 10),
        &["next <= ceiling"],
    ),
    (
        |txn| number(txn, CounterName::Delivery, 1, 10),
        &["message number < next", "D < next"],
    ),
    (
        |txn| txn.put(DELIVERED, &GROUP_ID, &Delivered { number: 2 }),
        &["D < next"],
    ),
    (
        |txn| txn.delete(MESSAGE_BY_GROUP, &(GROUP_ID, 1)),
        &["message is in its group's index"],
    ),
    (
        |txn| txn.delete(MESSAGE_ID, &(GROUP_ID, MESSAGE_KEY)),
        &["message is in the id index"],
    ),
    (
        |txn| txn.delete(MESSAGE, &1),
        &["group index has a message", "id index has a message"],
    ),
    (
        |txn| {
            txn.put(
                MESSAGE_BY_GROUP,
                &(GroupId::from_bytes([9; 16]), 1),
                &Raw::default(),
            )
        },
        &["group index has a message"],
    ),
    (
        |txn| {
            let numbers = MessageNumbers { numbers: vec![1] };
            txn.put(MESSAGE_ID, &(GROUP_ID, [7; 8]), &numbers)
        },
        &["id index has a message"],
    ),
    (
        |txn| txn.put(MESSAGE_ID, &(GROUP_ID, [7; 8]), &MessageNumbers::default()),
        &["id index has a message"],
    ),
    (two_numbers, &["one number for a message id"]),
    (
        |txn| txn.put(MESSAGE, &1, &StoredMessage::default()),
        &[
            "message has ids",
            "group index has a message",
            "id index has a message",
        ],
    ),
];

const OUTGOING: &[Break] = &[
    (
        |txn| number(txn, CounterName::Intent, 2, 10),
        &["intent number < next"],
    ),
    (
        |txn| txn.put(INTENT, &2, &intent(1, IntentState::Processed)),
        &["intent number < next"],
    ),
    (
        |txn| txn.delete(INTENT_BY_GROUP, &(GROUP_ID, 1)),
        &["intent is in its group's index"],
    ),
    (
        |txn| txn.put(INTENT_BY_GROUP, &(GROUP_ID, 2), &Raw::default()),
        &["group index has an unfinished intent"],
    ),
    (
        |txn| txn.delete(ATTEMPT, &PAYLOAD),
        &["attempt is in the payload index"],
    ),
    (
        |txn| txn.put(ATTEMPT, &[8; 32], &Raw(1u64.to_bytes())),
        &["attempt has an intent"],
    ),
    (
        |txn| txn.put(ATTEMPT, &[8; 32], &Raw(vec![1])),
        &["attempt has an intent"],
    ),
    (
        |txn| txn.delete(INTENT, &1),
        &[
            "group index has an unfinished intent",
            "attempt has an intent",
        ],
    ),
];

#[test]
fn one_of_everything_is_sound() {
    assert_eq!(verify::verify_database(&built()), Ok(()));
}

#[test]
fn each_rule_is_found_by_its_name() {
    for (case, (corrupt, rules)) in [PROGRESS, MESSAGES, OUTGOING].concat().iter().enumerate() {
        let database = built();
        let corrupted = database.write(Durability::Ordered, *corrupt);
        corrupted.expect("corrupt");
        let faults = verify::verify_database(&database).err().unwrap_or_default();
        let found: Vec<&str> = faults.iter().map(|fault| fault.rule).collect();
        assert_eq!(found, *rules, "case {case}: {faults:?}");
    }
}

/// A row that cannot be read is a fault, and so is a database that is closed.
#[test]
fn what_cannot_be_read_is_a_fault() {
    let database = built();
    let damaged: Table<Topic, Raw> =
        Table::new(TOPIC.info.id.0, "topic", Layout::Small, Domain::Progress);
    let corrupted = database.write(Durability::Ordered, |txn| {
        txn.put(damaged, &group(), &Raw(vec![0xff]))
    });
    let corrupted: Done = corrupted;
    corrupted.expect("corrupt");
    let faults = verify::verify_database(&database).expect_err("damaged");
    assert!(
        faults.iter().any(|fault| fault.rule == "readable"),
        "{faults:?}"
    );
    database.close().expect("close");
    let faults = verify::verify_database(&database).expect_err("closed");
    assert_eq!(faults[0].rule, "readable");
}

/// No fault tells the ids or payloads of the rows that it is about.
///
/// covers: EXT-007
#[test]
fn faults_carry_no_ids() {
    let group_hex = "01".repeat(4);
    for (corrupt, _) in [PROGRESS, MESSAGES, OUTGOING].concat() {
        let database = built();
        database
            .write(Durability::Ordered, corrupt)
            .expect("corrupt");
        for fault in verify::verify_database(&database).err().unwrap_or_default() {
            let text = format!("{fault} {fault:?}");
            let carries_bytes = text.contains(&group_hex) || text.contains("[1, 1,");
            assert!(!carries_bytes, "{text}");
        }
    }
}

/// The transaction that breaks a rule can look at itself before it commits.
#[test]
fn a_transaction_can_be_verified() {
    let database = built();
    let refused = database.write(Durability::Ordered, |txn| {
        txn.delete(HEAD, &group())?;
        assert_eq!(verify::verify(txn), Ok(()));
        txn.delete(GROUP, &GROUP_ID)?;
        match verify::verify(txn) {
            Ok(()) => Ok(()),
            Err(faults) => Err(StorageError::Invariant {
                rule: faults[0].rule,
            }),
        }
    });
    let rule = "discovery has a group";
    assert_eq!(refused, Err(StorageError::Invariant { rule }));
    let kept = database.read(|snapshot| snapshot.row(HEAD, &group()));
    let kept: Result<Option<HeadState>, StorageError> = kept;
    assert!(kept.expect("read").is_some());
}
