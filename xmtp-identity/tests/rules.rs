//! One test for each rule by which an update applies or does not.

mod support;

use support::*;
use xmtp_identity::{
    ApplyError, BrokenRule, Identifier, IdentifierError, MalformedUpdate, SignatureRole, inbox_id,
};
use xmtp_proto::id::InboxId;
use xmtp_proto::identity as proto;

const REPLAYED_RECOVERY: BrokenRule = BrokenRule::Replayed {
    role: SignatureRole::Recovery,
};

fn mismatch(recorded: Option<u64>, signed: Option<u64>) -> BrokenRule {
    BrokenRule::ChainMismatch { recorded, signed }
}

#[test]
fn the_creator_is_sole_member_and_recovery_identifier() {
    for owner in [wallet(1), passkey(2), contract(3, 10)] {
        let inbox = Inbox::created_by(&owner);
        let state = inbox.state();
        assert_eq!(state.identifiers(), [owner.identifier()]);
        assert_eq!(state.recovery().identifier, owner.identifier());
        assert_eq!(state.recovery().chain_id, owner.chain_id());
        let member = state.member(&owner.identifier()).unwrap();
        assert_eq!(
            (member.chain_id, &member.added_by),
            (owner.chain_id(), &None)
        );
        assert_eq!(member.added_at_ns, inbox.time);
    }
}

#[test]
fn the_first_action_must_create() {
    let (owner, phone) = (wallet(1), installation(2));
    let mut inbox = Inbox::of(&owner);
    let outcome = inbox.apply(&[add(&owner, &phone), create(&owner)]);
    assert_breaks(outcome, 0, BrokenRule::NotCreated);
}

#[test]
fn an_inbox_is_created_once() {
    let owner = wallet(1);
    let mut inbox = Inbox::of(&owner);
    let twice = inbox.apply(&[create(&owner), create(&owner)]);
    assert_breaks(twice, 1, BrokenRule::AlreadyCreated);
    inbox.apply(&[create(&owner)]).unwrap();
    let again = inbox.apply(&[create(&owner)]);
    assert_breaks(again, 0, BrokenRule::AlreadyCreated);
}

#[test]
fn the_created_id_must_be_the_derived_one() {
    let owner = wallet(1);
    let other = inbox_id(&owner.identifier(), 2);
    let update = update(other, 1, &[create(&owner)]);
    let outcome = apply_offline(None, &update).map(|_| ());
    assert_breaks(outcome, 0, BrokenRule::InboxMismatch);
}

#[test]
fn an_update_must_name_the_inbox_it_applies_to() {
    let (owner, phone) = (wallet(1), installation(2));
    let mut inbox = Inbox::created_by(&owner);
    let foreign = update(
        InboxId::from_bytes([7; 32]),
        inbox.time,
        &[add(&owner, &phone)],
    );
    assert_breaks(inbox.apply_signed(foreign), 0, BrokenRule::InboxMismatch);
}

#[test]
fn the_creator_must_sign() {
    let (owner, other) = (wallet(1), wallet(2));
    let mut inbox = Inbox::of(&owner);
    let initial = owner.identifier();
    let outcome = inbox.apply(&[Draft::Create {
        initial,
        nonce: 1,
        by: &other,
    }]);
    let role = SignatureRole::Initial;
    assert_breaks(outcome, 0, BrokenRule::WrongSigner { role });
}

#[test]
fn a_member_is_recorded_with_adder_time_and_chain() {
    let (owner, safe) = (wallet(1), contract(2, 137));
    let mut inbox = Inbox::created_by(&owner);
    inbox.apply(&[add(&owner, &safe)]).unwrap();
    let member = inbox.state().member(&safe.identifier()).unwrap();
    assert_eq!(member.added_by, Some(owner.identifier()));
    assert_eq!(
        (member.added_at_ns, member.chain_id),
        (inbox.time, Some(137))
    );
}

#[test]
fn the_new_member_must_sign_for_itself() {
    let (owner, phone, other) = (wallet(1), installation(2), installation(3));
    let mut inbox = Inbox::created_by(&owner);
    let member = phone.identifier();
    let outcome = inbox.apply(&[Draft::Add {
        member,
        existing: &owner,
        new: &other,
    }]);
    let role = SignatureRole::NewMember;
    assert_breaks(outcome, 0, BrokenRule::WrongSigner { role });
}

#[test]
fn a_signature_of_another_kind_is_by_another_party() {
    let (owner, phone) = (wallet(1), installation(2));
    let mut inbox = Inbox::created_by(&owner);
    let member = phone.identifier();
    let outcome = inbox.apply(&[Draft::Add {
        member,
        existing: &owner,
        new: &wallet(2),
    }]);
    let role = SignatureRole::NewMember;
    assert_breaks(outcome, 0, BrokenRule::WrongSigner { role });
}

#[test]
fn a_member_can_not_add_itself() {
    let (owner, stranger) = (wallet(1), wallet(2));
    let mut inbox = Inbox::created_by(&owner);
    assert_breaks(
        inbox.apply(&[add(&owner, &owner)]),
        0,
        BrokenRule::SelfAdded,
    );
    assert_breaks(
        inbox.apply(&[add(&stranger, &stranger)]),
        0,
        BrokenRule::SelfAdded,
    );
}

#[test]
fn a_current_member_is_not_added_again() {
    let (owner, phone) = (wallet(1), installation(2));
    let mut inbox = Inbox::created_by(&owner);
    inbox.apply(&[add(&owner, &phone)]).unwrap();
    assert_breaks(
        inbox.apply(&[add(&owner, &phone)]),
        0,
        BrokenRule::AlreadyMember,
    );
}

#[test]
fn only_a_member_or_the_recovery_identifier_adds() {
    let (owner, stranger, phone) = (wallet(1), wallet(2), installation(3));
    let mut inbox = Inbox::created_by(&owner);
    assert_breaks(
        inbox.apply(&[add(&stranger, &phone)]),
        0,
        BrokenRule::UnknownAdder,
    );
    inbox.apply(&[change_recovery(&owner, &stranger)]).unwrap();
    inbox.apply(&[add(&stranger, &phone)]).unwrap();
    let member = inbox.state().member(&phone.identifier()).unwrap();
    assert_eq!(member.added_by, Some(stranger.identifier()));
    assert!(!inbox.has(&stranger));
}

#[test]
fn an_installation_adds_anything_but_installations() {
    let (owner, phone, laptop) = (wallet(1), installation(2), installation(3));
    let mut inbox = Inbox::created_by(&owner);
    inbox.apply(&[add(&owner, &phone)]).unwrap();
    let outcome = inbox.apply(&[add(&phone, &laptop)]);
    assert_breaks(outcome, 0, BrokenRule::InstallationAddsInstallation);
    for key in [wallet(4), passkey(5), contract(6, 1)] {
        inbox.apply(&[add(&phone, &key)]).unwrap();
        assert!(inbox.has(&key));
    }
}

#[test]
fn every_other_pair_may_add() {
    let phone = installation(9);
    for (owner, second) in [
        (wallet(1), passkey(2)),
        (passkey(1), wallet(2)),
        (contract(1, 1), wallet(2)),
        (wallet(1), contract(2, 1)),
    ] {
        let mut inbox = Inbox::created_by(&owner);
        inbox.apply(&[add(&owner, &second)]).unwrap();
        inbox.apply(&[add(&second, &phone)]).unwrap();
        assert!(inbox.has(&second) && inbox.has(&phone));
    }
}

#[test]
fn only_the_recovery_identifier_revokes() {
    let (owner, second, phone) = (wallet(1), wallet(2), installation(3));
    let mut inbox = Inbox::created_by(&owner);
    inbox
        .apply(&[add(&owner, &second), add(&owner, &phone)])
        .unwrap();
    for by in [&second, &phone, &wallet(4)] {
        assert_breaks(
            inbox.apply(&[revoke(by, &phone)]),
            0,
            BrokenRule::NotRecovery,
        );
    }
    inbox.apply(&[revoke(&owner, &phone)]).unwrap();
    assert!(!inbox.has(&phone));
}

#[test]
fn revoking_removes_the_installations_that_the_target_added() {
    let (owner, second, third) = (wallet(1), wallet(2), wallet(3));
    let (own, of_second) = (installation(4), installation(5));
    let mut inbox = Inbox::created_by(&owner);
    inbox
        .apply(&[add(&owner, &second), add(&owner, &own)])
        .unwrap();
    inbox
        .apply(&[add(&second, &of_second), add(&second, &third)])
        .unwrap();
    inbox.apply(&[revoke(&owner, &second)]).unwrap();
    assert!(!inbox.has(&second) && !inbox.has(&of_second));
    assert!(inbox.has(&own) && inbox.has(&third) && inbox.has(&owner));
}

#[test]
fn a_target_that_is_no_member_loses_its_installations_too() {
    let (owner, helper, phone) = (wallet(1), wallet(2), installation(3));
    let mut inbox = Inbox::created_by(&owner);
    inbox.apply(&[change_recovery(&owner, &helper)]).unwrap();
    inbox.apply(&[add(&helper, &phone)]).unwrap();
    inbox.apply(&[revoke(&helper, &helper)]).unwrap();
    assert!(!inbox.has(&phone) && inbox.has(&owner));
    inbox.apply(&[revoke(&helper, &wallet(9))]).unwrap();
}

#[test]
fn the_recovery_role_outlives_the_membership() {
    let (owner, phone) = (contract(1, 10), installation(2));
    let mut inbox = Inbox::created_by(&owner);
    inbox.apply(&[revoke(&owner, &owner)]).unwrap();
    assert!(!inbox.has(&owner));
    assert_eq!(inbox.state().recovery().identifier, owner.identifier());
    assert_eq!(inbox.state().recovery().chain_id, Some(10));
    let elsewhere = contract(1, 1);
    let outcome = inbox.apply(&[add(&elsewhere, &phone)]);
    assert_breaks(outcome, 0, mismatch(Some(10), Some(1)));
    inbox.apply(&[add(&owner, &phone)]).unwrap();
}

#[test]
fn only_the_old_recovery_identifier_hands_the_role_on() {
    let (owner, second) = (wallet(1), wallet(2));
    let mut inbox = Inbox::created_by(&owner);
    inbox.apply(&[add(&owner, &second)]).unwrap();
    let outcome = inbox.apply(&[change_recovery(&second, &second)]);
    assert_breaks(outcome, 0, BrokenRule::NotRecovery);
    inbox.apply(&[change_recovery(&owner, &second)]).unwrap();
    assert_breaks(
        inbox.apply(&[revoke(&owner, &second)]),
        0,
        BrokenRule::NotRecovery,
    );
    inbox.apply(&[revoke(&second, &owner)]).unwrap();
}

#[test]
fn the_recovery_chain_is_that_of_the_member_or_none() {
    let (owner, safe, outside) = (wallet(1), contract(2, 137), contract(3, 1));
    let mut inbox = Inbox::created_by(&owner);
    inbox.apply(&[add(&owner, &safe)]).unwrap();
    inbox.apply(&[change_recovery(&owner, &safe)]).unwrap();
    assert_eq!(inbox.state().recovery().chain_id, Some(137));
    inbox.apply(&[change_recovery(&safe, &outside)]).unwrap();
    assert_eq!(inbox.state().recovery().chain_id, None);
    let outcome = inbox.apply(&[revoke(&outside, &safe)]);
    assert_breaks(outcome, 0, mismatch(None, Some(1)));
}

#[test]
fn a_signer_stays_on_its_recorded_chain() {
    let (owner, phone) = (contract(1, 10), installation(2));
    let elsewhere = contract(1, 1);
    let mut inbox = Inbox::created_by(&owner);
    let rule = mismatch(Some(10), Some(1));
    assert_breaks(inbox.apply(&[add(&elsewhere, &phone)]), 0, rule);
    assert_breaks(inbox.apply(&[revoke(&elsewhere, &phone)]), 0, rule);
    assert_breaks(
        inbox.apply(&[change_recovery(&elsewhere, &wallet(3))]),
        0,
        rule,
    );
}

#[test]
fn an_account_without_a_chain_does_not_become_a_contract() {
    let (owner, phone) = (wallet(1), installation(2));
    let account = xmtp_identity::AccountId::new(1, owner.identifier()).unwrap();
    let as_contract = Key::Contract(account);
    let mut inbox = Inbox::created_by(&owner);
    let outcome = inbox.apply(&[add(&as_contract, &phone)]);
    assert_breaks(outcome, 0, mismatch(None, Some(1)));
}

#[test]
fn a_used_signature_is_refused() {
    let (owner, phone) = (wallet(1), installation(2));
    let mut inbox = Inbox::created_by(&owner);
    let revocation = inbox.sign(&[revoke(&owner, &phone)]);
    inbox.apply_signed(revocation.clone()).unwrap();
    assert_breaks(inbox.apply_signed(revocation), 0, REPLAYED_RECOVERY);
}

#[test]
fn a_signature_covers_several_actions_of_one_update() {
    let (owner, phone, laptop) = (wallet(1), installation(2), installation(3));
    let mut inbox = Inbox::of(&owner);
    let drafts = [create(&owner), add(&owner, &phone), add(&owner, &laptop)];
    inbox.apply(&drafts).unwrap();
    assert_eq!(inbox.state().installations().len(), 2);
}

#[test]
fn a_member_revoked_and_added_in_one_update_stays() {
    let (owner, phone) = (wallet(1), installation(2));
    let mut inbox = Inbox::created_by(&owner);
    inbox.apply(&[add(&owner, &phone)]).unwrap();
    inbox
        .apply(&[revoke(&owner, &phone), add(&owner, &phone)])
        .unwrap();
    assert!(inbox.has(&phone));
}

#[test]
fn a_failing_action_undoes_the_whole_update() {
    let (owner, phone, laptop) = (wallet(1), installation(2), installation(3));
    let mut inbox = Inbox::created_by(&owner);
    let before = inbox.state().clone();
    let update = inbox.sign(&[add(&owner, &phone), add(&phone, &laptop)]);
    for _ in 0..2 {
        // The same answer twice: signatures of a refused update do not count as used.
        let outcome = inbox.apply_signed(update.clone());
        assert_breaks(outcome, 1, BrokenRule::InstallationAddsInstallation);
        assert_eq!(*inbox.state(), before);
    }
}

#[test]
fn malformed_updates_are_told_apart() {
    let owner = wallet(1);
    let good = update(inbox_id(&owner.identifier(), 1), 1, &[create(&owner)]);
    let malformed = |change: &dyn Fn(&mut proto::IdentityUpdate)| {
        let mut update = good.clone();
        change(&mut update);
        match apply_offline(None, &update) {
            Err(ApplyError::Malformed(error)) => error,
            other => panic!("expected a malformed update, got {other:?}"),
        }
    };
    assert_eq!(
        malformed(&|update| update.actions.clear()),
        MalformedUpdate::NoActions
    );
    assert_eq!(
        malformed(&|update| update.inbox_id.make_ascii_uppercase()),
        MalformedUpdate::InboxId { length: 64 }
    );
    assert_eq!(
        malformed(&|update| update.actions[0].kind = None),
        MalformedUpdate::UnsetAction { action: 0 }
    );
    assert_eq!(
        malformed(&|update| creation(update).initial_identifier_signature = None),
        MalformedUpdate::MissingSignature {
            action: 0,
            role: SignatureRole::Initial
        }
    );
    assert_eq!(
        malformed(&|update| {
            let signature = &mut creation(update).initial_identifier_signature;
            signature.as_mut().unwrap().signature = None; // as the legacy form decodes
        }),
        MalformedUpdate::MissingSignature {
            action: 0,
            role: SignatureRole::Initial
        }
    );
    assert_eq!(
        malformed(&|update| creation(update).initial_identifier_kind = 3),
        MalformedUpdate::Identifier {
            action: 0,
            source: IdentifierError::UnknownKind { kind: 3 }
        }
    );
    let text = IdentifierError::EthereumText { length: 42 };
    assert_eq!(
        malformed(&|update| creation(update).initial_identifier.make_ascii_uppercase()),
        MalformedUpdate::Identifier {
            action: 0,
            source: text
        }
    );
}

fn creation(update: &mut proto::IdentityUpdate) -> &mut proto::CreateInbox {
    match &mut update.actions[0].kind {
        Some(proto::identity_action::Kind::CreateInbox(create)) => create,
        _ => panic!("the update creates an inbox"),
    }
}

#[test]
fn a_member_identifier_must_be_present_and_set() {
    let (owner, phone) = (wallet(1), installation(2));
    let mut inbox = Inbox::created_by(&owner);
    let good = inbox.sign(&[revoke(&owner, &phone)]);
    for (member, expected) in [
        (None, MalformedUpdate::MissingMember { action: 0 }),
        (
            Some(proto::MemberIdentifier { kind: None }),
            MalformedUpdate::Identifier {
                action: 0,
                source: IdentifierError::Unset,
            },
        ),
    ] {
        let mut update = good.clone();
        match &mut update.actions[0].kind {
            Some(proto::identity_action::Kind::Revoke(revoke)) => revoke.member_to_revoke = member,
            _ => panic!("the update revokes"),
        }
        assert_eq!(
            inbox.apply_signed(update),
            Err(ApplyError::Malformed(expected))
        );
    }
}

#[test]
fn an_unspecified_owner_kind_reads_as_ethereum() {
    let owner = wallet(1);
    let mut update = update(inbox_id(&owner.identifier(), 1), 1, &[create(&owner)]);
    creation(&mut update).initial_identifier_kind = 0;
    let state = apply_offline(None, &update).unwrap();
    assert_eq!(state.identifiers(), [owner.identifier()]);
}

#[test]
fn the_relying_party_is_no_part_of_a_passkey() {
    let (owner, phone) = (passkey(1), installation(2));
    let mut inbox = Inbox::created_by(&owner);
    inbox.apply(&[add(&owner, &phone)]).unwrap();
    let Identifier::Passkey(id) = owner.identifier() else {
        panic!("a passkey")
    };
    let renamed = Identifier::passkey(id.key().clone(), Some("other.example".to_owned())).unwrap();
    assert!(inbox.state().is_member(&renamed));
    inbox
        .apply(&[Draft::Revoke {
            target: renamed,
            by: &owner,
        }])
        .unwrap();
    assert!(!inbox.has(&owner) && !inbox.has(&phone));
}
