//! How a value is stored: as it is, or sealed with XChaCha20-Poly1305.
//!
//! A sealed value is a random nonce, the ciphertext and its tag, with the whole stored key (table
//! number and key) as associated data: a value moved to another row does not open.

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use hkdf::Hkdf;
use sha2::{Digest, Sha256};
use xmtp_core::storage::{DatabaseKey, OpenError, StorageError};
use zeroize::Zeroizing;

/// Bytes of a database's salt.
pub(crate) const SALT_BYTES: usize = 32;
const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
/// Bytes that sealing adds to a value.
pub(crate) const SEAL_BYTES: usize = NONCE_BYTES + TAG_BYTES;

/// Turns values into what is stored, and back.
#[derive(Clone)]
pub(crate) enum Sealer {
    Plain,
    Sealed(Box<XChaCha20Poly1305>),
}

impl Sealer {
    /// Derives the sealer of one database from its key and salt.
    pub(crate) fn new(key: &DatabaseKey, salt: &[u8; SALT_BYTES]) -> Self {
        let mut derived = Zeroizing::new([0; 32]);
        Hkdf::<Sha256>::new(Some(salt), key.bytes())
            .expand(b"xmtp-storage-sled values", &mut *derived)
            .expect("32 bytes are a valid length for HKDF-SHA256");
        Self::Sealed(Box::new(XChaCha20Poly1305::new((&*derived).into())))
    }

    /// Makes what is stored under `key`.
    pub(crate) fn seal(&self, key: &[u8], value: &[u8]) -> Result<Vec<u8>, StorageError> {
        let Self::Sealed(cipher) = self else {
            return Ok(value.to_vec());
        };
        let mut stored = vec![0; NONCE_BYTES];
        fill_random(&mut stored)?;
        let nonce = XNonce::clone_from_slice(&stored);
        let payload = Payload {
            msg: value,
            aad: key,
        };
        let sealed = cipher.encrypt(&nonce, payload);
        let sealed = sealed.map_err(|_| StorageError::Io {
            action: "seal a value",
            detail: "the cipher refused".to_owned(),
        })?;
        stored.extend_from_slice(&sealed);
        Ok(stored)
    }

    /// Reads what is stored under `key`; `None` when it was changed.
    pub(crate) fn open(&self, key: &[u8], stored: &[u8]) -> Option<Vec<u8>> {
        let Self::Sealed(cipher) = self else {
            return Some(stored.to_vec());
        };
        let (nonce, sealed) = stored.split_at_checked(NONCE_BYTES)?;
        let payload = Payload {
            msg: sealed,
            aad: key,
        };
        cipher.decrypt(XNonce::from_slice(nonce), payload).ok()
    }

    /// Answers how long the value is whose stored form has `stored` bytes.
    pub(crate) fn value_len(&self, stored: usize) -> usize {
        match self {
            Self::Plain => stored,
            Self::Sealed(_) => stored.saturating_sub(SEAL_BYTES),
        }
    }

    /// Answers a number that stands for one stored row in the sum over all of them. A sealed
    /// row's tag is one already.
    pub(crate) fn print(&self, key: &[u8], stored: &[u8]) -> u128 {
        let mut print = [0; 16];
        match self {
            Self::Sealed(_) if stored.len() >= SEAL_BYTES => {
                print.copy_from_slice(&stored[stored.len() - TAG_BYTES..]);
            }
            _ => print.copy_from_slice(&digest(&[&(key.len() as u64).to_be_bytes(), key, stored])),
        }
        u128::from_be_bytes(print)
    }
}

/// Hashes parts, cut to 16 bytes: against damage, not against a forger.
pub(crate) fn digest(parts: &[&[u8]]) -> [u8; 16] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    let mut cut = [0; 16];
    cut.copy_from_slice(&hash.finalize()[..16]);
    cut
}

pub(crate) fn fill_random(buffer: &mut [u8]) -> Result<(), StorageError> {
    getrandom::fill(buffer).map_err(|_| StorageError::Io {
        action: "draw random bytes",
        detail: "the system has none".to_owned(),
    })
}

pub(crate) fn random_salt() -> Result<[u8; SALT_BYTES], OpenError> {
    let mut salt = [0; SALT_BYTES];
    fill_random(&mut salt)?;
    Ok(salt)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealer() -> Sealer {
        Sealer::new(&DatabaseKey::new([7; 32]), &[1; SALT_BYTES])
    }

    #[test]
    fn a_value_opens_only_under_its_own_key_and_salt() {
        let stored = sealer().seal(b"row", b"value").expect("seal");
        assert_eq!(sealer().open(b"row", &stored), Some(b"value".to_vec()));
        assert_eq!(sealer().open(b"other row", &stored), None);
        let other_salt = Sealer::new(&DatabaseKey::new([7; 32]), &[2; SALT_BYTES]);
        assert_eq!(other_salt.open(b"row", &stored), None);
        let other_key = Sealer::new(&DatabaseKey::new([8; 32]), &[1; SALT_BYTES]);
        assert_eq!(other_key.open(b"row", &stored), None);
    }

    #[test]
    fn a_changed_or_short_value_does_not_open() {
        let stored = sealer().seal(b"row", b"value").expect("seal");
        for at in 0..stored.len() {
            let mut changed = stored.clone();
            changed[at] ^= 1;
            assert_eq!(sealer().open(b"row", &changed), None);
            assert_eq!(sealer().open(b"row", &stored[..at]), None);
        }
    }

    #[test]
    fn equal_values_are_stored_differently_and_do_not_show() {
        let [one, two] = [(); 2].map(|()| sealer().seal(b"row", b"the same value").expect("seal"));
        assert_ne!(one, two);
        assert!(!one.windows(4).any(|part| part == b"same"));
        assert_eq!(sealer().value_len(one.len()), 14);
        assert_ne!(sealer().print(b"row", &one), sealer().print(b"row", &two));
    }
}
