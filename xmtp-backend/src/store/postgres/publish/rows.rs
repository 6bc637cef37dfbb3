//! The new rows of a transaction, in request order.

use std::collections::{BTreeSet, HashMap};

use deadpool_postgres::ClientWrapper;
use tokio_postgres::{Error, Row};
use xmtp_identity::projection::{Association, IdentifierChange};
use xmtp_proto::id::{SequenceId, Topic};

use super::Failed;
use super::sql;
use crate::store::PublishError;
use crate::store::postgres::connect::Parameters;
use crate::store::postgres::decode::{column, position};
use crate::store::record::{EnvelopeKey, Hash, Meta, PreparedEnvelope};

/// A row that is not stored yet; its record has no id yet.
#[derive(Debug)]
pub(super) struct NewRow<'r> {
    pub(super) meta: Meta,
    pub(super) envelope: &'r PreparedEnvelope,
}

/// All new rows of a transaction.
#[derive(Debug)]
pub(super) struct NewRows<'r> {
    server_ns: u64,
    rows: Vec<NewRow<'r>>,
}

impl<'r> NewRows<'r> {
    pub(super) fn new(server_ns: u64) -> Self {
        let rows = Vec::new();
        Self { server_ns, rows }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds the rows of one request, all or none.
    pub(super) fn extend(&mut self, rows: Vec<NewRow<'r>>) -> Result<(), PublishError> {
        let in_range = |ns: u64| i64::try_from(ns).is_ok();
        if !in_range(self.server_ns)
            || !rows
                .iter()
                .all(|row| row.meta.expiry_ns.is_none_or(in_range))
        {
            return Err(PublishError::Broken("a time is beyond its range"));
        }
        self.rows.extend(rows);
        Ok(())
    }

    /// Stores the rows, their heads and the lookup in one round trip; returns the ids.
    pub(super) async fn store(
        &self,
        client: &ClientWrapper,
    ) -> Result<HashMap<EnvelopeKey, SequenceId>, Failed> {
        let allocate = client.prepare_cached(sql::ALLOCATE).await?;
        let raise = client.prepare_cached(sql::RAISE_HEADS).await?;
        let topics: Vec<&[u8]> = self
            .rows
            .iter()
            .map(|row| row.meta.key.topic.as_bytes())
            .collect();
        let hashes: Vec<&[u8]> = self
            .rows
            .iter()
            .map(|row| &row.meta.key.hash.0[..])
            .collect();
        let expiries: Vec<Option<i64>> = self.rows.iter().map(expiry).collect();
        let flags: Vec<bool> = self
            .rows
            .iter()
            .map(|row| row.meta.is_commit_or_proposal)
            .collect();
        let payloads: Vec<&[u8]> = self
            .rows
            .iter()
            .map(|row| row.envelope.payload.as_ref())
            .collect();
        let server_ns = self.server_ns.cast_signed();
        let changes = self.changes();
        let new: &Parameters<'_> = &[&server_ns, &topics, &hashes, &expiries, &flags, &payloads];
        let stored: &Parameters<'_> = &[&topics, &hashes];
        let (rows, raised, projected) = tokio::join!(
            biased;
            client.query(&allocate, new),
            client.execute(&raise, stored),
            changes.project(client),
        );
        let rows = rows?;
        let raised = raised?;
        projected?;
        let distinct: BTreeSet<&[u8]> = topics.into_iter().collect();
        if raised != distinct.len() as u64 {
            return Err(broken("a topic's newest id went back"));
        }
        self.check_order(&rows)
    }

    /// Reads the ids and checks that they follow the order of the requests.
    fn check_order(&self, rows: &[Row]) -> Result<HashMap<EnvelopeKey, SequenceId>, Failed> {
        let mut ids = HashMap::with_capacity(rows.len());
        for row in rows {
            let (topic, hash): (&[u8], &[u8]) = (column(row, 1)?, column(row, 2)?);
            let unknown = "a stored row is none that was sent";
            let key = EnvelopeKey {
                topic: Topic::parse(topic).map_err(|_| broken(unknown))?,
                hash: Hash(hash.try_into().map_err(|_| broken(unknown))?),
            };
            ids.insert(key, position(column(row, 0)?)?);
        }
        let in_order = self.rows.iter().map(|row| ids.get(&row.meta.key));
        match in_order.is_sorted_by(|a, b| a.is_some() && a < b) && ids.len() == self.rows.len() {
            true => Ok(ids),
            false => Err(broken("ids do not follow the order of the request")),
        }
    }

    /// Collects how the lookup changes. Of several changes of one update to one identifier the last
    /// one stands.
    fn changes(&self) -> Changes<'_> {
        let mut last: HashMap<_, (&IdentifierChange, &EnvelopeKey)> = HashMap::new();
        for row in &self.rows {
            let changes = row
                .envelope
                .identity
                .iter()
                .flat_map(|identity| &identity.changes);
            for change in changes {
                let key = (
                    change.kind.to_proto(),
                    change.text.as_str(),
                    change.inbox_id,
                );
                last.insert(key, (change, &row.meta.key));
            }
        }
        let (associated, revoked) = last
            .into_values()
            .partition(|(change, _)| change.change == Association::Associated);
        Changes {
            associated,
            revoked,
        }
    }
}

/// How the lookup from identifiers to inboxes changes.
struct Changes<'r> {
    associated: Vec<(&'r IdentifierChange, &'r EnvelopeKey)>,
    revoked: Vec<(&'r IdentifierChange, &'r EnvelopeKey)>,
}

impl Changes<'_> {
    async fn project(&self, client: &ClientWrapper) -> Result<(), Error> {
        let (associated, revoked) = tokio::join!(
            biased;
            run(client, sql::ASSOCIATE, &self.associated),
            run(client, sql::REVOKE, &self.revoked),
        );
        associated?;
        revoked
    }
}

async fn run(
    client: &ClientWrapper,
    sql: &str,
    changes: &[(&IdentifierChange, &EnvelopeKey)],
) -> Result<(), Error> {
    if changes.is_empty() {
        return Ok(());
    }
    let statement = client.prepare_cached(sql).await?;
    let texts: Vec<&str> = changes
        .iter()
        .map(|(change, _)| change.text.as_str())
        .collect();
    let kinds: Vec<Option<i16>> = changes.iter().map(|(change, _)| kind(change)).collect();
    let inboxes: Vec<&[u8]> = changes
        .iter()
        .map(|(change, _)| &change.inbox_id.as_bytes()[..])
        .collect();
    let topics: Vec<&[u8]> = changes
        .iter()
        .map(|(_, key)| key.topic.as_bytes())
        .collect();
    let hashes: Vec<&[u8]> = changes.iter().map(|(_, key)| &key.hash.0[..]).collect();
    let changes: &Parameters<'_> = &[&texts, &kinds, &inboxes, &topics, &hashes];
    client.execute(&statement, changes).await.map(|_| ())
}

/// A kind that the column can not hold violates its constraint and fails the publish.
fn kind(change: &IdentifierChange) -> Option<i16> {
    i16::try_from(change.kind.to_proto()).ok()
}

fn expiry(row: &NewRow<'_>) -> Option<i64> {
    row.meta.expiry_ns.map(u64::cast_signed)
}

fn broken(what: &'static str) -> Failed {
    Failed::With(PublishError::Broken(what))
}
