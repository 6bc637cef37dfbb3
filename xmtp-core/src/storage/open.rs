//! Opening: checks the schema, creates or migrates, and lifts the counters in one flushed commit.

use std::sync::Arc;

use xmtp_proto::DatabaseId;
use xmtp_proto::storage::v1::DatabaseRecord;

use super::database::{WRITER_PATIENCE, commit};
use super::schema::{DATABASE, SCHEMA_VERSION, TABLES};
use super::{Durability, OpenError, Read, Storage, StorageError, WriteTxn, counter, migrate};
use crate::runtime::{Runtime, RuntimeExt};

/// What opening found or made.
pub(super) struct Opened {
    pub(super) id: DatabaseId,
    pub(super) revision: u64,
}

/// Prepares an engine's database for use.
pub(super) fn prepare(
    storage: &dyn Storage,
    runtime: &Arc<dyn Runtime>,
) -> Result<Opened, OpenError> {
    // Its own table first: a newer schema is refused before any other table is made.
    storage.open_tables(&[DATABASE.info])?;
    let found = storage.snapshot()?.row(DATABASE, &())?;
    if let Some(record) = found {
        refuse_newer(&record)?;
    }
    storage.open_tables(TABLES)?;
    let max_value_bytes = storage.capability().max_value_bytes;
    let writer = storage.writer(WRITER_PATIENCE, Durability::Flushed)?;
    let mut txn = WriteTxn::new(&*writer, runtime.clone(), max_value_bytes);
    let id = create_or_migrate(&mut txn)?;
    counter::lift(&mut txn)?;
    let (batch, domains) = txn.finish()?;
    let revision = commit(writer, batch, domains)?;
    Ok(Opened { id, revision })
}

fn create_or_migrate(txn: &mut WriteTxn<'_>) -> Result<DatabaseId, OpenError> {
    let record = match txn.row(DATABASE, &())? {
        Some(record) => record,
        None => {
            let record = DatabaseRecord {
                id: txn
                    .runtime()
                    .random::<{ DatabaseId::LEN }>()
                    .to_vec()
                    .into(),
                schema_version: SCHEMA_VERSION,
                created_ns: txn.now_ns(),
            };
            txn.put_new(DATABASE, &(), &record)?;
            record
        }
    };
    // Another process may have opened it meanwhile.
    refuse_newer(&record)?;
    migrate::migrate(txn, record.schema_version)?;
    if record.schema_version != SCHEMA_VERSION {
        let schema_version = SCHEMA_VERSION;
        let record = DatabaseRecord {
            schema_version,
            ..record.clone()
        };
        txn.put(DATABASE, &(), &record)?;
    }
    let id = DatabaseId::try_from(record.id.as_ref()).map_err(|_| StorageError::Corrupt {
        table: DATABASE.info.name,
        what: "id",
    })?;
    Ok(id)
}

fn refuse_newer(record: &DatabaseRecord) -> Result<(), OpenError> {
    if record.schema_version > SCHEMA_VERSION {
        return Err(OpenError::NewerSchema {
            found: record.schema_version,
            supported: SCHEMA_VERSION,
        });
    }
    Ok(())
}
