//! The MLS settings of every group.

use openmls::prelude::{
    MlsGroupJoinConfig, PURE_CIPHERTEXT_WIRE_FORMAT_POLICY, SenderRatchetConfiguration,
    WireFormatPolicy,
};

/// Past epochs whose application messages can still be read.
pub const MAX_PAST_EPOCHS: usize = 3;
/// Messages of one sender that may arrive late.
pub(super) const OUT_OF_ORDER: u32 = 5;
/// Messages of one sender that may be missing before the next.
pub(super) const FORWARD: u32 = 1000;
/// Bytes that plaintexts are padded to; 0 is no padding.
pub(super) const PADDING: usize = 0;
/// Resumption secrets kept; no feature of ours uses them.
pub(super) const RESUMPTION_SECRETS: usize = 0;
/// All traffic is private.
pub(super) const WIRE_FORMAT: WireFormatPolicy = PURE_CIPHERTEXT_WIRE_FORMAT_POLICY;

pub(super) fn ratchet() -> SenderRatchetConfiguration {
    SenderRatchetConfiguration::new(OUT_OF_ORDER, FORWARD)
}

/// Answers the settings under which groups are joined.
pub fn join_config() -> MlsGroupJoinConfig {
    MlsGroupJoinConfig::builder()
        .wire_format_policy(WIRE_FORMAT)
        .padding_size(PADDING)
        .max_past_epochs(MAX_PAST_EPOCHS)
        .number_of_resumption_psks(RESUMPTION_SECRETS)
        .use_ratchet_tree_extension(true)
        .sender_ratchet_configuration(ratchet())
        .build()
}
