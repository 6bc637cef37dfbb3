//! Typed access to the own account.

use xmtp_core::storage::schema::ACCOUNT;
use xmtp_core::storage::{Read, StorageError, WriteTxn};
use xmtp_proto::storage::v1::AccountRecord;

/// Reads the account of this database.
pub(super) fn account(
    snapshot: &(impl Read + ?Sized),
) -> Result<Option<AccountRecord>, StorageError> {
    snapshot.row(ACCOUNT, &())
}

/// Writes the account of this database.
pub(super) fn put_account(
    txn: &mut WriteTxn<'_>,
    account: &AccountRecord,
) -> Result<(), StorageError> {
    txn.put(ACCOUNT, &(), account)
}
