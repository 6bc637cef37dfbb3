//! Group messages: one MLS message of a group, encrypted or not.

use openmls::prelude::{ContentType, MlsMessageIn};
use tls_codec::Deserialize;
use xmtp_proto::backend::v1::GroupMessage;
use xmtp_proto::id::TopicKind;

use super::{Check, Read, malformed, topic};
use crate::store::Refusal;

/// Reads a group message.
///
/// - Bytes after the MLS message are accepted, and stored like the rest.
/// - Whether the message belongs to its group can not be seen from here.
pub(super) fn read(message: &GroupMessage) -> Result<Read, Refusal> {
    let mut bytes: &[u8] = &message.data;
    let parsed = MlsMessageIn::tls_deserialize(&mut bytes);
    let parsed = parsed.map_err(|_| malformed("the group message is no MLS message"))?;
    let parsed = parsed.try_into_protocol_message();
    let parsed =
        parsed.map_err(|_| malformed("the group message is neither a public nor a private one"))?;
    let group = parsed.group_id().as_slice();
    Ok(Read {
        topic: topic(
            TopicKind::Group,
            group,
            "the group id does not have 16 bytes",
        )?,
        is_commit_or_proposal: match parsed.content_type() {
            ContentType::Commit | ContentType::Proposal => true,
            ContentType::Application => false,
        },
        check: Check::None,
    })
}
