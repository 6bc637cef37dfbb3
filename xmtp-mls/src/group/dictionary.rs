//! The dictionary form: components by number, and the updates that commits carry.
//!
//! openmls hands a commit with updates over unresolved: their meaning is ours, and the dictionary
//! that they lead to goes into the key schedule. [`resolve_updates`] computes it. It checks shapes
//! and presence; permissions and byte limits are for the processors.

use std::collections::BTreeMap;

use openmls::group::{AppDataUpdates, MlsGroup, UnresolvedAppDataCommit};
use openmls::prelude::{
    AppDataDictionary, AppDataUpdateOperation, AppDataUpdateProposal,
};
use openmls::component::ComponentData;
use prost::Message;
use sha2::{Digest, Sha256};
use thiserror::Error;
use xmtp_proto::content::{
    ComponentMetadata, ComponentType, ConversationType, GroupMembershipEntry, OneshotMessage,
    group_membership_entry,
};
use xmtp_proto::id::{InboxId, SequenceId};

use super::context::{Attribute, ContextError, ContextForm, GroupContext, Policies, failed};
use super::tls::{Malformed, Reader, put_opaque, put_varint};

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

/// An update that does not apply to the dictionary it was made for.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum DeltaFault {
    /// The bytes of an update or of the value before it are malformed.
    #[error("an update of component {0:#06x} is malformed")]
    Malformed(u16),
    /// A component is written and removed, or removed twice, in one commit.
    #[error("component {0:#06x} is written and removed at once")]
    Mixed(u16),
    /// An element that is inserted is there, or one that is changed is not.
    #[error("an update of component {0:#06x} does not fit what is there")]
    Presence(u16),
    /// A component that never changes has a value already.
    #[error("component {0:#06x} never changes")]
    Immutable(u16),
    /// The registry does not say how a component is encoded.
    #[error("component {0:#06x} has no known type")]
    UnknownType(u16),
}

/// Tells whether a dictionary holds a group's context.
pub(super) fn is_form(dictionary: &AppDataDictionary) -> bool {
    dictionary.contains(&component::REGISTRY)
}

/// Reads a group's context.
pub(super) fn read(dictionary: &AppDataDictionary) -> Result<GroupContext, ContextError> {
    let (members, failed) = membership(dictionary)?;
    let creator = required(dictionary, component::CREATOR, "creator")?;
    let conversation_type = required(dictionary, component::CONVERSATION_TYPE, "conversation type")?;
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

/// Computes the dictionary that a commit's updates lead to.
///
/// # Behavior
/// - Updates of one component chain on each other; hashes name what was there before the commit.
/// - A component of the immutable ranges takes one first write and nothing after it.
pub fn resolve_updates(
    group: &MlsGroup,
    commit: &UnresolvedAppDataCommit,
) -> Result<Option<AppDataUpdates>, DeltaFault> {
    let empty = AppDataDictionary::new();
    let before = group.extensions().app_data_dictionary();
    let before = before.map_or(&empty, |extension| extension.dictionary());
    let mut by_component: BTreeMap<u16, Vec<&AppDataUpdateProposal>> = BTreeMap::new();
    for proposal in commit.app_data_update_proposals() {
        by_component.entry(proposal.component_id()).or_default().push(proposal);
    }
    let mut updater = group.app_data_dictionary_updater();
    for (id, proposals) in by_component {
        match resolve(before, id, &proposals)? {
            Some(value) => updater.set(ComponentData::from_parts(id, value.into())),
            None => updater.remove(&id),
        }
    }
    Ok(updater.changes())
}

fn resolve(
    dictionary: &AppDataDictionary,
    id: u16,
    proposals: &[&AppDataUpdateProposal],
) -> Result<Option<Vec<u8>>, DeltaFault> {
    let before = dictionary.get(&id);
    if before.is_some() && is_immutable(id) {
        return Err(DeltaFault::Immutable(id));
    }
    let mut value = before.map(<[u8]>::to_vec);
    for proposal in proposals {
        match proposal.operation() {
            AppDataUpdateOperation::Remove if proposals.len() > 1 => {
                return Err(DeltaFault::Mixed(id));
            }
            AppDataUpdateOperation::Remove if before.is_none() => {
                return Err(DeltaFault::Presence(id));
            }
            AppDataUpdateOperation::Remove => value = None,
            AppDataUpdateOperation::Update(update) => {
                let shape = Shape::of(dictionary, id)?;
                value = Some(shape.apply(id, before, value.as_deref(), update.as_slice())?);
            }
        }
    }
    Ok(value)
}

/// Tells whether a component takes one write and no more.
fn is_immutable(id: u16) -> bool {
    matches!(id, 0xbe00..=0xbfff | 0xfd00..=0xfeff)
}

/// How keys of a collection are encoded.
#[derive(Clone, Copy)]
enum KeyShape {
    Component,
    Inbox,
    Opaque,
}

impl KeyShape {
    /// Reads one key and answers its encoding.
    fn read<'a>(self, reader: &mut Reader<'a>) -> Result<&'a [u8], Malformed> {
        let before = reader.0;
        match self {
            Self::Component => {
                let id = reader.varint()?;
                u16::try_from(id).map_err(|_| Malformed)?;
            }
            Self::Inbox => {
                inbox(reader)?;
            }
            Self::Opaque => {
                reader.opaque()?;
            }
        }
        Ok(&before[..before.len() - reader.0.len()])
    }

    /// Answers what keys are sorted by: ids numerically, others by their bytes.
    fn order<'a>(self, encoded: &'a [u8]) -> (u32, &'a [u8]) {
        match self {
            Self::Component => (Reader(encoded).varint().unwrap_or(0), &[]),
            Self::Inbox => (0, encoded),
            Self::Opaque => (0, Reader(encoded).opaque().unwrap_or(encoded)),
        }
    }
}

/// How a component is encoded.
#[derive(Clone, Copy)]
enum Shape {
    Scalar,
    Map(KeyShape),
    Set(KeyShape),
}

/// Elements by the encoding of their keys, in order; a set's values are empty.
type Elements = Vec<(Vec<u8>, Vec<u8>)>;

impl Shape {
    fn of(dictionary: &AppDataDictionary, id: u16) -> Result<Self, DeltaFault> {
        match id {
            component::REGISTRY => return Ok(Self::Map(KeyShape::Component)),
            component::SUPER_ADMINS | component::ADMINS | component::DM_PAIR => {
                return Ok(Self::Set(KeyShape::Inbox));
            }
            component::MEMBERSHIP => return Ok(Self::Map(KeyShape::Inbox)),
            component::NAME..=component::COMMIT_LOG_SIGNER
            | component::ONESHOT
            | component::CREATOR
            | component::CONVERSATION_TYPE => return Ok(Self::Scalar),
            _ => {}
        }
        let registry = registry(dictionary).map_err(|_| DeltaFault::Malformed(component::REGISTRY))?;
        let entry = registry.get(&id).ok_or(DeltaFault::UnknownType(id))?;
        match ComponentType::try_from(entry.component_type) {
            Ok(ComponentType::Bytes | ComponentType::String) => Ok(Self::Scalar),
            Ok(ComponentType::MapBytesBytes) => Ok(Self::Map(KeyShape::Opaque)),
            Ok(ComponentType::MapInboxIdBytes | ComponentType::MapInboxIdString) => {
                Ok(Self::Map(KeyShape::Inbox))
            }
            Ok(ComponentType::SetBytes) => Ok(Self::Set(KeyShape::Opaque)),
            Ok(ComponentType::SetInboxId) => Ok(Self::Set(KeyShape::Inbox)),
            Ok(ComponentType::Unspecified) | Err(_) => Err(DeltaFault::UnknownType(id)),
        }
    }

    fn apply(
        self,
        id: u16,
        before: Option<&[u8]>,
        current: Option<&[u8]>,
        update: &[u8],
    ) -> Result<Vec<u8>, DeltaFault> {
        let malformed = |_| DeltaFault::Malformed(id);
        let (keys, is_map) = match self {
            Self::Scalar => return Ok(update.to_vec()),
            Self::Map(keys) => (keys, true),
            Self::Set(keys) => (keys, false),
        };
        let original = elements(keys, is_map, before.unwrap_or(&[0])).map_err(malformed)?;
        let mut elements = elements(keys, is_map, current.unwrap_or(&[0])).map_err(malformed)?;
        let mutations = super::tls::only_opaque(update).map_err(malformed)?;
        let mut reader = Reader(mutations);
        while !reader.is_empty() {
            let mutation = Mutation::read(keys, is_map, &mut reader).map_err(malformed)?;
            let mutation = mutation.named(&original).ok_or(DeltaFault::Presence(id))?;
            mutate(keys, &mut elements, mutation).ok_or(DeltaFault::Presence(id))?;
        }
        Ok(encode(is_map, &elements))
    }
}

/// One change of a collection.
enum Mutation<'a> {
    Insert(&'a [u8], &'a [u8]),
    Update(&'a [u8], &'a [u8]),
    Delete(Vec<u8>),
    DeleteHash(&'a [u8]),
}

impl<'a> Mutation<'a> {
    fn read(keys: KeyShape, is_map: bool, reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        match (is_map, reader.byte()?) {
            (true, 0) => Ok(Self::Insert(keys.read(reader)?, reader.opaque()?)),
            (true, 1) => Ok(Self::Update(keys.read(reader)?, reader.opaque()?)),
            (true, 2) | (false, 1) => Ok(Self::Delete(keys.read(reader)?.to_vec())),
            (false, 0) => Ok(Self::Insert(keys.read(reader)?, &[])),
            (false, 2) => Ok(Self::DeleteHash(reader.take(32)?)),
            _ => Err(Malformed),
        }
    }

    /// Puts the key in the place of its hash, when exactly one element has it.
    fn named(self, original: &Elements) -> Option<Self> {
        let Self::DeleteHash(hash) = self else {
            return Some(self);
        };
        let mut found = original
            .iter()
            .filter(|(key, _)| Sha256::digest(key).as_slice() == hash);
        let (key, _) = found.next()?;
        found.next().is_none().then(|| Self::Delete(key.clone()))
    }
}

fn mutate(keys: KeyShape, elements: &mut Elements, mutation: Mutation<'_>) -> Option<()> {
    let find = |elements: &Elements, key: &[u8]| {
        elements.binary_search_by(|(other, _)| keys.order(other).cmp(&keys.order(key)))
    };
    match mutation {
        Mutation::Insert(key, value) => {
            let at = find(elements, key).err()?;
            elements.insert(at, (key.to_vec(), value.to_vec()));
        }
        Mutation::Update(key, value) => {
            let at = find(elements, key).ok()?;
            elements[at].1 = value.to_vec();
        }
        Mutation::Delete(key) => {
            let at = find(elements, &key).ok()?;
            elements.remove(at);
        }
        Mutation::DeleteHash(_) => return None,
    }
    Some(())
}

/// Reads a collection; keys must be unique and ascend.
fn elements(keys: KeyShape, is_map: bool, bytes: &[u8]) -> Result<Elements, Malformed> {
    let mut reader = Reader(super::tls::only_opaque(bytes)?);
    let mut elements: Elements = Vec::new();
    while !reader.is_empty() {
        let key = keys.read(&mut reader)?;
        let value = reader.opaque()?;
        if !is_map && !value.is_empty() {
            return Err(Malformed);
        }
        if let Some((last, _)) = elements.last() {
            if keys.order(last) >= keys.order(key) {
                return Err(Malformed);
            }
        }
        elements.push((key.to_vec(), value.to_vec()));
    }
    Ok(elements)
}

fn encode(_is_map: bool, elements: &Elements) -> Vec<u8> {
    let mut inner = Vec::new();
    for (key, value) in elements {
        inner.extend_from_slice(key);
        put_opaque(&mut inner, value);
    }
    let mut out = Vec::with_capacity(inner.len() + 4);
    put_varint(&mut out, u32::try_from(inner.len()).unwrap_or(u32::MAX));
    out.extend_from_slice(&inner);
    out
}

/// Reads an inbox: the version 0 and 32 bytes.
fn inbox(reader: &mut Reader<'_>) -> Result<InboxId, Malformed> {
    if reader.varint()? != 0 {
        return Err(Malformed);
    }
    InboxId::try_from(reader.take(InboxId::LEN)?).map_err(|_| Malformed)
}

fn only_inbox(bytes: &[u8]) -> Result<InboxId, Malformed> {
    let mut reader = Reader(bytes);
    let read = inbox(&mut reader)?;
    if reader.is_empty() { Ok(read) } else { Err(Malformed) }
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
    let number = bytes.try_into().map(u32::from_be_bytes).map_err(|_| malformed)?;
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
) -> Result<std::collections::BTreeSet<InboxId>, ContextError> {
    let bytes = dictionary.get(&id).unwrap_or(&[0]);
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
    let request = dictionary.get(&component::ONESHOT).map(OneshotMessage::decode);
    request.transpose().map_err(|_| ContextError::Malformed("one-shot message"))
}

fn registry(
    dictionary: &AppDataDictionary,
) -> Result<BTreeMap<u16, ComponentMetadata>, ContextError> {
    const WHAT: &str = "registry";
    let bytes = required(dictionary, component::REGISTRY, WHAT)?;
    let entries = shaped(elements(KeyShape::Component, true, bytes), WHAT)?;
    let entries = entries.iter().map(|(key, value)| {
        let id = Reader(key).varint().ok().and_then(|id| u16::try_from(id).ok());
        let metadata = ComponentMetadata::decode(value.as_slice()).ok();
        id.zip(metadata).ok_or(ContextError::Malformed(WHAT))
    });
    entries.collect()
}

type Membership = (
    BTreeMap<InboxId, SequenceId>,
    std::collections::BTreeSet<xmtp_proto::id::InstallationId>,
);

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

/// Reads the attributes under the names of the extension form. A value of the wrong shape counts
/// as unset: released clients have written such.
fn attributes(dictionary: &AppDataDictionary) -> BTreeMap<String, String> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let number = |bytes: &[u8]| bytes.try_into().ok().map(|n| i64::from_be_bytes(n).to_string());
    let secret = |bytes: &[u8]| (bytes.len() == 32).then(|| hex::encode(bytes));
    let read: [(u16, Attribute, &dyn Fn(&[u8]) -> Option<String>); 8] = [
        (component::NAME, Attribute::Name, &text),
        (component::DESCRIPTION, Attribute::Description, &text),
        (component::IMAGE_URL, Attribute::ImageUrl, &text),
        (component::APP_DATA, Attribute::AppData, &text),
        (component::DISAPPEAR_FROM, Attribute::DisappearFrom, &number),
        (component::DISAPPEAR_IN, Attribute::DisappearIn, &number),
        (component::VERSION_FLOOR, Attribute::VersionFloor, &text),
        (component::COMMIT_LOG_SIGNER, Attribute::CommitLogSigner, &secret),
    ];
    let set = read.iter().filter_map(|(id, attribute, read)| {
        let value = read(dictionary.get(id)?)?;
        Some((attribute.name().to_owned(), value))
    });
    set.collect()
}
