//! What reads a credential, for fuzzers.

use std::collections::BTreeMap;

use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderValue};

use crate::config::{Auth, KeySource};

/// When credentials are judged, in seconds since 1970.
const NOW: f64 = 1.7e9;

/// Judges bytes as the value of an authorization header, as if every signature held.
///
/// - Returns the reason for which it is turned away, or none if it is taken or no header at all.
pub fn judge_credential(value: &[u8]) -> Option<&'static str> {
    let value = HeaderValue::from_bytes(value).ok()?;
    let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
    let auth = Auth {
        keys: KeySource::None,
        api_keys: BTreeMap::new(),
        audiences: vec!["chat".to_owned()],
        issuers: vec!["https://example.org".to_owned()],
        required_scopes: vec!["read".to_owned(), "write".to_owned()],
        leeway_seconds: 60,
    };
    let judged = crate::auth::judge_unsigned(&auth, &headers, NOW);
    judged.err().map(|rejection| rejection.name())
}

/// Reads bytes as a key set, and counts the keys that can be used.
pub fn read_key_set(answer: &[u8]) -> Result<usize, crate::KeySetError> {
    crate::auth::count_keys(answer)
}
