//! What happens to the envelopes of one request, decided from facts read under the locks.
//!
//! Kept apart from the engines so that they cannot differ in it.

use xmtp_proto::id::SequenceId;

use super::PublishError;
use super::record::{Meta, PreparedEnvelope, Reason, Refusal};

/// What an engine knows about one envelope while nobody else can write.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Facts {
    /// The stored envelope with the same key.
    pub(super) stored: Option<Meta>,
    /// For an identity update, the newest id of its topic.
    pub(super) head: SequenceId,
    /// For an identity update, the number of stored updates of its inbox.
    pub(super) entries: u32,
}

/// Decides whether the new envelopes of a request may be stored.
///
/// - A stored envelope is never judged.
/// - A moved head outweighs any refusal: the refusal was found against an older log.
/// - Of several refusals the one at the lowest position counts.
pub(super) fn decide(envelopes: &[PreparedEnvelope], facts: &[Facts]) -> Result<(), PublishError> {
    let new = || {
        let both = envelopes.iter().zip(facts).enumerate();
        both.filter(|(_, (_, facts))| facts.stored.is_none())
    };
    for (_, (envelope, facts)) in new() {
        let expected = envelope
            .identity
            .as_ref()
            .map(|identity| identity.expected_head);
        if expected.is_some_and(|expected| expected != facts.head) {
            return Err(PublishError::HeadMoved);
        }
    }
    for (position, (envelope, facts)) in new() {
        if let Some(refusal) = envelope.refused.or_else(|| full_log(envelope, facts)) {
            return Err(PublishError::Refused { position, refusal });
        }
    }
    Ok(())
}

fn full_log(envelope: &PreparedEnvelope, facts: &Facts) -> Option<Refusal> {
    let identity = envelope.identity.as_ref()?;
    (facts.entries >= identity.max_entries).then_some(Refusal {
        reason: Reason::InvalidIdentityUpdate,
        message: "the inbox has as many updates as it may have",
    })
}

/// Builds the record of a new envelope.
pub(super) fn new_meta(
    envelope: &PreparedEnvelope,
    sequence_id: SequenceId,
    server_ns: u64,
) -> Result<Meta, PublishError> {
    let expiry = |retention: u64| {
        let expiry = server_ns
            .checked_add(retention)
            .filter(|ns| i64::try_from(*ns).is_ok());
        expiry.ok_or(PublishError::Broken(
            "the expiry is beyond the range of time",
        ))
    };
    Ok(Meta {
        sequence_id,
        key: envelope.key,
        server_ns,
        expiry_ns: envelope.retention_ns.map(expiry).transpose()?,
        is_commit_or_proposal: envelope.is_commit_or_proposal,
    })
}
