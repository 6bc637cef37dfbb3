//! Random logs, most of whose actions are refused, against a model that knows the rules in brief.

mod support;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use support::*;
use xmtp_identity::projection::{Association, identifier_changes};
use xmtp_identity::{
    ApplyError, AssociationState, BrokenRule, Identifier, MemberKind, diff, replay,
};

/// Who takes part: index 0 creates the inbox.
fn keys() -> Vec<Key> {
    vec![
        wallet(1),
        wallet(2),
        contract(3, 10),
        contract(3, 1), // the same address on another chain
        passkey(4),
        installation(5),
        installation(6),
        installation(7),
    ]
}

/// An action by numbers: positions in [`keys`].
#[derive(Clone, Copy, Debug)]
enum Step {
    Add {
        existing: usize,
        new: usize,
    },
    Revoke {
        by: usize,
        target: usize,
    },
    ChangeRecovery {
        by: usize,
        to: usize,
    },
    /// An addition whose signatures are those of the wrong parties.
    Forged {
        existing: usize,
        new: usize,
    },
}

fn any_step() -> impl Strategy<Value = Step> {
    let key = 0..keys().len();
    let owner = 0..5_usize;
    prop_oneof![
        6 => (key.clone(), key.clone()).prop_map(|(existing, new)| Step::Add { existing, new }),
        3 => (owner.clone(), key.clone()).prop_map(|(by, target)| Step::Revoke { by, target }),
        1 => (owner.clone(), owner).prop_map(|(by, to)| Step::ChangeRecovery { by, to }),
        1 => (key.clone(), key).prop_map(|(existing, new)| Step::Forged { existing, new }),
    ]
}

fn draft(keys: &[Key], step: Step) -> Draft<'_> {
    match step {
        Step::Add { existing, new } => add(&keys[existing], &keys[new]),
        Step::Revoke { by, target } => revoke(&keys[by], &keys[target]),
        Step::ChangeRecovery { by, to } => change_recovery(&keys[by], &keys[to]),
        Step::Forged { existing, new } => Draft::Add {
            member: keys[new].identifier(),
            existing: &keys[existing],
            new: &keys[(new + 1) % keys.len()],
        },
    }
}

/// The rules in brief: the members with their adder and chain, and the recovery role.
#[derive(Clone, Debug, PartialEq)]
struct Model {
    members: BTreeMap<Identifier, (Option<Identifier>, Option<u64>)>,
    recovery: (Identifier, Option<u64>),
}

impl Model {
    fn created_by(owner: &Key) -> Self {
        let (id, chain) = (owner.identifier(), owner.chain_id());
        Self {
            members: BTreeMap::from([(id.clone(), (None, chain))]),
            recovery: (id, chain),
        }
    }

    /// Takes the step if the rules allow it.
    fn step(&mut self, keys: &[Key], step: Step) -> bool {
        let id = |key: usize| keys[key].identifier();
        let recovers = |model: &Self, by: usize| model.recovery == (id(by), keys[by].chain_id());
        match step {
            Step::Forged { existing, new } => {
                let same_address = id(new) == id((new + 1) % keys.len());
                same_address && self.add(&keys[existing], &keys[(new + 1) % keys.len()])
            }
            Step::Add { existing, new } => self.add(&keys[existing], &keys[new]),
            Step::Revoke { by, target } => {
                let allowed = recovers(self, by);
                if allowed {
                    let target = id(target);
                    self.members.remove(&target);
                    self.members.retain(|id, (adder, _)| {
                        id.kind() != MemberKind::Installation || adder.as_ref() != Some(&target)
                    });
                }
                allowed
            }
            Step::ChangeRecovery { by, to } => {
                let allowed = recovers(self, by);
                if allowed {
                    let chain = self.members.get(&id(to)).and_then(|(_, chain)| *chain);
                    self.recovery = (id(to), chain);
                }
                allowed
            }
        }
    }

    fn add(&mut self, existing: &Key, new: &Key) -> bool {
        let (by, member) = (existing.identifier(), new.identifier());
        let recorded = match self.members.get(&by) {
            Some((_, chain)) => Some(*chain),
            None if self.recovery.0 == by => Some(self.recovery.1),
            None => None,
        };
        let kinds = [by.kind(), member.kind()];
        let allowed = by != member
            && !self.members.contains_key(&member)
            && recorded == Some(existing.chain_id())
            && kinds != [MemberKind::Installation; 2];
        if allowed {
            self.members.insert(member, (Some(by), new.chain_id()));
        }
        allowed
    }

    fn of(state: &AssociationState) -> Self {
        let record = |member: &xmtp_identity::Member| {
            (
                member.identifier.clone(),
                (member.added_by.clone(), member.chain_id),
            )
        };
        let recovery = state.recovery();
        Self {
            members: state.members().map(record).collect(),
            recovery: (recovery.identifier.clone(), recovery.chain_id),
        }
    }
}

fn is_replay(outcome: &Result<(), ApplyError>) -> bool {
    matches!(
        outcome,
        Err(ApplyError::DoesNotApply {
            rule: BrokenRule::Replayed { .. },
            ..
        })
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Each update of one or more actions applies exactly if the model takes all its actions; it
    /// leads to the model's state, and a refused update changes nothing.
    #[test]
    fn logs_agree_with_the_model(
        updates in prop::collection::vec(prop::collection::vec(any_step(), 1..4), 1..16),
    ) {
        let keys = keys();
        let mut inbox = Inbox::created_by(&keys[0]);
        let mut model = Model::created_by(&keys[0]);
        for steps in updates {
            let drafts: Vec<_> = steps.iter().map(|step| draft(&keys, *step)).collect();
            let mut next = model.clone();
            let fits = steps.iter().all(|step| next.step(&keys, *step));
            let before = inbox.state().clone();
            let outcome = inbox.apply(&drafts);
            prop_assert_eq!(outcome.is_ok(), fits, "{:?} gave {:?}", steps, outcome);
            if fits {
                model = next;
            } else {
                prop_assert_eq!(inbox.state(), &before);
            }
            prop_assert_eq!(&Model::of(inbox.state()), &model);
            check_state(inbox.state());
        }
        let replayed = replay(&inbox.log, &Chains).unwrap();
        prop_assert_eq!(replayed.as_ref(), inbox.state.as_ref());
    }

    /// No update of a log applies a second time, and the lookup can be kept from changes alone.
    #[test]
    fn used_signatures_and_changes_add_up(
        steps in prop::collection::vec(any_step(), 1..24),
    ) {
        let keys = keys();
        let mut inbox = Inbox::created_by(&keys[0]);
        let mut lookup = BTreeSet::new();
        follow(&mut lookup, None, inbox.state());
        for step in steps {
            let before = inbox.state().clone();
            if inbox.apply(&[draft(&keys, step)]).is_err() {
                continue;
            }
            follow(&mut lookup, Some(&before), inbox.state());
            check_difference(&before, inbox.state());
            let texts = inbox.state().identifiers().iter().map(Identifier::text).collect();
            prop_assert_eq!(&lookup, &texts);
        }
        for update in inbox.log.clone() {
            let outcome = inbox.apply_signed(update);
            prop_assert!(is_replay(&outcome), "{:?}", outcome);
        }
    }
}

/// What holds of every state, and of what is stored of it.
fn check_state(state: &AssociationState) {
    for member in state.members() {
        let adder = member.added_by.as_ref();
        assert_ne!(adder, Some(&member.identifier));
        if member.identifier.kind() == MemberKind::Installation {
            assert_ne!(
                adder.expect("somebody added it").kind(),
                MemberKind::Installation
            );
        }
    }
    assert_eq!(
        state.installations().len() + state.identifiers().len(),
        state.members().len()
    );
    let stored = state.to_proto();
    let read = AssociationState::from_proto(&stored).unwrap();
    assert_eq!(&read, state);
    assert_eq!(read.to_proto(), stored);
}

/// Keeps a lookup up to date with one update.
fn follow(
    lookup: &mut BTreeSet<String>,
    before: Option<&AssociationState>,
    after: &AssociationState,
) {
    for change in identifier_changes(before, after) {
        assert_eq!(change.inbox_id, after.inbox_id());
        let news = match change.change {
            Association::Associated => lookup.insert(change.text),
            Association::Revoked => lookup.remove(&change.text),
        };
        assert!(news, "one action changes an identifier once");
    }
}

fn check_difference(before: &AssociationState, after: &AssociationState) {
    let difference = diff(Some(before), after);
    let mut members: BTreeSet<_> = before
        .members()
        .map(|member| member.identifier.clone())
        .collect();
    for removed in &difference.removed_members {
        assert!(members.remove(removed));
    }
    for added in &difference.new_members {
        assert!(members.insert(added.clone()));
    }
    assert!(
        members
            .iter()
            .eq(after.members().map(|member| &member.identifier))
    );
    let added: Vec<_> = difference
        .new_members
        .iter()
        .filter_map(|id| id.as_installation().copied())
        .collect();
    assert_eq!(after.installations_added_since(before), added);
}
