//! Identity envelopes: the inbox log, applied by the same pure functions as at the backend.

use xmtp_core::processor::{
    Blocked, IdentityProcessor, PendingItem, RetryCause, Verdict, latest_identity_state,
    put_identity_state,
};
use xmtp_core::storage::{Read, StorageError, WriteTxn};
use xmtp_identity::{AssociationState, NoSmartContractWallets, apply};
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::{InboxId, SequenceId};

use super::MlsProcessor;

impl IdentityProcessor for MlsProcessor {
    fn apply(
        &self,
        txn: &mut WriteTxn<'_>,
        inbox: &InboxId,
        item: &PendingItem,
    ) -> Result<Verdict, StorageError> {
        let Some(Payload::IdentityUpdate(update)) = &item.envelope.payload else {
            return Ok(Verdict::Blocked(Blocked::IdentityInvalid));
        };
        let before = match latest_identity_state(txn, inbox)? {
            Some((_, bytes)) => Some(decode(&bytes)?),
            None => None,
        };
        let applied = apply(before.as_ref(), update, &NoSmartContractWallets);
        let state = match applied {
            Ok(state) => state,
            Err(error) if error.is_retryable() => return Ok(Verdict::Retry(RetryCause::Verifier)),
            Err(error) => {
                tracing::warn!(code = error.code(), "an inbox log is invalid");
                return Ok(Verdict::Blocked(Blocked::IdentityInvalid));
            }
        };
        if state.inbox_id() != *inbox {
            return Ok(Verdict::Blocked(Blocked::IdentityInvalid));
        }
        let encoded = prost::Message::encode_to_vec(&state.to_proto());
        put_identity_state(txn, inbox, item.sequence_id, &encoded)?;
        Ok(Verdict::Applied(Box::default()))
    }
}

/// Reads the verified state of an inbox at exactly one sequence id.
pub(crate) fn state_at(
    snapshot: &(impl Read + ?Sized),
    inbox: &InboxId,
    sequence: SequenceId,
) -> Result<Option<AssociationState>, StorageError> {
    match xmtp_core::processor::identity_state(snapshot, inbox, sequence)? {
        Some(bytes) => decode(&bytes).map(Some),
        None => Ok(None),
    }
}

/// Decodes a stored association state.
pub(crate) fn decode(bytes: &[u8]) -> Result<AssociationState, StorageError> {
    let corrupt = StorageError::Corrupt {
        table: "identity_state",
        what: "value",
    };
    let stored = prost::Message::decode(bytes).map_err(|_| corrupt.clone())?;
    AssociationState::from_proto(&stored).map_err(|_| corrupt)
}
