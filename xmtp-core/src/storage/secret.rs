//! The key of an encrypted database, the same for every engine.

use std::fmt;

use zeroize::Zeroizing;

use super::OpenError;

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

    /// Answers the bytes of the key, for the engine that encrypts with it; leave no copy of them.
    pub fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl fmt::Debug for DatabaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DatabaseKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// covers: EXT-003
    #[test]
    fn a_key_of_another_length_is_malformed() {
        for found in [0, 1, 31, 33, 64] {
            let refused = DatabaseKey::from_slice(&vec![7; found]);
            let expected = OpenError::MalformedKey {
                expected: KEY_BYTES,
                found,
            };
            assert_eq!(refused, Err(expected));
        }
        let key = DatabaseKey::from_slice(&[7; KEY_BYTES]);
        assert_eq!(key, Ok(DatabaseKey::new([7; KEY_BYTES])));
    }

    /// covers: EXT-007
    #[test]
    fn debug_does_not_show_the_key() {
        let shown = format!("{:?}", DatabaseKey::new([0xab; KEY_BYTES]));
        assert_eq!(shown, "DatabaseKey(..)");
    }
}
