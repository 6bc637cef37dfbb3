-- Version 1.
--
-- Rows of topic_head are never deleted: publishes lock them in the order of their bytes, and that no
-- two of them wait for each other holds only while a row that was there stays.
--
-- encoded_len lets a page be measured before its payloads are read; the index on topics carries it.
-- Payloads are ciphertext, which does not compress.

CREATE TABLE deployment (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    identifier text NOT NULL,
    system_identifier bigint NOT NULL,
    timeline integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE SEQUENCE envelope_seq AS bigint MINVALUE 1 NO CYCLE CACHE 1;

CREATE TABLE envelope (
    sequence_id bigint PRIMARY KEY CHECK (sequence_id > 0),
    topic bytea NOT NULL CHECK (octet_length(topic) BETWEEN 1 AND 128),
    server_ns bigint NOT NULL,
    expiry_ns bigint,
    message_hash bytea NOT NULL CHECK (octet_length(message_hash) = 32),
    is_commit_or_proposal boolean NOT NULL,
    encoded_len integer NOT NULL,
    payload bytea NOT NULL
);
ALTER TABLE envelope ALTER COLUMN payload SET STORAGE EXTERNAL;
CREATE INDEX envelope_topic_seq ON envelope (topic, sequence_id) INCLUDE (encoded_len);
CREATE UNIQUE INDEX envelope_dedup ON envelope (topic, message_hash);
CREATE INDEX envelope_expiry ON envelope (expiry_ns, sequence_id) WHERE expiry_ns IS NOT NULL;

CREATE TABLE topic_head (
    topic bytea PRIMARY KEY,
    last_sequence_id bigint NOT NULL
) WITH (fillfactor = 70);

CREATE TABLE identifier_association (
    identifier text NOT NULL,
    identifier_kind smallint NOT NULL,
    inbox_id bytea NOT NULL CHECK (octet_length(inbox_id) = 32),
    association_sequence_id bigint NOT NULL,
    revocation_sequence_id bigint,
    PRIMARY KEY (identifier, identifier_kind, inbox_id)
);
CREATE INDEX identifier_live
    ON identifier_association (identifier, identifier_kind, association_sequence_id DESC)
    WHERE revocation_sequence_id IS NULL;

CREATE TABLE allocation_boundary (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    closed_sequence_id bigint NOT NULL
);
INSERT INTO allocation_boundary (closed_sequence_id) VALUES (0);
