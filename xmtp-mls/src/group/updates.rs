//! The updates of dictionary components that commits carry.
//!
//! openmls hands a commit with updates over unresolved: their meaning is ours, and the dictionary
//! that they lead to goes into the key schedule. [`resolve_updates`] computes it. It checks shapes
//! and presence; permissions and byte limits are for the processors.

use std::collections::BTreeMap;

use openmls::component::ComponentData;
use openmls::group::{AppDataUpdates, MlsGroup, UnresolvedAppDataCommit};
use openmls::prelude::{AppDataDictionary, AppDataUpdateOperation, AppDataUpdateProposal};
use thiserror::Error;
use xmtp_proto::content::ComponentType;

use super::collection::{EMPTY, KeyShape, Mutation, elements, encode, mutate};
use super::dictionary::{component, registry};
use super::tls::{self, Reader};

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
        by_component
            .entry(proposal.component_id())
            .or_default()
            .push(proposal);
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

/// How a component is encoded.
#[derive(Clone, Copy)]
enum Shape {
    Scalar,
    Map(KeyShape),
    Set(KeyShape),
}

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
        let registry =
            registry(dictionary).map_err(|_| DeltaFault::Malformed(component::REGISTRY))?;
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
        let original = elements(keys, is_map, before.unwrap_or(EMPTY)).map_err(malformed)?;
        let mut elements = elements(keys, is_map, current.unwrap_or(EMPTY)).map_err(malformed)?;
        let mutations = tls::only_opaque(update).map_err(malformed)?;
        let mut reader = Reader(mutations);
        while !reader.is_empty() {
            let mutation = Mutation::read(keys, is_map, &mut reader).map_err(malformed)?;
            let mutation = mutation.named(&original).ok_or(DeltaFault::Presence(id))?;
            mutate(keys, &mut elements, mutation).ok_or(DeltaFault::Presence(id))?;
        }
        Ok(encode(&elements))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: u8 = 1;
    const TWO: u8 = 2;

    fn inbox(byte: u8) -> Vec<u8> {
        [&[0][..], &[byte; 32]].concat()
    }

    fn vector(parts: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        tls::put_opaque(&mut out, &parts.concat());
        out
    }

    fn admins(listed: &[u8]) -> Vec<u8> {
        let listed: Vec<_> = listed
            .iter()
            .map(|byte| [inbox(*byte), vec![0]].concat())
            .collect();
        vector(&listed.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    fn update(id: u16, mutations: &[&[u8]]) -> AppDataUpdateProposal {
        AppDataUpdateProposal::update(id, vector(mutations))
    }

    /// Applies updates to an admin list of inbox 1.
    fn check(updates: &[AppDataUpdateProposal], expected: Result<Option<Vec<u8>>, DeltaFault>) {
        let mut dictionary = AppDataDictionary::new();
        dictionary.insert(component::ADMINS, admins(&[ONE]));
        dictionary.insert(component::CREATOR, inbox(ONE));
        let id = updates[0].component_id();
        let updates: Vec<_> = updates.iter().collect();
        assert_eq!(resolve(&dictionary, id, &updates), expected);
    }

    #[test]
    fn set_updates_chain_and_keep_order() {
        let insert = [&[0][..], &inbox(TWO)].concat();
        let remove = [&[1][..], &inbox(ONE)].concat();
        let id = component::ADMINS;
        check(&[update(id, &[&insert])], Ok(Some(admins(&[ONE, TWO]))));
        check(&[update(id, &[&insert, &remove])], Ok(Some(admins(&[TWO]))));
        check(
            &[update(id, &[&remove]), update(id, &[&insert])],
            Ok(Some(admins(&[TWO]))),
        );
        check(
            &[update(id, &[&remove, &remove])],
            Err(DeltaFault::Presence(id)),
        );
        check(
            &[update(id, &[&insert, &insert])],
            Err(DeltaFault::Presence(id)),
        );
    }

    #[test]
    fn a_hash_names_what_was_there_before() {
        use sha2::{Digest, Sha256};
        let id = component::ADMINS;
        let hashed = |byte| [&[2][..], Sha256::digest(inbox(byte)).as_slice()].concat();
        let insert = [&[0][..], &inbox(TWO)].concat();
        check(&[update(id, &[&hashed(ONE)])], Ok(Some(admins(&[]))));
        check(
            &[update(id, &[&insert, &hashed(TWO)])],
            Err(DeltaFault::Presence(id)),
        );
    }

    #[test]
    fn a_whole_remove_stands_alone_and_fixed_components_stay() {
        let id = component::ADMINS;
        let remove = || AppDataUpdateProposal::remove(id);
        check(&[remove()], Ok(None));
        check(&[remove(), remove()], Err(DeltaFault::Mixed(id)));
        let creator = component::CREATOR;
        let write = AppDataUpdateProposal::update(creator, inbox(TWO));
        check(&[write], Err(DeltaFault::Immutable(creator)));
    }

    #[test]
    fn malformed_updates_are_refused() {
        let id = component::ADMINS;
        check(&[update(id, &[&[7]])], Err(DeltaFault::Malformed(id)));
        check(&[update(id, &[&[0, 1, 2]])], Err(DeltaFault::Malformed(id)));
        let trailing = AppDataUpdateProposal::update(id, vec![0, 0]);
        check(&[trailing], Err(DeltaFault::Malformed(id)));
        let unknown = AppDataUpdateProposal::update(0xc000, vec![0]);
        check(&[unknown], Err(DeltaFault::Malformed(component::REGISTRY)));
    }
}
