//! The reads, each over one snapshot.
//!
//! A deferred transaction takes its snapshot with the first statement, so everything that one
//! function reads belongs together. Pages are measured by `encoded_len` from the index before any
//! payload is read.

use bytes::Bytes;
use rusqlite::types::Type;
use rusqlite::{CachedStatement, OptionalExtension, Row, Statement, Transaction};
use xmtp_proto::id::{InboxId, SequenceId, Topic};

use super::fault::of_read;
use crate::limits::OVERHEAD_BYTES;
use crate::store::ReadError;
use crate::store::record::{
    Envelope, EnvelopeKey, Hash, IdentifierKey, IdentityHistory, Meta, Page, Query, Served, Turn,
    TurnBudget, Want,
};
use crate::store::turn::{Meter, Room};

/// Begins a statement with the columns that [`meta`] reads, in its order.
macro_rules! select_meta {
    ($rest:literal) => {
        concat!(
            "SELECT envelope.sequence_id, envelope.topic, envelope.message_hash,
             envelope.server_ns, envelope.expiry_ns, envelope.is_commit_or_proposal",
            $rest
        )
    };
}

fn prepare<'c>(snapshot: &'c Transaction<'_>, sql: &str) -> Result<CachedStatement<'c>, ReadError> {
    snapshot.prepare_cached(sql).map_err(of_read)
}

/// Reads a position; the column's check keeps it in range.
pub(super) fn sequence_id(row: &Row<'_>, column: usize) -> rusqlite::Result<SequenceId> {
    let value: i64 = row.get(column)?;
    let id = u64::try_from(value)
        .ok()
        .and_then(|value| SequenceId::checked(value).ok());
    id.ok_or(rusqlite::Error::IntegralValueOutOfRange(column, value))
}

fn size(row: &Row<'_>, column: usize) -> rusqlite::Result<usize> {
    let value: i64 = row.get(column)?;
    usize::try_from(value).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, value))
}

/// Turns a position into the engine's integer.
pub(super) fn integer(id: SequenceId) -> i64 {
    id.get().cast_signed()
}

/// Reads the columns of `select_meta`.
pub(super) fn meta(row: &Row<'_>) -> rusqlite::Result<Meta> {
    let invalid = |column| rusqlite::Error::InvalidColumnType(column, String::new(), Type::Blob);
    let time = |column, value: i64| {
        let time = u64::try_from(value);
        time.map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, value))
    };
    let expiry: Option<i64> = row.get(4)?;
    Ok(Meta {
        sequence_id: sequence_id(row, 0)?,
        key: EnvelopeKey {
            topic: Topic::parse(row.get_ref(1)?.as_blob()?).map_err(|_| invalid(1))?,
            hash: Hash(row.get(2)?),
        },
        server_ns: time(3, row.get(3)?)?,
        expiry_ns: expiry.map(|expiry| time(4, expiry)).transpose()?,
        is_commit_or_proposal: row.get(5)?,
    })
}

fn envelope(row: &Row<'_>) -> rusqlite::Result<Envelope> {
    let payload: Vec<u8> = row.get(6)?;
    Ok(Envelope {
        meta: meta(row)?,
        payload: payload.into(),
    })
}

/// Looks up one envelope by key.
pub(super) fn stored(
    snapshot: &Transaction<'_>,
    key: &EnvelopeKey,
) -> rusqlite::Result<Option<Meta>> {
    let sql = select_meta!(" FROM envelope WHERE topic = ?1 AND message_hash = ?2");
    let mut statement = snapshot.prepare_cached(sql)?;
    statement
        .query_row((key.topic.as_bytes(), key.hash.0), meta)
        .optional()
}

/// Selects the newest id of a topic.
const HEAD: &str = "SELECT last_sequence_id FROM topic_head WHERE topic = ?1";

/// Reads the newest id of a topic; zero for an empty one.
pub(super) fn head(snapshot: &Transaction<'_>, topic: &Topic) -> rusqlite::Result<SequenceId> {
    head_with(&mut *snapshot.prepare_cached(HEAD)?, topic)
}

fn head_with(statement: &mut Statement<'_>, topic: &Topic) -> rusqlite::Result<SequenceId> {
    let head = statement
        .query_row([topic.as_bytes()], |row| sequence_id(row, 0))
        .optional()?;
    Ok(head.unwrap_or(SequenceId::ZERO))
}

pub(super) fn existing(
    snapshot: &Transaction<'_>,
    keys: &[EnvelopeKey],
) -> Result<Vec<Option<Meta>>, ReadError> {
    let found = keys.iter().map(|key| stored(snapshot, key));
    found.collect::<rusqlite::Result<_>>().map_err(of_read)
}

pub(super) fn heads(
    snapshot: &Transaction<'_>,
    topics: &[Topic],
) -> Result<Vec<SequenceId>, ReadError> {
    // One statement for all: an update may name very many topics.
    let mut statement = prepare(snapshot, HEAD)?;
    let heads = topics.iter().map(|topic| head_with(&mut statement, topic));
    heads.collect::<rusqlite::Result<_>>().map_err(of_read)
}

pub(super) fn identity_history(
    snapshot: &Transaction<'_>,
    topic: &Topic,
) -> Result<IdentityHistory, ReadError> {
    let sql = "SELECT payload FROM envelope WHERE topic = ?1 ORDER BY sequence_id";
    let mut statement = prepare(snapshot, sql)?;
    let payload = |row: &Row<'_>| row.get::<_, Vec<u8>>(0).map(Bytes::from);
    let entries = statement
        .query_map([topic.as_bytes()], payload)
        .map_err(of_read)?;
    let entries = entries.collect::<rusqlite::Result<_>>().map_err(of_read)?;
    Ok(IdentityHistory {
        entries,
        head: head(snapshot, topic).map_err(of_read)?,
    })
}

/// What the index of topics says about a row.
#[derive(Clone, Copy)]
struct Candidate {
    sequence_id: SequenceId,
    payload_bytes: usize,
}

fn candidates(
    snapshot: &Transaction<'_>,
    want: &Want,
    max_rows: usize,
) -> Result<Vec<Candidate>, ReadError> {
    let sql = "SELECT sequence_id, encoded_len FROM envelope
               WHERE topic = ?1 AND sequence_id > ?2 AND sequence_id <= ?3
               ORDER BY sequence_id LIMIT ?4";
    let mut statement = prepare(snapshot, sql)?;
    let limit = i64::try_from(max_rows).unwrap_or(i64::MAX);
    let range = (
        want.topic.as_bytes(),
        integer(want.after),
        integer(want.through),
        limit,
    );
    let candidate = |row: &Row<'_>| {
        Ok(Candidate {
            sequence_id: sequence_id(row, 0)?,
            payload_bytes: size(row, 1)?,
        })
    };
    let rows = statement.query_map(range, candidate).map_err(of_read)?;
    rows.collect::<rusqlite::Result<_>>().map_err(of_read)
}

/// Loads the rows of a range that has been measured.
fn load_range(snapshot: &Transaction<'_>, want: &Want) -> Result<Vec<Envelope>, ReadError> {
    let sql = select_meta!(
        ", payload FROM envelope
         WHERE topic = ?1 AND sequence_id > ?2 AND sequence_id <= ?3 ORDER BY sequence_id"
    );
    let mut statement = prepare(snapshot, sql)?;
    let range = (
        want.topic.as_bytes(),
        integer(want.after),
        integer(want.through),
    );
    let rows = statement.query_map(range, envelope).map_err(of_read)?;
    rows.collect::<rusqlite::Result<_>>().map_err(of_read)
}

pub(super) fn query(snapshot: &Transaction<'_>, query: &Query) -> Result<Page, ReadError> {
    let (mut ranges, mut left, mut bytes) = (Vec::new(), query.limit, 0);
    let mut has_more = false;
    let topics = query
        .topics
        .iter()
        .cycle()
        .skip(query.first)
        .take(query.topics.len());
    for (topic, after) in topics {
        let want = Want {
            topic: *topic,
            after: *after,
            through: SequenceId::MAX,
        };
        // One more than what is left tells whether there is more.
        let rows = candidates(snapshot, &want, left + 1)?;
        let taken = &rows[..rows.len().min(left)];
        if let Some(last) = taken.last() {
            let through = last.sequence_id;
            ranges.push(Want { through, ..want });
            left -= taken.len();
            bytes += bytes_of(taken);
        }
        has_more = taken.len() < rows.len();
        if has_more {
            break;
        }
    }
    if bytes > query.max_bytes {
        return Err(ReadError::TooLarge);
    }
    let mut envelopes = Vec::with_capacity(query.limit - left);
    for range in &ranges {
        envelopes.append(&mut load_range(snapshot, range)?);
    }
    Ok(Page {
        envelopes,
        has_more,
    })
}

fn bytes_of(rows: &[Candidate]) -> usize {
    let bytes = rows.iter().map(|row| row.payload_bytes + OVERHEAD_BYTES);
    bytes.sum()
}

pub(super) fn newest(
    snapshot: &Transaction<'_>,
    topics: &[Topic],
    full: bool,
    max_bytes: usize,
) -> Result<Vec<Envelope>, ReadError> {
    let sql = select_meta!(
        ", encoded_len FROM topic_head JOIN envelope
         ON envelope.sequence_id = topic_head.last_sequence_id WHERE topic_head.topic = ?1"
    );
    let mut statement = prepare(snapshot, sql)?;
    let mut found = Vec::new();
    let mut bytes = 0;
    for topic in topics {
        let row = |row: &Row<'_>| Ok((meta(row)?, size(row, 6)?));
        let row = statement
            .query_row([topic.as_bytes()], row)
            .optional()
            .map_err(of_read)?;
        if let Some((meta, payload_bytes)) = row {
            bytes += payload_bytes + OVERHEAD_BYTES;
            found.push(Envelope {
                meta,
                payload: Bytes::new(),
            });
        }
    }
    if !full {
        return Ok(found);
    }
    if bytes > max_bytes {
        return Err(ReadError::TooLarge);
    }
    for row in &mut found {
        row.payload = payload(snapshot, row.meta.sequence_id)?;
    }
    Ok(found)
}

fn payload(snapshot: &Transaction<'_>, id: SequenceId) -> Result<Bytes, ReadError> {
    let sql = "SELECT payload FROM envelope WHERE sequence_id = ?1";
    let payload = prepare(snapshot, sql)?.query_row([integer(id)], |row| row.get::<_, Vec<u8>>(0));
    payload.map(Bytes::from).map_err(of_read)
}

pub(super) fn inbox_ids(
    snapshot: &Transaction<'_>,
    keys: &[IdentifierKey],
) -> Result<Vec<Option<InboxId>>, ReadError> {
    let sql = "SELECT inbox_id FROM identifier_association
               WHERE identifier = ?1 AND identifier_kind = ?2 AND revocation_sequence_id IS NULL
               ORDER BY association_sequence_id DESC LIMIT 1";
    let mut statement = prepare(snapshot, sql)?;
    let mut lookup = |key: &IdentifierKey| {
        let inbox = |row: &Row<'_>| row.get::<_, [u8; 32]>(0);
        statement.query_row((&key.text, key.kind), inbox).optional()
    };
    let found = keys
        .iter()
        .map(|key| Ok(lookup(key)?.map(InboxId::from_bytes)));
    found.collect::<rusqlite::Result<_>>().map_err(of_read)
}

pub(super) fn fetch_turn(
    snapshot: &Transaction<'_>,
    wants: &[Want],
    budget: TurnBudget,
) -> Result<Turn, ReadError> {
    let mut meter = Meter::new(budget);
    let mut turn = Turn::default();
    for want in wants {
        let rows = candidates(snapshot, want, budget.topic_rows + 1)?;
        meter.next_topic();
        let (mut taken, mut room) = (0, Room::Taken);
        for row in &rows {
            room = meter.offer(row.payload_bytes);
            if room != Room::Taken {
                break;
            }
            taken += 1;
        }
        if room == Room::Unvisited {
            break;
        }
        let complete = taken == rows.len();
        let rows = match rows[..taken].last() {
            None => Vec::new(),
            Some(last) => {
                let through = last.sequence_id;
                load_range(snapshot, &Want { through, ..*want })?
            }
        };
        turn.served.push(Served { rows, complete });
    }
    Ok(turn)
}

pub(super) fn rows_after(
    snapshot: &Transaction<'_>,
    after: SequenceId,
    through: SequenceId,
    max_rows: usize,
    max_bytes: usize,
) -> Result<Vec<Envelope>, ReadError> {
    let sql = select_meta!(
        ", payload FROM envelope
         WHERE sequence_id > ?1 AND sequence_id <= ?2 ORDER BY sequence_id LIMIT ?3"
    );
    let mut statement = prepare(snapshot, sql)?;
    let limit = i64::try_from(max_rows).unwrap_or(i64::MAX);
    let range = (integer(after), integer(through), limit);
    let rows = statement.query_map(range, envelope).map_err(of_read)?;
    let (mut found, mut bytes) = (Vec::new(), 0);
    for row in rows {
        let row = row.map_err(of_read)?;
        bytes += row.payload.len();
        found.push(row);
        if bytes >= max_bytes {
            break;
        }
    }
    Ok(found)
}
