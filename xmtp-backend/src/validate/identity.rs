//! Identity updates: each applies to the log of its inbox, by the rules that clients use too.

use prost::Message;
use xmtp_identity::projection::{IdentifierChange, identifier_changes};
use xmtp_identity::{
    ApplyError, AssociationState, MalformedUpdate, ScwRequest, Verifier, VerifierError, apply,
    required_verifications,
};
use xmtp_proto::backend::v1::ClientEnvelope;
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::id::TopicKind;
use xmtp_proto::identity::{IdentityAction, IdentityUpdate, Signature, identity_action, signature};

use super::{Bounds, Check, Read, malformed, too_large, topic};
use crate::store::{IdentityHistory, Reason, Refusal};

/// What the log of an inbox says about one more update.
#[derive(Debug)]
pub(crate) enum IdentityVerdict {
    /// It applies, and changes the lookup from identifiers so.
    Applies(Vec<IdentifierChange>),
    /// It is refused for good.
    Refused(Refusal),
    /// It applies if wallets accept these signatures; nobody has said so yet.
    Unverified(Vec<ScwRequest>),
    /// The stored log does not replay.
    Broken,
}

/// Reads an identity update.
pub(super) fn read(update: &IdentityUpdate, bounds: &Bounds) -> Result<Read, Refusal> {
    let problem = "the inbox id does not have 64 hex digits";
    let inbox = hex::decode(&update.inbox_id).map_err(|_| malformed(problem))?;
    let topic = topic(TopicKind::Identity, &inbox, problem)?;
    if contract_signatures(update) > bounds.max_scw_signatures as usize {
        return Err(too_large(
            "the update has more contract signatures than it may have",
        ));
    }
    let check = Check::IdentityUpdate(Box::new(update.clone()));
    Ok(Read {
        topic,
        is_commit_or_proposal: false,
        check,
    })
}

/// Applies an update to the log of its inbox, with the verdicts that were collected before.
///
/// - Asks for verdicts only about an update that would apply with them.
/// - Verdicts on contract wallets in the stored log were given when it was stored and hold.
pub(crate) fn check_update(
    update: &IdentityUpdate,
    history: &IdentityHistory,
    verdicts: &dyn Verifier,
) -> IdentityVerdict {
    let Some(before) = replay(history) else {
        return IdentityVerdict::Broken;
    };
    match apply(before.as_ref(), update, verdicts) {
        Ok(after) => IdentityVerdict::Applies(identifier_changes(before.as_ref(), &after)),
        Err(error) if error.is_retryable() => {
            IdentityVerdict::Unverified(required_verifications(update))
        }
        Err(error) => IdentityVerdict::Refused(refusal(&error)),
    }
}

fn replay(history: &IdentityHistory) -> Option<Option<AssociationState>> {
    let mut state = None;
    for entry in &history.entries {
        let envelope = ClientEnvelope::decode(entry.clone()).ok()?;
        let Some(Payload::IdentityUpdate(update)) = envelope.payload else {
            return None;
        };
        state = Some(apply(state.as_ref(), &update, &Admitted).ok()?);
    }
    Some(state)
}

fn refusal(error: &ApplyError) -> Refusal {
    let signature = "a signature of the update does not hold";
    let (reason, message) = match error {
        ApplyError::InvalidSignature { .. } => (Reason::InvalidSignature, signature),
        ApplyError::Malformed(MalformedUpdate::MissingSignature { .. }) => (
            Reason::InvalidSignature,
            "a signature of the update is missing",
        ),
        _ => (
            Reason::InvalidIdentityUpdate,
            "the update does not apply to its inbox",
        ),
    };
    Refusal { reason, message }
}

fn contract_signatures(update: &IdentityUpdate) -> usize {
    let is_contract = |signature: &&Signature| {
        matches!(signature.signature, Some(signature::Signature::Erc6492(_)))
    };
    update
        .actions
        .iter()
        .flat_map(signatures)
        .filter(is_contract)
        .count()
}

fn signatures(action: &IdentityAction) -> impl Iterator<Item = &Signature> {
    use identity_action::Kind;
    let (first, second) = match action.kind.as_ref() {
        None => (None, None),
        Some(Kind::CreateInbox(create)) => (create.initial_identifier_signature.as_ref(), None),
        Some(Kind::Add(add)) => (
            add.existing_member_signature.as_ref(),
            add.new_member_signature.as_ref(),
        ),
        Some(Kind::Revoke(revoke)) => (revoke.recovery_identifier_signature.as_ref(), None),
        Some(Kind::ChangeRecoveryAddress(change)) => {
            (change.existing_recovery_identifier_signature.as_ref(), None)
        }
    };
    first.into_iter().chain(second)
}

/// The verifier of what is stored: it was admitted with a verdict, and a verdict is not asked for
/// twice, because a chain may have changed its mind since.
struct Admitted;

impl Verifier for Admitted {
    fn verify_smart_contract_wallet(&self, _request: &ScwRequest) -> Result<bool, VerifierError> {
        Ok(true)
    }
}
