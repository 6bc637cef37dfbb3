//! The one place that brings an older database up to this build's schema.
//!
//! Version 1 is the baseline. A later version adds one step here, and a golden database of the
//! version before it to the tests.

use super::schema::SCHEMA_VERSION;
use super::{StorageError, WriteTxn};

/// Brings the database from version `from` to [`SCHEMA_VERSION`], within the opening commit.
///
/// The caller has refused versions above it and writes the version afterwards.
pub(crate) fn migrate(_txn: &mut WriteTxn<'_>, from: u32) -> Result<(), StorageError> {
    debug_assert!(from <= SCHEMA_VERSION, "a newer schema was refused before");
    match from {
        SCHEMA_VERSION => Ok(()),
        _ => Err(StorageError::Corrupt {
            table: "database",
            what: "schema version",
        }),
    }
}
