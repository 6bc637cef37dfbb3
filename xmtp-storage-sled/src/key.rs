//! The database key.

use std::fmt;

use xmtp_core::storage::OpenError;
use zeroize::Zeroizing;

/// Bytes of a database key.
const KEY_BYTES: usize = 32;

/// The key of an encrypted database: 32 raw bytes from a secure random source.
///
/// It is overwritten when dropped, and its `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseKey(Zeroizing<[u8; KEY_BYTES]>);

impl DatabaseKey {
    /// Takes the bytes of a key.
    pub fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Takes a key of unchecked length, or answers [`OpenError::MalformedKey`].
    pub fn from_slice(bytes: &[u8]) -> Result<Self, OpenError> {
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        if bytes.len() != KEY_BYTES {
            return Err(OpenError::MalformedKey {
                expected: KEY_BYTES,
                found: bytes.len(),
            });
        }
        key.copy_from_slice(bytes);
        Ok(Self(key))
    }

    pub(crate) fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl fmt::Debug for DatabaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DatabaseKey(..)")
    }
}
