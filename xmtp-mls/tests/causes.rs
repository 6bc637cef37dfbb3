//! Faults of groups and Welcomes, each reached by its real cause.

mod common;

use std::sync::Arc;

use common::{Client, Failure, client, pair};
use openmls::credentials::CredentialWithKey;
use openmls::group::MlsGroup;
use openmls::prelude::{KeyPackage, LeafNodeIndex, Lifetime, MlsMessageBodyIn, MlsMessageIn};
use openmls::schedule::PreSharedKeyId;
use tls_codec::{Deserialize, Serialize};
use xmtp_core::error::{Class, Coded};
use xmtp_core::processor::{PendingItem, Rejected, Verdict};
use xmtp_core::runtime::SimulatedRuntime;
use xmtp_mls::group::{
    CommitPlan, Frame, GroupFault, JoinFault, NewConversation, Preset, build_commit, encrypt,
    merge_pending, process, stage_join,
};
use xmtp_mls::processor::MlsProcessor;
use xmtp_mls::welcome::{
    NamedKey, Recipient, WelcomeFault, WelcomeMeaning, WrapperAlgorithm, WrapperKeyPair,
    WrapperPublicKey, open, wrap,
};
use xmtp_mls::{Installation, Provider};
use xmtp_proto::Topic;
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::backend::v1::{ClientEnvelope, GroupMessage, WelcomeMessage};
use xmtp_proto::id::{GroupId, InboxId, InstallationId, SequenceId};

/// Processes bytes as a member does and answers why they are not applied.
fn fault(of: &Client, group: &mut MlsGroup, bytes: &[u8]) -> GroupFault {
    let processed = of.write(|txn| {
        let provider = Provider::new(txn);
        let frame = Frame::decode(bytes)?;
        Ok(process(group, &provider, frame).map(drop))
    });
    processed.unwrap().expect_err("it does not apply")
}

fn text(of: &Client, group: &mut MlsGroup) -> Result<Vec<u8>, Failure> {
    of.write(|txn| {
        let provider = Provider::new(txn);
        Ok(encrypt(group, &provider, &of.installation, b"text")?)
    })
}

/// A message of a group that this installation was removed from.
///
/// covers: EXT-008
#[test]
fn whoever_was_removed_says_nothing() {
    let (one, mut group, two, mut joined) = pair();
    let removal = one.write(|txn| {
        let provider = Provider::new(txn);
        let plan = CommitPlan {
            removes: vec![LeafNodeIndex::new(1)],
            ..CommitPlan::default()
        };
        let built = build_commit(&mut group, &provider, &one.installation, plan)?;
        merge_pending(&mut group, &provider)?;
        Ok(built.commit)
    });
    let removal = removal.unwrap();
    two.write(|txn| {
        use openmls::prelude::ProcessedMessageContent::StagedCommitMessage;
        let provider = Provider::new(txn);
        let processed = process(&mut joined, &provider, Frame::decode(&removal)?)?;
        let StagedCommitMessage(staged) = processed.into_content() else {
            panic!("no commit");
        };
        provider.settle(joined.merge_staged_commit(&provider, *staged))?;
        Ok(())
    })
    .unwrap();
    let Err(Failure::Group(found)) = text(&two, &mut joined) else {
        panic!("a removed member speaks");
    };
    assert_eq!(
        (found.code(), found.class()),
        ("mls.inactive", Class::Permanent)
    );
}

/// A message of another group, one that was damaged, and a commit whose proposal is not held.
///
/// covers: EXT-008
#[test]
fn what_others_send_wrongly_is_told() {
    let (one, mut group, two, mut joined) = pair();
    let (_, mut other) = one.create(NewConversation::Group(Preset::AllMembers));
    let foreign = text(&one, &mut other).unwrap();
    assert_eq!(fault(&two, &mut joined, &foreign).code(), "mls.invalid");
    let mut damaged = text(&one, &mut group).unwrap();
    *damaged.last_mut().unwrap() ^= 1;
    let found = fault(&two, &mut joined, &damaged);
    assert_eq!(
        (found.code(), found.class()),
        ("mls.undecryptable", Class::Permanent)
    );

    let by_reference = one.write(|txn| {
        let provider = Provider::new(txn);
        let signer = &one.installation;
        let removed = LeafNodeIndex::new(1);
        let proposed = group.propose_remove_member(&provider, signer, removed);
        proposed.expect("it is proposed");
        let committed = group.commit_to_pending_proposals(&provider, signer);
        let (commit, _, _) = committed.expect("it is committed");
        Ok(commit.tls_serialize_detached().expect("it is encoded"))
    });
    let found = fault(&two, &mut joined, &by_reference.unwrap());
    assert_eq!(found.code(), "mls.proposal_missing", "{found:?}");
}

/// Makes a package like any other of a client, but for its lifetime.
fn package_of(of: &Client, lifetime: Lifetime) -> KeyPackage {
    let usual = of.package().package;
    let leaf = usual.leaf_node();
    let credential = CredentialWithKey {
        credential: leaf.credential().clone(),
        signature_key: leaf.signature_key().clone(),
    };
    let made = of.write(|txn| {
        let provider = Provider::new(txn);
        let made = KeyPackage::builder()
            .key_package_lifetime(lifetime)
            .leaf_node_capabilities(leaf.capabilities().clone())
            .leaf_node_extensions(leaf.extensions().clone())
            .build(usual.ciphersuite(), &provider, &of.installation, credential);
        Ok(made.expect("it is made"))
    });
    made.unwrap().key_package().clone()
}

/// A proposal by itself is refused in a group whose form has none, also when the clock would stop
/// a commit with the package that it adds: otherwise any member could set the group aside.
///
/// covers: STR-074
#[test]
fn a_proposal_by_itself_sets_no_group_aside() {
    /// 2100-01-01, in seconds.
    const FAR: u64 = 4_102_444_800;
    let (one, mut group, two, joined) = pair();
    let id = GroupId::try_from(joined.group_id().as_slice()).unwrap();
    let receiver = Installation::from_seed(&[2; 32], InboxId::from_bytes([2; 32]));
    let processor = MlsProcessor::new(Arc::new(receiver)).processors().group;
    for (from, until) in [(1, 2), (FAR, FAR + 1)] {
        let package = package_of(&client(3), Lifetime::init(from, until));
        let proposal = one.write(|txn| {
            let provider = Provider::new(txn);
            let proposed = group.propose_add_member(&provider, &one.installation, &package);
            let (proposal, _) = proposed.expect("it is proposed");
            Ok(proposal.tls_serialize_detached().expect("it is encoded"))
        });
        let item = PendingItem {
            topic: Topic::group(&id),
            sequence_id: SequenceId::from(11),
            server_ns: 1,
            envelope: ClientEnvelope {
                payload: Some(Payload::GroupMessage(GroupMessage {
                    data: proposal.unwrap().into(),
                    ..Default::default()
                })),
            },
            own: None,
        };
        let verdict = two.write(|txn| {
            let mut turn = processor.turn(txn, &id)?;
            let verdict = turn.apply(txn, &item)?;
            turn.flush(txn)?;
            Ok(verdict)
        });
        let refused = Verdict::Rejected(Rejected::UnsupportedProposal);
        assert_eq!(verdict.unwrap(), refused, "{from} to {until}");
    }
}

/// A Welcome that needs a key which was shared beforehand.
///
/// covers: EXT-008
#[test]
fn a_welcome_with_a_shared_key_is_refused() {
    let (one, two) = (client(1), client(2));
    let (_, mut group) = one.create(NewConversation::Group(Preset::AllMembers));
    let package = two.package();
    let shared = PreSharedKeyId::external(vec![1], vec![2; 32]);
    let welcome = one.write(|txn| {
        let provider = Provider::new(txn);
        let signer = &one.installation;
        shared.store(&provider, b"secret").expect("it is stored");
        let proposed = group.propose_pre_shared_key(&provider, signer, shared.clone());
        proposed.expect("it is proposed");
        let added = group.propose_add_member(&provider, signer, &package.package);
        added.expect("it is proposed");
        let committed = group.commit_to_pending_proposals(&provider, signer);
        let (_, welcome, _) = committed.expect("it is committed");
        let welcome = welcome.expect("somebody was added");
        Ok(welcome.tls_serialize_detached().expect("it is encoded"))
    });
    let welcome = MlsMessageIn::tls_deserialize_exact(welcome.unwrap()).unwrap();
    let MlsMessageBodyIn::Welcome(welcome) = welcome.extract() else {
        panic!("no Welcome");
    };
    two.write(|txn| {
        let refused = stage_join(txn, welcome).unwrap_err();
        let JoinFault::Welcome(refused) = refused else {
            panic!("{refused}");
        };
        assert_eq!(refused.code(), "welcome.pre_shared_keys");
        Ok(())
    })
    .unwrap();
}

/// Wraps bytes that need not be a Welcome, and opens them again.
fn rewrapped(bytes: &[u8]) -> WelcomeFault {
    let runtime = SimulatedRuntime::new(5);
    let pair = WrapperKeyPair::generate(WrapperAlgorithm::X25519, &runtime).unwrap();
    let recipient = Recipient {
        installation: InstallationId::from_bytes([1; 32]),
        key: pair.public.clone(),
        reads_pointers: false,
    };
    let wrapped = wrap(&runtime, &[recipient], bytes, SequenceId::from(9)).unwrap();
    let key = NamedKey {
        algorithm: pair.public.algorithm(),
        private: pair.private.clone(),
    };
    open(&wrapped[0], |_| Ok::<_, WelcomeFault>(Some(key))).unwrap_err()
}

/// Welcomes of no form, of another version and of another content, and keys of no length.
///
/// covers: EXT-008
#[test]
fn welcomes_that_are_none_are_told() {
    assert_eq!(rewrapped(b"").code(), "welcome.not_a_welcome");
    assert_eq!(rewrapped(&[0, 1, 0, 9, 9]).code(), "welcome.not_a_welcome");
    let newer = rewrapped(&[0, 2, 0, 9, 9]);
    assert_eq!(
        (newer.code(), newer.meaning()),
        ("welcome.unknown_mls_version", WelcomeMeaning::Block)
    );
    let bare = WelcomeMessage { version: None };
    let bare = open(&bare, |_| Ok::<_, WelcomeFault>(None)).unwrap_err();
    assert_eq!(bare.code(), "welcome.unknown_form");
    for algorithm in [WrapperAlgorithm::X25519, WrapperAlgorithm::XWing] {
        let short = WrapperPublicKey::new(algorithm, &[1; 31]).unwrap_err();
        assert_eq!(short.code(), "welcome.bad_public_key");
    }
    assert!(client(1).database.close().is_ok());
}
