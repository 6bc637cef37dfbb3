//! The context of a group as one dictionary of components, written by hand: no client of ours
//! writes it.

use openmls::group::GroupContext as MlsContext;
use openmls::prelude::{
    AppDataDictionary, AppDataDictionaryExtension, CredentialType, Extension, ExtensionType,
    Extensions, ProposalType, RequiredCapabilitiesExtension,
};
use prost::Message;
use xmtp_mls::group::{GroupContext, component};
use xmtp_proto::content::{
    ComponentMetadata, ConversationType, GroupMembershipEntry, group_membership_entry,
};
use xmtp_proto::{InboxId, InstallationId};

use super::{RogueError, mls};

/// Writes bytes behind their length, as RFC 9420 (2.1.2) has it.
pub(super) fn put_opaque(out: &mut Vec<u8>, bytes: &[u8]) {
    match bytes.len() {
        length @ 0..0x40 => out.push(length as u8),
        length @ 0x40..0x4000 => out.extend((length as u16 | 0x4000).to_be_bytes()),
        length => out.extend((length as u32 | 0x8000_0000).to_be_bytes()),
    }
    out.extend(bytes);
}

fn vector(elements: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let elements: Vec<Vec<u8>> = elements.into_iter().collect();
    let mut out = Vec::new();
    put_opaque(&mut out, &elements.concat());
    out
}

/// An inbox as a key: the version 0 and its bytes.
fn inbox(inbox: &InboxId) -> Vec<u8> {
    [&[0], &inbox.as_bytes()[..]].concat()
}

fn entry(key: Vec<u8>, value: &[u8]) -> Vec<u8> {
    let mut out = key;
    put_opaque(&mut out, value);
    out
}

/// Writes all extensions of a context that says the same in the dictionary form.
pub(super) fn extensions(context: &GroupContext) -> Result<Extensions<MlsContext>, RogueError> {
    let failed: Vec<bytes::Bytes> = context.failed.iter().map(failed).collect();
    let members = context.members.iter().map(|(member, sequence)| {
        let version = group_membership_entry::V1 {
            sequence_id: sequence.get(),
            failed_installations: failed.clone(),
        };
        let value = GroupMembershipEntry {
            version: Some(group_membership_entry::Version::V1(version)),
        };
        entry(inbox(member), &value.encode_to_vec())
    });
    let components = [
        component::REGISTRY,
        component::MEMBERSHIP,
        component::SUPER_ADMINS,
    ];
    let registry = components.map(|id| {
        let id = (u32::from(id) | 0x8000_0000).to_be_bytes().to_vec();
        entry(id, &ComponentMetadata::default().encode_to_vec())
    });
    let mut sorted = registry.to_vec();
    sorted.sort();
    let mut dictionary = AppDataDictionary::new();
    // A set is a map of nothing.
    let element = |member| entry(inbox(member), &[]);
    let supers = vector(context.super_admins.iter().map(element));
    let group = ConversationType::Group as u32;
    dictionary.insert(component::REGISTRY, vector(sorted));
    dictionary.insert(component::SUPER_ADMINS, supers);
    dictionary.insert(component::ADMINS, vector([]));
    dictionary.insert(component::MEMBERSHIP, vector(members));
    dictionary.insert(component::CREATOR, inbox(&context.creator));
    dictionary.insert(component::CONVERSATION_TYPE, group.to_be_bytes().to_vec());
    let required = RequiredCapabilitiesExtension::new(
        &[
            ExtensionType::LastResort,
            ExtensionType::ApplicationId,
            ExtensionType::AppDataDictionary,
        ],
        &[ProposalType::GroupContextExtensions],
        &[CredentialType::Basic],
    );
    let all = vec![
        Extension::AppDataDictionary(AppDataDictionaryExtension::new(dictionary)),
        Extension::RequiredCapabilities(required),
    ];
    Extensions::from_vec(all).map_err(mls)
}

fn failed(id: &InstallationId) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(id.as_bytes())
}
