//! Messages and proposals that break a rule, and bytes that are broken by hand.

use openmls::group::Propose;
use openmls::prelude::ProposalOrRefType;
use xmtp_mls::content::{encode_payload, encode_text};
use xmtp_mls::group::{CommitPlan, build_commit, encrypt, merge_pending};
use xmtp_mls::{Installation, Provider};
use xmtp_proto::GroupId;

use super::{Rogue, RogueError, mls};
use crate::ShiftedRuntime;

impl Rogue {
    /// Encrypts text; after `ahead` commits that nobody sees, so of a later epoch.
    ///
    /// # Errors
    /// When the group is not there.
    pub fn text(&self, group: &GroupId, text: &str, ahead: u64) -> Result<Vec<u8>, RogueError> {
        let (_, plain) = encode_payload(group, &encode_text(text), text);
        self.trial(group, |txn, group| {
            for _ in 0..ahead {
                let provider = Provider::new(txn);
                let plan = CommitPlan::default();
                build_commit(group, &provider, &self.installation, plan).map_err(mls)?;
                merge_pending(group, &provider).map_err(mls)?;
            }
            let provider = Provider::new(txn);
            encrypt(group, &provider, &self.installation, &plain).map_err(mls)
        })
    }

    /// Encrypts text under the own leaf, signed with a key that is not the leaf's.
    ///
    /// # Errors
    /// When the group is not there.
    pub fn forged_text(&self, group: &GroupId, text: &str) -> Result<Vec<u8>, RogueError> {
        let (_, plain) = encode_payload(group, &encode_text(text), text);
        let runtime = ShiftedRuntime::ahead(std::time::Duration::ZERO);
        let stranger = Installation::generate(&*runtime, self.installation.inbox());
        self.trial(group, |txn, group| {
            encrypt(group, &Provider::new(txn), &stranger, &plain).map_err(mls)
        })
    }

    /// Encrypts the last of so many texts: the others are never sent.
    ///
    /// # Errors
    /// When the group is not there.
    pub fn text_after(&self, group: &GroupId, unsent: u32) -> Result<Vec<u8>, RogueError> {
        let (_, plain) = encode_payload(group, &encode_text("far"), "far");
        self.trial(group, |txn, group| {
            let provider = Provider::new(txn);
            for _ in 0..unsent {
                encrypt(group, &provider, &self.installation, &plain).map_err(mls)?;
            }
            encrypt(group, &provider, &self.installation, &plain).map_err(mls)
        })
    }

    /// Proposes to remove the member at a place, apart from any commit.
    ///
    /// # Errors
    /// When the group is not there, or nobody has that place.
    pub fn proposal(&self, group: &GroupId, place: u32) -> Result<Vec<u8>, RogueError> {
        self.trial(group, |txn, group| {
            let provider = Provider::new(txn);
            self.skip_used(&provider, group)?;
            let (message, _) = group
                .propose(
                    &provider,
                    &self.installation,
                    Propose::Remove(place),
                    ProposalOrRefType::Reference,
                )
                .map_err(mls)?;
            message.to_bytes().map_err(mls)
        })
    }
}

/// Cuts the second half off.
pub fn cut(bytes: &[u8]) -> Vec<u8> {
    bytes[..bytes.len() / 2].to_vec()
}

/// Changes the last byte.
pub fn flipped(bytes: &[u8]) -> Vec<u8> {
    let mut changed = bytes.to_vec();
    if let Some(last) = changed.last_mut() {
        *last ^= 1;
    }
    changed
}

/// Adds a byte.
pub fn longer(bytes: &[u8]) -> Vec<u8> {
    [bytes, &[0]].concat()
}
