//! The short form under which ids appear in logs.

use std::fmt;

use sha2::{Digest, Sha256};

/// Displays an id as `#` and the first four bytes of its SHA-256 in hex.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ShortId([u8; 4]);

impl ShortId {
    /// Shortens the bytes of an id.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let digest: [u8; 32] = Sha256::digest(bytes).into();
        let [a, b, c, d, ..] = digest;
        Self([a, b, c, d])
    }
}

impl fmt::Display for ShortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{:08x}", u32::from_be_bytes(self.0))
    }
}

impl fmt::Debug for ShortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
