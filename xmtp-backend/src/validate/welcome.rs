//! Welcomes: addressed and otherwise opaque.

use xmtp_proto::backend::v1::WelcomeMessage;
use xmtp_proto::backend::v1::welcome_message::Version;
use xmtp_proto::id::TopicKind;

use super::{Read, malformed, topic};
use crate::store::Refusal;

/// Reads a Welcome; its recipient need not exist.
pub(super) fn read(message: &WelcomeMessage) -> Result<Read, Refusal> {
    let recipient = match message.version.as_ref() {
        None => return Err(malformed("the Welcome has no version")),
        Some(Version::V1(welcome)) => &welcome.installation_key,
        Some(Version::WelcomePointer(pointer)) => &pointer.installation_key,
    };
    let problem = "the installation key of the Welcome does not have 32 bytes";
    topic(TopicKind::Welcome, recipient, problem).map(Read::plain)
}
