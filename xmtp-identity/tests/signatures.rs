//! The four kinds of signature: what is accepted, who signed, and when it counts as used.

mod support;

use support::*;
use xmtp_identity::{
    AccountId, ApplyError, BrokenRule, CollectedVerdicts, Identifier, InstallationKey, LocalWallet,
    NoSmartContractWallets, SignatureError, SignatureKind, SignatureRole, SignatureScheme,
    VerifiedSignature, VerifierError, apply, personal_message_hash, required_verifications,
    verify_public_context, verify_signature,
};
use xmtp_proto::identity as proto;

const TEXT: &str = "hello";

fn verify(text: &str, signature: &SignatureKind) -> Result<VerifiedSignature, SignatureError> {
    verify_signature(text, signature, &NoSmartContractWallets)
}

fn kind(signature: proto::Signature) -> SignatureKind {
    signature.signature.unwrap()
}

fn erc191(bytes: &[u8]) -> SignatureKind {
    SignatureKind::Erc191(proto::RecoverableEcdsaSignature {
        bytes: bytes.to_vec().into(),
    })
}

fn wallet_bytes(text: &str) -> Vec<u8> {
    match kind(wallet(1).sign(text)) {
        SignatureKind::Erc191(message) => message.bytes.to_vec(),
        other => panic!("a wallet signs as erc_191, not {other:?}"),
    }
}

fn malformed(scheme: SignatureScheme, part: &'static str) -> SignatureError {
    SignatureError::Malformed { scheme, part }
}

#[test]
fn personal_messages_hash_as_known() {
    assert_eq!(
        hex::encode(personal_message_hash(TEXT)),
        "50b2c43fd39106bafbba0da34fc430e1f91e3c96ea2acee2bc34119f92b37750"
    );
}

#[test]
fn a_wallet_has_the_known_address_of_its_secret() {
    let mut secret = [0; 32];
    secret[31] = 1;
    let wallet = LocalWallet::from_secret(&secret).unwrap();
    assert_eq!(
        wallet.identifier().text(),
        "0x7e5f4552091a69125d5dfcb7b8c2659029395bdf"
    );
    assert!(LocalWallet::from_secret(&[0; 32]).is_err());
    assert!(LocalWallet::from_secret(&[0xff; 32]).is_err());
    // Random bytes always make a wallet.
    let wallet = LocalWallet::from_random([0xff; 32]);
    assert_ne!(
        wallet.identifier().text(),
        LocalWallet::from_random([0; 32]).identifier().text()
    );
}

#[test]
fn erc_191_recovers_the_account_from_either_form_of_v() {
    let mut bytes = wallet_bytes(TEXT);
    let verified = verify(TEXT, &erc191(&bytes)).unwrap();
    assert_eq!(verified.signer, wallet(1).identifier());
    assert_eq!(
        (verified.chain_id, verified.scheme),
        (None, SignatureScheme::Erc191)
    );
    bytes[64] -= 27;
    assert_eq!(verify(TEXT, &erc191(&bytes)), Ok(verified.clone()));
    assert_eq!(verified.replay_key, bytes);
}

#[test]
fn erc_191_counts_both_halves_of_s_as_one_signature() {
    let bytes = wallet_bytes(TEXT);
    let signature = k256::ecdsa::Signature::from_slice(&bytes[..64]).unwrap();
    let (r, s) = signature.split_scalars();
    let high = k256::ecdsa::Signature::from_scalars(r.to_bytes(), (-*s).to_bytes()).unwrap();
    let flipped = [&high.to_bytes()[..], &[(bytes[64] - 27) ^ 1]].concat();
    assert_eq!(
        verify(TEXT, &erc191(&flipped)),
        verify(TEXT, &erc191(&bytes))
    );
}

#[test]
fn erc_191_refuses_other_lengths_and_recovery_bytes() {
    let bytes = wallet_bytes(TEXT);
    let refused = |bytes: &[u8]| verify(TEXT, &erc191(bytes)).unwrap_err();
    let scheme = SignatureScheme::Erc191;
    assert_eq!(refused(&bytes[..64]), malformed(scheme, "length"));
    assert_eq!(
        refused(&[&bytes[..], &[0]].concat()),
        malformed(scheme, "length")
    );
    assert_eq!(refused(&[]), malformed(scheme, "length"));
    for v in [2, 3, 26, 29, 255] {
        assert_eq!(
            refused(&[&bytes[..64], &[v]].concat()),
            malformed(scheme, "recovery byte")
        );
    }
    assert_eq!(refused(&[0; 65]), malformed(scheme, "r or s"));
}

#[test]
fn erc_191_over_another_text_is_by_another_account() {
    let verified = verify("other", &erc191(&wallet_bytes(TEXT)));
    assert_ne!(
        verified.map(|verified| verified.signer),
        Ok(wallet(1).identifier())
    );
}

#[test]
fn installation_signatures_hold_in_their_context_only() {
    let key = InstallationKey::from_seed(&[3; 32]);
    let signature = kind(key.sign_text(TEXT).unwrap());
    let verified = verify(TEXT, &signature).unwrap();
    assert_eq!(verified.signer, Identifier::installation(key.id()));
    let scheme = SignatureScheme::InstallationKey;
    assert_eq!(
        verify("other", &signature),
        Err(SignatureError::Rejected { scheme })
    );

    let public = key.sign_public(TEXT.as_bytes()).unwrap();
    verify_public_context(TEXT.as_bytes(), &public, &key.id()).unwrap();
    assert!(verify_public_context(b"other", &public, &key.id()).is_err());
    let SignatureKind::InstallationKey(mut message) = signature else {
        panic!("a kind")
    };
    assert!(verify_public_context(TEXT.as_bytes(), &message.bytes, &key.id()).is_err());
    assert_eq!(verified.replay_key, message.bytes);
    message.bytes = public.to_vec().into();
    let in_wrong_context = SignatureKind::InstallationKey(message);
    assert_eq!(
        verify(TEXT, &in_wrong_context),
        Err(SignatureError::Rejected { scheme })
    );
}

#[test]
fn installation_signatures_have_fixed_lengths() {
    let key = InstallationKey::from_seed(&[3; 32]);
    let refused = |change: &dyn Fn(&mut proto::RecoverableEd25519Signature)| match kind(
        key.sign_text(TEXT).unwrap(),
    ) {
        SignatureKind::InstallationKey(mut message) => {
            change(&mut message);
            verify(TEXT, &SignatureKind::InstallationKey(message)).unwrap_err()
        }
        other => panic!("unexpected kind {other:?}"),
    };
    let scheme = SignatureScheme::InstallationKey;
    assert_eq!(
        refused(&|m| m.bytes.truncate(63)),
        malformed(scheme, "length")
    );
    assert_eq!(
        refused(&|m| m.public_key.truncate(31)),
        malformed(scheme, "public key")
    );
}

fn passkey_message(text: &str) -> proto::RecoverablePasskeySignature {
    match kind(passkey(4).sign(text)) {
        SignatureKind::Passkey(message) => message,
        other => panic!("unexpected kind {other:?}"),
    }
}

#[test]
fn a_passkey_signs_the_text_as_its_challenge() {
    for text in [TEXT, "hell", "hel", "~~~???>>>"] {
        let verified = verify(text, &SignatureKind::Passkey(passkey_message(text))).unwrap();
        assert_eq!(verified.signer, passkey(4).identifier());
        assert_eq!(verified.replay_key.len(), 64);
    }
    let signature = SignatureKind::Passkey(passkey_message(TEXT));
    assert_eq!(verify("other", &signature), Err(SignatureError::Challenge));
}

#[test]
fn a_passkey_counts_both_halves_of_s_as_one_signature() {
    let mut message = passkey_message(TEXT);
    let verified = verify(TEXT, &SignatureKind::Passkey(message.clone())).unwrap();
    let signature = p256::ecdsa::Signature::from_der(&message.signature).unwrap();
    let (r, s) = signature.split_scalars();
    let other = p256::ecdsa::Signature::from_scalars(r.to_bytes(), (-*s).to_bytes()).unwrap();
    message.signature = other.to_der().as_bytes().to_vec().into();
    assert_eq!(verify(TEXT, &SignatureKind::Passkey(message)), Ok(verified));
}

#[test]
fn a_passkey_refuses_what_it_did_not_sign() {
    let refused = |change: &dyn Fn(&mut proto::RecoverablePasskeySignature)| {
        let mut message = passkey_message(TEXT);
        change(&mut message);
        verify(TEXT, &SignatureKind::Passkey(message)).unwrap_err()
    };
    let scheme = SignatureScheme::Passkey;
    let rejected = SignatureError::Rejected { scheme };
    assert_eq!(
        refused(&|m| m.authenticator_data = vec![6; 37].into()),
        rejected
    );
    assert_eq!(refused(&|m| m.public_key = passkey_message_of(5)), rejected);
    assert_eq!(
        refused(&|m| m.public_key.truncate(32)),
        malformed(scheme, "public key")
    );
    assert_eq!(
        refused(&|m| m.signature.truncate(8)),
        malformed(scheme, "r or s")
    );
    for client_data in ["", "{}", "[]", r#"{"challenge":7}"#] {
        let bytes = client_data.as_bytes();
        assert_eq!(
            refused(&|m| m.client_data_json = bytes::Bytes::copy_from_slice(bytes)),
            malformed(scheme, "client data")
        );
    }
}

fn passkey_message_of(seed: u8) -> bytes::Bytes {
    match passkey(seed).identifier() {
        Identifier::Passkey(id) => id.key().clone(),
        other => panic!("unexpected identifier {other:?}"),
    }
}

#[test]
fn account_ids_have_one_form() {
    let address = format!("0x{}", "ab".repeat(20));
    let account = AccountId::parse(&format!("eip155:8453:{address}")).unwrap();
    assert_eq!(
        (account.chain_id(), account.address().text()),
        (8453, address.clone())
    );
    assert_eq!(AccountId::parse(&account.text()), Ok(account));
    for text in [
        String::new(),
        address.clone(),
        format!("eip155:{address}"),
        format!("eip155::{address}"),
        format!("eip155:01:{address}"),
        format!("eip155:+1:{address}"),
        format!("eip155:0x1:{address}"),
        format!("eip155:18446744073709551616:{address}"),
        format!("solana:1:{address}"),
        format!("eip155:1:{}", address.to_uppercase()),
        format!("eip155:1:{address} "),
        format!("eip155:1:{address}:1"),
    ] {
        assert!(AccountId::parse(&text).is_err(), "{text}");
    }
}

/// An update with two questions to one chain, and the error that names its first signature.
fn two_wallets() -> (proto::IdentityUpdate, [xmtp_identity::ScwRequest; 2]) {
    let (owner, second) = (contract(1, 10), contract(2, 10));
    let mut inbox = Inbox::of(&owner);
    let update = inbox.sign(&[create(&owner), add(&owner, &second)]);
    let requests = required_verifications(&update);
    (
        update,
        requests.try_into().expect("each question is listed once"),
    )
}

#[test]
fn a_wallet_verdict_decides() {
    let (update, [first, second]) = two_wallets();
    assert_eq!(
        first.account_id.text(),
        format!("eip155:10:0x{}", "01".repeat(20))
    );
    assert_eq!(first.block_number, 7);
    let outcome = |verdicts: [Result<bool, VerifierError>; 2]| {
        let [a, b] = verdicts;
        let verdicts: CollectedVerdicts = [(first.clone(), a), (second.clone(), b)]
            .into_iter()
            .collect();
        apply(None, &update, &verdicts).map(|state| state.identifiers().len())
    };
    let retry = Err(VerifierError::Retryable {
        chain_id: 10,
        cause: "down",
    });
    let refused = Err(VerifierError::Refused {
        chain_id: 10,
        cause: "old block",
    });
    assert_eq!(outcome([Ok(true), Ok(true)]), Ok(2));
    let scheme = SignatureScheme::Erc6492;
    let rejected = ApplyError::InvalidSignature {
        action: 1,
        role: SignatureRole::NewMember,
        source: SignatureError::Rejected { scheme },
    };
    assert_eq!(outcome([Ok(true), Ok(false)]), Err(rejected));
    assert_eq!(
        outcome([retry, Ok(false)]),
        Err(rejected),
        "a refusal outweighs silence"
    );
    let silent = outcome([retry, Ok(true)]).unwrap_err();
    assert!(silent.is_retryable() && matches!(silent, ApplyError::Unverified { action: 0, .. }));
    let old = outcome([refused, Ok(true)]).unwrap_err();
    assert!(!old.is_retryable());
    assert_eq!(old.code(), "identity.verifier.refused");
}

#[test]
fn a_missing_route_or_verdict_is_retryable() {
    let (update, _) = two_wallets();
    for outcome in [
        apply_offline(None, &update),
        apply(None, &update, &CollectedVerdicts::new()),
    ] {
        assert!(outcome.unwrap_err().is_retryable());
    }
}

#[test]
fn no_chain_is_asked_about_an_update_that_fails_anyway() {
    let (owner, phone) = (contract(1, 10), installation(2));
    let mut inbox = Inbox::created_by(&owner);
    let breaks_rule = inbox.sign(&[revoke(&contract(3, 10), &phone)]);
    let outcome = apply_offline(inbox.state.as_ref(), &breaks_rule).map(|_| ());
    assert_breaks(outcome, 0, BrokenRule::NotRecovery);

    let (mut update, _) = two_wallets();
    match &mut update.actions[0].kind {
        Some(proto::identity_action::Kind::CreateInbox(create)) => {
            let signature = create.initial_identifier_signature.as_mut().unwrap();
            match signature.signature.as_mut().unwrap() {
                SignatureKind::Erc6492(message) => message.account_id.push(' '),
                other => panic!("unexpected kind {other:?}"),
            }
        }
        other => panic!("unexpected action {other:?}"),
    }
    assert!(required_verifications(&update).is_empty());
    let outcome = apply_offline(None, &update).unwrap_err();
    assert_eq!(
        (outcome.code(), outcome.is_retryable()),
        ("identity.signature.account_id", false)
    );
}
