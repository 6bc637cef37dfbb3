//! Updates that released clients published: rebuilt, checked and applied.

use std::collections::BTreeMap;
use std::fs;

use prost::Message;
use serde_json::Value;
use xmtp_identity::{
    Action, NoSmartContractWallets, ParsedUpdate, UpdateBuilder, apply, replay, signature_text,
    verify_signature,
};
use xmtp_proto::identity::IdentityUpdate;

const VECTORS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../tests/vectors/observer-1.11/vectors.json"
);

struct Recorded {
    inbox_id: String,
    text: String,
    bytes: Vec<u8>,
}

fn recorded() -> Vec<Recorded> {
    let vectors: Value = serde_json::from_slice(&fs::read(VECTORS).unwrap()).unwrap();
    let updates = vectors["identity_updates"].as_array().unwrap();
    let field = |update: &Value, name: &str| update[name].as_str().unwrap().to_owned();
    let recorded: Vec<_> = updates
        .iter()
        .map(|update| Recorded {
            inbox_id: field(update, "inbox_id"),
            text: field(update, "signature_text"),
            bytes: hex::decode(field(update, "identity_update")).unwrap(),
        })
        .collect();
    assert_eq!(recorded.len(), 11);
    recorded
}

fn decode(recorded: &Recorded) -> IdentityUpdate {
    IdentityUpdate::decode(&recorded.bytes[..]).unwrap()
}

#[test]
fn updates_encode_to_the_recorded_bytes() {
    for recorded in recorded() {
        assert_eq!(decode(&recorded).encode_to_vec(), recorded.bytes);
    }
}

#[test]
fn the_rebuilt_text_is_the_recorded_one() {
    for recorded in recorded() {
        assert_eq!(signature_text(&decode(&recorded)).unwrap(), recorded.text);
    }
}

#[test]
fn every_signature_holds() {
    let mut checked = 0;
    for recorded in recorded() {
        let parsed = ParsedUpdate::parse(&decode(&recorded)).unwrap();
        for (_, signature) in parsed.actions.iter().flat_map(Action::signatures) {
            verify_signature(&recorded.text, signature, &NoSmartContractWallets).unwrap();
            checked += 1;
        }
    }
    assert_eq!(checked, 25);
}

#[test]
fn the_updates_apply_in_sequence() {
    let mut states = BTreeMap::new();
    let mut logs: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for recorded in recorded() {
        let update = decode(&recorded);
        let before = states.remove(&recorded.inbox_id);
        let after = apply(before.as_ref(), &update, &NoSmartContractWallets).unwrap();
        assert_eq!(after.inbox_id().to_hex(), recorded.inbox_id);
        states.insert(recorded.inbox_id.clone(), after);
        logs.entry(recorded.inbox_id).or_default().push(update);
    }
    assert_eq!(states.len(), 6);
    for (inbox, state) in &states {
        let replayed = replay(&logs[inbox], &NoSmartContractWallets).unwrap();
        assert_eq!(replayed.as_ref(), Some(state));
        assert_eq!(
            (state.installations().len(), state.identifiers().len()),
            (1, 1)
        );
    }
    let moved =
        |state: &&xmtp_identity::AssociationState| !state.is_member(&state.recovery().identifier);
    assert_eq!(
        states.values().filter(moved).count(),
        1,
        "inboxes with another recovery"
    );
}

#[test]
fn the_builder_rebuilds_the_text_of_a_new_inbox() {
    for recorded in recorded().iter().take(6) {
        let parsed = ParsedUpdate::parse(&decode(recorded)).unwrap();
        let [
            Action::Create { initial, nonce, .. },
            Action::Add { member, .. },
        ] = &parsed.actions[..]
        else {
            panic!("a registration creates an inbox and adds an installation");
        };
        let unsigned = UpdateBuilder::create_inbox(initial.clone(), *nonce)
            .add_member(member.clone())
            .build(parsed.client_timestamp_ns)
            .unwrap();
        assert_eq!(unsigned.signature_text(), recorded.text);
        assert_eq!(unsigned.inbox_id(), parsed.inbox_id);
    }
}
