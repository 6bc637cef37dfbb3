//! Rows as records.

use bytes::Bytes;
use tokio_postgres::Row;
use xmtp_proto::id::{SequenceId, Topic};

use crate::store::ReadError;
use crate::store::record::{Envelope, EnvelopeKey, Hash, Meta};

const OUT_OF_RANGE: ReadError = ReadError::Broken("a stored value is out of its range");

/// Turns a position into the engine's integer.
pub(super) fn integer(id: SequenceId) -> i64 {
    id.get().cast_signed()
}

/// Reads a position.
pub(super) fn position(value: i64) -> Result<SequenceId, ReadError> {
    let value = u64::try_from(value).map_err(|_| OUT_OF_RANGE)?;
    SequenceId::checked(value).map_err(|_| OUT_OF_RANGE)
}

/// Reads a topic.
pub(super) fn topic(bytes: &[u8]) -> Result<Topic, ReadError> {
    Topic::parse(bytes).map_err(|_| OUT_OF_RANGE)
}

/// Reads a column of the type that the statement gives it.
pub(super) fn column<'r, T>(row: &'r Row, index: usize) -> Result<T, ReadError>
where
    T: tokio_postgres::types::FromSql<'r>,
{
    let broken = |_| ReadError::Broken("a column of the database has another type");
    row.try_get(index).map_err(broken)
}

/// Reads `sequence_id, topic, message_hash, server_ns, expiry_ns, is_commit_or_proposal` from
/// column `first` on.
pub(super) fn meta(row: &Row, first: usize) -> Result<Meta, ReadError> {
    let time = |value: i64| u64::try_from(value).map_err(|_| OUT_OF_RANGE);
    let topic_bytes: &[u8] = column(row, first + 1)?;
    let hash: &[u8] = column(row, first + 2)?;
    let expiry: Option<i64> = column(row, first + 4)?;
    Ok(Meta {
        sequence_id: position(column(row, first)?)?,
        key: EnvelopeKey {
            topic: topic(topic_bytes)?,
            hash: Hash(hash.try_into().map_err(|_| OUT_OF_RANGE)?),
        },
        server_ns: time(column(row, first + 3)?)?,
        expiry_ns: expiry.map(time).transpose()?,
        is_commit_or_proposal: column(row, first + 5)?,
    })
}

/// Reads the columns of [`meta`], and the payload after them.
pub(super) fn envelope(row: &Row, first: usize) -> Result<Envelope, ReadError> {
    let payload: Option<&[u8]> = column(row, first + 6)?;
    Ok(Envelope {
        meta: meta(row, first)?,
        payload: payload.map_or_else(Bytes::new, Bytes::copy_from_slice),
    })
}
