//! The authorization header.

use http::HeaderMap;
use http::header::AUTHORIZATION;

use super::rejection::Rejection;
use crate::limits::TOKEN_BYTES;

const SCHEME: &str = "bearer";

/// Takes the token out of the headers of a request.
///
/// - Wants exactly one header: the scheme in any case, one space, and visible ASCII.
pub(super) fn token(headers: &HeaderMap) -> Result<&str, Rejection> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().ok_or(Rejection::Missing)?;
    if values.next().is_some() {
        return Err(Rejection::Malformed);
    }
    parse(value.as_bytes()).ok_or(Rejection::Malformed)
}

fn parse(value: &[u8]) -> Option<&str> {
    let (scheme, rest) = value.split_at_checked(SCHEME.len())?;
    let token = rest.strip_prefix(b" ")?;
    let is_token = scheme.eq_ignore_ascii_case(SCHEME.as_bytes())
        && (1..=TOKEN_BYTES).contains(&token.len())
        && token.iter().all(u8::is_ascii_graphic);
    is_token.then(|| std::str::from_utf8(token).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(values: &[&[u8]]) -> HeaderMap {
        let value = |value: &&[u8]| HeaderValue::from_bytes(value).unwrap();
        let entry = |value| (AUTHORIZATION, value);
        values.iter().map(value).map(entry).collect()
    }

    #[test]
    fn the_scheme_is_read_in_any_case() {
        for scheme in ["Bearer", "bearer", "BEARER", "bEaReR"] {
            let headers = headers(&[format!("{scheme} abc").as_bytes()]);
            assert_eq!(token(&headers), Ok("abc"));
        }
    }

    /// covers: CFG-092
    #[test]
    fn anything_else_is_malformed_and_nothing_is_missing() {
        assert_eq!(token(&HeaderMap::new()), Err(Rejection::Missing));
        let malformed: [&[u8]; 12] = [
            b"",
            b"Bearer",
            b"Bearer ",
            b"Bearer  abc",
            b"Bearer\tabc",
            b"Bearer abc ",
            b"Bearer a c",
            b" Bearer abc",
            b"Bearerabc",
            b"Basic abc",
            b"Bearer ab\xffc",
            b"abc",
        ];
        for value in malformed {
            assert_eq!(token(&headers(&[value])), Err(Rejection::Malformed));
        }
        let twice = headers(&[b"Bearer abc", b"Bearer abc"]);
        assert_eq!(token(&twice), Err(Rejection::Malformed));
    }

    #[test]
    fn a_token_has_a_longest_length() {
        let of = |length: usize| {
            headers(&[[b"Bearer ", "a".repeat(length).as_bytes()]
                .concat()
                .as_slice()])
        };
        assert_eq!(token(&of(TOKEN_BYTES)).map(str::len), Ok(TOKEN_BYTES));
        assert_eq!(token(&of(TOKEN_BYTES + 1)), Err(Rejection::Malformed));
    }
}
