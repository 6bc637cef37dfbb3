//! The statements of a publish, and the keys of the locks that transactions take by number.

/// Held shared by every publish until it ends, alone by whoever closes the boundary.
pub(super) const BARRIER: i64 = 0x584D_5450_0001;
/// Held by every publish with an identity update until it ends.
pub(super) const IDENTITY: i64 = 0x584D_5450_0002;
/// Held by the one server that tries for the barrier.
pub(super) const BOUNDARY_TURN: i64 = 0x584D_5450_0003;
/// Held by the one server that prunes.
pub(super) const PRUNE_TURN: i64 = 0x584D_5450_0005;
/// Held while tables are created or changed.
pub(super) const MIGRATION: i64 = 0x584D_5450_0004;

pub(super) const LOCK: &str = "SELECT pg_advisory_xact_lock($1)";
pub(super) const LOCK_SHARED: &str = "SELECT pg_advisory_xact_lock_shared($1)";
pub(super) const TRY_LOCK: &str = "SELECT pg_try_advisory_xact_lock($1)";

/// Reads the clock of the database in nanoseconds since 1970. Whoever runs it after its locks gets one
/// reading that is late.
pub(super) const NOW: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint";

/// Creates the rows that a publish is about to lock, in the order of their bytes.
pub(super) const OPEN_HEADS: &str = "
INSERT INTO topic_head (topic, last_sequence_id)
SELECT given.topic, 0 FROM unnest($1::bytea[]) AS given (topic) ORDER BY given.topic
ON CONFLICT DO NOTHING";

/// Locks them, in the same order.
pub(super) const LOCK_HEADS: &str = "
SELECT topic, last_sequence_id FROM topic_head
WHERE topic = ANY ($1::bytea[]) ORDER BY topic FOR UPDATE";

/// Finds what is stored of the given keys.
pub(super) const STORED: &str = "
SELECT e.sequence_id, e.topic, e.message_hash, e.server_ns, e.expiry_ns, e.is_commit_or_proposal
FROM unnest($1::bytea[], $2::bytea[]) AS given (topic, message_hash)
CROSS JOIN LATERAL (
    SELECT * FROM envelope
    WHERE envelope.topic = given.topic AND envelope.message_hash = given.message_hash
    LIMIT 1
) AS e";

/// Counts the updates of inboxes.
pub(super) const COUNT_ENTRIES: &str = "
SELECT topic, count(*) FROM envelope WHERE topic = ANY ($1::bytea[]) GROUP BY topic";

/// Takes ids and stores the new rows.
pub(super) const ALLOCATE: &str = include_str!("allocate.sql");

/// Moves the heads of the given topics forward, never back.
pub(super) const RAISE_HEADS: &str = "
UPDATE topic_head SET last_sequence_id = new.last_sequence_id
FROM (
    SELECT e.topic, max(e.sequence_id) AS last_sequence_id
    FROM unnest($1::bytea[], $2::bytea[]) AS given (topic, message_hash)
    JOIN envelope AS e ON e.topic = given.topic AND e.message_hash = given.message_hash
    GROUP BY e.topic
) AS new
WHERE topic_head.topic = new.topic AND topic_head.last_sequence_id < new.last_sequence_id";

/// Associates identifiers; a record only ever gives way to a later one.
pub(super) const ASSOCIATE: &str = "
INSERT INTO identifier_association AS old
    (identifier, identifier_kind, inbox_id, association_sequence_id)
SELECT given.identifier, given.kind, given.inbox_id, e.sequence_id
FROM unnest($1::text[], $2::smallint[], $3::bytea[], $4::bytea[], $5::bytea[])
    AS given (identifier, kind, inbox_id, topic, message_hash)
JOIN envelope AS e ON e.topic = given.topic AND e.message_hash = given.message_hash
ON CONFLICT (identifier, identifier_kind, inbox_id) DO UPDATE
SET association_sequence_id = excluded.association_sequence_id, revocation_sequence_id = NULL
WHERE old.association_sequence_id < excluded.association_sequence_id";

/// Revokes identifiers.
pub(super) const REVOKE: &str = "
UPDATE identifier_association AS old SET revocation_sequence_id = e.sequence_id
FROM unnest($1::text[], $2::smallint[], $3::bytea[], $4::bytea[], $5::bytea[])
    AS given (identifier, kind, inbox_id, topic, message_hash)
JOIN envelope AS e ON e.topic = given.topic AND e.message_hash = given.message_hash
WHERE old.identifier = given.identifier AND old.identifier_kind = given.kind
    AND old.inbox_id = given.inbox_id AND old.association_sequence_id <= e.sequence_id";
