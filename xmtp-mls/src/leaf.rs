//! What a leaf of ours says, and what we read off the leaves of others.

use openmls::prelude::{
    ApplicationIdExtension, BasicCredential, Capabilities, Ciphersuite, Credential, CredentialType,
    CredentialWithKey, Extension, ExtensionType, Extensions, LeafNode, LeafNodeIndex, Lifetime,
    Member, ProposalType, ProtocolVersion,
};
use prost::Message;
use thiserror::Error;
use xmtp_proto::content::MlsCredential;
use xmtp_proto::id::{InboxId, InstallationId};

use crate::Installation;
use crate::group::extension_type;

/// The one suite of all groups.
pub const CIPHERSUITE: Ciphersuite =
    Ciphersuite::MLS_128_DHKEMX25519_CHACHA20POLY1305_SHA256_Ed25519;

/// How far before now a leaf of ours is valid: 84 days.
///
/// Each member checks the lifetime of a received Add by its own wall clock, and a clock outside
/// it blocks the group. So both ends are far; freshness is checked when a package is fetched.
const VALID_BEFORE_SECONDS: u64 = 84 * 24 * 60 * 60;
/// How far after now a leaf of ours is valid: ten years of 365 days.
const VALID_AFTER_SECONDS: u64 = 10 * 365 * 24 * 60 * 60;
const NANOS: u64 = 1_000_000_000;

/// Which part of a leaf is not what it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafPart {
    /// The signature key is not 32 bytes.
    SignatureKey,
    /// The credential is not a basic one that names an inbox.
    Credential,
}

/// A leaf that names no installation or no inbox.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a leaf has a malformed {}", match .0 { LeafPart::SignatureKey => "signature key", LeafPart::Credential => "credential" })]
pub struct LeafFault(pub LeafPart);

/// A member of a group: one installation of one inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Its place in the tree.
    pub index: LeafNodeIndex,
    /// The installation.
    pub installation: InstallationId,
    /// The inbox that the credential names; whether it owns the installation is not checked here.
    pub inbox: InboxId,
}

impl Leaf {
    /// Reads a member.
    pub fn of(member: &Member) -> Result<Self, LeafFault> {
        Ok(Self {
            index: member.index,
            installation: installation_of(&member.signature_key)?,
            inbox: inbox_of(&member.credential)?,
        })
    }

    /// Reads the leaf at a place.
    pub fn at(index: LeafNodeIndex, node: &LeafNode) -> Result<Self, LeafFault> {
        Ok(Self {
            index,
            installation: installation_of(node.signature_key().as_slice())?,
            inbox: inbox_of(node.credential())?,
        })
    }
}

/// Reads the inbox that a credential names.
pub(crate) fn inbox_of(credential: &Credential) -> Result<InboxId, LeafFault> {
    let fault = LeafFault(LeafPart::Credential);
    let basic = BasicCredential::try_from(credential.clone()).map_err(|_| fault)?;
    let named = MlsCredential::decode(basic.identity()).map_err(|_| fault)?;
    InboxId::parse_hex(&named.inbox_id).map_err(|_| fault)
}

/// Reads the installation that a signature key is.
pub(crate) fn installation_of(signature_key: &[u8]) -> Result<InstallationId, LeafFault> {
    let fault = LeafFault(LeafPart::SignatureKey);
    InstallationId::try_from(signature_key).map_err(|_| fault)
}

/// The credential and key of our leaves.
pub(crate) fn credential(installation: &Installation) -> CredentialWithKey {
    let named = MlsCredential {
        inbox_id: installation.inbox().to_hex(),
    };
    CredentialWithKey {
        credential: BasicCredential::new(named.encode_to_vec()).into(),
        signature_key: installation.id().as_bytes().to_vec().into(),
    }
}

/// The extensions of our leaves: the inbox, once more, as an application id.
pub(crate) fn extensions(inbox: &InboxId) -> Extensions<LeafNode> {
    let id = ApplicationIdExtension::new(inbox.to_hex().as_bytes());
    Extensions::single(Extension::ApplicationId(id))
        .unwrap_or_else(|_| unreachable!("an application id is valid in a leaf"))
}

/// What our leaves can do. All that is listed works.
pub(crate) fn capabilities() -> Capabilities {
    Capabilities::new(
        Some(&[ProtocolVersion::Mls10]),
        Some(&[CIPHERSUITE]),
        Some(&[
            ExtensionType::LastResort,
            ExtensionType::ApplicationId,
            ExtensionType::Unknown(extension_type::IMMUTABLE_METADATA),
            ExtensionType::AppDataDictionary,
            ExtensionType::Unknown(extension_type::PERMISSIONS),
            ExtensionType::Unknown(extension_type::MUTABLE_METADATA),
            ExtensionType::Unknown(extension_type::MEMBERSHIP),
            ExtensionType::Unknown(extension_type::WRAPPER_ENCRYPTION),
            ExtensionType::Unknown(extension_type::POINTEE_AEAD_TYPES),
        ]),
        Some(&[
            ProposalType::GroupContextExtensions,
            ProposalType::AppDataUpdate,
        ]),
        Some(&[CredentialType::Basic]),
    )
}

/// The lifetime of our leaves, from a wall clock.
pub(crate) fn lifetime(now_ns: u64) -> Lifetime {
    let now = now_ns / NANOS;
    Lifetime::init(
        now.saturating_sub(VALID_BEFORE_SECONDS),
        now.saturating_add(VALID_AFTER_SECONDS),
    )
}
