//! What wallets have said, so that they are not asked again.
//!
//! A verdict is remembered only for a block that the caller chose, because only that does not
//! change. It is remembered whichever way it went, and a chain that later takes the block back is
//! not noticed. A fault is no verdict.

use std::num::NonZeroUsize;
use std::sync::Mutex;

use lru::LruCache;
use sha2::{Digest, Sha256};

/// What a verdict is about. The signature stands for itself by its digest, which bounds the size.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) chain_id: u64,
    pub(super) account: [u8; 20],
    pub(super) hash: [u8; 32],
    pub(super) signature: [u8; 32],
    pub(super) block: u64,
}

/// The verdicts that were used last.
pub(super) struct Verdicts(Mutex<LruCache<Key, bool>>);

impl Verdicts {
    pub(super) fn new(entries: NonZeroUsize) -> Self {
        // It grows with what it holds; made at its size it would take all its room at once.
        let mut verdicts = LruCache::unbounded();
        verdicts.resize(entries);
        Self(Mutex::new(verdicts))
    }

    pub(super) fn get(&self, key: &Key) -> Option<bool> {
        self.locked(|verdicts| verdicts.get(key).copied())
    }

    pub(super) fn put(&self, key: Key, is_valid: bool) {
        self.locked(|verdicts| verdicts.put(key, is_valid));
    }

    /// A panic elsewhere leaves the cache whole, so a poisoned lock is taken all the same.
    fn locked<T>(&self, with: impl FnOnce(&mut LruCache<Key, bool>) -> T) -> T {
        let mut verdicts = self
            .0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        with(&mut verdicts)
    }
}

/// Returns what stands for a signature in a key.
pub(super) fn digest(signature: &[u8]) -> [u8; 32] {
    Sha256::digest(signature).into()
}

impl std::fmt::Debug for Verdicts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Verdicts")
    }
}
