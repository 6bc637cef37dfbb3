//! Taking a Welcome apart, up to the MLS Welcome and its join anchor.

use std::fmt;

use openmls::prelude::{MlsMessageBodyIn, MlsMessageIn, Welcome};
use prost::Message;
use tls_codec::Deserialize;
use xmtp_proto::backend::v1::WelcomeMessage;
use xmtp_proto::backend::v1::welcome_message::{V1, Version, WelcomePointer};
use xmtp_proto::content::{WelcomeMetadata, WelcomePointerWrapperAlgorithm};
use xmtp_proto::id::SequenceId;
use zeroize::Zeroizing;

use super::WelcomeFault;
use super::hpke::{self, WrapperAlgorithm};
use super::pointer::Pointer;

/// The number of MLS 1.0, the first field of every MLS message.
const MLS_10: u16 = 1;

/// The private half of a key that a Welcome names, and how its key package asks to be wrapped to.
pub struct NamedKey {
    /// What the key package advertised.
    pub algorithm: WrapperAlgorithm,
    /// The private half.
    pub private: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for NamedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedKey")
            .field("algorithm", &self.algorithm)
            .finish_non_exhaustive()
    }
}

/// What was in the wrapping.
#[derive(Debug)]
pub enum Opened {
    /// The Welcome itself.
    Welcome(UnwrappedWelcome),
    /// A pointer to it; fetch its topic, then [`Pointer::open`].
    Pointer(Pointer),
}

/// A Welcome out of its wrapping.
#[derive(Clone, Debug)]
pub struct UnwrappedWelcome {
    /// The MLS Welcome.
    pub welcome: Welcome,
    /// The join anchor: the sequence id of the commit that made the Welcome, when it was given.
    pub anchor: Option<SequenceId>,
}

impl UnwrappedWelcome {
    pub(super) fn new(welcome: &[u8], metadata: Option<&[u8]>) -> Result<Self, WelcomeFault> {
        let anchor = metadata.map(|metadata| {
            let metadata = WelcomeMetadata::decode(metadata).ok()?;
            SequenceId::checked(metadata.message_cursor).ok()
        });
        let anchor = match anchor {
            None => None,
            Some(anchor) => Some(anchor.ok_or(WelcomeFault::MalformedMetadata)?),
        };
        Ok(Self {
            welcome: mls_welcome(welcome)?,
            anchor,
        })
    }
}

/// Opens a received Welcome.
///
/// `key_of` answers the private half of the public key that the Welcome names.
///
/// # Behavior
/// - An unknown algorithm blocks, whether or not the key is held.
/// - Another algorithm than the key package advertised is refused before anything is decrypted.
pub fn open<E: From<WelcomeFault>>(
    message: &WelcomeMessage,
    key_of: impl FnOnce(&[u8]) -> Result<Option<NamedKey>, E>,
) -> Result<Opened, E> {
    match message.version.as_ref().ok_or(WelcomeFault::UnknownForm)? {
        Version::V1(inline) => open_inline(inline, key_of),
        Version::WelcomePointer(pointer) => open_pointer(pointer, key_of),
    }
}

/// Checks the join anchor of a Welcome at `sequence` for a group at `epoch`.
pub fn check_anchor(
    anchor: Option<SequenceId>,
    sequence: SequenceId,
    epoch: u64,
) -> Result<SequenceId, WelcomeFault> {
    let anchor = anchor.ok_or(WelcomeFault::NoMetadata)?;
    if anchor >= sequence {
        return Err(WelcomeFault::AnchorNotBefore);
    }
    if anchor == SequenceId::ZERO && epoch != 0 {
        return Err(WelcomeFault::AnchorMissing);
    }
    Ok(anchor)
}

fn open_inline<E: From<WelcomeFault>>(
    inline: &V1,
    key_of: impl FnOnce(&[u8]) -> Result<Option<NamedKey>, E>,
) -> Result<Opened, E> {
    let algorithm = WrapperAlgorithm::from_wire(inline.wrapper_algorithm)
        .ok_or(WelcomeFault::UnknownAlgorithm)?;
    let key = named_key(algorithm, &inline.hpke_public_key, key_of)?;
    let (welcome, metadata) = hpke::open(
        algorithm,
        &key.private,
        &inline.data,
        &inline.welcome_metadata,
    )?;
    let welcome = UnwrappedWelcome::new(&welcome, metadata.as_deref())?;
    Ok(Opened::Welcome(welcome))
}

fn open_pointer<E: From<WelcomeFault>>(
    pointer: &WelcomePointer,
    key_of: impl FnOnce(&[u8]) -> Result<Option<NamedKey>, E>,
) -> Result<Opened, E> {
    let xwing = WelcomePointerWrapperAlgorithm::XwingMlkem768Draft6;
    if pointer.wrapper_algorithm != i32::from(xwing) {
        return Err(WelcomeFault::UnknownAlgorithm.into());
    }
    let key = named_key(WrapperAlgorithm::XWing, &pointer.hpke_public_key, key_of)?;
    let (opened, _) = hpke::open(key.algorithm, &key.private, &pointer.welcome_pointer, &[])?;
    Ok(Opened::Pointer(Pointer::decode(&opened)?))
}

fn named_key<E: From<WelcomeFault>>(
    algorithm: WrapperAlgorithm,
    public: &[u8],
    key_of: impl FnOnce(&[u8]) -> Result<Option<NamedKey>, E>,
) -> Result<NamedKey, E> {
    let key = key_of(public)?.ok_or(WelcomeFault::NoKey)?;
    if key.algorithm != algorithm {
        return Err(WelcomeFault::Downgrade.into());
    }
    Ok(key)
}

/// Reads an MLS message that must be a Welcome of the version this build speaks.
fn mls_welcome(bytes: &[u8]) -> Result<Welcome, WelcomeFault> {
    match bytes
        .first_chunk()
        .map(|version| u16::from_be_bytes(*version))
    {
        None => return Err(WelcomeFault::NotAWelcome),
        Some(version) if version != MLS_10 => {
            return Err(WelcomeFault::UnknownMlsVersion);
        }
        Some(_) => {}
    }
    let message =
        MlsMessageIn::tls_deserialize_exact(bytes).map_err(|_| WelcomeFault::NotAWelcome)?;
    match message.extract() {
        MlsMessageBodyIn::Welcome(welcome) => Ok(welcome),
        _ => Err(WelcomeFault::NotAWelcome),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xmtp_core::error::Coded;

    /// Metadata that does not decode, and an anchor that is no place in an order.
    /// covers: EXT-008
    #[test]
    fn metadata_that_is_none_is_told() {
        let beyond = WelcomeMetadata {
            message_cursor: u64::MAX,
        };
        for metadata in [vec![0xff], beyond.encode_to_vec()] {
            let found = UnwrappedWelcome::new(&[], Some(&metadata)).unwrap_err();
            assert_eq!(found.code(), "welcome.malformed_metadata");
        }
    }
}
