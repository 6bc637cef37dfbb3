//! The reads of calls, each one statement and so one snapshot.
//!
//! Pages are measured by `encoded_len` from an index before any payload is read. No outer sort: the
//! nested loop stops as soon as the page is full, and visits the topics in the order given. A lateral
//! select with a limit is how a statement says that it wants a probe of an index.

use std::collections::HashMap;

use bytes::Bytes;
use tokio_postgres::Row;
use xmtp_proto::id::{InboxId, SequenceId, Topic};

use super::connect::Lane;
use super::decode::{column, envelope, integer, meta, position};
use super::statements::STORED;
use crate::limits::OVERHEAD_BYTES;
use crate::store::ReadError;
use crate::store::record::{
    Envelope, EnvelopeKey, IdentifierKey, IdentityHistory, Meta, Page, Query,
};

/// `count` and `bytes` are about the whole page and stand in every row; the payloads are read only
/// if the page fits.
const QUERY: &str = "
WITH candidate AS MATERIALIZED (
    SELECT found.sequence_id, found.encoded_len, row_number() OVER () AS place
    FROM (
        SELECT probe.sequence_id, probe.encoded_len
        FROM unnest($1::bytea[], $2::bigint[]) WITH ORDINALITY AS given (topic, after, place)
        CROSS JOIN LATERAL (
            SELECT e.sequence_id, e.encoded_len FROM envelope AS e
            WHERE e.topic = given.topic AND e.sequence_id > given.after
            ORDER BY e.sequence_id LIMIT $3::bigint + 1
        ) AS probe
        LIMIT $3::bigint + 1
    ) AS found
), measured AS MATERIALIZED (
    SELECT count(*) AS count,
        coalesce(sum(encoded_len + $5::bigint) FILTER (WHERE place <= $3), 0)::bigint AS bytes
    FROM candidate
)
SELECT measured.count, measured.bytes, taken.sequence_id, taken.topic, taken.message_hash,
    taken.server_ns, taken.expiry_ns, taken.is_commit_or_proposal, taken.payload
FROM measured
LEFT JOIN LATERAL (
    SELECT e.*, candidate.place FROM candidate
    CROSS JOIN LATERAL (
        SELECT * FROM envelope WHERE envelope.sequence_id = candidate.sequence_id LIMIT 1
    ) AS e
    WHERE candidate.place <= $3 AND measured.bytes <= $4
) AS taken ON true
ORDER BY taken.place";

const NEWEST: &str = "
WITH newest AS MATERIALIZED (
    SELECT e.sequence_id, e.encoded_len, given.place
    FROM unnest($1::bytea[]) WITH ORDINALITY AS given (topic, place)
    CROSS JOIN LATERAL (
        SELECT last_sequence_id FROM topic_head WHERE topic_head.topic = given.topic LIMIT 1
    ) AS head
    CROSS JOIN LATERAL (
        SELECT sequence_id, encoded_len FROM envelope
        WHERE envelope.sequence_id = head.last_sequence_id LIMIT 1
    ) AS e
), measured AS MATERIALIZED (
    SELECT coalesce(sum(encoded_len + $4::bigint), 0)::bigint AS bytes FROM newest
)
SELECT measured.bytes, e.sequence_id, e.topic, e.message_hash, e.server_ns, e.expiry_ns,
    e.is_commit_or_proposal,
    CASE WHEN $2 AND measured.bytes <= $3 THEN e.payload END
FROM measured CROSS JOIN newest
CROSS JOIN LATERAL (
    SELECT * FROM envelope WHERE envelope.sequence_id = newest.sequence_id LIMIT 1
) AS e
ORDER BY newest.place";

const INBOX_IDS: &str = "
SELECT live.inbox_id
FROM unnest($1::text[], $2::smallint[]) WITH ORDINALITY AS given (identifier, kind, place)
LEFT JOIN LATERAL (
    SELECT inbox_id FROM identifier_association AS a
    WHERE a.identifier = given.identifier AND a.identifier_kind = given.kind
        AND a.revocation_sequence_id IS NULL
    ORDER BY a.association_sequence_id DESC LIMIT 1
) AS live ON true
ORDER BY given.place";

const HISTORY: &str = "
SELECT sequence_id, payload FROM envelope WHERE topic = $1 ORDER BY sequence_id";

/// Finds the records of stored envelopes.
pub(super) fn stored(rows: &[Row]) -> Result<HashMap<EnvelopeKey, Meta>, ReadError> {
    let metas = rows.iter().map(|row| meta(row, 0));
    metas
        .map(|meta| meta.map(|meta| (meta.key, meta)))
        .collect()
}

pub(super) async fn existing(
    lane: &Lane,
    keys: &[EnvelopeKey],
) -> Result<Vec<Option<Meta>>, ReadError> {
    let topics: Vec<&[u8]> = keys.iter().map(|key| key.topic.as_bytes()).collect();
    let hashes: Vec<&[u8]> = keys.iter().map(|key| &key.hash.0[..]).collect();
    let found = stored(&lane.select(STORED, &[&topics, &hashes]).await?)?;
    Ok(keys.iter().map(|key| found.get(key).copied()).collect())
}

pub(super) async fn identity_history(
    lane: &Lane,
    topic: &Topic,
) -> Result<IdentityHistory, ReadError> {
    let rows = lane.select(HISTORY, &[&topic.as_bytes()]).await?;
    let mut history = IdentityHistory::default();
    for row in &rows {
        history.head = position(column(row, 0)?)?;
        let payload: &[u8] = column(row, 1)?;
        history.entries.push(Bytes::copy_from_slice(payload));
    }
    Ok(history)
}

pub(super) async fn query(lane: &Lane, query: &Query) -> Result<Page, ReadError> {
    let topics = query.topics.iter().cycle().skip(query.first);
    let topics = topics.take(query.topics.len());
    let (topics, after): (Vec<&[u8]>, Vec<i64>) = topics
        .map(|(topic, after)| (topic.as_bytes(), integer(*after)))
        .unzip();
    let (limit, max_bytes) = (bigint(query.limit), bigint(query.max_bytes));
    let overhead = bigint(OVERHEAD_BYTES);
    let rows = lane
        .select(QUERY, &[&topics, &after, &limit, &max_bytes, &overhead])
        .await?;
    let first = rows.first();
    let first = first.ok_or(ReadError::Broken("a page without its measure"))?;
    let (count, bytes): (i64, i64) = (column(first, 0)?, column(first, 1)?);
    if bytes > max_bytes {
        return Err(ReadError::TooLarge);
    }
    let mut page = Page {
        envelopes: Vec::with_capacity(rows.len()),
        has_more: count > limit,
    };
    for row in &rows {
        if column::<Option<i64>>(row, 2)?.is_some() {
            page.envelopes.push(envelope(row, 2)?);
        }
    }
    Ok(page)
}

pub(super) async fn newest(
    lane: &Lane,
    topics: &[Topic],
    full: bool,
    max_bytes: usize,
) -> Result<Vec<Envelope>, ReadError> {
    let topics: Vec<&[u8]> = topics.iter().map(Topic::as_bytes).collect();
    let (max_bytes, overhead) = (bigint(max_bytes), bigint(OVERHEAD_BYTES));
    let rows = lane
        .select(NEWEST, &[&topics, &full, &max_bytes, &overhead])
        .await?;
    let bytes: i64 = rows.first().map_or(Ok(0), |row| column(row, 0))?;
    if full && bytes > max_bytes {
        return Err(ReadError::TooLarge);
    }
    rows.iter().map(|row| envelope(row, 1)).collect()
}

pub(super) async fn inbox_ids(
    lane: &Lane,
    keys: &[IdentifierKey],
) -> Result<Vec<Option<InboxId>>, ReadError> {
    // The engine's text holds no zero byte, and so no identifier that has one.
    let text = |key: &IdentifierKey| (!key.text.contains('\0')).then(|| key.text.clone());
    let texts: Vec<Option<String>> = keys.iter().map(text).collect();
    let kinds: Vec<Option<i16>> = keys
        .iter()
        .map(|key| i16::try_from(key.kind).ok())
        .collect();
    let rows = lane.select(INBOX_IDS, &[&texts, &kinds]).await?;
    let inbox = |row: &Row| {
        let inbox: Option<&[u8]> = column(row, 0)?;
        let broken = |_| ReadError::Broken("an inbox id has another length");
        let inbox = inbox
            .map(<[u8; 32]>::try_from)
            .transpose()
            .map_err(broken)?;
        Ok(inbox.map(InboxId::from_bytes))
    };
    rows.iter().map(inbox).collect()
}

/// Turns a bound into the engine's integer.
pub(super) fn bigint(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Turns positions into the engine's integers.
pub(super) fn integers(ids: impl Iterator<Item = SequenceId>) -> Vec<i64> {
    ids.map(integer).collect()
}
