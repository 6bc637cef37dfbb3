//! Typed access to intents and attempts.

use xmtp_proto::storage::v1 as stored;

use crate::storage::schema::{ATTEMPT, INTENT};
use crate::storage::{Key, Raw, Read, StorageError};

/// Finds the intent whose current attempt has this payload identity (STR-113).
pub(crate) fn by_payload(
    snapshot: &(impl Read + ?Sized),
    payload_hash: &[u8; 32],
) -> Result<Option<stored::Intent>, StorageError> {
    let Some(Raw(number)) = snapshot.row(ATTEMPT, payload_hash)? else {
        return Ok(None);
    };
    snapshot.row(INTENT, &u64::from_bytes(&number)?)
}
