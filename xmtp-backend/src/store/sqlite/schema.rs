//! The tables, and the marks by which a database is known as ours.

/// Marks a database as this store's: "XMTB" in ASCII.
pub(super) const APPLICATION_ID: i32 = 0x584D_5442;

/// The version of the tables that this build writes and reads.
pub(super) const SCHEMA_VERSION: i32 = 1;

/// Creates the tables of [`SCHEMA_VERSION`] in an empty database.
///
/// - `sequence.last_sequence_id` is the greatest id ever given, so that pruning cannot bring an id
///   back.
/// - Rows of `topic_head` are never deleted.
/// - `encoded_len` lets a page be measured before its payloads are read; the index on topics
///   carries it.
pub(super) const CREATE: &str = "
CREATE TABLE deployment (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    identifier TEXT NOT NULL,
    created_ns INTEGER NOT NULL
) STRICT;

CREATE TABLE sequence (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    last_sequence_id INTEGER NOT NULL CHECK (last_sequence_id >= 0)
) STRICT;
INSERT INTO sequence VALUES (1, 0);

CREATE TABLE envelope (
    sequence_id INTEGER PRIMARY KEY CHECK (sequence_id > 0),
    topic BLOB NOT NULL CHECK (length(topic) BETWEEN 1 AND 128),
    server_ns INTEGER NOT NULL,
    expiry_ns INTEGER,
    message_hash BLOB NOT NULL CHECK (length(message_hash) = 32),
    is_commit_or_proposal INTEGER NOT NULL CHECK (is_commit_or_proposal IN (0, 1)),
    encoded_len INTEGER NOT NULL,
    payload BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX envelope_topic ON envelope (topic, sequence_id, encoded_len);
CREATE UNIQUE INDEX envelope_key ON envelope (topic, message_hash);
CREATE INDEX envelope_expiry ON envelope (expiry_ns) WHERE expiry_ns IS NOT NULL;

CREATE TABLE topic_head (
    topic BLOB PRIMARY KEY,
    last_sequence_id INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE identifier_association (
    identifier TEXT NOT NULL,
    identifier_kind INTEGER NOT NULL,
    inbox_id BLOB NOT NULL CHECK (length(inbox_id) = 32),
    association_sequence_id INTEGER NOT NULL,
    revocation_sequence_id INTEGER,
    PRIMARY KEY (identifier, identifier_kind, inbox_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX identifier_live
    ON identifier_association (identifier, identifier_kind, association_sequence_id DESC)
    WHERE revocation_sequence_id IS NULL;
";
