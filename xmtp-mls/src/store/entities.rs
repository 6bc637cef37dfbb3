//! The storage trait of openmls, one label per entity.

use openmls_traits::storage::{StorageProvider, traits};
use xmtp_core::storage::StorageError;

use super::{INSTALLATION, Label, MlsStore, VERSION, codec};

type Stored<T> = Result<T, StorageError>;

/// A list's sub key: the place first, so that lists keep their order.
fn placed(place: u32, rest: &[u8]) -> Vec<u8> {
    [&place.to_be_bytes()[..], rest].concat()
}

/// Write, read and delete of an entity that a group has once.
macro_rules! of_group {
    ($entity:ident, $label:ident: $write:ident, $read:ident, $delete:ident) => {
        of_group!($entity, $label: $write, $read);

        fn $delete<G: traits::GroupId<VERSION>>(&self, group: &G) -> Stored<()> {
            self.delete(&self.owner(group)?, Label::$label, &[])
        }
    };
    ($entity:ident, $label:ident: $write:ident, $read:ident) => {
        fn $write<G: traits::GroupId<VERSION>, E: traits::$entity<VERSION>>(
            &self,
            group: &G,
            entity: &E,
        ) -> Stored<()> {
            self.put(&self.owner(group)?, Label::$label, &[], entity)
        }

        fn $read<G: traits::GroupId<VERSION>, E: traits::$entity<VERSION>>(
            &self,
            group: &G,
        ) -> Stored<Option<E>> {
            self.get(&self.owner(group)?, Label::$label, &[])
        }
    };
}

/// Write and delete of an entity that the installation has by key; the read's type parameters
/// stand in another order for each, so it is written out.
macro_rules! of_installation {
    ($key:ident, $entity:ident, $label:ident: $write:ident, $delete:ident) => {
        fn $write<K: traits::$key<VERSION>, E: traits::$entity<VERSION>>(
            &self,
            key: &K,
            entity: &E,
        ) -> Stored<()> {
            self.put(INSTALLATION, Label::$label, &self.sub(key)?, entity)
        }

        fn $delete<K: traits::$key<VERSION>>(&self, key: &K) -> Stored<()> {
            self.delete(INSTALLATION, Label::$label, &self.sub(key)?)
        }
    };
}

impl StorageProvider<VERSION> for MlsStore<'_, '_> {
    type Error = StorageError;

    of_group!(MlsGroupJoinConfig, JoinConfig:
        write_mls_join_config, mls_group_join_config, delete_group_config);
    of_group!(TreeSync, Tree: write_tree, tree, delete_tree);
    of_group!(InterimTranscriptHash, InterimTranscriptHash:
        write_interim_transcript_hash, interim_transcript_hash, delete_interim_transcript_hash);
    of_group!(GroupContext, GroupContext: write_context, group_context, delete_context);
    of_group!(ConfirmationTag, ConfirmationTag:
        write_confirmation_tag, confirmation_tag, delete_confirmation_tag);
    of_group!(ResumptionPskStore, ResumptionPsks:
        write_resumption_psk_store, resumption_psk_store, delete_all_resumption_psk_secrets);
    of_group!(LeafNodeIndex, OwnLeafIndex:
        write_own_leaf_index, own_leaf_index, delete_own_leaf_index);
    of_group!(GroupEpochSecrets, EpochSecrets:
        write_group_epoch_secrets, group_epoch_secrets, delete_group_epoch_secrets);
    of_group!(ApplicationExportTree, ApplicationExportTree:
        write_application_export_tree, application_export_tree);

    of_installation!(SignaturePublicKey, SignatureKeyPair, SignatureKeyPair:
        write_signature_key_pair, delete_signature_key_pair);
    of_installation!(EncryptionKey, HpkeKeyPair, EncryptionKeyPair:
        write_encryption_key_pair, delete_encryption_key_pair);
    of_installation!(HashReference, KeyPackage, KeyPackage:
        write_key_package, delete_key_package);
    of_installation!(PskId, PskBundle, Psk: write_psk, delete_psk);

    fn signature_key_pair<
        K: traits::SignaturePublicKey<VERSION>,
        E: traits::SignatureKeyPair<VERSION>,
    >(
        &self,
        key: &K,
    ) -> Stored<Option<E>> {
        self.get(INSTALLATION, Label::SignatureKeyPair, &self.sub(key)?)
    }

    fn encryption_key_pair<E: traits::HpkeKeyPair<VERSION>, K: traits::EncryptionKey<VERSION>>(
        &self,
        key: &K,
    ) -> Stored<Option<E>> {
        self.get(INSTALLATION, Label::EncryptionKeyPair, &self.sub(key)?)
    }

    fn key_package<K: traits::HashReference<VERSION>, E: traits::KeyPackage<VERSION>>(
        &self,
        key: &K,
    ) -> Stored<Option<E>> {
        self.get(INSTALLATION, Label::KeyPackage, &self.sub(key)?)
    }

    fn psk<E: traits::PskBundle<VERSION>, K: traits::PskId<VERSION>>(
        &self,
        key: &K,
    ) -> Stored<Option<E>> {
        self.get(INSTALLATION, Label::Psk, &self.sub(key)?)
    }

    fn delete_application_export_tree<
        G: traits::GroupId<VERSION>,
        E: traits::ApplicationExportTree<VERSION>,
    >(
        &self,
        group: &G,
    ) -> Stored<()> {
        self.delete(&self.owner(group)?, Label::ApplicationExportTree, &[])
    }

    fn write_group_state<E: traits::GroupState<VERSION>, G: traits::GroupId<VERSION>>(
        &self,
        group: &G,
        state: &E,
    ) -> Stored<()> {
        self.put(&self.owner(group)?, Label::GroupState, &[], state)
    }

    fn group_state<E: traits::GroupState<VERSION>, G: traits::GroupId<VERSION>>(
        &self,
        group: &G,
    ) -> Stored<Option<E>> {
        self.get(&self.owner(group)?, Label::GroupState, &[])
    }

    fn delete_group_state<G: traits::GroupId<VERSION>>(&self, group: &G) -> Stored<()> {
        self.delete(&self.owner(group)?, Label::GroupState, &[])
    }

    fn write_message_secrets<G: traits::GroupId<VERSION>, E: traits::MessageSecrets<VERSION>>(
        &self,
        group: &G,
        secrets: &E,
    ) -> Stored<()> {
        if self.holds_back_again() {
            self.txn.borrow_mut().hold_back();
            return Ok(());
        }
        self.put_message_secrets(&self.owner(group)?, secrets)
    }

    fn message_secrets<G: traits::GroupId<VERSION>, E: traits::MessageSecrets<VERSION>>(
        &self,
        group: &G,
    ) -> Stored<Option<E>> {
        self.message_secrets_of(&self.owner(group)?)
    }

    fn delete_message_secrets<G: traits::GroupId<VERSION>>(&self, group: &G) -> Stored<()> {
        self.delete(&self.owner(group)?, Label::MessageSecrets, &[])
    }

    fn append_own_leaf_node<G: traits::GroupId<VERSION>, E: traits::LeafNode<VERSION>>(
        &self,
        group: &G,
        leaf: &E,
    ) -> Stored<()> {
        let owner = self.owner(group)?;
        let place = self.next_place(&owner, Label::OwnLeafNode)?;
        self.put(&owner, Label::OwnLeafNode, &placed(place, &[]), leaf)
    }

    fn own_leaf_nodes<G: traits::GroupId<VERSION>, E: traits::LeafNode<VERSION>>(
        &self,
        group: &G,
    ) -> Stored<Vec<E>> {
        let leaves = self.list(&self.owner(group)?, Label::OwnLeafNode)?;
        Ok(leaves.into_iter().map(|(_, leaf)| leaf).collect())
    }

    fn delete_own_leaf_nodes<G: traits::GroupId<VERSION>>(&self, group: &G) -> Stored<()> {
        self.clear(&self.owner(group)?, Label::OwnLeafNode)
    }

    fn queue_proposal<
        G: traits::GroupId<VERSION>,
        R: traits::ProposalRef<VERSION>,
        E: traits::QueuedProposal<VERSION>,
    >(
        &self,
        group: &G,
        reference: &R,
        proposal: &E,
    ) -> Stored<()> {
        let owner = self.owner(group)?;
        let place = self.next_place(&owner, Label::Proposal)?;
        let sub = placed(place, &self.sub(reference)?);
        self.put(&owner, Label::Proposal, &sub, &(reference, proposal))
    }

    fn queued_proposal_refs<G: traits::GroupId<VERSION>, R: traits::ProposalRef<VERSION>>(
        &self,
        group: &G,
    ) -> Stored<Vec<R>> {
        // The reference is the first part of the value, but only the whole can be decoded, so it
        // is read from the sub key.
        let rows = self.sub_keys(&self.owner(group)?, Label::Proposal)?;
        let references = rows
            .iter()
            .map(|sub| codec::decode_key(sub.get(4..).unwrap_or_default()));
        self.keep(references.collect())
    }

    fn queued_proposals<
        G: traits::GroupId<VERSION>,
        R: traits::ProposalRef<VERSION>,
        E: traits::QueuedProposal<VERSION>,
    >(
        &self,
        group: &G,
    ) -> Stored<Vec<(R, E)>> {
        let rows = self.list(&self.owner(group)?, Label::Proposal)?;
        Ok(rows.into_iter().map(|(_, proposal)| proposal).collect())
    }

    fn remove_proposal<G: traits::GroupId<VERSION>, R: traits::ProposalRef<VERSION>>(
        &self,
        group: &G,
        reference: &R,
    ) -> Stored<()> {
        let owner = self.owner(group)?;
        let reference = self.sub(reference)?;
        for sub in self.sub_keys(&owner, Label::Proposal)? {
            if sub.get(4..) == Some(&reference) {
                self.delete(&owner, Label::Proposal, &sub)?;
            }
        }
        Ok(())
    }

    fn clear_proposal_queue<G: traits::GroupId<VERSION>, R: traits::ProposalRef<VERSION>>(
        &self,
        group: &G,
    ) -> Stored<()> {
        self.clear(&self.owner(group)?, Label::Proposal)
    }

    fn write_encryption_epoch_key_pairs<
        G: traits::GroupId<VERSION>,
        K: traits::EpochKey<VERSION>,
        E: traits::HpkeKeyPair<VERSION>,
    >(
        &self,
        group: &G,
        epoch: &K,
        leaf: u32,
        pairs: &[E],
    ) -> Stored<()> {
        let sub = self.sub(&(epoch, leaf))?;
        self.put(&self.owner(group)?, Label::EpochKeyPairs, &sub, &pairs)
    }

    fn encryption_epoch_key_pairs<
        G: traits::GroupId<VERSION>,
        K: traits::EpochKey<VERSION>,
        E: traits::HpkeKeyPair<VERSION>,
    >(
        &self,
        group: &G,
        epoch: &K,
        leaf: u32,
    ) -> Stored<Vec<E>> {
        let sub = self.sub(&(epoch, leaf))?;
        self.get_vec(&self.owner(group)?, Label::EpochKeyPairs, &sub)
    }

    fn delete_encryption_epoch_key_pairs<
        G: traits::GroupId<VERSION>,
        K: traits::EpochKey<VERSION>,
    >(
        &self,
        group: &G,
        epoch: &K,
        leaf: u32,
    ) -> Stored<()> {
        let sub = self.sub(&(epoch, leaf))?;
        self.delete(&self.owner(group)?, Label::EpochKeyPairs, &sub)
    }
}
