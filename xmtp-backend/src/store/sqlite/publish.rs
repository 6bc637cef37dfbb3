//! What one request does within the writer's transaction.

use rusqlite::{Connection, Transaction};
use xmtp_identity::projection::Association;
use xmtp_proto::id::SequenceId;

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
    let facts = envelopes
        .iter()
        .map(|envelope| facts(transaction, envelope));
    let facts = facts.collect::<rusqlite::Result<Vec<_>>>()?;
    decide(envelopes, &facts).map_err(Failure::Request)?;
    let (mut metas, mut rows) = (Vec::with_capacity(envelopes.len()), Vec::new());
    for (envelope, facts) in envelopes.iter().zip(facts) {
        if let Some(stored) = facts.stored {
            metas.push(stored);
            continue;
        }
        let next = last.next();
        *last = next.ok_or(Failure::Request(PublishError::Broken(
            "no sequence id is left",
        )))?;
        let meta = new_meta(envelope, *last, server_ns).map_err(Failure::Request)?;
        insert(transaction, &meta, envelope)?;
        if let Some(identity) = &envelope.identity {
            project(transaction, identity, *last)?;
        }
        metas.push(meta);
        rows.push(Envelope {
            meta,
            payload: envelope.payload.clone(),
        });
    }
    Ok((metas, rows))
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

fn insert(
    transaction: &Transaction<'_>,
    meta: &Meta,
    envelope: &PreparedEnvelope,
) -> Result<(), Failure> {
    let time = |ns: u64| {
        let broken = Failure::Request(PublishError::Broken("a time is beyond its range"));
        i64::try_from(ns).map_err(|_| broken)
    };
    let topic = meta.key.topic.as_bytes();
    let sql = "INSERT INTO envelope VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    transaction.prepare_cached(sql)?.execute((
        integer(meta.sequence_id),
        topic,
        time(meta.server_ns)?,
        meta.expiry_ns.map(time).transpose()?,
        meta.key.hash.0,
        meta.is_commit_or_proposal,
        i64::try_from(envelope.payload.len()).unwrap_or(i64::MAX),
        envelope.payload.as_ref(),
    ))?;
    let sql = "INSERT INTO topic_head VALUES (?1, ?2)
               ON CONFLICT (topic) DO UPDATE SET last_sequence_id = excluded.last_sequence_id
               WHERE excluded.last_sequence_id > last_sequence_id";
    let changed = transaction
        .prepare_cached(sql)?
        .execute((topic, integer(meta.sequence_id)))?;
    if changed == 1 {
        return Ok(());
    }
    Err(Failure::Request(PublishError::Broken(
        "a topic's newest id went back",
    )))
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
