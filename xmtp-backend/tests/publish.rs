//! What is admitted, what is refused and why, and what a retry gives.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::*;
use openmls::prelude::Lifetime;
use prost::Message;
use sha2::{Digest, Sha256};
use tonic::Code;
use xmtp_backend::hooks::{Clock, Hooks, Point, SystemClock, Verdict};
use xmtp_identity::UpdateBuilder;
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::backend::v1::publish_error::Reason;
use xmtp_proto::backend::v1::{
    ClientEnvelope, CommitLogEntry, KeyPackage, WelcomeMessage, message_hash, welcome_message,
};
use xmtp_proto::content::PlaintextCommitLogEntry;
use xmtp_proto::identity::{IdentityAction, IdentityUpdate, signature};
use xmtp_proto::status::decode_publish_error;

const SECOND_NS: u64 = 1_000_000_000;

fn current() -> Lifetime {
    Lifetime::new(1_000_000)
}

fn commit_log(group_id: Vec<u8>) -> ClientEnvelope {
    let plain = PlaintextCommitLogEntry {
        group_id: group_id.into(),
        ..Default::default()
    };
    let serialized_commit_log_entry = plain.encode_to_vec().into();
    envelope(Payload::CommitLogEntry(CommitLogEntry {
        serialized_commit_log_entry,
        signature: None,
    }))
}

fn pointer(installation_key: &[u8]) -> ClientEnvelope {
    let installation_key = installation_key.to_vec().into();
    let pointer = welcome_message::WelcomePointer {
        installation_key,
        ..Default::default()
    };
    let version = Some(welcome_message::Version::WelcomePointer(pointer));
    envelope(Payload::WelcomeMessage(WelcomeMessage { version }))
}

/// covers: CFG-090
#[tokio::test]
async fn the_server_derives_topic_hash_kind_and_expiry() {
    let peer = Peer::ephemeral().await;
    let (package, key) = key_package_bytes(&credential("not hex"), current());
    let (inbox, create) = Account::new(1).create(3);
    let group = vec![7; 16];
    let days = Some(7_776_000 * SECOND_NS);
    let with_topic = |kind: u8, identifier: &[u8]| [&[kind], identifier].concat();
    let cases = [
        (
            group_message(private_message(&group, APPLICATION, b"x")),
            with_topic(0, &group),
            days,
            false,
        ),
        (
            group_message(private_message(&group, COMMIT, b"x")),
            with_topic(0, &group),
            None,
            true,
        ),
        (
            group_message(private_message(&group, PROPOSAL, b"x")),
            with_topic(0, &group),
            None,
            true,
        ),
        (welcome(&[8; 32], "w"), with_topic(1, &[8; 32]), days, false),
        (pointer(&[9; 32]), with_topic(1, &[9; 32]), days, false),
        (
            identity(create),
            with_topic(2, inbox.as_bytes()),
            None,
            false,
        ),
        (key_package(package), with_topic(3, &key), days, false),
        (
            commit_log(group.clone()),
            with_topic(4, &group),
            None,
            false,
        ),
    ];
    let envelopes: Vec<_> = cases.iter().map(|case| case.0.clone()).collect();
    let metas = peer.publish(envelopes).await.unwrap().envelope_metas;
    for ((envelope, topic, retention, is_commit), meta) in cases.iter().zip(metas) {
        assert_eq!(topic_of(&meta).topic, *topic);
        assert_eq!(meta.is_commit_or_proposal, *is_commit);
        assert_eq!(
            meta.expiry_ns,
            retention.map_or(0, |ns| meta.server_ns + ns)
        );
        let stored = Sha256::digest(envelope.encode_to_vec()).to_vec();
        let Some(message_hash::Hash::Sha256(hash)) = meta.message_hash.unwrap().hash else {
            panic!("no hash");
        };
        assert_eq!(hash, stored);
    }
}

#[tokio::test]
async fn bytes_after_an_mls_message_are_kept() {
    let peer = Peer::ephemeral().await;
    let data = [
        private_message(&[1; 16], APPLICATION, b"x"),
        b"more".to_vec(),
    ]
    .concat();
    peer.publish_one(group_message(data.clone())).await;
    let read = peer.read(&group_topic(1)).await;
    assert_eq!(read[0].envelope, Some(group_message(data)));
}

#[tokio::test]
async fn what_can_not_be_read_is_malformed() {
    let peer = Peer::ephemeral().await;
    let (package, _) = key_package_bytes(&credential("a"), current());
    let welcome_bytes = [&[0, 1, 0, 3][..], &[0; 40]].concat();
    let update = |inbox_id: &str| {
        let actions = vec![IdentityAction::default()];
        identity(IdentityUpdate {
            actions,
            client_timestamp_ns: 1,
            inbox_id: inbox_id.to_owned(),
        })
    };
    let cases = [
        ClientEnvelope { payload: None },
        group_message(Vec::new()),
        group_message(b"no message".to_vec()),
        group_message(welcome_bytes),
        group_message(private_message(&[1; 15], APPLICATION, b"x")),
        envelope(Payload::WelcomeMessage(WelcomeMessage { version: None })),
        welcome(&[1; 31], "w"),
        pointer(&[1; 33]),
        key_package([package, vec![0]].concat()),
        key_package(b"no package".to_vec()),
        update(""),
        update(&"a".repeat(63)),
        update(&"g".repeat(64)),
        commit_log(vec![1; 15]),
    ];
    for (number, case) in cases.into_iter().enumerate() {
        let error = peer
            .publish(vec![message(1, "good"), case])
            .await
            .expect_err("it is refused");
        assert_refused(&error, Reason::MalformedPayload, Some(1));
        assert!(
            peer.read(&group_topic(1)).await.is_empty(),
            "case {number} stored something"
        );
    }
}

#[tokio::test]
async fn key_packages_must_hold() {
    let peer = Peer::ephemeral().await;
    let (good, _) = key_package_bytes(&credential("a"), current());
    let mut forged = good.clone();
    *forged.last_mut().unwrap() ^= 1;
    let (expired, _) = key_package_bytes(&credential("a"), Lifetime::init(1, 2));
    let (future, _) = key_package_bytes(&credential("a"), Lifetime::init(u64::MAX - 1, u64::MAX));
    let (unreadable, _) = key_package_bytes(b"\xff\xff", current());
    for bad in [forged, expired, future, unreadable] {
        let error = peer.publish(vec![key_package(bad)]).await.unwrap_err();
        assert_refused(&error, Reason::InvalidKeyPackage, Some(0));
    }
    let (long, _) = key_package_bytes(&credential("no hex"), Lifetime::init(0, u64::MAX / 2));
    peer.publish(vec![key_package(good), key_package(long)])
        .await
        .unwrap();
}

#[tokio::test]
async fn identity_updates_must_apply() {
    let peer = Peer::ephemeral().await;
    let account = Account::new(1);
    let (inbox, create) = account.create(0);
    let mut forged = create.clone();
    forged.client_timestamp_ns += 1;
    forged.client_timestamp_ns *= 2;
    let error = peer.publish(vec![identity(forged)]).await.unwrap_err();
    assert_refused(&error, Reason::InvalidSignature, Some(0));

    let other = Account::new(2);
    let wallet = account.wallet.identifier().clone();
    let add = UpdateBuilder::update_inbox(inbox, wallet).add_installation(other.installation.id());
    let mut unsigned = add.build(1_700_000_000_000_000_001).unwrap();
    let text = unsigned.signature_text().to_owned();
    for signature in [
        account.wallet.sign_text(&text),
        other.installation.sign_text(&text),
    ] {
        unsigned = unsigned.with_signature(signature.unwrap()).unwrap();
    }
    let add = unsigned.finish().unwrap();
    let error = peer.publish(vec![identity(add.clone())]).await.unwrap_err();
    assert_refused(&error, Reason::InvalidIdentityUpdate, Some(0));

    let both = vec![
        message(1, "a"),
        identity(create.clone()),
        identity(add.clone()),
    ];
    let error = peer.publish(both).await.unwrap_err();
    assert_refused(&error, Reason::InvalidIdentityUpdate, Some(2));

    let same = vec![identity(create.clone()), identity(create)];
    let metas = peer.publish(same).await.unwrap().envelope_metas;
    assert_eq!(metas[0], metas[1]);
    peer.publish_one(identity(add)).await;
    assert_eq!(peer.read(&identity_topic(inbox)).await.len(), 2);
}

#[tokio::test]
async fn a_contract_signature_waits_for_a_chain() {
    let peer = Peer::ephemeral().await;
    let (_, mut create) = Account::new(1).create(0);
    let Some(xmtp_proto::identity::identity_action::Kind::CreateInbox(action)) =
        create.actions[0].kind.as_mut()
    else {
        panic!("not a creation");
    };
    let address = action.initial_identifier.clone();
    let contract = xmtp_proto::identity::SmartContractWalletSignature {
        account_id: format!("eip155:1:{address}"),
        block_number: 1,
        signature: vec![1; 65].into(),
    };
    let signature = action.initial_identifier_signature.as_mut().unwrap();
    signature.signature = Some(signature::Signature::Erc6492(contract));
    create.actions.truncate(1);
    let error = peer.publish(vec![identity(create)]).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
}

/// covers: CFG-090
#[tokio::test]
async fn bounds_are_told_apart() {
    let mut config = config();
    config.limits.max_envelope_bytes = 1000;
    config.limits.max_publish_topics = 3;
    config.limits.max_request_bytes = 10_000;
    config.limits.max_identity_entries = 1;
    let peer = Peer::start(config).await;

    let large = message(1, &"x".repeat(1000));
    let error = peer
        .publish(vec![message(1, "a"), large])
        .await
        .unwrap_err();
    assert_refused(&error, Reason::TooLarge, Some(1));

    let topics = |count: u8| {
        (0..count)
            .map(|group| message(group, "a"))
            .collect::<Vec<_>>()
    };
    let error = peer.publish(topics(4)).await.unwrap_err();
    assert_refused(&error, Reason::TooLarge, None);
    peer.publish(topics(3)).await.unwrap();

    let error = peer
        .publish(vec![message(1, &"y".repeat(500)); 20])
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::OutOfRange);
    assert_eq!(decode_publish_error(error.details()), None);

    let account = Account::new(1);
    let (inbox, create) = account.create(0);
    peer.publish_one(identity(create.clone())).await;
    let wallet = account.wallet.identifier().clone();
    let revoke =
        UpdateBuilder::update_inbox(inbox, wallet).revoke(account.installation.identifier());
    let error = peer
        .publish(vec![identity(account.sign(revoke))])
        .await
        .unwrap_err();
    assert_refused(&error, Reason::InvalidIdentityUpdate, Some(0));
    peer.publish_one(identity(create)).await;
}

#[tokio::test]
async fn the_lowest_failing_index_is_told() {
    let peer = Peer::ephemeral().await;
    let (expired, _) = key_package_bytes(&credential("a"), Lifetime::init(1, 2));
    let expired = key_package(expired);
    let unset = ClientEnvelope { payload: None };
    let error = peer
        .publish(vec![message(1, "a"), expired.clone(), unset.clone()])
        .await
        .unwrap_err();
    assert_refused(&error, Reason::InvalidKeyPackage, Some(1));
    let error = peer.publish(vec![unset, expired]).await.unwrap_err();
    assert_refused(&error, Reason::MalformedPayload, Some(0));
}

#[tokio::test]
async fn equal_envelopes_of_a_request_are_one() {
    let peer = Peer::ephemeral().await;
    let request = vec![
        message(1, "a"),
        message(2, "a"),
        message(1, "a"),
        message(1, "b"),
    ];
    let metas = peer.publish(request).await.unwrap().envelope_metas;
    let ids: Vec<u64> = metas.iter().map(sequence_id).collect();
    assert_eq!(ids, [1, 2, 1, 3]);
    assert_eq!(
        peer.publish(Vec::new()).await.unwrap().envelope_metas.len(),
        0
    );
}

/// A clock that a test can move.
#[derive(Debug)]
struct Moving(AtomicU64);

impl Clock for Moving {
    fn now_ns(&self) -> u64 {
        SystemClock.now_ns() + self.0.load(Ordering::Relaxed)
    }
}

/// covers: EXT-001
#[tokio::test]
async fn a_retry_succeeds_also_when_its_checks_would_not_pass_any_more() {
    let clock = Arc::new(Moving(AtomicU64::new(0)));
    let mut config = config();
    config.clock = clock.clone();
    let peer = Peer::start(config).await;
    let (package, _) = key_package_bytes(&credential("a"), Lifetime::new(3600));
    let (late, _) = key_package_bytes(&credential("a"), Lifetime::new(3600));
    let (_, create) = Account::new(1).create(0);
    let request = vec![key_package(package), identity(create), message(1, "a")];
    let first = peer.publish(request.clone()).await.unwrap();

    clock.0.store(7200 * SECOND_NS, Ordering::Relaxed);
    let error = peer.publish(vec![key_package(late)]).await.unwrap_err();
    assert_refused(&error, Reason::InvalidKeyPackage, Some(0));
    assert_eq!(
        peer.publish(request).await.unwrap(),
        first,
        "the inbox exists, the package is old"
    );
    assert_eq!(peer.read(&group_topic(1)).await.len(), 1);
}

/// Loses the next response after a commit.
#[derive(Debug, Default)]
struct LoseResponse(std::sync::atomic::AtomicBool);

#[tonic::async_trait]
impl Hooks for LoseResponse {
    async fn reach(&self, point: Point) -> Verdict {
        match point == Point::Committed && self.0.swap(false, Ordering::Relaxed) {
            true => Verdict::Unavailable,
            false => Verdict::Go,
        }
    }
}

/// covers: EXT-001
#[tokio::test]
async fn a_retry_after_a_lost_response_stores_nothing_twice() {
    let hooks = Arc::new(LoseResponse::default());
    let mut config = config();
    config.hooks = hooks.clone();
    let peer = Peer::start(config).await;
    hooks.0.store(true, Ordering::Relaxed);
    let error = peer.publish(vec![message(1, "a")]).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert_eq!(sequence_id(&peer.publish_one(message(1, "a")).await), 1);
    assert_eq!(peer.read(&group_topic(1)).await.len(), 1);
}

#[tokio::test]
async fn unknown_fields_are_left_out_and_inner_bytes_kept() {
    let peer = Peer::ephemeral().await;
    let (package, _) = key_package_bytes(&credential("a"), current());
    let plain = envelope(Payload::KeyPackage(KeyPackage {
        key_package_tls_serialized: package.into(),
    }));
    let meta = peer.publish_one(plain.clone()).await;
    let services = peer.running.services();
    // The same envelope with a field of the future decodes to the same stored bytes.
    let unknown = [plain.encode_to_vec(), vec![0xf8, 0x07, 0x01]].concat();
    let decoded = ClientEnvelope::decode(unknown.as_slice()).unwrap();
    let request = xmtp_proto::backend::v1::PublishRequest {
        envelopes: vec![decoded],
    };
    let again = services.publish(request).await.unwrap();
    assert_eq!(again.envelope_metas, [meta]);
}

#[tokio::test]
async fn two_updates_checked_against_one_log_do_not_both_enter_it() {
    let peer = Peer::ephemeral().await;
    let account = Account::new(1);
    let (inbox, create) = account.create(0);
    peer.publish_one(identity(create)).await;
    let wallet = account.wallet.identifier().clone();
    let updates = (10..18).map(|number| {
        let other = Account::new(number);
        let add = UpdateBuilder::update_inbox(inbox, wallet.clone());
        let add = add.add_installation(other.installation.id());
        let mut unsigned = add
            .build(1_700_000_000_000_000_000 + u64::from(number))
            .unwrap();
        let text = unsigned.signature_text().to_owned();
        for signature in [
            account.wallet.sign_text(&text),
            other.installation.sign_text(&text),
        ] {
            unsigned = unsigned.with_signature(signature.unwrap()).unwrap();
        }
        peer.publish(vec![identity(unsigned.finish().unwrap())])
    });
    let results = futures_util::future::join_all(updates).await;
    let mut stored = 1;
    for result in results {
        match result {
            Ok(_) => stored += 1,
            Err(error) => assert_eq!(error.code(), Code::Aborted, "{error:?}"),
        }
    }
    assert_eq!(peer.read(&identity_topic(inbox)).await.len(), stored);
    assert!(stored > 1);
}
