//! A public key that signs tokens.

use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::crypto::{self, CryptoProvider};
use jsonwebtoken::{DecodingKey, DecodingKeyKind};
use serde_json::Value;

use super::algorithm::{Family, family, named, of_library};
use crate::config::SigningAlgorithm as Algorithm;

/// The sizes that an RSA modulus may have, in bits.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// The size of an Ed25519 key, in bytes.
const ED25519_BYTES: usize = 32;

/// How a point on a curve begins when both coordinates follow.
const UNCOMPRESSED: u8 = 4;

/// The one form of text that is taken: a SubjectPublicKeyInfo.
const PEM_HEADER: &str = "-----BEGIN PUBLIC KEY-----";

/// A public key, for one algorithm.
pub(super) struct Key {
    kid: Option<String>,
    algorithm: Algorithm,
    public: DecodingKey,
}

impl Key {
    /// Reads a key from PEM; nothing if it is no key for the algorithm.
    pub(super) fn from_pem(kid: &str, algorithm: Algorithm, pem: &str) -> Option<Self> {
        // The library also takes certificates and private keys, which have no place here.
        let pem = pem.trim_start();
        pem.starts_with(PEM_HEADER).then_some(())?;
        let public = match family(algorithm) {
            Family::Rsa => rsa_of(&DecodingKey::from_rsa_pem(pem.as_bytes()).ok()?)?,
            Family::Curve(_, bytes) => {
                let key = DecodingKey::from_ec_pem(pem.as_bytes()).ok()?;
                point(key.try_get_as_bytes().ok()?, bytes)?
            }
            Family::Ed25519 => {
                let key = DecodingKey::from_ed_pem(pem.as_bytes()).ok()?;
                ed25519(key.try_get_as_bytes().ok()?)?
            }
        };
        let kid = Some(kid.to_owned());
        Some(Self {
            kid,
            algorithm,
            public,
        })
    }

    /// Reads an entry of a JSON Web Key Set; nothing if it is no key for signatures that are taken.
    pub(super) fn from_jwk(entry: &Value) -> Option<Self> {
        let algorithm = named(text(entry, "alg")?)?;
        is_for_verifying(entry).then_some(())?;
        let public = match (family(algorithm), text(entry, "kty")?) {
            (Family::Rsa, "RSA") => rsa(&bytes(entry, "n")?, &bytes(entry, "e")?)?,
            (Family::Curve(name, length), "EC") if text(entry, "crv")? == name => {
                let (x, y) = (bytes(entry, "x")?, bytes(entry, "y")?);
                point(&[&[UNCOMPRESSED], &x[..], &y[..]].concat(), length)?
            }
            (Family::Ed25519, "OKP") if text(entry, "crv")? == "Ed25519" => {
                ed25519(&bytes(entry, "x")?)?
            }
            _ => return None,
        };
        let kid = match entry.get("kid") {
            None => None,
            Some(kid) => Some(kid.as_str()?.to_owned()),
        };
        Some(Self {
            kid,
            algorithm,
            public,
        })
    }

    pub(super) fn kid(&self) -> Option<&str> {
        self.kid.as_deref()
    }

    pub(super) fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Reports whether this key made the signature, which is given in base64.
    pub(super) fn verifies(&self, message: &str, signature: &str) -> bool {
        let algorithm = of_library(self.algorithm);
        crypto::verify(signature, message.as_bytes(), &self.public, algorithm).unwrap_or(false)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

fn text<'a>(entry: &'a Value, name: &str) -> Option<&'a str> {
    entry.get(name)?.as_str()
}

fn bytes(entry: &Value, name: &str) -> Option<Vec<u8>> {
    BASE64_URL_SAFE_NO_PAD.decode(text(entry, name)?).ok()
}

/// Reports whether an entry says nothing against checking signatures with it.
///
/// - A private key is passed over: whoever published it may not be the only one to sign with it.
fn is_for_verifying(entry: &Value) -> bool {
    let is_signing = entry.get("use").is_none_or(|purpose| purpose == "sig");
    let verifies = |operations: &Value| {
        operations
            .as_array()
            .is_some_and(|operations| operations.iter().any(|operation| operation == "verify"))
    };
    is_signing && entry.get("key_ops").is_none_or(verifies) && entry.get("d").is_none()
}

fn rsa(modulus: &[u8], exponent: &[u8]) -> Option<DecodingKey> {
    let start = modulus.iter().position(|byte| *byte != 0)?;
    let modulus = &modulus[start..];
    let bits = modulus.len() * 8 - modulus[0].leading_zeros() as usize;
    let is_sound = RSA_BITS.contains(&bits) && exponent.iter().any(|byte| *byte != 0);
    is_sound.then(|| DecodingKey::from_rsa_raw_components(modulus, exponent))
}

/// Takes the numbers out of a key that the library read from text, so that they are checked too.
fn rsa_of(key: &DecodingKey) -> Option<DecodingKey> {
    let DecodingKeyKind::SecretOrDer(der) = key.kind() else {
        return None;
    };
    let library = CryptoProvider::try_get_default()?;
    let (modulus, exponent) = (library.key_utils.rsa_pub_components_from_public_key)(der).ok()?;
    rsa(&modulus, &exponent)
}

fn point(bytes: &[u8], coordinate: usize) -> Option<DecodingKey> {
    let is_whole = bytes.len() == 1 + 2 * coordinate && bytes[0] == UNCOMPRESSED;
    is_whole.then(|| DecodingKey::from_ec_der(bytes))
}

fn ed25519(bytes: &[u8]) -> Option<DecodingKey> {
    (bytes.len() == ED25519_BYTES).then(|| DecodingKey::from_ed_der(bytes))
}
