//! Welcomes, wrapped soundly or not.

use xmtp_core::runtime::Runtime;
use xmtp_mls::welcome::{Recipient, wrap};
use xmtp_proto::SequenceId;
use xmtp_proto::backend::v1::WelcomeMessage;
use xmtp_proto::backend::v1::welcome_message::{V1, Version};

use super::{Invitation, RogueError, mls};

/// The bytes of an MLS message of a version that is not there yet, and nothing else.
const OTHER_VERSION: [u8; 4] = [0, 2, 0, 3];
/// The bytes of an MLS message that is no Welcome.
const NO_WELCOME: [u8; 4] = [0, 1, 0, 9];

/// How a Welcome is wrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrapping {
    /// As it should be.
    Sound,
    /// Without the metadata that holds the join anchor.
    NoMetadata,
    /// In a way that nobody knows.
    UnknownAlgorithm,
    /// Said to be wrapped in an older way than the key package asks for.
    Downgraded,
    /// To a key that is not the recipient's.
    Stranger,
    /// With a changed byte.
    Flipped,
    /// Around an MLS message of a later version.
    OtherVersion,
    /// Around an MLS message that is no Welcome.
    NoWelcome,
}

/// A pointer and what it leads to.
#[derive(Clone, Debug)]
pub struct Pointed {
    /// The pointer.
    pub pointer: WelcomeMessage,
    /// The Welcome behind it.
    pub pointee: WelcomeMessage,
}

/// Wraps a Welcome for its recipient at `place`, whom the commit need not have added.
///
/// # Errors
/// When there is no such recipient, or sealing fails.
pub fn wrapped(
    runtime: &dyn Runtime,
    invitation: &Invitation,
    recipient: &Recipient,
    anchor: SequenceId,
    wrapping: Wrapping,
) -> Result<WelcomeMessage, RogueError> {
    let welcome = match wrapping {
        Wrapping::OtherVersion => &OTHER_VERSION[..],
        Wrapping::NoWelcome => &NO_WELCOME[..],
        _ => &invitation.welcome,
    };
    let made = wrap(runtime, std::slice::from_ref(recipient), welcome, anchor).map_err(mls)?;
    let mut message = made.into_iter().next().ok_or_else(|| mls("no Welcome"))?;
    let Some(Version::V1(inline)) = &mut message.version else {
        return Err(mls("one recipient gets no pointer"));
    };
    spoil(inline, wrapping);
    Ok(message)
}

fn spoil(inline: &mut V1, wrapping: Wrapping) {
    match wrapping {
        Wrapping::Sound | Wrapping::OtherVersion | Wrapping::NoWelcome => {}
        Wrapping::NoMetadata => inline.welcome_metadata.clear(),
        Wrapping::UnknownAlgorithm => inline.wrapper_algorithm = 99,
        Wrapping::Downgraded => inline.wrapper_algorithm = 1,
        Wrapping::Stranger => {
            inline.hpke_public_key = super::flipped(&inline.hpke_public_key).into();
        }
        Wrapping::Flipped => inline.data = super::flipped(&inline.data).into(),
    }
}

/// Wraps a Welcome behind a pointer for one recipient.
///
/// # Errors
/// When sealing fails.
pub fn wrapped_behind_pointer(
    runtime: &dyn Runtime,
    invitation: &Invitation,
    recipient: &Recipient,
    anchor: SequenceId,
) -> Result<Pointed, RogueError> {
    // Pointers are made for many; one recipient that stands for many gets one too.
    let many = vec![recipient.clone(); xmtp_mls::welcome::POINTERS_ABOVE + 1];
    let made = wrap(runtime, &many, &invitation.welcome, anchor).map_err(mls)?;
    match made.as_slice() {
        [pointee, pointer, ..] => Ok(Pointed {
            pointer: pointer.clone(),
            pointee: pointee.clone(),
        }),
        _ => Err(mls("no pointer")),
    }
}
