//! Every table of a database: name, key and value types, layout, and who writes it.
//!
//! | position | where |
//! | --- | --- |
//! | F received, P processed | [`TOPIC`] |
//! | D delivered | [`DELIVERED`] |
//! | H target | nowhere: it belongs to one registration or one operation |
//!
//! Only this file and the `store.rs` of each room name a table. Numbers are never reused.

use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{GroupId, InboxId, SequenceId, Topic};

use super::table::{Domain, Layout, Raw, Table, TableInfo};

pub use super::key::All;

/// The schema this build writes; a database with a greater one is refused (EXT-003).
pub const SCHEMA_VERSION: u32 = 1;

/// The key of a table that holds one row.
pub type One = ();

/// The owner, label and sub key of an openmls entity.
pub type MlsKey = (Vec<u8>, (u8, Vec<u8>));

// The database itself (`storage`).

/// Identity and schema version.
pub const DATABASE: Table<One, stored::DatabaseRecord> =
    Table::new(1, "database", Layout::Small, Domain::Database);
/// The revision and changed domains of the last commit.
pub const REVISION: Table<One, stored::Revision> =
    Table::new(2, "revision", Layout::Small, Domain::Database);
/// Counters that never give a number twice, by name.
pub const COUNTER: Table<u8, stored::Counter> =
    Table::new(3, "counter", Layout::Small, Domain::Database);

// Receipt and processing (`receipt`, `processing`).

/// F, P, the join anchor, and what waits, by topic.
pub const TOPIC: Table<Topic, stored::TopicRecord> =
    Table::new(10, "topic", Layout::Small, Domain::Progress);
/// What waits over all topics of a kind, by kind byte (STR-066).
pub const KIND_BUDGET: Table<u8, stored::KindBudget> =
    Table::new(11, "kind_budget", Layout::Small, Domain::Progress);
/// Received envelopes that are not handled yet.
pub const PENDING: Table<(Topic, SequenceId), stored::PendingEnvelope> =
    Table::new(12, "pending", Layout::Large, Domain::Progress);
/// Why the head of a topic is not handled yet.
pub const HEAD: Table<Topic, stored::HeadState> =
    Table::new(13, "head", Layout::Small, Domain::Progress);
/// Terminal rejections (STR-074).
pub const REJECTION: Table<(Topic, SequenceId), stored::Rejection> =
    Table::new(14, "rejection", Layout::Small, Domain::Progress);
/// Every proposal reference a group's prefix carried, by epoch: tells "never carried" from "lost".
pub const PROPOSAL: Table<(GroupId, (u64, Vec<u8>)), Raw> =
    Table::new(15, "proposal", Layout::Small, Domain::Progress);

// Identity (`processing`).

/// The verified association state of an inbox at exactly one sequence id (STR-076).
pub const IDENTITY_STATE: Table<(InboxId, SequenceId), Raw> =
    Table::new(20, "identity_state", Layout::Large, Domain::Identity);
/// The own account.
pub const ACCOUNT: Table<One, stored::AccountRecord> =
    Table::new(21, "account", Layout::Small, Domain::Identity);

// Welcomes and groups (`welcome`).

/// Retry state of unresolved Welcomes, by sequence id.
pub const WELCOME: Table<SequenceId, stored::WelcomeRetry> =
    Table::new(30, "welcome", Layout::Small, Domain::Welcomes);
/// The groups of this installation.
pub const GROUP: Table<GroupId, stored::GroupRecord> =
    Table::new(31, "group_record", Layout::Small, Domain::Groups);
/// The group that a Welcome led to, by the Welcome's sequence id (STR-085).
pub const DISCOVERY: Table<SequenceId, Raw> =
    Table::new(32, "discovery", Layout::Small, Domain::Groups);

// Messages and delivery (`delivery`).

/// Deliverable messages by delivery number.
pub const MESSAGE: Table<u64, stored::StoredMessage> =
    Table::new(40, "message", Layout::Numbered, Domain::Messages);
/// Delivery numbers by group and the first eight bytes of the message id.
pub const MESSAGE_ID: Table<(GroupId, [u8; 8]), stored::MessageNumbers> =
    Table::new(41, "message_id", Layout::Small, Domain::Messages);
/// Delivery numbers by group.
pub const MESSAGE_BY_GROUP: Table<(GroupId, u64), Raw> =
    Table::new(42, "message_by_group", Layout::Small, Domain::Messages);
/// D, by group.
pub const DELIVERED: Table<GroupId, stored::Delivered> =
    Table::new(43, "delivered", Layout::Small, Domain::Delivery);
/// The owner of the default consumer (STR-096).
pub const LEASE: Table<One, stored::Lease> =
    Table::new(44, "lease", Layout::Small, Domain::Delivery);

// Sending (`send`).

/// Outgoing intents with their current attempt, by intent number.
pub const INTENT: Table<u64, stored::Intent> =
    Table::new(50, "intent", Layout::Numbered, Domain::Outgoing);
/// Unfinished intents of a group, in order.
pub const INTENT_BY_GROUP: Table<(GroupId, u64), Raw> =
    Table::new(51, "intent_by_group", Layout::Small, Domain::Outgoing);
/// The intent whose current attempt has this payload identity (STR-113).
pub const ATTEMPT: Table<[u8; 32], Raw> =
    Table::new(52, "attempt", Layout::Small, Domain::Outgoing);

// Processors.

/// openmls entities by owner, label and sub key.
pub const MLS: Table<MlsKey, Raw> = Table::new(60, "mls", Layout::Large, Domain::Mls);
/// Key packages by hash reference.
pub const KEY_PACKAGE: Table<Vec<u8>, stored::KeyPackageRecord> =
    Table::new(61, "key_package", Layout::Large, Domain::Mls);

// Configuration (`config`).

/// The stored server configuration (spec 006).
pub const CONFIGURATION: Table<One, stored::ConfigurationRecord> =
    Table::new(70, "configuration", Layout::Small, Domain::Configuration);

/// Names of counters in [`COUNTER`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CounterName {
    /// Delivery numbers (STR-090).
    Delivery = 1,
    /// Intent numbers.
    Intent = 2,
}

/// Every table, in the order of its number.
pub const TABLES: &[TableInfo] = &[
    DATABASE.info,
    REVISION.info,
    COUNTER.info,
    TOPIC.info,
    KIND_BUDGET.info,
    PENDING.info,
    HEAD.info,
    REJECTION.info,
    PROPOSAL.info,
    IDENTITY_STATE.info,
    ACCOUNT.info,
    WELCOME.info,
    GROUP.info,
    DISCOVERY.info,
    MESSAGE.info,
    MESSAGE_ID.info,
    MESSAGE_BY_GROUP.info,
    DELIVERED.info,
    LEASE.info,
    INTENT.info,
    INTENT_BY_GROUP.info,
    ATTEMPT.info,
    MLS.info,
    KEY_PACKAGE.info,
    CONFIGURATION.info,
];
