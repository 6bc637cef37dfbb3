//! The database key and what is derived from it.

use std::fmt;

use sha2::{Digest, Sha256};
use xmtp_core::storage::OpenError;
use zeroize::Zeroizing;

/// Bytes of a database key.
const KEY_BYTES: usize = 32;
/// Bytes of the salt at the start of an encrypted file.
pub(crate) const SALT_BYTES: usize = 16;
/// How the salt of every database of this engine begins.
pub(crate) const SALT_MARK: &[u8; 8] = b"xmtp-db\x01";

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

    /// Answers the salt of a database under this key: a public mark and a key check.
    ///
    /// A raw key needs no random salt. A known one tells, without the key, that a file is an
    /// encrypted database of this engine, and with the key whether it is the right one even when
    /// the rest of the first page is damaged.
    pub(crate) fn salt(&self) -> [u8; SALT_BYTES] {
        let check = Sha256::new_with_prefix(b"xmtp-storage-sqlite key check")
            .chain_update(self.bytes())
            .finalize();
        let mut salt = [0; SALT_BYTES];
        salt[..8].copy_from_slice(SALT_MARK);
        salt[8..].copy_from_slice(&check[..8]);
        salt
    }

    /// Writes the statement that keys a connection.
    pub(crate) fn pragma(&self) -> Zeroizing<String> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        // One allocation of the final size: growing would leave copies of the key behind.
        let mut sql = Zeroizing::new(String::with_capacity(128));
        sql.push_str("PRAGMA key = \"x'");
        for byte in self.bytes().iter().chain(&self.salt()) {
            sql.push(char::from(DIGITS[usize::from(byte >> 4)]));
            sql.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
        sql.push_str("'\"");
        sql
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

    #[test]
    fn the_statement_fits_its_first_allocation() {
        let sql = DatabaseKey::new([1; KEY_BYTES]).pragma();
        assert!(sql.len() <= 128 && sql.capacity() == 128);
    }
}
