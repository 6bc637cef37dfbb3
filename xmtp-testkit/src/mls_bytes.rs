//! Envelopes that a backend admits, made without any group.
//!
//! A backend reads the frame of a group message and never its inside, so a frame around arbitrary
//! bytes is enough to test order, delivery and storage. Key packages and identity updates are
//! checked in full and are therefore real.

use openmls::prelude::{BasicCredential, Ciphersuite, CredentialWithKey, KeyPackage};
use openmls_basic_credential::SignatureKeyPair;
use openmls_rust_crypto::OpenMlsRustCrypto;
use openmls_traits::types::SignatureScheme;
use prost::Message;
use tls_codec::Serialize;
use xmtp_identity::{InstallationKey, LocalWallet, UpdateBuilder};
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::backend::v1::{self, ClientEnvelope};
use xmtp_proto::content::MlsCredential;
use xmtp_proto::identity::IdentityUpdate;
use xmtp_proto::{GroupId, InboxId, InstallationId, Topic};

/// `ProtocolVersion` mls10 (RFC 9420, 6).
const MLS_10: u16 = 1;

/// `WireFormat` mls_private_message (RFC 9420, 6).
const PRIVATE_MESSAGE: u16 = 2;

/// The suite of the protocol.
const CIPHERSUITE: Ciphersuite = Ciphersuite::MLS_128_DHKEMX25519_CHACHA20POLY1305_SHA256_Ed25519;

/// The content type of a frame, which stands in the clear (RFC 9420, 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ContentType {
    /// An application message.
    Application = 1,
    /// A proposal.
    Proposal = 2,
    /// A commit.
    Commit = 3,
}

/// Frames bytes as the ciphertext of an MLS private message.
pub fn private_message(
    group_id: [u8; 16],
    epoch: u64,
    content_type: ContentType,
    ciphertext: &[u8],
) -> Vec<u8> {
    let mut frame = Vec::with_capacity(ciphertext.len() + 64);
    frame.extend(MLS_10.to_be_bytes());
    frame.extend(PRIVATE_MESSAGE.to_be_bytes());
    variable(&mut frame, &group_id);
    frame.extend(epoch.to_be_bytes());
    frame.push(content_type as u8);
    variable(&mut frame, b""); // authenticated_data
    variable(&mut frame, b"sender data");
    variable(&mut frame, ciphertext);
    frame
}

/// Writes a vector behind its length, as RFC 9420 (2.1.2) has it.
fn variable(frame: &mut Vec<u8>, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).expect("a vector has less than 2^30 bytes");
    match length {
        0..0x40 => frame.push(length as u8),
        0x40..0x4000 => frame.extend((length as u16 | 0x4000).to_be_bytes()),
        _ => {
            assert!(length < 1 << 30, "a vector has less than 2^30 bytes");
            frame.extend((length | 0x8000_0000).to_be_bytes());
        }
    }
    frame.extend(bytes);
}

/// Makes an application message of a group.
pub fn group_message(group_id: [u8; 16], ciphertext: &[u8]) -> ClientEnvelope {
    let frame = private_message(group_id, 0, ContentType::Application, ciphertext);
    group_envelope(frame)
}

/// Makes a frame of a group that expires never.
pub fn commit(group_id: [u8; 16], epoch: u64, ciphertext: &[u8]) -> ClientEnvelope {
    group_envelope(private_message(
        group_id,
        epoch,
        ContentType::Commit,
        ciphertext,
    ))
}

/// Makes an application message of a group that encodes to exactly so many bytes.
///
/// - Panics when no message has that size.
pub fn group_message_of(group_id: [u8; 16], encoded_bytes: usize) -> ClientEnvelope {
    // Lengths before the ciphertext take more bytes as it grows, so that the first guess is long.
    let mut ciphertext = encoded_bytes;
    for _ in 0..8 {
        let envelope = group_message(group_id, &vec![0xa5; ciphertext]);
        match envelope.encoded_len().cmp(&encoded_bytes) {
            std::cmp::Ordering::Equal => return envelope,
            std::cmp::Ordering::Greater => ciphertext -= envelope.encoded_len() - encoded_bytes,
            std::cmp::Ordering::Less => ciphertext += encoded_bytes - envelope.encoded_len(),
        }
    }
    panic!("no group message encodes to {encoded_bytes} bytes");
}

fn group_envelope(frame: Vec<u8>) -> ClientEnvelope {
    let message = v1::GroupMessage {
        data: frame.into(),
        ..Default::default()
    };
    ClientEnvelope {
        payload: Some(Payload::GroupMessage(message)),
    }
}

/// Answers the topic of a group.
pub fn group_topic(group_id: [u8; 16]) -> Topic {
    Topic::group(&GroupId::from_bytes(group_id))
}

/// A person with one installation, made from a seed.
#[derive(Debug)]
pub struct Person {
    wallet: LocalWallet,
    installation: InstallationKey,
    installation_seed: [u8; 32],
}

impl Person {
    /// Makes the person of a seed.
    pub fn new(seed: u8) -> Self {
        let installation_seed = [seed ^ 0xff; 32];
        Self {
            wallet: LocalWallet::from_random([seed; 32]),
            installation: InstallationKey::from_seed(&installation_seed),
            installation_seed,
        }
    }

    /// Answers the inbox that [`Self::create_inbox`] creates.
    pub fn inbox_id(&self) -> InboxId {
        xmtp_identity::inbox_id(self.wallet.identifier(), 0)
    }

    /// Answers the text of the wallet's address.
    pub fn address(&self) -> String {
        self.wallet.identifier().text()
    }

    /// Answers the id of the installation.
    pub fn installation_id(&self) -> InstallationId {
        self.installation.id()
    }

    /// Makes the first update of the inbox: it creates it and lets the installation in.
    pub fn create_inbox(&self, client_timestamp_ns: u64) -> ClientEnvelope {
        let update = self.signed_creation(client_timestamp_ns);
        ClientEnvelope {
            payload: Some(Payload::IdentityUpdate(update)),
        }
    }

    fn signed_creation(&self, client_timestamp_ns: u64) -> IdentityUpdate {
        let unsigned = UpdateBuilder::create_inbox(self.wallet.identifier().clone(), 0)
            .add_installation(self.installation.id())
            .build(client_timestamp_ns)
            .expect("the update is well formed");
        let text = unsigned.signature_text().to_owned();
        let wallet = self.wallet.sign_text(&text).expect("the wallet signs");
        let installation = self
            .installation
            .sign_text(&text)
            .expect("the installation signs");
        let signed = unsigned
            .with_signature(wallet)
            .expect("the wallet is a signer");
        let signed = signed
            .with_signature(installation)
            .expect("the installation is a signer");
        signed.finish().expect("both signatures are there")
    }

    /// Makes a key package of the installation; each one is another.
    pub fn key_package(&self) -> ClientEnvelope {
        let public = self.installation.id().as_bytes().to_vec();
        let private = self.installation_seed.to_vec();
        let keys = SignatureKeyPair::from_raw(SignatureScheme::ED25519, private, public.clone());
        let credential = MlsCredential {
            inbox_id: self.inbox_id().to_hex(),
        };
        let credential = CredentialWithKey {
            credential: BasicCredential::new(credential.encode_to_vec()).into(),
            signature_key: public.into(),
        };
        let provider = OpenMlsRustCrypto::default();
        let made = KeyPackage::builder().build(CIPHERSUITE, &provider, &keys, credential);
        let made = made.expect("a key package can be made");
        let bytes = made
            .key_package()
            .tls_serialize_detached()
            .expect("it can be encoded");
        let message = v1::KeyPackage {
            key_package_tls_serialized: bytes.into(),
        };
        ClientEnvelope {
            payload: Some(Payload::KeyPackage(message)),
        }
    }
}
