//! The rules by which an update turns one state into the next.
//!
//! Invariant: an update applies as a whole or not at all, and the outcome depends on nothing but
//! the state, the update and the verdicts on its smart contract wallets. Three steps, in this
//! order: check every signature that needs no chain, apply the rules to a copy of the state, ask
//! for the open verdicts. So a chain is only asked about an update that would otherwise apply.

use std::collections::{BTreeMap, BTreeSet};

use xmtp_proto::id::InboxId;
use xmtp_proto::identity as proto;

use crate::error::{ApplyError, BrokenRule};
use crate::identifier::{Identifier, MemberKind, inbox_id};
use crate::signature::{CheckedSignature, VerifiedSignature, ask, check_locally};
use crate::state::{AssociationState, Member, Recovery};
use crate::update::{Action, ParsedUpdate, SignatureRole};
use crate::verifier::{ScwRequest, Verifier};

/// Applies one update to a state, or to none for the first update of a log.
///
/// # Behavior
///
/// - Applies all actions in order, or none of them.
/// - Returns a state of the inbox that the update names, or an error.
/// - Refuses a signature that an earlier update used; within one update a signature may cover
///   several actions.
/// - Fails with [`ApplyError::Unverified`] only if nothing else is wrong with the update.
pub fn apply(
    state: Option<&AssociationState>,
    update: &proto::IdentityUpdate,
    verifier: &dyn Verifier,
) -> Result<AssociationState, ApplyError> {
    let parsed = ParsedUpdate::parse(update)?;
    let actions = check_signatures(&parsed)?;
    let next = apply_rules(state, &parsed, &actions)?;
    ask_verdicts(&actions, verifier)?;
    Ok(next)
}

/// Applies the updates of a whole log in order; `None` for an empty log.
pub fn replay<'a>(
    updates: impl IntoIterator<Item = &'a proto::IdentityUpdate>,
    verifier: &dyn Verifier,
) -> Result<Option<AssociationState>, ApplyError> {
    updates.into_iter().try_fold(None, |state, update| {
        apply(state.as_ref(), update, verifier).map(Some)
    })
}

/// Lists the verdicts that [`apply`] may ask for, each once.
///
/// An update that is refused whatever the verdicts, because it is malformed or another of its
/// signatures does not hold, lists none.
pub fn required_verifications(update: &proto::IdentityUpdate) -> Vec<ScwRequest> {
    let checked = ParsedUpdate::parse(update).map_err(ApplyError::from);
    let actions = checked
        .and_then(|parsed| check_signatures(&parsed))
        .unwrap_or_default();
    let mut requests: Vec<ScwRequest> = Vec::new();
    for (_, signature) in actions.iter().flat_map(Action::signatures) {
        if let Some(request) = signature
            .pending
            .as_ref()
            .filter(|new| !requests.contains(new))
        {
            requests.push(request.clone());
        }
    }
    requests
}

fn check_signatures(parsed: &ParsedUpdate) -> Result<Vec<Action<CheckedSignature>>, ApplyError> {
    let text = parsed.signature_text();
    let actions = parsed.actions.iter().enumerate();
    actions
        .map(|(position, action)| {
            action.try_map(|role, signature| {
                check_locally(&text, signature)
                    .map_err(|source| ApplyError::signature(position, role, source))
            })
        })
        .collect()
}

/// Asks for every open verdict; a refusal outweighs an absent answer.
fn ask_verdicts(
    actions: &[Action<CheckedSignature>],
    verifier: &dyn Verifier,
) -> Result<(), ApplyError> {
    let mut unverified = None;
    for (position, action) in actions.iter().enumerate() {
        for (role, signature) in action.signatures() {
            let Some(request) = &signature.pending else {
                continue;
            };
            match ask(request, verifier) {
                Ok(()) => {}
                Err(source) => match ApplyError::signature(position, role, source) {
                    error if error.is_retryable() => unverified = unverified.or(Some(error)),
                    error => return Err(error),
                },
            }
        }
    }
    unverified.map_or(Ok(()), Err)
}

fn apply_rules(
    state: Option<&AssociationState>,
    parsed: &ParsedUpdate,
    actions: &[Action<CheckedSignature>],
) -> Result<AssociationState, ApplyError> {
    let mut next = state.cloned();
    let mut used = BTreeSet::new();
    for (position, action) in actions.iter().enumerate() {
        let refuse = |rule| ApplyError::DoesNotApply {
            action: position,
            rule,
        };
        for (role, checked) in action.signatures() {
            let key = &checked.signature.replay_key;
            if state.is_some_and(|state| state.has_seen(key)) {
                return Err(refuse(BrokenRule::Replayed { role }));
            }
            used.insert(key.clone());
        }
        next = Some(apply_action(next, parsed, action).map_err(refuse)?);
    }
    let refuse = |rule| ApplyError::DoesNotApply { action: 0, rule };
    let mut next = next.ok_or(refuse(BrokenRule::NotCreated))?;
    if next.inbox_id != parsed.inbox_id {
        return Err(refuse(BrokenRule::InboxMismatch));
    }
    next.seen.append(&mut used);
    Ok(next)
}

fn apply_action(
    state: Option<AssociationState>,
    parsed: &ParsedUpdate,
    action: &Action<CheckedSignature>,
) -> Result<AssociationState, BrokenRule> {
    let time = parsed.client_timestamp_ns;
    match (state, action) {
        (
            None,
            Action::Create {
                initial,
                nonce,
                signature,
            },
        ) => {
            let id = inbox_id(initial, *nonce);
            if id != parsed.inbox_id {
                return Err(BrokenRule::InboxMismatch);
            }
            create(id, initial, &signature.signature, time)
        }
        (None, _) => Err(BrokenRule::NotCreated),
        (Some(_), Action::Create { .. }) => Err(BrokenRule::AlreadyCreated),
        (
            Some(mut state),
            Action::Add {
                member,
                existing_signature,
                member_signature,
            },
        ) => {
            let (existing, new) = (&existing_signature.signature, &member_signature.signature);
            state.add(member, existing, new, time)?;
            Ok(state)
        }
        (Some(mut state), Action::Revoke { target, signature }) => {
            state.require_recovery(&signature.signature)?;
            state.revoke(target);
            Ok(state)
        }
        (
            Some(mut state),
            Action::ChangeRecovery {
                recovery,
                signature,
            },
        ) => {
            state.require_recovery(&signature.signature)?;
            let chain_id = state
                .members
                .get(recovery)
                .and_then(|member| member.chain_id);
            state.recovery = Recovery {
                identifier: recovery.clone(),
                chain_id,
            };
            Ok(state)
        }
    }
}

fn create(
    inbox_id: InboxId,
    initial: &Identifier,
    signature: &VerifiedSignature,
    added_at_ns: u64,
) -> Result<AssociationState, BrokenRule> {
    require_signer(initial, signature, SignatureRole::Initial)?;
    let chain_id = signature.chain_id;
    let identifier = initial.clone();
    let member = Member {
        identifier,
        added_by: None,
        added_at_ns,
        chain_id,
    };
    Ok(AssociationState {
        inbox_id,
        members: BTreeMap::from([(initial.clone(), member)]),
        recovery: Recovery {
            identifier: initial.clone(),
            chain_id,
        },
        seen: BTreeSet::new(),
    })
}

impl AssociationState {
    fn add(
        &mut self,
        member: &Identifier,
        existing: &VerifiedSignature,
        new: &VerifiedSignature,
        added_at_ns: u64,
    ) -> Result<(), BrokenRule> {
        require_signer(member, new, SignatureRole::NewMember)?;
        if existing.signer == *member {
            return Err(BrokenRule::SelfAdded);
        }
        if self.is_member(member) {
            return Err(BrokenRule::AlreadyMember);
        }
        let adder = self.adder(existing)?;
        let installations = [adder.kind(), member.kind()] == [MemberKind::Installation; 2];
        if installations {
            return Err(BrokenRule::InstallationAddsInstallation);
        }
        let record = Member {
            identifier: member.clone(),
            added_by: Some(adder),
            added_at_ns,
            chain_id: new.chain_id,
        };
        self.members.insert(member.clone(), record);
        Ok(())
    }

    /// Finds who lets a member in: a member first, else the recovery identifier.
    fn adder(&self, signature: &VerifiedSignature) -> Result<Identifier, BrokenRule> {
        if let Some(member) = self.members.get(&signature.signer) {
            require_chain(member.chain_id, signature)?;
            return Ok(member.identifier.clone());
        }
        if self.recovery.identifier == signature.signer {
            require_chain(self.recovery.chain_id, signature)?;
            return Ok(self.recovery.identifier.clone());
        }
        Err(BrokenRule::UnknownAdder)
    }

    fn require_recovery(&self, signature: &VerifiedSignature) -> Result<(), BrokenRule> {
        if self.recovery.identifier != signature.signer {
            return Err(BrokenRule::NotRecovery);
        }
        require_chain(self.recovery.chain_id, signature)
    }

    /// Removes a member, if it is one, and in any case every installation that it added.
    fn revoke(&mut self, target: &Identifier) {
        self.members.retain(|identifier, member| {
            let installation = identifier.kind() == MemberKind::Installation;
            let added_by_target = member.added_by.as_ref() == Some(target);
            identifier != target && !(installation && added_by_target)
        });
    }
}

fn require_signer(
    expected: &Identifier,
    signature: &VerifiedSignature,
    role: SignatureRole,
) -> Result<(), BrokenRule> {
    if signature.signer == *expected {
        Ok(())
    } else {
        Err(BrokenRule::WrongSigner { role })
    }
}

fn require_chain(recorded: Option<u64>, signature: &VerifiedSignature) -> Result<(), BrokenRule> {
    let signed = signature.chain_id;
    if recorded == signed {
        Ok(())
    } else {
        Err(BrokenRule::ChainMismatch { recorded, signed })
    }
}
