//! What one request does within the writer's transaction.

use std::collections::BTreeMap;

use rusqlite::{Connection, Transaction};
use xmtp_identity::projection::Association;
use xmtp_proto::id::{SequenceId, Topic};

use super::read::{head, integer, sequence_id, stored};
use crate::store::PublishError;
use crate::store::decide::{Facts, decide, new_meta};
use crate::store::record::{Envelope, IdentityWrite, Meta, PreparedEnvelope};

/// Why a request failed within the transaction.
#[derive(Debug)]
pub(super) enum Failure {
    /// The request is answered so; the transaction goes on.
    Request(PublishError),
    /// The engine failed; the transaction ends.
    Engine(rusqlite::Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Engine(error)
    }
}

/// Reads the greatest id ever given.
pub(super) fn last_sequence_id(connection: &Connection) -> rusqlite::Result<SequenceId> {
    let mut statement = connection.prepare_cached("SELECT last_sequence_id FROM sequence")?;
    statement.query_row([], |row| sequence_id(row, 0))
}

/// Remembers the greatest id ever given.
pub(super) fn set_last_sequence_id(
    transaction: &Transaction<'_>,
    last: SequenceId,
) -> rusqlite::Result<()> {
    let mut statement = transaction.prepare_cached("UPDATE sequence SET last_sequence_id = ?1")?;
    statement.execute([integer(last)]).map(|_| ())
}

/// Stores the envelopes of one request; the caller undoes them on failure.
///
/// Returns the records in order, and the new rows.
pub(super) fn store_request(
    transaction: &Transaction<'_>,
    envelopes: &[PreparedEnvelope],
    last: &mut SequenceId,
    server_ns: u64,
) -> Result<(Vec<Meta>, Vec<Envelope>), Failure> {
    let (mut metas, mut rows) = (Vec::with_capacity(envelopes.len()), Vec::new());
    let known = judge(transaction, envelopes)?;
    for (position, envelope) in envelopes.iter().enumerate() {
        if let Some(stored) = known.get(position).copied().flatten() {
            metas.push(stored);
            continue;
        }
        let next = last.next();
        let next = next.ok_or(Failure::Request(PublishError::Broken(
            "no sequence id is left",
        )))?;
        let meta = new_meta(envelope, next, server_ns).map_err(Failure::Request)?;
        if !insert(transaction, &meta, envelope)? {
            let stored = stored(transaction, &envelope.key)?;
            metas.push(stored.ok_or(Failure::Request(PublishError::Broken(
                "a stored envelope is not found by its key",
            )))?);
            continue;
        }
        *last = next;
        if let Some(identity) = &envelope.identity {
            project(transaction, identity, next)?;
        }
        metas.push(meta);
        rows.push(Envelope {
            meta,
            payload: envelope.payload.clone(),
        });
    }
    raise_heads(transaction, &rows)?;
    Ok((metas, rows))
}

/// Decides whether the request may be stored; answers which of its envelopes are stored already.
///
/// - Where nothing can be refused, nothing has to be looked up: the answer is empty, and the key
///   of each envelope tells while it is inserted.
fn judge(
    transaction: &Transaction<'_>,
    envelopes: &[PreparedEnvelope],
) -> Result<Vec<Option<Meta>>, Failure> {
    let plain = |row: &PreparedEnvelope| row.identity.is_none() && row.refused.is_none();
    if envelopes.iter().all(plain) {
        return Ok(Vec::new());
    }
    let facts = envelopes
        .iter()
        .map(|envelope| facts(transaction, envelope));
    let facts = facts.collect::<rusqlite::Result<Vec<_>>>()?;
    decide(envelopes, &facts).map_err(Failure::Request)?;
    Ok(facts.iter().map(|facts| facts.stored).collect())
}

fn facts(transaction: &Transaction<'_>, envelope: &PreparedEnvelope) -> rusqlite::Result<Facts> {
    let mut facts = Facts {
        stored: stored(transaction, &envelope.key)?,
        ..Facts::default()
    };
    if envelope.identity.is_some() && facts.stored.is_none() {
        let topic = &envelope.key.topic;
        facts.head = head(transaction, topic)?;
        let sql = "SELECT count(*) FROM envelope WHERE topic = ?1";
        let mut statement = transaction.prepare_cached(sql)?;
        facts.entries = statement.query_row([topic.as_bytes()], |row| row.get(0))?;
    }
    Ok(facts)
}

/// Inserts an envelope; answers whether it is new.
fn insert(
    transaction: &Transaction<'_>,
    meta: &Meta,
    envelope: &PreparedEnvelope,
) -> Result<bool, Failure> {
    let time = |ns: u64| {
        let broken = Failure::Request(PublishError::Broken("a time is beyond its range"));
        i64::try_from(ns).map_err(|_| broken)
    };
    let sql = "INSERT INTO envelope VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
               ON CONFLICT (topic, message_hash) DO NOTHING";
    let changed = transaction.prepare_cached(sql)?.execute((
        integer(meta.sequence_id),
        meta.key.topic.as_bytes(),
        time(meta.server_ns)?,
        meta.expiry_ns.map(time).transpose()?,
        meta.key.hash.0,
        meta.is_commit_or_proposal,
        i64::try_from(envelope.payload.len()).unwrap_or(i64::MAX),
        envelope.payload.as_ref(),
    ))?;
    Ok(changed == 1)
}

/// Raises the newest id of each topic, once per topic.
fn raise_heads(transaction: &Transaction<'_>, rows: &[Envelope]) -> Result<(), Failure> {
    let newest: BTreeMap<&Topic, SequenceId> = rows
        .iter()
        .map(|row| (&row.meta.key.topic, row.meta.sequence_id))
        .collect();
    let sql = "INSERT INTO topic_head VALUES (?1, ?2)
               ON CONFLICT (topic) DO UPDATE SET last_sequence_id = excluded.last_sequence_id
               WHERE excluded.last_sequence_id > last_sequence_id";
    let mut raise = transaction.prepare_cached(sql)?;
    for (topic, newest) in newest {
        if raise.execute((topic.as_bytes(), integer(newest)))? != 1 {
            let broken = PublishError::Broken("a topic's newest id went back");
            return Err(Failure::Request(broken));
        }
    }
    Ok(())
}

/// Changes the lookup; a record only ever gives way to a later one.
fn project(
    transaction: &Transaction<'_>,
    identity: &IdentityWrite,
    at: SequenceId,
) -> rusqlite::Result<()> {
    for change in &identity.changes {
        let sql = match change.change {
            Association::Associated => {
                "INSERT INTO identifier_association VALUES (?1, ?2, ?3, ?4, NULL)
                 ON CONFLICT (identifier, identifier_kind, inbox_id) DO UPDATE
                 SET association_sequence_id = ?4, revocation_sequence_id = NULL
                 WHERE association_sequence_id < ?4"
            }
            Association::Revoked => {
                "UPDATE identifier_association SET revocation_sequence_id = ?4
                 WHERE identifier = ?1 AND identifier_kind = ?2 AND inbox_id = ?3
                 AND association_sequence_id <= ?4"
            }
        };
        let inbox: &[u8] = change.inbox_id.as_bytes();
        let key = (&change.text, change.kind.to_proto(), inbox, integer(at));
        transaction.prepare_cached(sql)?.execute(key)?;
    }
    Ok(())
}
