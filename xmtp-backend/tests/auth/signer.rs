//! Keys that a test makes, and tokens that they sign.

use std::sync::OnceLock;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair as RsaKeyPair, KeySize};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair,
    EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair, RsaPublicKeyComponents,
};
use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, crypto};
use serde_json::{Value, json};
use xmtp_backend::config::SigningAlgorithm;

pub(crate) const ALGORITHMS: [SigningAlgorithm; 6] = [
    SigningAlgorithm::Rs256,
    SigningAlgorithm::Rs384,
    SigningAlgorithm::Rs512,
    SigningAlgorithm::Es256,
    SigningAlgorithm::Es384,
    SigningAlgorithm::EdDsa,
];

/// A private key and what the world knows of it.
pub(crate) struct Signer {
    pub(crate) kid: String,
    pub(crate) algorithm: SigningAlgorithm,
    /// The public key as text.
    pub(crate) pem: String,
    /// The public key as a key set writes it.
    public: Value,
    key: EncodingKey,
}

impl Signer {
    pub(crate) fn new(kid: &str, algorithm: SigningAlgorithm) -> Self {
        let (key, der, public) = match algorithm {
            SigningAlgorithm::Es256 => curve("P-256", &ECDSA_P256_SHA256_FIXED_SIGNING),
            SigningAlgorithm::Es384 => curve("P-384", &ECDSA_P384_SHA384_FIXED_SIGNING),
            SigningAlgorithm::EdDsa => edwards(),
            _ => rsa(),
        };
        Self {
            kid: kid.to_owned(),
            algorithm,
            pem: pem("PUBLIC KEY", &der),
            public,
            key,
        }
    }

    fn of_library(&self) -> Algorithm {
        self.algorithm.name().parse().expect("an algorithm")
    }

    /// Returns the entry of a key set.
    pub(crate) fn jwk(&self) -> Value {
        let mut entry = self.public.clone();
        entry["alg"] = json!(self.algorithm.name());
        entry["kid"] = json!(self.kid);
        entry["use"] = json!("sig");
        entry
    }

    /// Signs a token that names this key.
    pub(crate) fn sign(&self, claims: &Value) -> String {
        self.sign_with(
            &json!({"alg": self.algorithm.name(), "kid": self.kid}),
            claims,
        )
    }

    /// Signs a token whose first part says what the test likes.
    pub(crate) fn sign_with(&self, header: &Value, claims: &Value) -> String {
        self.sign_raw(&header.to_string(), &claims.to_string())
    }

    pub(crate) fn sign_raw(&self, header: &str, claims: &str) -> String {
        let message = format!("{}.{}", encoded(header), encoded(claims));
        let signature = crypto::sign(message.as_bytes(), &self.key, self.of_library());
        format!("{message}.{}", signature.expect("a signature"))
    }
}

/// Encodes a part of a token.
pub(crate) fn encoded(part: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(part)
}

fn pem(what: &str, der: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(der);
    let lines = text.as_bytes().chunks(64).map(String::from_utf8_lossy);
    let lines: Vec<_> = lines.collect();
    let lines = lines.join("\n");
    format!("-----BEGIN {what}-----\n{lines}\n-----END {what}-----\n")
}

fn public_der<K: AsDer<PublicKeyX509Der<'static>>>(key: &K) -> Vec<u8> {
    key.as_der().expect("bytes").as_ref().to_vec()
}

/// Returns the one RSA key of all tests: making one takes long.
fn rsa() -> (EncodingKey, Vec<u8>, Value) {
    static KEY: OnceLock<RsaKeyPair> = OnceLock::new();
    let pair = KEY.get_or_init(|| RsaKeyPair::generate(KeySize::Rsa2048).expect("a key"));
    let components: RsaPublicKeyComponents<Vec<u8>> = pair.public_key().into();
    let (n, e) = (encoded(components.n), encoded(components.e));
    let public = json!({ "kty": "RSA", "n": n, "e": e });
    (rsa_key(pair), public_der(pair.public_key()), public)
}

fn rsa_key(pair: &RsaKeyPair) -> EncodingKey {
    let private: Pkcs8V1Der<'_> = pair.as_der().expect("bytes");
    let private = pem("PRIVATE KEY", private.as_ref());
    EncodingKey::from_rsa_pem(private.as_bytes()).expect("a key")
}

fn curve(name: &str, algorithm: &'static EcdsaSigningAlgorithm) -> (EncodingKey, Vec<u8>, Value) {
    let private = EcdsaKeyPair::generate_pkcs8(algorithm, &SystemRandom::new()).expect("a key");
    let pair = EcdsaKeyPair::from_pkcs8(algorithm, private.as_ref()).expect("a key");
    let point = &pair.public_key().as_ref()[1..];
    let (x, y) = point.split_at(point.len() / 2);
    let public = json!({ "kty": "EC", "crv": name, "x": encoded(x), "y": encoded(y) });
    let key = EncodingKey::from_ec_der(private.as_ref());
    (key, public_der(pair.public_key()), public)
}

fn edwards() -> (EncodingKey, Vec<u8>, Value) {
    let private = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("a key");
    let pair = Ed25519KeyPair::from_pkcs8(private.as_ref()).expect("a key");
    let x = encoded(pair.public_key());
    let public = json!({ "kty": "OKP", "crv": "Ed25519", "x": x });
    let key = EncodingKey::from_ed_der(private.as_ref());
    (key, public_der(pair.public_key()), public)
}
