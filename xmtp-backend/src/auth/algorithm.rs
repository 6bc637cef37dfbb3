//! What the ways of signing need, one row each; every other way is refused.

use crate::config::SigningAlgorithm as Algorithm;

/// Every way that is taken.
pub(super) const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::Rs256,
    Algorithm::Rs384,
    Algorithm::Rs512,
    Algorithm::Es256,
    Algorithm::Es384,
    Algorithm::EdDsa,
];

/// The kinds of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Rsa,
    /// An elliptic curve: its name, and the size of a coordinate in bytes.
    Curve(&'static str, usize),
    Ed25519,
}

/// Returns the algorithm of this name (`alg`), if it is taken.
pub(super) fn named(name: &str) -> Option<Algorithm> {
    ALGORITHMS
        .into_iter()
        .find(|algorithm| algorithm.name() == name)
}

/// Returns the keys that an algorithm works with.
pub(super) fn family(algorithm: Algorithm) -> Family {
    match algorithm {
        Algorithm::Rs256 | Algorithm::Rs384 | Algorithm::Rs512 => Family::Rsa,
        Algorithm::Es256 => Family::Curve("P-256", 32),
        Algorithm::Es384 => Family::Curve("P-384", 48),
        Algorithm::EdDsa => Family::Ed25519,
    }
}

/// Returns the library's word for an algorithm.
pub(super) fn of_library(algorithm: Algorithm) -> jsonwebtoken::Algorithm {
    match algorithm {
        Algorithm::Rs256 => jsonwebtoken::Algorithm::RS256,
        Algorithm::Rs384 => jsonwebtoken::Algorithm::RS384,
        Algorithm::Rs512 => jsonwebtoken::Algorithm::RS512,
        Algorithm::Es256 => jsonwebtoken::Algorithm::ES256,
        Algorithm::Es384 => jsonwebtoken::Algorithm::ES384,
        Algorithm::EdDsa => jsonwebtoken::Algorithm::EdDSA,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// covers: CFG-092
    #[test]
    fn six_ways_are_taken_and_no_other() {
        for algorithm in ALGORITHMS {
            assert_eq!(named(algorithm.name()), Some(algorithm));
        }
        for other in [
            "none", "None", "HS256", "HS384", "HS512", "PS256", "PS384", "PS512", "ES512",
            "ES256K", "rs256", "EDDSA", "Ed25519", "",
        ] {
            assert_eq!(named(other), None, "{other}");
        }
    }
}
