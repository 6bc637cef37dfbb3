//! Wrapping the Welcome of one commit for each installation it adds.

use bytes::Bytes;
use prost::Message;
use xmtp_core::runtime::Runtime;
use xmtp_proto::backend::v1::WelcomeMessage;
use xmtp_proto::backend::v1::welcome_message::{V1, Version, WelcomePointer};
use xmtp_proto::content::{WelcomeMetadata, WelcomePointerWrapperAlgorithm};
use xmtp_proto::id::{InstallationId, SequenceId};

use super::WelcomeFault;
use super::hpke::{self, WrapperAlgorithm, WrapperPublicKey};
use super::pointer::Pointer;

/// Pointers are used when more than this many recipients can read them.
pub const POINTERS_ABOVE: usize = 2;
/// Most Welcomes of one publish request.
pub const MAX_BATCH: usize = 50;

/// An installation that a commit adds, as its key package describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipient {
    /// The installation.
    pub installation: InstallationId,
    /// The key that its Welcomes are wrapped to.
    pub key: WrapperPublicKey,
    /// Whether it reads Welcomes behind pointers.
    pub reads_pointers: bool,
}

impl Recipient {
    /// Tells whether a pointer can be sealed to it: the wire has X-Wing pointers alone.
    fn takes_pointer(&self) -> bool {
        self.reads_pointers && self.key.algorithm() == WrapperAlgorithm::XWing
    }
}

/// Wraps the Welcome of one commit for its recipients.
///
/// # Behavior
/// - With more than [`POINTERS_ABOVE`] recipients that read pointers, these get pointers, and what
///   they point to is the first of the answer: publish it before the pointers.
/// - The bytes are random; keep them, and send the same ones again (STR-085).
pub fn wrap(
    runtime: &dyn Runtime,
    recipients: &[Recipient],
    welcome: &[u8],
    anchor: SequenceId,
) -> Result<Vec<WelcomeMessage>, WelcomeFault> {
    let metadata = WelcomeMetadata {
        message_cursor: anchor.get(),
    }
    .encode_to_vec();
    let readers = recipients
        .iter()
        .filter(|recipient| recipient.takes_pointer());
    let pointer = (readers.count() > POINTERS_ABOVE).then(|| Pointer::generate(runtime));

    let mut wrapped = Vec::with_capacity(recipients.len() + 1);
    if let Some(pointer) = &pointer {
        wrapped.push(Version::V1(pointer.seal(welcome, &metadata)?));
    }
    for recipient in recipients {
        wrapped.push(match &pointer {
            Some(pointer) if recipient.takes_pointer() => point(recipient, pointer)?,
            _ => inline(recipient, welcome, &metadata)?,
        });
    }
    let messages = wrapped.into_iter().map(|version| WelcomeMessage {
        version: Some(version),
    });
    Ok(messages.collect())
}

fn inline(recipient: &Recipient, welcome: &[u8], metadata: &[u8]) -> Result<Version, WelcomeFault> {
    let sealed = hpke::seal(&recipient.key, welcome, Some(metadata))?;
    Ok(Version::V1(V1 {
        installation_key: Bytes::copy_from_slice(recipient.installation.as_bytes()),
        data: sealed.first.into(),
        hpke_public_key: Bytes::copy_from_slice(recipient.key.as_bytes()),
        wrapper_algorithm: recipient.key.algorithm().to_wire().into(),
        welcome_metadata: sealed.second.into(),
    }))
}

fn point(recipient: &Recipient, pointer: &Pointer) -> Result<Version, WelcomeFault> {
    let sealed = hpke::seal(&recipient.key, &pointer.encode(), None)?;
    Ok(Version::WelcomePointer(WelcomePointer {
        installation_key: Bytes::copy_from_slice(recipient.installation.as_bytes()),
        welcome_pointer: sealed.first.into(),
        hpke_public_key: Bytes::copy_from_slice(recipient.key.as_bytes()),
        wrapper_algorithm: WelcomePointerWrapperAlgorithm::XwingMlkem768Draft6.into(),
    }))
}
