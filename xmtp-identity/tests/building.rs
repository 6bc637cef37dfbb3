//! Building updates, the stored state and the lookup, and what errors and debug output show.

mod support;

use prost::Message;
use support::*;
use xmtp_identity::projection::{Association, identifier_changes};
use xmtp_identity::{
    AssociationState, BuildError, Identifier, IdentifierKind, StateDecodeError, UpdateBuilder,
    diff, signature_text,
};
use xmtp_proto::identity as proto;

const TIME: u64 = 1_700_000_000 * SECOND + 5;

/// Signs with whichever of `keys` is asked.
fn signed(builder: UpdateBuilder, time: u64, keys: &[&Key]) -> proto::IdentityUpdate {
    let mut unsigned = builder.build(time).unwrap();
    for signer in unsigned.missing_signers() {
        let key = keys.iter().find(|key| key.identifier() == signer).unwrap();
        let signature = key.sign(unsigned.signature_text());
        unsigned = unsigned.with_signature(signature).unwrap();
    }
    unsigned.finish().unwrap()
}

#[test]
fn a_built_log_applies() {
    let (owner, second, safe) = (wallet(1), passkey(2), contract(3, 1));
    let (phone, laptop) = (installation(4), installation(5));
    let keys = [&owner, &second, &safe, &phone, &laptop];
    let phone_id = *phone.identifier().as_installation().unwrap();

    let first = UpdateBuilder::create_inbox(owner.identifier(), 1).add_installation(phone_id);
    let mut inbox = Inbox::of(&owner);
    assert_eq!(first.inbox_id(), inbox.id);
    inbox.apply_signed(signed(first, TIME, &keys)).unwrap();

    let more = UpdateBuilder::update_inbox(inbox.id, owner.identifier())
        .add_member(second.identifier())
        .signed_by(phone.identifier())
        .add_member(safe.identifier())
        .signed_by(owner.identifier())
        .change_recovery(second.identifier());
    inbox
        .apply_signed(signed(more, TIME + SECOND, &keys))
        .unwrap();

    let last = UpdateBuilder::update_inbox(inbox.id, second.identifier())
        .revoke(owner.identifier())
        .add_member(laptop.identifier());
    inbox
        .apply_signed(signed(last, TIME + 2 * SECOND, &keys))
        .unwrap();

    let mut expected = [second.identifier(), safe.identifier()];
    expected.sort();
    assert_eq!(inbox.state().identifiers(), expected);
    assert!(
        inbox.has(&laptop) && !inbox.has(&phone),
        "the owner had added the phone"
    );
    assert_eq!(inbox.state().recovery().identifier, second.identifier());
}

#[test]
fn the_text_has_two_lines_for_each_action() {
    let (owner, second, phone) = (wallet(1), passkey(2), installation(3));
    let builder = UpdateBuilder::create_inbox(owner.identifier(), 0)
        .add_member(second.identifier())
        .add_member(wallet(4).identifier())
        .revoke(phone.identifier())
        .revoke(second.identifier())
        .revoke(wallet(4).identifier())
        .change_recovery(second.identifier());
    let [owner, second, phone, other] =
        [&owner, &second, &phone, &wallet(4)].map(|key| key.identifier().text());
    let expected = format!(
        "XMTP : Authenticate to inbox\n\nInbox ID: {}\nCurrent time: 2023-11-14T22:13:20Z\n\n\
         - Create inbox\n  (Owner: {owner})\n\
         - Link passkey to inbox\n  (Passkey: {second})\n\
         - Link address to inbox\n  (Address: {other})\n\
         - Revoke messaging access from app\n  (ID: {phone})\n\
         - Unlink passkey from inbox\n  (Passkey: {second})\n\
         - Unlink address from inbox\n  (Address: {other})\n\
         - Change inbox recovery address\n  (Address: {second})\n\n\
         For more info: https://xmtp.org/signatures",
        builder.inbox_id().to_hex()
    );
    assert_eq!(builder.build(TIME).unwrap().signature_text(), expected);
}

#[test]
fn what_is_signed_is_rebuilt_from_the_update() {
    let (owner, phone) = (wallet(1), installation(2));
    let builder = UpdateBuilder::create_inbox(owner.identifier(), 3).add_member(phone.identifier());
    let text = builder
        .clone()
        .build(TIME)
        .unwrap()
        .signature_text()
        .to_owned();
    let update = signed(builder, TIME, &[&owner, &phone]);
    assert_eq!(signature_text(&update), Ok(text));
}

#[test]
fn the_builder_refuses_what_can_not_apply() {
    let (owner, phone) = (wallet(1), installation(2));
    let empty = UpdateBuilder::update_inbox(Inbox::of(&owner).id, owner.identifier());
    assert_eq!(empty.clone().build(TIME).err(), Some(BuildError::NoActions));
    for (builder, action) in [
        (UpdateBuilder::create_inbox(phone.identifier(), 1), 0),
        (
            empty
                .revoke(phone.identifier())
                .change_recovery(phone.identifier()),
            1,
        ),
    ] {
        let refused = builder.build(TIME).err();
        assert_eq!(refused, Some(BuildError::InstallationOwner { action }));
    }
    let unsigned = UpdateBuilder::create_inbox(owner.identifier(), 1)
        .add_member(phone.identifier())
        .build(TIME)
        .unwrap();
    let text = unsigned.signature_text().to_owned();
    let refused = |signature| unsigned.clone().with_signature(signature).err();
    assert_eq!(
        refused(wallet(3).sign(&text)),
        Some(BuildError::UnexpectedSigner)
    );
    assert_eq!(
        refused(wallet(1).sign("other")),
        Some(BuildError::UnexpectedSigner)
    );
    assert!(matches!(
        refused(phone.sign("other")),
        Some(BuildError::InvalidSignature(_))
    ));
    let unset = proto::Signature { signature: None };
    assert_eq!(refused(unset), Some(BuildError::UnsetSignature));
    assert_eq!(unsigned.missing_signers().len(), 2);
    let half = unsigned.with_signature(owner.sign(&text)).unwrap();
    assert_eq!(half.missing_signers(), [phone.identifier()]);
    assert_eq!(
        half.finish(),
        Err(BuildError::MissingSignatures { missing: 1 })
    );
}

fn busy_inbox() -> Inbox {
    let (owner, safe) = (passkey(1), contract(2, 10));
    let mut inbox = Inbox::created_by(&owner);
    inbox
        .apply(&[add(&owner, &safe), add(&owner, &installation(3))])
        .unwrap();
    inbox.apply(&[change_recovery(&owner, &safe)]).unwrap();
    inbox.apply(&[revoke(&safe, &safe)]).unwrap();
    inbox
}

#[test]
fn a_stored_state_keeps_every_rule_in_force() {
    let inbox = busy_inbox();
    let bytes = inbox.state().to_proto().encode_to_vec();
    let stored = proto::AssociationState::decode(&bytes[..]).unwrap();
    let read = AssociationState::from_proto(&stored).unwrap();
    assert_eq!(&read, inbox.state());
    // The chain of a recovery identifier that is no member has no other place.
    assert_eq!(read.recovery().chain_id, Some(10));
}

#[test]
fn a_stored_state_keeps_its_bytes() {
    let bytes = busy_inbox().state().to_proto().encode_to_vec();
    let frozen = include_str!("snapshots/association_state.hex");
    assert_eq!(
        hex::encode(&bytes),
        frozen.split_whitespace().collect::<String>()
    );
}

#[test]
fn an_incomplete_stored_state_is_refused() {
    let good = busy_inbox().state().to_proto();
    let refused = |change: &dyn Fn(&mut proto::AssociationState)| {
        let mut stored = good.clone();
        change(&mut stored);
        AssociationState::from_proto(&stored).unwrap_err()
    };
    let member = StateDecodeError::Member { position: 0 };
    assert_eq!(refused(&|s| s.inbox_id.clear()), StateDecodeError::InboxId);
    assert_eq!(refused(&|s| s.members[0].key = None), member);
    assert_eq!(refused(&|s| s.members[0].value = None), member);
    assert_eq!(
        refused(&|s| s.members[0].key = s.members[1].key.clone()),
        member
    );
    assert_eq!(
        refused(&|s| s.members[0].value.as_mut().unwrap().client_timestamp_ns = None),
        member
    );
    assert_eq!(
        refused(&|s| s.recovery_identifier.clear()).code(),
        "identity.state.identifier"
    );
}

#[test]
fn the_lookup_follows_owners_but_no_installations() {
    let (owner, second, phone) = (wallet(1), passkey(2), installation(3));
    let mut inbox = Inbox::of(&owner);
    inbox.apply(&[create(&owner), add(&owner, &phone)]).unwrap();
    let first = inbox.state().clone();
    let changes = |before: Option<&AssociationState>, after: &AssociationState| {
        let changes = identifier_changes(before, after).into_iter();
        changes
            .map(|change| (change.kind, change.text, change.change))
            .collect::<Vec<_>>()
    };
    let owner_text = owner.identifier().text();
    let joined = (
        IdentifierKind::Ethereum,
        owner_text.clone(),
        Association::Associated,
    );
    assert_eq!(changes(None, &first), [joined]);
    assert_eq!(changes(Some(&first), &first), []);

    inbox
        .apply(&[add(&owner, &second), revoke(&owner, &owner)])
        .unwrap();
    let left = (IdentifierKind::Ethereum, owner_text, Association::Revoked);
    let passkey_text = second.identifier().text();
    let other = (
        IdentifierKind::Passkey,
        passkey_text,
        Association::Associated,
    );
    assert_eq!(changes(Some(&first), inbox.state()), [left, other]);
    assert!(!inbox.has(&phone));

    let difference = diff(Some(&first), inbox.state());
    assert_eq!(difference.new_members, [second.identifier()]);
    assert_eq!(
        difference.removed_members,
        [owner.identifier(), phone.identifier()]
    );
    assert_eq!(difference.to_proto().removed_members.len(), 2);
    assert!(diff(Some(&first), &first).is_empty());
}

#[test]
fn an_association_made_anew_is_a_new_one() {
    let (owner, second) = (wallet(1), wallet(2));
    let mut inbox = Inbox::created_by(&owner);
    inbox.apply(&[add(&owner, &second)]).unwrap();
    let before = inbox.state().clone();
    inbox
        .apply(&[revoke(&owner, &second), add(&owner, &second)])
        .unwrap();
    let changes = identifier_changes(Some(&before), inbox.state());
    assert_eq!(changes.len(), 1);
    assert_eq!(changes[0].text, second.identifier().text());
    assert_eq!(changes[0].change, Association::Associated);
}

#[test]
fn debug_output_shows_no_identifier_key_or_signature() {
    let owner = wallet(1);
    let unsigned = UpdateBuilder::create_inbox(owner.identifier(), 1)
        .add_member(installation(2).identifier())
        .build(TIME)
        .unwrap();
    let shown = format!(
        "{:?} {:?} {:?} {:?} {:?} {:?}",
        busy_inbox().state(),
        unsigned,
        [&owner, &passkey(1), &installation(2), &contract(2, 10)].map(Key::identifier),
        [&owner, &installation(2), &contract(2, 10)],
        xmtp_identity::required_verifications(&busy_inbox().log[1]),
        xmtp_identity::ParsedUpdate::parse(&busy_inbox().log[1]),
    );
    // Nanoseconds have 19 digits; an address has 40 and a key or id 64.
    let mut runs = shown.split(|c: char| !c.is_ascii_hexdigit());
    assert!(runs.all(|run| run.len() < 20), "{shown}");
}

#[test]
fn identifier_texts_have_one_form() {
    let text = wallet(1).identifier().text();
    assert_eq!(Identifier::ethereum(&text), Ok(wallet(1).identifier()));
    let upper = text.to_uppercase().replace("0X", "0x");
    for refused in [
        "",
        "0x",
        &text[2..],
        &text[..41],
        &upper,
        &format!("{text}0"),
    ] {
        let error = Identifier::ethereum(refused).unwrap_err();
        assert_eq!(error.code(), "identity.identifier.ethereum_text");
    }
    let key = passkey(1).identifier().text();
    let read = |text: &str| Identifier::from_text(IdentifierKind::Passkey, text, None);
    assert_eq!(read(&key), Ok(passkey(1).identifier()));
    for refused in ["", "a", "0x00", &key.to_uppercase()] {
        assert_eq!(
            read(refused).unwrap_err().code(),
            "identity.identifier.passkey_key"
        );
    }
    for key in [wallet(1), passkey(1), installation(1)] {
        let identifier = key.identifier();
        assert_eq!(
            Identifier::from_proto(&identifier.to_proto()),
            Ok(identifier)
        );
    }
    assert!(Identifier::installation_bytes(&[0; 31]).is_err());
    assert!(Identifier::passkey(bytes::Bytes::new(), None).is_err());
}
