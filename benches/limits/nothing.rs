//! openmls with a storage that keeps nothing: what is left is its own work.

use std::convert::Infallible;

use openmls_rust_crypto::RustCrypto;
use openmls_traits::OpenMlsProvider;
use openmls_traits::storage::{CURRENT_VERSION, StorageProvider, traits};

const VERSION: u16 = CURRENT_VERSION;

/// Drops what is written and finds nothing.
#[derive(Debug, Default)]
pub(crate) struct Nothing;

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
        write_encryption_key_pair<EncryptionKey, HpkeKeyPair>(&EncryptionKey, &HpkeKeyPair) -> () = ();
        write_encryption_epoch_key_pairs<GroupId, EpochKey, HpkeKeyPair>(&GroupId, &EpochKey, u32, &[HpkeKeyPair]) -> () = ();
        write_key_package<HashReference, KeyPackage>(&HashReference, &KeyPackage) -> () = ();
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
        encryption_key_pair<HpkeKeyPair, EncryptionKey>(&EncryptionKey) -> Option<HpkeKeyPair> = None;
        encryption_epoch_key_pairs<GroupId, EpochKey, HpkeKeyPair>(&GroupId, &EpochKey, u32) -> Vec<HpkeKeyPair> = Vec::new();
        key_package<HashReference, KeyPackage>(&HashReference) -> Option<KeyPackage> = None;
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
        delete_encryption_epoch_key_pairs<GroupId, EpochKey>(&GroupId, &EpochKey, u32) -> () = ();
        delete_key_package<HashReference>(&HashReference) -> () = ();
        delete_psk<PskId>(&PskId) -> () = ();
    }
}
