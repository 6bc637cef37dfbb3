//! openmls with a storage that keeps nothing but own keys: what is left is its own work.

use std::cell::RefCell;
use std::collections::HashMap;
use std::convert::Infallible;

use openmls_rust_crypto::RustCrypto;
use openmls_traits::OpenMlsProvider;
use openmls_traits::storage::{CURRENT_VERSION, StorageProvider, traits};
use serde::Serialize;
use serde::de::DeserializeOwned;

const VERSION: u16 = CURRENT_VERSION;

/// Drops what is written and finds nothing, but for the keys that commits and Welcomes are opened
/// with: openmls looks for these in its storage alone.
#[derive(Debug, Default)]
pub(crate) struct Nothing {
    keys: RefCell<HashMap<String, String>>,
}

impl Nothing {
    fn keep(&self, key: &impl Serialize, value: &impl Serialize) -> Result<(), Infallible> {
        let value = serde_json::to_string(value).expect("keys are serializable");
        self.keys.borrow_mut().insert(named(key), value);
        Ok(())
    }

    fn kept<T: DeserializeOwned>(&self, key: &impl Serialize) -> Option<T> {
        let keys = self.keys.borrow();
        let value = keys.get(&named(key))?;
        serde_json::from_str(value).ok()
    }
}

fn named(key: &impl Serialize) -> String {
    serde_json::to_string(key).expect("keys are serializable")
}

/// The provider of a group that lives in memory alone.
#[derive(Debug, Default)]
pub(crate) struct NothingProvider {
    crypto: RustCrypto,
    storage: Nothing,
}

impl OpenMlsProvider for NothingProvider {
    type CryptoProvider = RustCrypto;
    type RandProvider = RustCrypto;
    type StorageProvider = Nothing;

    fn storage(&self) -> &Nothing {
        &self.storage
    }

    fn crypto(&self) -> &RustCrypto {
        &self.crypto
    }

    fn rand(&self) -> &RustCrypto {
        &self.crypto
    }
}

macro_rules! keeps_nothing {
    ($($method:ident<$($kind:ident),+>($($argument:ty),+) -> $answer:ty = $value:expr;)*) => {$(
        fn $method<$($kind: traits::$kind<VERSION>),+>(
            &self,
            $(_: $argument),+
        ) -> Result<$answer, Infallible> {
            Ok($value)
        }
    )*};
}

impl StorageProvider<VERSION> for Nothing {
    type Error = Infallible;

    keeps_nothing! {
        write_mls_join_config<GroupId, MlsGroupJoinConfig>(&GroupId, &MlsGroupJoinConfig) -> () = ();
        append_own_leaf_node<GroupId, LeafNode>(&GroupId, &LeafNode) -> () = ();
        queue_proposal<GroupId, ProposalRef, QueuedProposal>(&GroupId, &ProposalRef, &QueuedProposal) -> () = ();
        write_tree<GroupId, TreeSync>(&GroupId, &TreeSync) -> () = ();
        write_interim_transcript_hash<GroupId, InterimTranscriptHash>(&GroupId, &InterimTranscriptHash) -> () = ();
        write_context<GroupId, GroupContext>(&GroupId, &GroupContext) -> () = ();
        write_confirmation_tag<GroupId, ConfirmationTag>(&GroupId, &ConfirmationTag) -> () = ();
        write_group_state<GroupState, GroupId>(&GroupId, &GroupState) -> () = ();
        write_message_secrets<GroupId, MessageSecrets>(&GroupId, &MessageSecrets) -> () = ();
        write_resumption_psk_store<GroupId, ResumptionPskStore>(&GroupId, &ResumptionPskStore) -> () = ();
        write_own_leaf_index<GroupId, LeafNodeIndex>(&GroupId, &LeafNodeIndex) -> () = ();
        write_group_epoch_secrets<GroupId, GroupEpochSecrets>(&GroupId, &GroupEpochSecrets) -> () = ();
        write_application_export_tree<GroupId, ApplicationExportTree>(&GroupId, &ApplicationExportTree) -> () = ();
        write_signature_key_pair<SignaturePublicKey, SignatureKeyPair>(&SignaturePublicKey, &SignatureKeyPair) -> () = ();
        write_psk<PskId, PskBundle>(&PskId, &PskBundle) -> () = ();

        mls_group_join_config<GroupId, MlsGroupJoinConfig>(&GroupId) -> Option<MlsGroupJoinConfig> = None;
        own_leaf_nodes<GroupId, LeafNode>(&GroupId) -> Vec<LeafNode> = Vec::new();
        queued_proposal_refs<GroupId, ProposalRef>(&GroupId) -> Vec<ProposalRef> = Vec::new();
        queued_proposals<GroupId, ProposalRef, QueuedProposal>(&GroupId) -> Vec<(ProposalRef, QueuedProposal)> = Vec::new();
        tree<GroupId, TreeSync>(&GroupId) -> Option<TreeSync> = None;
        group_context<GroupId, GroupContext>(&GroupId) -> Option<GroupContext> = None;
        interim_transcript_hash<GroupId, InterimTranscriptHash>(&GroupId) -> Option<InterimTranscriptHash> = None;
        confirmation_tag<GroupId, ConfirmationTag>(&GroupId) -> Option<ConfirmationTag> = None;
        group_state<GroupState, GroupId>(&GroupId) -> Option<GroupState> = None;
        message_secrets<GroupId, MessageSecrets>(&GroupId) -> Option<MessageSecrets> = None;
        resumption_psk_store<GroupId, ResumptionPskStore>(&GroupId) -> Option<ResumptionPskStore> = None;
        own_leaf_index<GroupId, LeafNodeIndex>(&GroupId) -> Option<LeafNodeIndex> = None;
        group_epoch_secrets<GroupId, GroupEpochSecrets>(&GroupId) -> Option<GroupEpochSecrets> = None;
        application_export_tree<GroupId, ApplicationExportTree>(&GroupId) -> Option<ApplicationExportTree> = None;
        signature_key_pair<SignaturePublicKey, SignatureKeyPair>(&SignaturePublicKey) -> Option<SignatureKeyPair> = None;
        psk<PskBundle, PskId>(&PskId) -> Option<PskBundle> = None;

        remove_proposal<GroupId, ProposalRef>(&GroupId, &ProposalRef) -> () = ();
        delete_own_leaf_nodes<GroupId>(&GroupId) -> () = ();
        delete_group_config<GroupId>(&GroupId) -> () = ();
        delete_tree<GroupId>(&GroupId) -> () = ();
        delete_confirmation_tag<GroupId>(&GroupId) -> () = ();
        delete_group_state<GroupId>(&GroupId) -> () = ();
        delete_context<GroupId>(&GroupId) -> () = ();
        delete_interim_transcript_hash<GroupId>(&GroupId) -> () = ();
        delete_message_secrets<GroupId>(&GroupId) -> () = ();
        delete_all_resumption_psk_secrets<GroupId>(&GroupId) -> () = ();
        delete_own_leaf_index<GroupId>(&GroupId) -> () = ();
        delete_group_epoch_secrets<GroupId>(&GroupId) -> () = ();
        delete_application_export_tree<GroupId, ApplicationExportTree>(&GroupId) -> () = ();
        clear_proposal_queue<GroupId, ProposalRef>(&GroupId) -> () = ();
        delete_signature_key_pair<SignaturePublicKey>(&SignaturePublicKey) -> () = ();
        delete_encryption_key_pair<EncryptionKey>(&EncryptionKey) -> () = ();
        delete_key_package<HashReference>(&HashReference) -> () = ();
        delete_psk<PskId>(&PskId) -> () = ();
    }

    fn write_encryption_key_pair<
        K: traits::EncryptionKey<VERSION>,
        P: traits::HpkeKeyPair<VERSION>,
    >(
        &self,
        key: &K,
        pair: &P,
    ) -> Result<(), Infallible> {
        self.keep(key, pair)
    }

    fn encryption_key_pair<P: traits::HpkeKeyPair<VERSION>, K: traits::EncryptionKey<VERSION>>(
        &self,
        key: &K,
    ) -> Result<Option<P>, Infallible> {
        Ok(self.kept(key))
    }

    fn write_encryption_epoch_key_pairs<
        G: traits::GroupId<VERSION>,
        E: traits::EpochKey<VERSION>,
        P: traits::HpkeKeyPair<VERSION>,
    >(
        &self,
        _group: &G,
        epoch: &E,
        leaf: u32,
        pairs: &[P],
    ) -> Result<(), Infallible> {
        self.keep(&(epoch, leaf), &pairs)
    }

    fn encryption_epoch_key_pairs<
        G: traits::GroupId<VERSION>,
        E: traits::EpochKey<VERSION>,
        P: traits::HpkeKeyPair<VERSION>,
    >(
        &self,
        _group: &G,
        epoch: &E,
        leaf: u32,
    ) -> Result<Vec<P>, Infallible> {
        Ok(self.kept(&(epoch, leaf)).unwrap_or_default())
    }

    fn delete_encryption_epoch_key_pairs<
        G: traits::GroupId<VERSION>,
        E: traits::EpochKey<VERSION>,
    >(
        &self,
        _group: &G,
        epoch: &E,
        leaf: u32,
    ) -> Result<(), Infallible> {
        self.keys.borrow_mut().remove(&named(&(epoch, leaf)));
        Ok(())
    }

    fn write_key_package<H: traits::HashReference<VERSION>, K: traits::KeyPackage<VERSION>>(
        &self,
        reference: &H,
        package: &K,
    ) -> Result<(), Infallible> {
        self.keep(reference, package)
    }

    fn key_package<H: traits::HashReference<VERSION>, K: traits::KeyPackage<VERSION>>(
        &self,
        reference: &H,
    ) -> Result<Option<K>, Infallible> {
        Ok(self.kept(reference))
    }
}
