//! Why a credential is not taken.

use tonic::Status;

use crate::services::Failure;

/// Says why a request is turned away.
///
/// - Tells nothing of the credential, of the keys or of the other rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Rejection {
    /// There is no authorization header.
    Missing,
    /// The header or the token does not have its form.
    Malformed,
    /// The token is signed in a way that is not taken.
    UnsupportedAlg,
    /// No key of this server made the signature.
    Untrusted,
    /// The token's time is over.
    Expired,
    /// The token's time has not come.
    NotYetValid,
    /// The token is made for others.
    Audience,
    /// The token is made by others.
    Issuer,
    /// The token does not allow what this server asks for.
    Scope,
}

impl Rejection {
    /// Returns the name of the reason in logs and counters.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Malformed => "malformed",
            Self::UnsupportedAlg => "unsupported_alg",
            Self::Untrusted => "untrusted",
            Self::Expired => "expired",
            Self::NotYetValid => "not_yet_valid",
            Self::Audience => "audience",
            Self::Issuer => "issuer",
            Self::Scope => "scope",
        }
    }

    fn message(self) -> &'static str {
        match self {
            Self::Missing => "a credential is needed, send it as authorization: Bearer",
            Self::Malformed => "the credential does not have the form of a bearer token",
            Self::UnsupportedAlg => "the token is signed with an algorithm that is not accepted",
            Self::Untrusted => "the token is not signed by a key of this server",
            Self::Expired => "the token has expired, get a new one",
            Self::NotYetValid => "the token is not valid yet",
            Self::Audience => "the token is not meant for this server",
            Self::Issuer => "the token comes from an issuer that is not accepted",
            Self::Scope => "the token lacks a scope that this server requires",
        }
    }

    fn failure(self) -> Failure {
        match self {
            Self::Missing => Failure::CredentialMissing,
            Self::Malformed => Failure::CredentialMalformed,
            Self::UnsupportedAlg => Failure::CredentialAlgorithm,
            Self::Untrusted => Failure::CredentialUntrusted,
            Self::Expired => Failure::CredentialExpired,
            Self::NotYetValid => Failure::CredentialNotYetValid,
            Self::Audience => Failure::CredentialAudience,
            Self::Issuer => Failure::CredentialIssuer,
            Self::Scope => Failure::ScopeMissing,
        }
    }

    /// Returns what the caller is told.
    pub(crate) fn status(self) -> Status {
        self.failure().status(self.message())
    }
}
