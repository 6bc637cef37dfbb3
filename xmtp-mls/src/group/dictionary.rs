//! The dictionary form: components by number.

use std::collections::{BTreeMap, BTreeSet};

use openmls::prelude::AppDataDictionary;
use prost::Message;
use xmtp_proto::content::{
    ComponentMetadata, ConversationType, GroupMembershipEntry, OneshotMessage,
    group_membership_entry,
};
use xmtp_proto::id::{InboxId, InstallationId, SequenceId};

use super::collection::{EMPTY, KeyShape, elements, only_inbox};
use super::context::{Attribute, ContextError, ContextForm, GroupContext, Policies, failed};
use super::tls::{Malformed, Reader};

/// The numbers of the components.
pub mod component {
    /// Type and rules of each component; its presence is what makes the form.
    pub const REGISTRY: u16 = 0x8000;
    /// The super admins.
    pub const SUPER_ADMINS: u16 = 0x8001;
    /// The admins.
    pub const ADMINS: u16 = 0x8002;
    /// The members.
    pub const MEMBERSHIP: u16 = 0x8003;
    /// The name.
    pub const NAME: u16 = 0x8004;
    /// The description.
    pub const DESCRIPTION: u16 = 0x8005;
    /// The address of a square image.
    pub const IMAGE_URL: u16 = 0x8006;
    /// From when on messages disappear.
    pub const DISAPPEAR_FROM: u16 = 0x8007;
    /// After how long messages disappear.
    pub const DISAPPEAR_IN: u16 = 0x8008;
    /// Text for the application.
    pub const APP_DATA: u16 = 0x8009;
    /// The oldest version that may take part.
    pub const VERSION_FLOOR: u16 = 0x800a;
    /// The secret that the commit log is signed with.
    pub const COMMIT_LOG_SIGNER: u16 = 0x800b;
    /// The request of a one-shot group.
    pub const ONESHOT: u16 = 0xbffc;
    /// The pair of a DM.
    pub const DM_PAIR: u16 = 0xbffd;
    /// The creator.
    pub const CREATOR: u16 = 0xbffe;
    /// The conversation type.
    pub const CONVERSATION_TYPE: u16 = 0xbfff;
}

/// Tells whether a dictionary holds a group's context.
pub(super) fn is_form(dictionary: &AppDataDictionary) -> bool {
    dictionary.contains(&component::REGISTRY)
}

/// Reads a group's context.
pub(super) fn read(dictionary: &AppDataDictionary) -> Result<GroupContext, ContextError> {
    let (members, failed) = membership(dictionary)?;
    let creator = required(dictionary, component::CREATOR, "creator")?;
    let conversation_type = required(
        dictionary,
        component::CONVERSATION_TYPE,
        "conversation type",
    )?;
    Ok(GroupContext {
        form: ContextForm::Dictionary,
        conversation_type: decode_type(conversation_type)?,
        creator: shaped(only_inbox(creator), "creator")?,
        dm: dm_pair(dictionary)?,
        oneshot: oneshot(dictionary)?,
        members,
        failed,
        admins: inbox_set(dictionary, component::ADMINS, "admin list")?,
        super_admins: inbox_set(dictionary, component::SUPER_ADMINS, "super admin list")?,
        attributes: attributes(dictionary),
        policies: Policies::Registry(registry(dictionary)?),
    })
}

fn shaped<T>(read: Result<T, Malformed>, what: &'static str) -> Result<T, ContextError> {
    read.map_err(|Malformed| ContextError::Malformed(what))
}

fn required<'a>(
    dictionary: &'a AppDataDictionary,
    id: u16,
    what: &'static str,
) -> Result<&'a [u8], ContextError> {
    dictionary.get(&id).ok_or(ContextError::Missing(what))
}

fn decode_type(bytes: &[u8]) -> Result<ConversationType, ContextError> {
    let malformed = ContextError::Malformed("conversation type");
    let number = bytes
        .try_into()
        .map(u32::from_be_bytes)
        .map_err(|_| malformed)?;
    let number = i32::try_from(number).map_err(|_| malformed)?;
    match ConversationType::try_from(number) {
        Ok(ConversationType::Unspecified) | Err(_) => Err(malformed),
        Ok(conversation_type) => Ok(conversation_type),
    }
}

fn inbox_set(
    dictionary: &AppDataDictionary,
    id: u16,
    what: &'static str,
) -> Result<BTreeSet<InboxId>, ContextError> {
    let bytes = dictionary.get(&id).unwrap_or(EMPTY);
    let listed = shaped(elements(KeyShape::Inbox, false, bytes), what)?;
    let listed = listed.iter().map(|(key, _)| only_inbox(key));
    shaped(listed.collect(), what)
}

fn dm_pair(dictionary: &AppDataDictionary) -> Result<Option<(InboxId, InboxId)>, ContextError> {
    if !dictionary.contains(&component::DM_PAIR) {
        return Ok(None);
    }
    let pair = inbox_set(dictionary, component::DM_PAIR, "DM pair")?;
    match pair.into_iter().collect::<Vec<_>>()[..] {
        [one, two] => Ok(Some((one, two))),
        _ => Err(ContextError::Malformed("DM pair")),
    }
}

fn oneshot(dictionary: &AppDataDictionary) -> Result<Option<OneshotMessage>, ContextError> {
    let request = dictionary
        .get(&component::ONESHOT)
        .map(OneshotMessage::decode);
    request
        .transpose()
        .map_err(|_| ContextError::Malformed("one-shot message"))
}

pub(super) fn registry(
    dictionary: &AppDataDictionary,
) -> Result<BTreeMap<u16, ComponentMetadata>, ContextError> {
    const WHAT: &str = "registry";
    let bytes = required(dictionary, component::REGISTRY, WHAT)?;
    let entries = shaped(elements(KeyShape::Component, true, bytes), WHAT)?;
    let entries = entries.iter().map(|(key, value)| {
        let id = Reader(key)
            .varint()
            .ok()
            .and_then(|id| u16::try_from(id).ok());
        let metadata = ComponentMetadata::decode(value.as_slice()).ok();
        id.zip(metadata).ok_or(ContextError::Malformed(WHAT))
    });
    entries.collect()
}

type Membership = (BTreeMap<InboxId, SequenceId>, BTreeSet<InstallationId>);

fn membership(dictionary: &AppDataDictionary) -> Result<Membership, ContextError> {
    const WHAT: &str = "member list";
    let bytes = required(dictionary, component::MEMBERSHIP, WHAT)?;
    let mut membership = Membership::default();
    for (key, value) in shaped(elements(KeyShape::Inbox, true, bytes), WHAT)? {
        let malformed = ContextError::Malformed(WHAT);
        let inbox = shaped(only_inbox(&key), WHAT)?;
        let entry = GroupMembershipEntry::decode(value.as_slice()).map_err(|_| malformed)?;
        let Some(group_membership_entry::Version::V1(entry)) = entry.version else {
            return Err(malformed);
        };
        let id = SequenceId::checked(entry.sequence_id).map_err(|_| malformed)?;
        membership.0.insert(inbox, id);
        membership.1.extend(failed(&entry.failed_installations)?);
    }
    Ok(membership)
}

type ReadAttribute<'f> = &'f dyn Fn(&[u8]) -> Option<String>;

/// Reads the attributes under the names of the extension form. A value of the wrong shape counts
/// as unset: released clients have written such.
fn attributes(dictionary: &AppDataDictionary) -> BTreeMap<String, String> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let number = |bytes: &[u8]| {
        bytes
            .try_into()
            .ok()
            .map(|n| i64::from_be_bytes(n).to_string())
    };
    let secret = |bytes: &[u8]| (bytes.len() == 32).then(|| hex::encode(bytes));
    let read: [(u16, Attribute, ReadAttribute<'_>); 8] = [
        (component::NAME, Attribute::Name, &text),
        (component::DESCRIPTION, Attribute::Description, &text),
        (component::IMAGE_URL, Attribute::ImageUrl, &text),
        (component::APP_DATA, Attribute::AppData, &text),
        (component::DISAPPEAR_FROM, Attribute::DisappearFrom, &number),
        (component::DISAPPEAR_IN, Attribute::DisappearIn, &number),
        (component::VERSION_FLOOR, Attribute::VersionFloor, &text),
        (
            component::COMMIT_LOG_SIGNER,
            Attribute::CommitLogSigner,
            &secret,
        ),
    ];
    let set = read.iter().filter_map(|(id, attribute, read)| {
        let value = read(dictionary.get(id)?)?;
        Some((attribute.name().to_owned(), value))
    });
    set.collect()
}
