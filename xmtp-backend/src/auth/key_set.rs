//! The keys that tokens are checked with.

use std::fmt;

use serde::Deserialize;
use serde_json::Value;
use xmtp_proto::backend::v1::auth_configuration::SigningKey;

use super::key::Key;
use super::rejection::Rejection;
use crate::config::SigningAlgorithm as Algorithm;
use crate::limits::KEY_SET_KEYS;
use crate::telemetry::metrics;

/// The keys of one moment.
#[derive(Default)]
pub(super) struct KeySet(Vec<Key>);

/// Reports why a key set is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeySetError {
    /// It is no JSON Web Key Set.
    #[error("the answer is no JSON Web Key Set")]
    Malformed,
    /// It holds no key with an `alg` that is taken.
    #[error("the key set has no key that can be used, each needs one of the algorithms as its alg")]
    NoKeys,
    /// It holds too many keys.
    #[error("the key set has more than 64 keys that can be used")]
    TooManyKeys,
    /// Two keys can not be told apart.
    #[error("the key set has two keys of the same kid and alg")]
    Ambiguous,
}

/// The outermost form of a JSON Web Key Set.
#[derive(Deserialize)]
struct Document {
    keys: Vec<Value>,
}

impl KeySet {
    /// Makes a set.
    ///
    /// - Refuses one in which a kid and an algorithm do not name a single key.
    pub(super) fn new(keys: Vec<Key>) -> Result<Self, KeySetError> {
        if keys.len() > KEY_SET_KEYS {
            return Err(KeySetError::TooManyKeys);
        }
        let name = |key: &Key| {
            key.kid()
                .map(|kid| (kid.to_owned(), key.algorithm().name()))
        };
        let names: Vec<_> = keys.iter().filter_map(name).collect();
        let is_repeated = |at: usize| names[..at].contains(&names[at]);
        if (0..names.len()).any(is_repeated) {
            return Err(KeySetError::Ambiguous);
        }
        Ok(Self(keys))
    }

    /// Reads a JSON Web Key Set; entries that can not be used are passed over.
    pub(super) fn from_json(text: &[u8]) -> Result<Self, KeySetError> {
        let document: Document =
            serde_json::from_slice(text).map_err(|_| KeySetError::Malformed)?;
        let keys: Vec<_> = document.keys.iter().filter_map(Key::from_jwk).collect();
        if keys.is_empty() {
            return Err(KeySetError::NoKeys);
        }
        Self::new(keys)
    }

    /// Chooses the key that must have made a signature.
    ///
    /// - With a kid it is the key of that kid; without one it is the only key of the algorithm.
    /// - There is no second choice: a signature that this key did not make is not trusted.
    pub(super) fn choose(
        &self,
        kid: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<&Key, Rejection> {
        let is_meant = |key: &&Key| {
            key.algorithm() == algorithm && kid.is_none_or(|kid| key.kid() == Some(kid))
        };
        let mut keys = self.0.iter().filter(is_meant);
        match (keys.next(), keys.next()) {
            (Some(key), None) => Ok(key),
            _ => Err(Rejection::Untrusted),
        }
    }

    /// Tells an operator how many keys there are.
    pub(super) fn count(&self) {
        metrics::auth_keys(u32::try_from(self.0.len()).unwrap_or(u32::MAX));
    }

    /// Returns what clients are told of the keys.
    pub(super) fn published(&self) -> Vec<SigningKey> {
        let publish = |key: &Key| SigningKey {
            kid: key.kid().unwrap_or_default().to_owned(),
            alg: key.algorithm().name().to_owned(),
        };
        self.0.iter().map(publish).collect()
    }
}

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySet")
    }
}
