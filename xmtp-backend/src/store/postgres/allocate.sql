-- The only statement that takes ids. Who runs it holds the barrier shared and the rows of its topics.
--
-- The inner select is ordered and fenced, so that ids follow the order of the request.
INSERT INTO envelope (
    sequence_id, topic, server_ns, expiry_ns, message_hash, is_commit_or_proposal, encoded_len, payload
)
SELECT
    nextval('envelope_seq'), new.topic, $1::bigint, new.expiry_ns, new.message_hash,
    new.is_commit_or_proposal, octet_length(new.payload), new.payload
FROM (
    SELECT *
    FROM unnest($2::bytea[], $3::bytea[], $4::bigint[], $5::boolean[], $6::bytea[]) WITH ORDINALITY
        AS given (topic, message_hash, expiry_ns, is_commit_or_proposal, payload, place)
    ORDER BY place
    OFFSET 0
) AS new
RETURNING sequence_id, topic, message_hash
