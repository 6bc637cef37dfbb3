//! The ids that are bytes of a fixed length.

use std::fmt;

use sha2::{Digest, Sha256};

use super::{IdError, ShortId};

macro_rules! byte_id {
    ($(#[$doc:meta])* $name:ident, $len:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; $len]);

        impl $name {
            /// The length of the id, in bytes.
            pub const LEN: usize = $len;

            /// Makes an id of its bytes.
            pub const fn from_bytes(bytes: [u8; $len]) -> Self {
                Self(bytes)
            }

            /// Returns the bytes of the id.
            pub const fn as_bytes(&self) -> &[u8; $len] {
                &self.0
            }

            /// Reads an id from lowercase hex, or fails on any other text.
            pub fn parse_hex(text: &str) -> Result<Self, IdError> {
                let error = IdError::Hex {
                    kind: stringify!($name),
                    expected: 2 * $len,
                };
                if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
                    return Err(error);
                }
                let mut bytes = [0; $len];
                hex::decode_to_slice(text, &mut bytes).map_err(|_| error)?;
                Ok(Self(bytes))
            }

            /// Returns the whole id as lowercase hex; not for logs.
            pub fn to_hex(&self) -> String {
                hex::encode(self.0)
            }

            /// Returns the short form of the id, for logs.
            pub fn short(&self) -> ShortId {
                ShortId::of(&self.0)
            }
        }

        impl TryFrom<&[u8]> for $name {
            type Error = IdError;

            fn try_from(bytes: &[u8]) -> Result<Self, IdError> {
                match bytes.try_into() {
                    Ok(bytes) => Ok(Self(bytes)),
                    Err(_) => Err(IdError::Length {
                        kind: stringify!($name),
                        expected: $len,
                        actual: bytes.len(),
                    }),
                }
            }
        }

        impl AsRef<[u8]> for $name {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.short())
            }
        }
    };
}

byte_id! {
    /// Names a group: random bytes its creator chose.
    GroupId, 16
}

byte_id! {
    /// Names an inbox: SHA-256 of its first identifier and a nonce.
    InboxId, 32
}

byte_id! {
    /// Names an installation: its Ed25519 public key.
    InstallationId, 32
}

byte_id! {
    /// Names a message: SHA-256 of its group, idempotency key and content.
    MessageId, 32
}

byte_id! {
    /// Names a client database: random bytes written when it was made.
    DatabaseId, 16
}

impl MessageId {
    /// Separates the parts of the hashed text.
    const SEPARATOR: [u8; 1] = [0x09];

    /// Derives the id of a message from where it is, its key and its content
    /// as carried.
    pub fn derive(group: &GroupId, idempotency_key: &str, content: &[u8]) -> Self {
        let digest = Sha256::new()
            .chain_update(group.as_bytes())
            .chain_update(Self::SEPARATOR)
            .chain_update(idempotency_key)
            .chain_update(Self::SEPARATOR)
            .chain_update(content)
            .finalize();
        Self(digest.into())
    }
}
