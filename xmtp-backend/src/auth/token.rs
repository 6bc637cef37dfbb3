//! A JSON Web Token, taken apart; nothing in it is trusted before its signature is checked.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::algorithm::named;
use super::rejection::Rejection;
use crate::config::SigningAlgorithm as Algorithm;

/// The parts of a token.
pub(super) struct Token<'a> {
    /// What is signed: the first two parts as they were sent.
    pub(super) message: &'a str,
    /// The signature, in base64.
    pub(super) signature: &'a str,
    pub(super) algorithm: Algorithm,
    pub(super) kid: Option<String>,
    claims: &'a str,
}

/// The fields of the first part that matter.
#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// Names what a reader must understand, and this one understands nothing beyond the form.
    crit: Option<Value>,
}

impl<'a> Token<'a> {
    pub(super) fn parse(token: &'a str) -> Result<Self, Rejection> {
        let (message, signature) = token.rsplit_once('.').ok_or(Rejection::Malformed)?;
        let (header, claims) = message.split_once('.').ok_or(Rejection::Malformed)?;
        let header: Header =
            serde_json::from_slice(&decode(header)?).map_err(|_| Rejection::Malformed)?;
        decode(claims)?;
        decode(signature)?;
        if header.crit.is_some() {
            return Err(Rejection::Malformed);
        }
        let algorithm = named(&header.alg).ok_or(Rejection::UnsupportedAlg)?;
        Ok(Self {
            message,
            signature,
            algorithm,
            kid: header.kid,
            claims,
        })
    }

    /// Reads the claims.
    pub(super) fn claims(&self) -> Result<Claims, Rejection> {
        let text = decode(self.claims)?;
        let claims = serde_json::from_slice(&text).map_err(|_| Rejection::Malformed)?;
        Ok(Claims(claims))
    }
}

fn decode(part: &str) -> Result<Vec<u8>, Rejection> {
    BASE64_URL_SAFE_NO_PAD
        .decode(part)
        .map_err(|_| Rejection::Malformed)
}

/// What a token says; a claim that is null is as good as absent.
pub(super) struct Claims(Map<String, Value>);

impl Claims {
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// Returns a time in seconds since 1970, which may have a fraction.
    pub(super) fn seconds(&self, name: &str) -> Result<Option<f64>, Rejection> {
        let number = |value: &Value| value.as_f64().ok_or(Rejection::Malformed);
        self.get(name).map(number).transpose()
    }

    /// Returns a text.
    pub(super) fn text(&self, name: &str) -> Result<Option<&str>, Rejection> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => value.as_str().map(Some).ok_or(Rejection::Malformed),
        }
    }

    /// Returns the scopes: a list, or one text with spaces between them (RFC 8693).
    pub(super) fn scopes(&self) -> Result<Vec<&str>, Rejection> {
        match self.get("scope") {
            Some(Value::String(text)) => Ok(text.split(' ').collect()),
            _ => self.texts("scope"),
        }
    }

    /// Returns the texts of a claim that is one text or a list of them.
    pub(super) fn texts(&self, name: &str) -> Result<Vec<&str>, Rejection> {
        match self.get(name) {
            None => Ok(Vec::new()),
            Some(Value::String(text)) => Ok(vec![text]),
            Some(Value::Array(values)) => {
                let texts = values.iter().map(Value::as_str).collect::<Option<_>>();
                texts.ok_or(Rejection::Malformed)
            }
            Some(_) => Err(Rejection::Malformed),
        }
    }
}
