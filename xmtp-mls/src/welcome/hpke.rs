//! The sealing of one recipient's copy, bit for bit as released clients do it.
//!
//! HPKE in base mode with HKDF-SHA256 and ChaCha20-Poly1305. The KEM is X25519, or X-Wing draft 06
//! under the obsolete id 0x004D, which goes into the key schedule: the current id gives other keys.
//! One context seals two messages, the Welcome and its metadata.
//!
//! Encapsulation draws from the system's randomness: the library takes no other source.

use std::fmt;

use hpke_rs::hpke_types::{AeadAlgorithm, KdfAlgorithm, KemAlgorithm};
use hpke_rs::{Hpke, HpkePrivateKey, HpkePublicKey, Mode};
use hpke_rs_rust_crypto::HpkeRustCrypto;
use tls_codec::{Deserialize, Serialize, TlsDeserialize, TlsSerialize, TlsSize, VLBytes};
use xmtp_core::runtime::{Runtime, RuntimeExt};
use xmtp_proto::content::WelcomeWrapperAlgorithm;
use zeroize::Zeroizing;

use super::WelcomeFault;

/// The label that RFC 9420 puts before labels of its own, and ours.
const LABEL: &[u8] = b"MLS 1.0 MLS_WELCOME";

/// The bytes of an X25519 key.
const X25519_LEN: usize = 32;
/// The bytes of an X-Wing public key.
const XWING_PUBLIC_LEN: usize = 1216;

/// How a copy is sealed to its recipient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrapperAlgorithm {
    /// HPKE with X25519.
    X25519,
    /// HPKE with X-Wing draft 06.
    XWing,
}

impl WrapperAlgorithm {
    /// Reads the number on the wire; `None` for one that seals to no recipient's key.
    pub fn from_wire(algorithm: i32) -> Option<Self> {
        match WelcomeWrapperAlgorithm::try_from(algorithm).ok()? {
            WelcomeWrapperAlgorithm::Curve25519 => Some(Self::X25519),
            WelcomeWrapperAlgorithm::XwingMlkem768Draft6 => Some(Self::XWing),
            WelcomeWrapperAlgorithm::Unspecified | WelcomeWrapperAlgorithm::SymmetricKey => None,
        }
    }

    /// Answers the number on the wire.
    pub fn to_wire(self) -> WelcomeWrapperAlgorithm {
        match self {
            Self::X25519 => WelcomeWrapperAlgorithm::Curve25519,
            Self::XWing => WelcomeWrapperAlgorithm::XwingMlkem768Draft6,
        }
    }

    fn public_len(self) -> usize {
        match self {
            Self::X25519 => X25519_LEN,
            Self::XWing => XWING_PUBLIC_LEN,
        }
    }

    #[allow(deprecated)] // The obsolete code point is the one in use.
    fn kem(self) -> KemAlgorithm {
        match self {
            Self::X25519 => KemAlgorithm::DhKem25519,
            Self::XWing => KemAlgorithm::XWingDraft06Obsolete,
        }
    }

    fn hpke(self) -> Hpke<HpkeRustCrypto> {
        Hpke::new(
            Mode::Base,
            self.kem(),
            KdfAlgorithm::HkdfSha256,
            AeadAlgorithm::ChaCha20Poly1305,
        )
    }
}

/// A key that Welcomes are wrapped to.
#[derive(Clone, PartialEq, Eq)]
pub struct WrapperPublicKey {
    algorithm: WrapperAlgorithm,
    bytes: Vec<u8>,
}

impl WrapperPublicKey {
    /// Takes the bytes of a key, whose length must be that of its algorithm.
    pub fn new(algorithm: WrapperAlgorithm, bytes: &[u8]) -> Result<Self, WelcomeFault> {
        if bytes.len() != algorithm.public_len() {
            return Err(WelcomeFault::BadPublicKey);
        }
        Ok(Self {
            algorithm,
            bytes: bytes.to_vec(),
        })
    }

    /// Answers how to wrap to it.
    pub fn algorithm(&self) -> WrapperAlgorithm {
        self.algorithm
    }

    /// Answers the bytes of the key.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for WrapperPublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WrapperPublicKey")
            .field("algorithm", &self.algorithm)
            .finish_non_exhaustive()
    }
}

/// A wrapper key with its private half.
pub struct WrapperKeyPair {
    /// The public half.
    pub public: WrapperPublicKey,
    /// The private half: an X-Wing seed or an X25519 scalar.
    pub private: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for WrapperKeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WrapperKeyPair")
            .field("public", &self.public)
            .finish_non_exhaustive()
    }
}

impl WrapperKeyPair {
    /// Makes a key pair from the runtime's randomness.
    pub fn generate(
        algorithm: WrapperAlgorithm,
        runtime: &dyn Runtime,
    ) -> Result<Self, WelcomeFault> {
        let random = Zeroizing::new(runtime.random::<32>());
        let pair = algorithm.hpke().derive_key_pair(random.as_slice());
        let pair = pair.map_err(|_| WelcomeFault::BadPublicKey)?;
        Ok(Self {
            public: WrapperPublicKey::new(algorithm, pair.public_key().as_slice())?,
            private: Zeroizing::new(pair.private_key().as_slice().to_vec()),
        })
    }
}

/// `HPKECiphertext` of RFC 9420.
#[derive(TlsSerialize, TlsDeserialize, TlsSize)]
struct Ciphertext {
    kem_output: VLBytes,
    ciphertext: VLBytes,
}

/// The sealed forms of the messages of one context.
pub(super) struct Sealed {
    /// The first message with the encapsulated key before it.
    pub first: Vec<u8>,
    /// The second message, bare.
    pub second: Vec<u8>,
}

/// The `info` of RFC 9420's labelled encryption, with an empty context.
fn info() -> Vec<u8> {
    let parts = [VLBytes::from(LABEL), VLBytes::from(&[][..])];
    let parts = parts.iter().map(|part| part.tls_serialize_detached());
    parts.flatten().flatten().collect()
}

/// Seals one or two messages to a key.
pub(super) fn seal(
    key: &WrapperPublicKey,
    first: &[u8],
    second: Option<&[u8]>,
) -> Result<Sealed, WelcomeFault> {
    let fault = |_| WelcomeFault::BadPublicKey;
    let public = HpkePublicKey::new(key.bytes.clone());
    let (kem_output, mut context) = key
        .algorithm
        .hpke()
        .setup_sender(&public, &info(), None, None, None)
        .map_err(fault)?;
    let ciphertext = Ciphertext {
        kem_output: kem_output.into(),
        ciphertext: context.seal(&[], first).map_err(fault)?.into(),
    };
    let second = second.map(|second| context.seal(&[], second).map_err(fault));
    Ok(Sealed {
        first: ciphertext
            .tls_serialize_detached()
            .map_err(|_| WelcomeFault::BadPublicKey)?,
        second: second.transpose()?.unwrap_or_default(),
    })
}

/// The first message, and the second when there is one.
pub(super) type Plain = (Zeroizing<Vec<u8>>, Option<Vec<u8>>);

/// Opens one or two messages of one context; an empty second one is absent.
pub(super) fn open(
    algorithm: WrapperAlgorithm,
    private: &[u8],
    first: &[u8],
    second: &[u8],
) -> Result<Plain, WelcomeFault> {
    let fault = |_| WelcomeFault::Decryption;
    let sealed = Ciphertext::tls_deserialize_exact(first).map_err(|_| WelcomeFault::Decryption)?;
    let private = HpkePrivateKey::new(private.to_vec());
    let mut context = algorithm
        .hpke()
        .setup_receiver(
            sealed.kem_output.as_slice(),
            &private,
            &info(),
            None,
            None,
            None,
        )
        .map_err(fault)?;
    let first = context
        .open(&[], sealed.ciphertext.as_slice())
        .map_err(fault)?;
    let second = match second {
        [] => None,
        second => Some(context.open(&[], second).map_err(fault)?),
    };
    Ok((Zeroizing::new(first), second))
}
