//! Judging a fetched key package before anyone is added by it.

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use openmls::prelude::{
    ApplicationIdExtension, KeyPackage, KeyPackageIn, KeyPackageVerifyError, ProtocolVersion,
};
use openmls::treesync::errors::LifetimeError;
use prost::Message;
use thiserror::Error;
use tls_codec::Deserialize;
use xmtp_proto::content::{
    WelcomePointeeEncryptionAeadType, WelcomePointeeEncryptionAeadTypesExtension,
    WelcomeWrapperEncryption,
};
use xmtp_proto::id::{InboxId, InstallationId};

use crate::group::{LifetimeFault, extension_type};
use crate::leaf::{CIPHERSUITE, LeafFault, inbox_of, installation_of};
use crate::welcome::{Recipient, WelcomeFault, WrapperAlgorithm, WrapperPublicKey};

/// The rule that a key package breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PackageRule {
    /// It is one key package and nothing else.
    Encoding,
    /// Signatures, keys and extensions are as RFC 9420 10.1 and 7.3 have them.
    Validity,
    /// The clock is within its lifetime.
    Lifetime(LifetimeFault),
    /// It is for the suite of all groups.
    Ciphersuite,
    /// It names an installation and an inbox.
    Leaf(LeafFault),
    /// Its key is the installation that was asked for.
    Installation,
    /// Its credential names the inbox that was asked for.
    Inbox,
    /// Its application id, when it has one, is the inbox.
    ApplicationId,
    /// Its wrapper key can be wrapped to.
    Wrapper(WelcomeFault),
}

/// A key package that nobody can be added by.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a key package is not usable: {}", .0.text())]
pub struct PackageFault(pub PackageRule);

impl PackageRule {
    fn text(self) -> &'static str {
        match self {
            Self::Encoding => "it does not decode",
            Self::Validity => "it breaks a rule of MLS",
            Self::Lifetime(LifetimeFault::Expired) => "it has expired",
            Self::Lifetime(LifetimeFault::NotYet { .. }) => "it is not yet valid",
            Self::Ciphersuite => "it is for another suite",
            Self::Leaf(_) => "its leaf is malformed",
            Self::Installation => "it is of another installation",
            Self::Inbox => "it is of another inbox",
            Self::ApplicationId => "its application id is not its inbox",
            Self::Wrapper(_) => "its wrapper key is unusable",
        }
    }
}

/// A key package that someone can be added by.
#[derive(Clone)]
pub struct FetchedPackage {
    /// The package.
    pub package: KeyPackage,
    /// The inbox that it names. Whether it owns the installation is for the identity log to say.
    pub inbox: InboxId,
    /// Whom to wrap the Welcome to, and how.
    pub recipient: Recipient,
}

impl fmt::Debug for FetchedPackage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FetchedPackage")
            .field("inbox", &self.inbox)
            .field("recipient", &self.recipient)
            .finish_non_exhaustive()
    }
}

/// Checks a fetched key package against what was asked for, at a wall clock.
///
/// openmls checks the lifetime against the system's own clock besides.
pub fn check(
    bytes: &[u8],
    installation: &InstallationId,
    inbox: &InboxId,
    now_ns: u64,
) -> Result<FetchedPackage, PackageFault> {
    let package = KeyPackageIn::tls_deserialize_exact(bytes)
        .map_err(|_| PackageFault(PackageRule::Encoding))?;
    let package = package
        .validate(crate::provider::crypto(), ProtocolVersion::Mls10)
        .map_err(|error| match error {
            KeyPackageVerifyError::LifetimeError(error) => lifetime_fault(&error),
            _ => PackageFault(PackageRule::Validity),
        })?;
    let now = UNIX_EPOCH + Duration::from_nanos(now_ns);
    let lifetime = package.life_time().validate_with_time(now);
    lifetime.map_err(|error| lifetime_fault(&error))?;
    if package.ciphersuite() != CIPHERSUITE {
        return Err(PackageFault(PackageRule::Ciphersuite));
    }
    let named = owner(&package)?;
    if named.0 != *installation {
        return Err(PackageFault(PackageRule::Installation));
    }
    if named.1 != *inbox {
        return Err(PackageFault(PackageRule::Inbox));
    }
    Ok(FetchedPackage {
        inbox: *inbox,
        recipient: recipient(&package, *installation)?,
        package,
    })
}

fn lifetime_fault(error: &LifetimeError) -> PackageFault {
    PackageFault(PackageRule::Lifetime(match error {
        LifetimeError::NotValidYet { not_before, .. } => {
            LifetimeFault::NotYet { from: *not_before }
        }
        LifetimeError::Expired { .. } | LifetimeError::SystemTimeBeforeUnixEpoch => {
            LifetimeFault::Expired
        }
    }))
}

fn owner(package: &KeyPackage) -> Result<(InstallationId, InboxId), PackageFault> {
    let leaf = package.leaf_node();
    let malformed = |fault| PackageFault(PackageRule::Leaf(fault));
    let installation = installation_of(leaf.signature_key().as_slice()).map_err(malformed)?;
    let inbox = inbox_of(leaf.credential()).map_err(malformed)?;
    let id = leaf.extensions().application_id();
    let id = id.map(ApplicationIdExtension::as_slice);
    if id.is_some_and(|id| id != inbox.to_hex().as_bytes()) {
        return Err(PackageFault(PackageRule::ApplicationId));
    }
    Ok((installation, inbox))
}

/// Reads how to wrap to a package: its own wrapper key, or X25519 with its init key.
fn recipient(
    package: &KeyPackage,
    installation: InstallationId,
) -> Result<Recipient, PackageFault> {
    let fault = |fault| PackageFault(PackageRule::Wrapper(fault));
    let extensions = package.extensions();
    let key = match extensions.unknown(extension_type::WRAPPER_ENCRYPTION) {
        Some(extension) => {
            let wrapper = WelcomeWrapperEncryption::decode(extension.0.as_slice())
                .map_err(|_| fault(WelcomeFault::BadPublicKey))?;
            let algorithm = WrapperAlgorithm::from_wire(wrapper.algorithm)
                .ok_or(fault(WelcomeFault::UnknownAlgorithm))?;
            WrapperPublicKey::new(algorithm, &wrapper.pub_key)
        }
        None => {
            let init_key = package.hpke_init_key().as_slice();
            WrapperPublicKey::new(WrapperAlgorithm::X25519, init_key)
        }
    };
    let chacha = i32::from(WelcomePointeeEncryptionAeadType::Chacha20Poly1305);
    let aead_types = extensions
        .unknown(extension_type::POINTEE_AEAD_TYPES)
        .and_then(|extension| {
            WelcomePointeeEncryptionAeadTypesExtension::decode(extension.0.as_slice()).ok()
        });
    Ok(Recipient {
        installation,
        key: key.map_err(fault)?,
        reads_pointers: aead_types
            .is_some_and(|types| types.supported_aead_types.contains(&chacha)),
    })
}
