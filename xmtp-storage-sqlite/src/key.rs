//! What SQLCipher is told of the database key, and what is derived from it.

use sha2::{Digest, Sha256};
use xmtp_core::storage::DatabaseKey;
use zeroize::Zeroizing;

/// Bytes of the salt at the start of an encrypted file.
pub(crate) const SALT_BYTES: usize = 16;
/// How the salt of every database of this engine begins.
pub(crate) const SALT_MARK: &[u8; 8] = b"xmtp-db\x01";

/// Answers the salt of a database under a key: a public mark and a key check.
///
/// A raw key needs no random salt. A known one tells, without the key, that a file is an
/// encrypted database of this engine, and with the key whether it is the right one even when
/// the rest of the first page is damaged.
pub(crate) fn salt(key: &DatabaseKey) -> [u8; SALT_BYTES] {
    let check = Sha256::new_with_prefix(b"xmtp-storage-sqlite key check")
        .chain_update(key.bytes())
        .finalize();
    let mut salt = [0; SALT_BYTES];
    salt[..8].copy_from_slice(SALT_MARK);
    salt[8..].copy_from_slice(&check[..8]);
    salt
}

/// Writes the statement that keys a connection.
pub(crate) fn pragma(key: &DatabaseKey) -> Zeroizing<String> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    // One allocation of the final size: growing would leave copies of the key behind.
    let mut sql = Zeroizing::new(String::with_capacity(128));
    sql.push_str("PRAGMA key = \"x'");
    for byte in key.bytes().iter().chain(&salt(key)) {
        sql.push(char::from(DIGITS[usize::from(byte >> 4)]));
        sql.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    sql.push_str("'\"");
    sql
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statement_fits_its_first_allocation() {
        let sql = pragma(&DatabaseKey::new([1; 32]));
        assert!(sql.len() <= 128 && sql.capacity() == 128);
    }
}
