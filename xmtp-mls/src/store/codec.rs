//! Entities as bytes: one tag that names the codec, then the encoding.
//!
//! postcard is small and fast but not self-describing, and `MlsGroupJoinConfig` cannot be read
//! back from it; that one entity is JSON. The tag lets a later build change its mind per entity.

use serde::Serialize;
use serde::de::DeserializeOwned;
use xmtp_core::storage::{StorageError, schema};

const POSTCARD: u8 = 1;
const JSON: u8 = 2;

/// Says that the table of openmls holds something damaged.
pub(super) fn corrupt(what: &'static str) -> StorageError {
    StorageError::Corrupt {
        table: schema::MLS.info.name,
        what,
    }
}

/// Encodes an entity.
pub(super) fn encode<E: Serialize>(entity: &E) -> Result<Vec<u8>, StorageError> {
    postcard::to_extend(entity, vec![POSTCARD]).map_err(|_| corrupt("entity"))
}

/// Encodes an entity that postcard could not read back.
pub(super) fn encode_json<E: Serialize>(entity: &E) -> Result<Vec<u8>, StorageError> {
    let mut bytes = vec![JSON];
    serde_json::to_writer(&mut bytes, entity).map_err(|_| corrupt("entity"))?;
    Ok(bytes)
}

/// Decodes an entity; it must fill the bytes.
pub(super) fn decode<E: DeserializeOwned>(bytes: &[u8]) -> Result<E, StorageError> {
    match bytes.split_first() {
        Some((&POSTCARD, encoded)) => match postcard::take_from_bytes(encoded) {
            Ok((entity, [])) => Ok(entity),
            _ => Err(corrupt("value")),
        },
        Some((&JSON, encoded)) => serde_json::from_slice(encoded).map_err(|_| corrupt("value")),
        _ => Err(corrupt("value")),
    }
}

/// Encodes a key of openmls. Its type is fixed by the label, so it needs no tag.
pub(super) fn key<K: Serialize>(key: &K) -> Result<Vec<u8>, StorageError> {
    postcard::to_allocvec(key).map_err(|_| corrupt("key"))
}

/// Decodes a key of openmls that is an entity too.
pub(super) fn decode_key<K: DeserializeOwned>(bytes: &[u8]) -> Result<K, StorageError> {
    match postcard::take_from_bytes(bytes) {
        Ok((key, [])) => Ok(key),
        _ => Err(corrupt("key")),
    }
}

/// Takes the raw id out of the encoding of a group id, so that it can be an owner.
///
/// openmls hands ids over as opaque keys. Their encoding is a length and the bytes.
pub(super) fn owner<K: Serialize>(group: &K) -> Result<Vec<u8>, StorageError> {
    let encoded = key(group)?;
    match postcard::take_from_bytes::<Vec<u8>>(&encoded) {
        Ok((id, [])) => Ok(id),
        _ => Err(corrupt("key")),
    }
}
