//! The API keys: credentials that are named in the configuration and skip the rules of tokens.

use std::fmt;

use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

/// The API keys, by their SHA-256.
pub(super) struct ApiKeys(Vec<[u8; 32]>);

impl ApiKeys {
    pub(super) fn new<'a>(values: impl IntoIterator<Item = &'a str>) -> Self {
        Self(values.into_iter().map(digest).collect())
    }

    /// Reports whether a token is one of the keys.
    ///
    /// - Compares with every key in constant time, so that the time tells neither which key it
    ///   was nor how much of one was right.
    pub(super) fn contains(&self, token: &str) -> bool {
        let token = digest(token);
        let same = |key: &[u8; 32]| key.ct_eq(&token);
        self.0
            .iter()
            .map(same)
            .fold(Choice::from(0), |found, same| found | same)
            .into()
    }
}

fn digest(value: &str) -> [u8; 32] {
    Sha256::digest(value.as_bytes()).into()
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKeys")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_counts_and_nothing_like_it() {
        let keys = ["a".repeat(32), "b".repeat(8192), "c".repeat(40)];
        let set = ApiKeys::new(keys.iter().map(String::as_str));
        for key in &keys {
            assert!(set.contains(key));
            assert!(!set.contains(&key[1..]));
            assert!(!set.contains(&format!("{key}a")));
            assert!(!set.contains(&key.to_uppercase()));
        }
        assert!(!set.contains(""));
        assert!(!ApiKeys::new([]).contains(""));
    }

    #[test]
    fn nothing_of_a_key_is_shown() {
        let set = ApiKeys::new(["a-key-that-nobody-may-ever-read-x"]);
        assert_eq!(format!("{set:?}"), "ApiKeys");
    }
}
