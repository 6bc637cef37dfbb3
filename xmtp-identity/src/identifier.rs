//! Identifiers of the members of an inbox, and the inbox id derived from one.
//!
//! Invariant: an identifier has exactly one accepted text form. Any other form is rejected and
//! never rewritten, because the text is both what was signed and what the inbox id is hashed from.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

use bytes::Bytes;
use sha2::{Digest, Sha256};
use xmtp_proto::id::{InboxId, InstallationId};
use xmtp_proto::identity as proto;

/// Names one member of an inbox, or its recovery party.
///
/// `Debug` prints the kind and a short digest only, so that an identifier can not reach a log.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identifier {
    /// An Ethereum account.
    Ethereum(EthereumAddress),
    /// An installation, named by its Ed25519 public key.
    Installation(InstallationId),
    /// A passkey, named by its P-256 public key.
    Passkey(PasskeyId),
}

/// Holds an Ethereum address as `0x` and 40 lowercase hex digits.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EthereumAddress(String);

/// Holds a passkey's SEC1 public key and, for display only, its relying party.
///
/// The relying party takes no part in equality, order or hashing.
#[derive(Clone)]
pub struct PasskeyId {
    key: Bytes,
    relying_party: Option<String>,
}

/// Tells the kind of an [`Identifier`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemberKind {
    /// An Ethereum account.
    Ethereum,
    /// An installation key.
    Installation,
    /// A passkey.
    Passkey,
}

/// Tells the kind of an identifier that may own or recover an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IdentifierKind {
    /// An Ethereum account; also how an unspecified kind is read.
    Ethereum,
    /// A passkey.
    Passkey,
}

/// Reports why bytes or text name no identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentifierError {
    /// The text is not `0x` and 40 lowercase hex digits.
    #[error("an Ethereum address must be 0x and 40 lowercase hex digits ({length} bytes given)")]
    EthereumText {
        /// Bytes in the refused text.
        length: usize,
    },
    /// The installation key is not 32 bytes, or its text not 64 lowercase hex digits.
    #[error("an installation key must have 32 bytes ({length} given)")]
    InstallationKey {
        /// Bytes in the refused key or text.
        length: usize,
    },
    /// The passkey is empty, or its text is not lowercase hex.
    #[error("a passkey must be a nonempty key in lowercase hex ({length} bytes given)")]
    PasskeyKey {
        /// Bytes in the refused key or text.
        length: usize,
    },
    /// The member identifier carries no kind.
    #[error("the member identifier has no kind")]
    Unset,
    /// The number of the identifier kind is not known.
    #[error("identifier kind {kind} is not known")]
    UnknownKind {
        /// The unknown number.
        kind: i32,
    },
}

impl IdentifierError {
    /// Returns the stable code of this error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::EthereumText { .. } => "identity.identifier.ethereum_text",
            Self::InstallationKey { .. } => "identity.identifier.installation_key",
            Self::PasskeyKey { .. } => "identity.identifier.passkey_key",
            Self::Unset => "identity.identifier.unset",
            Self::UnknownKind { .. } => "identity.identifier.unknown_kind",
        }
    }
}

/// Derives the id of the inbox that `identifier` creates with `nonce`.
pub fn inbox_id(identifier: &Identifier, nonce: u64) -> InboxId {
    let mut hash = Sha256::new();
    hash.update(identifier.text().as_bytes());
    hash.update(nonce.to_string().as_bytes());
    InboxId::from_bytes(hash.finalize().into())
}

impl Identifier {
    /// Reads an Ethereum address in its one accepted form.
    pub fn ethereum(text: &str) -> Result<Self, IdentifierError> {
        let digits = text.strip_prefix("0x").filter(|rest| rest.len() == 40);
        if digits.is_some_and(is_lower_hex) {
            return Ok(Self::Ethereum(EthereumAddress(text.to_owned())));
        }
        Err(IdentifierError::EthereumText { length: text.len() })
    }

    /// Names an account by the 20 bytes of its address.
    pub fn ethereum_bytes(address: [u8; 20]) -> Self {
        Self::Ethereum(EthereumAddress(format!("0x{}", hex::encode(address))))
    }

    /// Names an installation by its id.
    pub fn installation(id: InstallationId) -> Self {
        Self::Installation(id)
    }

    /// Names an installation by the bytes of its public key.
    pub fn installation_bytes(key: &[u8]) -> Result<Self, IdentifierError> {
        let id = InstallationId::try_from(key)
            .map_err(|_| IdentifierError::InstallationKey { length: key.len() })?;
        Ok(Self::Installation(id))
    }

    /// Names a passkey by its SEC1 public key, with the relying party to display.
    pub fn passkey(key: Bytes, relying_party: Option<String>) -> Result<Self, IdentifierError> {
        if key.is_empty() {
            return Err(IdentifierError::PasskeyKey { length: 0 });
        }
        Ok(Self::Passkey(PasskeyId { key, relying_party }))
    }

    /// Reads the text of an identifier that may own or recover an inbox.
    pub fn from_text(
        kind: IdentifierKind,
        text: &str,
        relying_party: Option<String>,
    ) -> Result<Self, IdentifierError> {
        match kind {
            IdentifierKind::Ethereum => Self::ethereum(text),
            IdentifierKind::Passkey => {
                let refused = IdentifierError::PasskeyKey { length: text.len() };
                if !is_lower_hex(text) {
                    return Err(refused);
                }
                let key = hex::decode(text).map_err(|_| refused)?;
                Self::passkey(key.into(), relying_party)
            }
        }
    }

    /// Reads a member identifier message.
    pub fn from_proto(message: &proto::MemberIdentifier) -> Result<Self, IdentifierError> {
        use proto::member_identifier::Kind;
        match message.kind.as_ref().ok_or(IdentifierError::Unset)? {
            Kind::EthereumAddress(text) => Self::ethereum(text),
            Kind::InstallationPublicKey(key) => Self::installation_bytes(key),
            Kind::Passkey(passkey) => {
                Self::passkey(passkey.key.clone(), passkey.relying_party.clone())
            }
        }
    }

    /// Writes a member identifier message.
    pub fn to_proto(&self) -> proto::MemberIdentifier {
        use proto::member_identifier::Kind;
        let kind = match self {
            Self::Ethereum(address) => Kind::EthereumAddress(address.0.clone()),
            Self::Installation(id) => {
                Kind::InstallationPublicKey(Bytes::copy_from_slice(id.as_bytes()))
            }
            Self::Passkey(passkey) => Kind::Passkey(proto::Passkey {
                key: passkey.key.clone(),
                relying_party: passkey.relying_party.clone(),
            }),
        };
        proto::MemberIdentifier { kind: Some(kind) }
    }

    /// Returns the text that is signed, displayed and hashed into an inbox id.
    pub fn text(&self) -> String {
        match self {
            Self::Ethereum(address) => address.0.clone(),
            Self::Installation(id) => id.to_hex(),
            Self::Passkey(passkey) => hex::encode(&passkey.key),
        }
    }

    /// Returns the kind of member that this names.
    pub fn kind(&self) -> MemberKind {
        match self {
            Self::Ethereum(_) => MemberKind::Ethereum,
            Self::Installation(_) => MemberKind::Installation,
            Self::Passkey(_) => MemberKind::Passkey,
        }
    }

    /// Returns the kind for a lookup or an owner field, `None` for an installation.
    pub fn identifier_kind(&self) -> Option<IdentifierKind> {
        match self {
            Self::Ethereum(_) => Some(IdentifierKind::Ethereum),
            Self::Installation(_) => None,
            Self::Passkey(_) => Some(IdentifierKind::Passkey),
        }
    }

    /// Returns the installation id, `None` for any other kind.
    pub fn as_installation(&self) -> Option<&InstallationId> {
        match self {
            Self::Installation(id) => Some(id),
            _ => None,
        }
    }

    /// Returns the relying party to display, if this is a passkey that carries one.
    pub fn relying_party(&self) -> Option<&str> {
        match self {
            Self::Passkey(passkey) => passkey.relying_party.as_deref(),
            _ => None,
        }
    }
}

impl IdentifierKind {
    /// Reads the number of a kind field; 0 (unspecified) reads as Ethereum.
    pub fn from_proto(kind: i32) -> Result<Self, IdentifierError> {
        match kind {
            0 | 1 => Ok(Self::Ethereum),
            2 => Ok(Self::Passkey),
            _ => Err(IdentifierError::UnknownKind { kind }),
        }
    }

    /// Returns the number to write into a kind field.
    pub fn to_proto(self) -> i32 {
        match self {
            Self::Ethereum => 1,
            Self::Passkey => 2,
        }
    }
}

impl EthereumAddress {
    /// Returns the address text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl PasskeyId {
    /// Returns the SEC1 public key.
    pub fn key(&self) -> &Bytes {
        &self.key
    }

    /// Returns the relying party to display.
    pub fn relying_party(&self) -> Option<&str> {
        self.relying_party.as_deref()
    }
}

impl PartialEq for PasskeyId {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for PasskeyId {}

impl PartialOrd for PasskeyId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PasskeyId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.cmp(&other.key)
    }
}

impl Hash for PasskeyId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

impl fmt::Debug for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ethereum(address) => fmt::Debug::fmt(address, f),
            Self::Installation(id) => fmt::Debug::fmt(id, f),
            Self::Passkey(passkey) => fmt::Debug::fmt(passkey, f),
        }
    }
}

impl fmt::Debug for EthereumAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EthereumAddress({})", short_digest(self.0.as_bytes()))
    }
}

impl fmt::Debug for PasskeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PasskeyId({})", short_digest(&self.key))
    }
}

/// Returns `#` and the first four bytes of the SHA-256 of `bytes`, to tell values apart in a log.
fn short_digest(bytes: &[u8]) -> String {
    format!("#{}", hex::encode(&Sha256::digest(bytes)[..4]))
}

fn is_lower_hex(text: &str) -> bool {
    text.bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
