//! Welcome pointers: one Welcome for several recipients, sealed once with a key of its own, and a
//! small pointer to it for each.

use std::fmt;

use bytes::Bytes;
use chacha20poly1305::aead::{Aead, KeyInit};
use chacha20poly1305::{ChaCha20Poly1305, Key, Nonce};
use prost::Message;
use xmtp_core::runtime::{Runtime, RuntimeExt};
use xmtp_proto::backend::v1::welcome_message;
use xmtp_proto::content::welcome_pointer::{Version, WelcomeV1Pointer};
use xmtp_proto::content::{
    WelcomePointeeEncryptionAeadType as AeadType, WelcomePointer, WelcomeWrapperAlgorithm,
};
use xmtp_proto::id::Topic;
use zeroize::Zeroizing;

use super::WelcomeFault;
use super::unwrap::UnwrappedWelcome;

/// A pointer to a Welcome: where it is and how to open it.
#[derive(Clone, PartialEq, Eq)]
pub struct Pointer {
    destination: [u8; 32],
    key: Zeroizing<[u8; 32]>,
    data_nonce: [u8; 12],
    metadata_nonce: [u8; 12],
}

impl fmt::Debug for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pointer")
            .field("topic", &self.topic())
            .finish_non_exhaustive()
    }
}

impl Pointer {
    /// Makes a pointer to a fresh destination with a fresh key and two different nonces.
    pub(super) fn generate(runtime: &dyn Runtime) -> Self {
        let data_nonce = runtime.random();
        let mut metadata_nonce = runtime.random();
        if metadata_nonce == data_nonce {
            metadata_nonce[0] ^= 1;
        }
        Self {
            destination: runtime.random(),
            key: Zeroizing::new(runtime.random()),
            data_nonce,
            metadata_nonce,
        }
    }

    /// Answers the topic that holds the Welcome; its lowest sequence id counts, and no other.
    pub fn topic(&self) -> Topic {
        Topic::welcome_destination(self.destination)
    }

    /// Reads an opened pointer.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, WelcomeFault> {
        let malformed = WelcomeFault::MalformedPointer;
        let pointer = WelcomePointer::decode(bytes).map_err(|_| malformed)?;
        let Some(Version::WelcomeV1Pointer(pointer)) = pointer.version else {
            return Err(WelcomeFault::UnknownForm);
        };
        if pointer.aead_type != i32::from(AeadType::Chacha20Poly1305) {
            return Err(WelcomeFault::UnknownAead);
        }
        let read = Self {
            destination: array(&pointer.destination)?,
            key: Zeroizing::new(array(&pointer.encryption_key)?),
            data_nonce: array(&pointer.data_nonce)?,
            metadata_nonce: array(&pointer.welcome_metadata_nonce)?,
        };
        // One nonce for two plaintexts would give both away.
        if read.data_nonce == read.metadata_nonce {
            return Err(malformed);
        }
        Ok(read)
    }

    pub(super) fn encode(&self) -> Zeroizing<Vec<u8>> {
        let pointer = WelcomeV1Pointer {
            destination: Bytes::copy_from_slice(&self.destination),
            aead_type: AeadType::Chacha20Poly1305.into(),
            encryption_key: Bytes::copy_from_slice(self.key.as_slice()),
            data_nonce: Bytes::copy_from_slice(&self.data_nonce),
            welcome_metadata_nonce: Bytes::copy_from_slice(&self.metadata_nonce),
        };
        let version = Some(Version::WelcomeV1Pointer(pointer));
        Zeroizing::new(WelcomePointer { version }.encode_to_vec())
    }

    /// Seals the Welcome that the pointer leads to.
    pub(super) fn seal(
        &self,
        welcome: &[u8],
        metadata: &[u8],
    ) -> Result<welcome_message::V1, WelcomeFault> {
        let seal = |nonce: &[u8; 12], plain: &[u8]| {
            let sealed = self.aead().encrypt(Nonce::from_slice(nonce), plain);
            sealed
                .map(Bytes::from)
                .map_err(|_| WelcomeFault::BadPublicKey)
        };
        Ok(welcome_message::V1 {
            installation_key: Bytes::copy_from_slice(&self.destination),
            data: seal(&self.data_nonce, welcome)?,
            hpke_public_key: Bytes::new(),
            wrapper_algorithm: WelcomeWrapperAlgorithm::SymmetricKey.into(),
            welcome_metadata: seal(&self.metadata_nonce, metadata)?,
        })
    }

    /// Opens the Welcome that the pointer leads to.
    ///
    /// # Behavior
    /// - It must be addressed to the destination and sealed with a symmetric key.
    /// - A further pointer is refused.
    pub fn open(&self, found: &welcome_message::Version) -> Result<UnwrappedWelcome, WelcomeFault> {
        let found = match found {
            welcome_message::Version::V1(found) => found,
            welcome_message::Version::WelcomePointer(_) => {
                return Err(WelcomeFault::PointerToPointer);
            }
        };
        if found.installation_key != self.destination.as_slice() {
            return Err(WelcomeFault::WrongDestination);
        }
        if found.wrapper_algorithm != i32::from(WelcomeWrapperAlgorithm::SymmetricKey) {
            return Err(WelcomeFault::NotSymmetric);
        }
        let open = |nonce: &[u8; 12], sealed: &[u8]| {
            let opened = self.aead().decrypt(Nonce::from_slice(nonce), sealed);
            opened.map_err(|_| WelcomeFault::Decryption)
        };
        let welcome = Zeroizing::new(open(&self.data_nonce, &found.data)?);
        let metadata = match found.welcome_metadata.is_empty() {
            true => None,
            false => Some(open(&self.metadata_nonce, &found.welcome_metadata)?),
        };
        UnwrappedWelcome::new(&welcome, metadata.as_deref())
    }

    fn aead(&self) -> ChaCha20Poly1305 {
        ChaCha20Poly1305::new(Key::from_slice(self.key.as_slice()))
    }
}

fn array<const N: usize>(bytes: &[u8]) -> Result<[u8; N], WelcomeFault> {
    bytes.try_into().map_err(|_| WelcomeFault::MalformedPointer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use xmtp_core::error::Coded;
    use xmtp_core::runtime::SimulatedRuntime;

    /// A pointer with a field of another length, one nonce for both, another seal or no form.
    /// covers: EXT-008
    #[test]
    fn a_pointer_that_is_none_is_told() {
        let whole = Pointer::generate(&SimulatedRuntime::new(7)).encode();
        assert!(Pointer::decode(&whole).is_ok());
        let changed = |change: &dyn Fn(&mut WelcomeV1Pointer)| {
            let mut pointer = WelcomePointer::decode(&whole[..]).unwrap();
            let Some(Version::WelcomeV1Pointer(inner)) = &mut pointer.version else {
                panic!("no pointer");
            };
            change(inner);
            Pointer::decode(&pointer.encode_to_vec())
                .unwrap_err()
                .code()
        };
        let malformed = "welcome.malformed_pointer";
        assert_eq!(
            changed(&|inner| inner.destination = Bytes::new()),
            malformed
        );
        assert_eq!(
            changed(&|inner| inner.data_nonce = vec![1; 11].into()),
            malformed
        );
        let one_nonce = |inner: &mut WelcomeV1Pointer| {
            inner.welcome_metadata_nonce = inner.data_nonce.clone();
        };
        assert_eq!(changed(&one_nonce), malformed);
        assert_eq!(
            changed(&|inner| inner.aead_type = 9),
            "welcome.unknown_aead"
        );
        assert_eq!(Pointer::decode(&[]).unwrap_err(), WelcomeFault::UnknownForm);
    }
}
