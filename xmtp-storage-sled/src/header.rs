//! The header file: what a database is, readable before its log is touched.
//!
//! | bytes | what |
//! | --- | --- |
//! | 16 | magic, with the engine's name |
//! | 4 | schema version, big-endian |
//! | 4 | check of the bytes before; so far the layout is fixed for all versions |
//! | 1 | 1 when values are sealed |
//! | 32 | salt |
//! | 56 | a constant sealed with the key: the key check |
//! | 16 | check of the whole |

use xmtp_core::storage::schema::SCHEMA_VERSION;
use xmtp_core::storage::{DatabaseKey, OpenError};

use crate::seal::{SALT_BYTES, SEAL_BYTES, Sealer, digest, random_salt};

const MAGIC: &[u8; 16] = b"xmtp sled db\r\n\x1a\n";
const KNOWN: &[u8; 16] = b"xmtp key check 1";
const CHECK_BYTES: usize = KNOWN.len() + SEAL_BYTES;
const VERSION_AT: usize = MAGIC.len();
const VERSION_CHECK_AT: usize = VERSION_AT + 4;
const SEALED_AT: usize = VERSION_CHECK_AT + 4;
const SALT_AT: usize = SEALED_AT + 1;
const CHECK_AT: usize = SALT_AT + SALT_BYTES;
const DIGEST_AT: usize = CHECK_AT + CHECK_BYTES;
/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = DIGEST_AT + 16;

/// Makes the header of a new database, and the sealer that goes with it.
pub(crate) fn make(key: Option<&DatabaseKey>) -> Result<(Vec<u8>, Sealer), OpenError> {
    let mut salt = [0; SALT_BYTES];
    let mut check = vec![0; CHECK_BYTES];
    let mut sealer = Sealer::Plain;
    if let Some(key) = key {
        salt = random_salt()?;
        sealer = Sealer::new(key, &salt);
        check = sealer.seal(&salt, KNOWN)?;
    }
    let mut header = MAGIC.to_vec();
    header.extend_from_slice(&SCHEMA_VERSION.to_be_bytes());
    header.extend_from_slice(&digest(&[&header])[..4]);
    header.push(u8::from(key.is_some()));
    header.extend_from_slice(&salt);
    header.extend_from_slice(&check);
    header.extend_from_slice(&digest(&[&header]));
    Ok((header, sealer))
}

/// Proves a header, and the key on it.
pub(crate) fn prove(header: &[u8], key: Option<&DatabaseKey>) -> Result<Sealer, OpenError> {
    let short = &header[..header.len().min(MAGIC.len())];
    if *short != MAGIC[..short.len()] {
        return Err(damaged("its header has lost its mark"));
    }
    let Some(version) = header.get(VERSION_AT..VERSION_CHECK_AT) else {
        return Err(OpenError::Truncated);
    };
    let Some(check) = header.get(VERSION_CHECK_AT..SEALED_AT) else {
        return Err(OpenError::Truncated);
    };
    if digest(&[&header[..VERSION_CHECK_AT]])[..4] != *check {
        return Err(damaged("its header is changed"));
    }
    let found = u32::from_be_bytes(version.try_into().expect("four bytes"));
    if found > SCHEMA_VERSION {
        let supported = SCHEMA_VERSION;
        return Err(OpenError::NewerSchema { found, supported });
    }
    if header.len() < HEADER_BYTES {
        return Err(OpenError::Truncated);
    }
    if header.len() > HEADER_BYTES
        || digest(&[&header[..DIGEST_AT]]) != header[DIGEST_AT..]
        || header[SEALED_AT] > 1
    {
        return Err(damaged("its header is changed"));
    }
    match (header[SEALED_AT] == 1, key) {
        (false, None) => Ok(Sealer::Plain),
        (false, Some(_)) => Err(OpenError::NotEncrypted),
        (true, None) => Err(OpenError::KeyRequired),
        (true, Some(key)) => prove_key(header, key),
    }
}

fn prove_key(header: &[u8], key: &DatabaseKey) -> Result<Sealer, OpenError> {
    let salt = header[SALT_AT..CHECK_AT]
        .try_into()
        .expect("the salt's length");
    let sealer = Sealer::new(key, salt);
    let known = sealer.open(salt, &header[CHECK_AT..DIGEST_AT]);
    if known.as_deref() == Some(KNOWN) {
        Ok(sealer)
    } else {
        Err(OpenError::WrongKey)
    }
}

pub(crate) fn damaged(detail: &str) -> OpenError {
    OpenError::Damaged {
        detail: detail.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// covers: EXT-003
    #[test]
    fn every_changed_or_missing_byte_is_told() {
        let key = DatabaseKey::new([7; 32]);
        let (header, _) = make(Some(&key)).expect("make");
        assert_eq!(header.len(), HEADER_BYTES);
        assert!(prove(&header, Some(&key)).is_ok());
        for at in 0..HEADER_BYTES {
            let mut changed = header.clone();
            changed[at] ^= 0x80;
            let refused = prove(&changed, Some(&key)).map(drop);
            assert!(
                matches!(refused, Err(OpenError::Damaged { .. })),
                "byte {at}"
            );
            let refused = prove(&header[..at], Some(&key)).map(drop);
            assert_eq!(refused, Err(OpenError::Truncated), "{at} bytes");
        }
    }

    /// covers: EXT-003
    #[test]
    fn a_newer_schema_is_told_whatever_follows() {
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&(SCHEMA_VERSION + 1).to_be_bytes());
        header.extend_from_slice(&digest(&[&header])[..4]);
        header.extend_from_slice(b"a layout of the future");
        let newer = OpenError::NewerSchema {
            found: SCHEMA_VERSION + 1,
            supported: SCHEMA_VERSION,
        };
        assert_eq!(prove(&header, None).map(drop), Err(newer));
    }
}
