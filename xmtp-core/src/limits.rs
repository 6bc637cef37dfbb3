//! The client's internal limits (STR-066, STR-079): each a named constant with its unit and
//! reason. None of them is an application setting. Relations are checked at compile time.

use std::time::Duration;

use xmtp_proto::TopicKind;
use xmtp_proto::limits::BACKEND_DEFAULT_MAX_ENVELOPE_BYTES;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// Most envelopes of one admission batch; one transaction.
pub const MAX_ADMISSION_ROWS: usize = 256;
/// Most stored bytes of one admission batch; a ceiling that fits any legal envelope.
pub const MAX_ADMISSION_BYTES: u64 = 32 * MIB;
/// Stored bytes that a turn aims at, because every acknowledgement waits behind the writer.
pub const TURN_TARGET_BYTES: u64 = 4 * MIB;
/// Time that a turn aims at, for the same reason.
pub const TURN_TARGET_TIME: Duration = Duration::from_millis(20);
/// Time that a turn has once its group is loaded, however long that took: on a slow machine,
/// loading the same group again and again would be most of the work.
pub const TURN_LEAST_TIME: Duration = Duration::from_millis(10);

/// Most fetched envelopes that wait in memory, over all topics.
pub const MAX_FETCHED_ROWS: usize = 256;
/// Most fetched bytes that wait in memory, over all topics.
pub const MAX_FETCHED_BYTES: u64 = 32 * MIB;

/// Most pending envelopes of one topic.
pub const MAX_PENDING_ROWS_PER_TOPIC: u64 = 1_024;
/// Most pending bytes of one topic: a quarter of the group budget, so one topic never fills it.
pub const MAX_PENDING_BYTES_PER_TOPIC: u64 = 32 * MIB;

/// Most pending envelopes of a kind, over its topics.
pub const fn max_pending_rows(kind: TopicKind) -> u64 {
    match kind {
        TopicKind::Welcome => 1_024,
        TopicKind::Identity => 4_096,
        TopicKind::Group | TopicKind::KeyPackage | TopicKind::CommitLog => 8_192,
    }
}

/// Most pending bytes of a kind, over its topics.
pub const fn max_pending_bytes(kind: TopicKind) -> u64 {
    match kind {
        TopicKind::Welcome => 64 * MIB,
        TopicKind::Identity => 32 * MIB,
        TopicKind::Group | TopicKind::KeyPackage | TopicKind::CommitLog => 128 * MIB,
    }
}

/// Most dependency requests under way in one process.
pub const MAX_DEPENDENCY_REQUESTS: usize = 8;
/// Most dependencies of one pending envelope that are asked for in one round, so that one that
/// lists many keeps no other waiting.
pub const MAX_DEPENDENCIES_PER_PARENT: usize = 64;

/// Most rows of one local reader's batch.
pub const MAX_LOCAL_READ_ROWS: u32 = 128;
/// Most bytes of one local reader's batch.
pub const MAX_LOCAL_READ_BYTES: u32 = 16 * MIB as u32;

/// How long a send waits for a healthy receiver before it queries itself (STR-114).
pub const RECEIVER_FALLBACK_INTERVAL: Duration = Duration::from_secs(1);
/// Longest pause between fresh database checks of anything that waits (STR-078).
pub const ACTIVE_DATABASE_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// How long an acquisition or renewal of the default consumer lasts (STR-096).
pub const DEFAULT_CONSUMER_LEASE_DURATION: Duration = Duration::from_secs(30);
/// How often an active default consumer renews.
pub const DEFAULT_CONSUMER_RENEWAL: Duration = Duration::from_secs(10);
/// Healthy time after which an absent identity update is permanently absent (STR-076).
pub const IDENTITY_REFERENCE_WAIT: Duration = Duration::from_secs(30);
/// Pause between reads of an absent identity update.
pub const IDENTITY_RETRY_PAUSE: Duration = Duration::from_millis(500);
/// The backend's statement timeout that the identity wait has to exceed.
pub const BACKEND_STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a sync or send waits when the caller gives no timeout.
pub const DEFAULT_BARRIER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long one request may take.
pub const STANDARD_REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// How long an unsupported Welcome is kept (STR-115).
pub const WELCOME_RETENTION: Duration = Duration::from_secs(86_400);
/// How long a Welcome is kept that opens, but asks for a newer version of this software.
pub const WELCOME_UPGRADE_RETENTION: Duration = Duration::from_secs(7 * 86_400);
/// How long a pointer Welcome waits for its pointee, from the pointer's server time (STR-081).
pub const WELCOME_POINTER_WINDOW: Duration = Duration::from_secs(3 * 86_400);
/// First pause before a pointee is asked for again.
pub const WELCOME_POINTER_FIRST_PAUSE: Duration = Duration::from_secs(300);
/// Longest pause before a pointee is asked for again.
pub const WELCOME_POINTER_LONGEST_PAUSE: Duration = Duration::from_secs(7_200);
/// How long after its first read an expired pointer still waits for room for its pointee: longer
/// than what is read along with it and cannot be opened is kept.
pub const WELCOME_ROOM_WAIT: Duration = Duration::from_secs(2 * 86_400);
/// How often blocked Welcomes are looked at again.
pub const WELCOME_RECHECK_INTERVAL: Duration = Duration::from_secs(3_600);

/// Ids between two fences of a restored backend: what comes from another block than what was
/// received before may come from another history.
pub const BACKEND_FENCE_IDS: u64 = 1 << 32;
/// How much earlier than its expiry an envelope may be gone from the backend, by a clock that is
/// not the backend's.
pub const EXPIRY_MARGIN: Duration = Duration::from_secs(86_400);

/// First pause before a head is tried again after a local failure.
pub const RETRY_FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause before a head is tried again.
pub const RETRY_LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// The longest pause that a backend may ask for before a call is made again.
pub const ASKED_PAUSE_MAX: Duration = Duration::from_secs(30);

/// First pause before a subscription reconnects.
pub const RECONNECT_FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause before a subscription reconnects, jitter excluded.
pub const RECONNECT_LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Time of stable service after which the reconnect pause starts small again.
pub const RECONNECT_STABLE: Duration = Duration::from_secs(30);
/// Keepalive interval when the backend states none.
pub const DEFAULT_KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// Keepalive intervals without any frame after which a subscription is dead.
pub const SILENT_INTERVALS: u32 = 3;
/// Frames that wait between a subscription's transport and its session.
pub const SUBSCRIPTION_FRAMES: usize = 16;

/// First pause between tries of one publish.
pub const PUBLISH_FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause between tries of one publish.
pub const PUBLISH_LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Epochs whose messages are still read after they ended (public value).
pub const PAST_EPOCHS: usize = 3;

/// Largest time span that every platform timer takes, in milliseconds.
const LONGEST_TIMER_MS: u128 = i32::MAX as u128;

const _: () = {
    assert!(MAX_ADMISSION_ROWS > 0 && MAX_FETCHED_ROWS > 0 && MAX_LOCAL_READ_ROWS > 0);
    assert!(TURN_LEAST_TIME.as_millis() < TURN_TARGET_TIME.as_millis());
    assert!(MAX_ADMISSION_BYTES > BACKEND_DEFAULT_MAX_ENVELOPE_BYTES);
    assert!(MAX_FETCHED_BYTES > BACKEND_DEFAULT_MAX_ENVELOPE_BYTES);
    assert!(MAX_PENDING_BYTES_PER_TOPIC > BACKEND_DEFAULT_MAX_ENVELOPE_BYTES);
    assert!(MAX_LOCAL_READ_BYTES as u64 > BACKEND_DEFAULT_MAX_ENVELOPE_BYTES);
    assert!(max_pending_bytes(TopicKind::Group) >= 4 * MAX_PENDING_BYTES_PER_TOPIC);
    assert!(max_pending_bytes(TopicKind::Welcome) > BACKEND_DEFAULT_MAX_ENVELOPE_BYTES);
    assert!(max_pending_bytes(TopicKind::Identity) > BACKEND_DEFAULT_MAX_ENVELOPE_BYTES);
    assert!(
        ACTIVE_DATABASE_POLL_INTERVAL.as_millis() < DEFAULT_CONSUMER_LEASE_DURATION.as_millis()
    );
    assert!(DEFAULT_CONSUMER_RENEWAL.as_millis() < DEFAULT_CONSUMER_LEASE_DURATION.as_millis());
    assert!(IDENTITY_REFERENCE_WAIT.as_millis() > BACKEND_STATEMENT_TIMEOUT.as_millis());
    assert!(RETRY_FIRST_PAUSE.as_millis() <= RETRY_LONGEST_PAUSE.as_millis());
    assert!(RECONNECT_FIRST_PAUSE.as_millis() <= RECONNECT_LONGEST_PAUSE.as_millis());
    assert!(WELCOME_POINTER_WINDOW.as_millis() < LONGEST_TIMER_MS);
    assert!(WELCOME_UPGRADE_RETENTION.as_millis() < LONGEST_TIMER_MS);
    assert!(WELCOME_RETENTION.as_millis() < WELCOME_UPGRADE_RETENTION.as_millis());
    assert!(WELCOME_RETENTION.as_millis() < WELCOME_ROOM_WAIT.as_millis());
    assert!(WELCOME_RECHECK_INTERVAL.as_millis() < WELCOME_RETENTION.as_millis());
    assert!(WELCOME_POINTER_FIRST_PAUSE.as_millis() <= WELCOME_POINTER_LONGEST_PAUSE.as_millis());
};
