//! Welcomes: wrapped and opened with both KEMs and behind pointers, and what is refused.

mod common;

use common::{client, pair};
use openmls::prelude::Capabilities;
use xmtp_core::runtime::SimulatedRuntime;
use xmtp_mls::group::{ContextForm, GroupContext, NewConversation, Policies, Preset, preset_of};
use xmtp_mls::key_package::{PackageFault, PackageRule, check};
use xmtp_mls::welcome::{
    NamedKey, Opened, Recipient, WelcomeFault, WelcomeMeaning, WrapperAlgorithm, WrapperKeyPair,
    check_anchor, open, wrap,
};
use xmtp_proto::backend::v1::WelcomeMessage;
use xmtp_proto::backend::v1::welcome_message::Version;
use xmtp_proto::content::ConversationType;
use xmtp_proto::id::{InstallationId, SequenceId};

fn key(pair: &WrapperKeyPair) -> NamedKey {
    NamedKey {
        algorithm: pair.public.algorithm(),
        private: pair.private.clone(),
    }
}

fn opened(message: &WelcomeMessage, pair: &WrapperKeyPair) -> Result<Opened, WelcomeFault> {
    open(message, |public| {
        assert_eq!(public, pair.public.as_bytes());
        Ok(Some(key(pair)))
    })
}

fn mls_welcome() -> Vec<u8> {
    let (one, two) = (client(1), client(2));
    let (_, mut group) = one.create(NewConversation::Group(Preset::AllMembers));
    one.add(&mut group, &[two.package()]).welcome.unwrap()
}

fn recipients(
    runtime: &SimulatedRuntime,
    algorithm: WrapperAlgorithm,
    count: u8,
) -> Vec<(WrapperKeyPair, Recipient)> {
    let pairs = (0..count).map(|n| {
        let pair = WrapperKeyPair::generate(algorithm, runtime).unwrap();
        let recipient = Recipient {
            installation: InstallationId::from_bytes([n; 32]),
            key: pair.public.clone(),
            reads_pointers: true,
        };
        (pair, recipient)
    });
    pairs.collect()
}

#[test]
fn both_kems_open_what_they_sealed_and_nothing_else() {
    let runtime = SimulatedRuntime::new(5);
    let welcome = mls_welcome();
    for algorithm in [WrapperAlgorithm::X25519, WrapperAlgorithm::XWing] {
        let made = recipients(&runtime, algorithm, 2);
        let list: Vec<_> = made
            .iter()
            .map(|(_, recipient)| recipient.clone())
            .collect();
        let wrapped = wrap(&runtime, &list, &welcome, SequenceId::from(9)).unwrap();
        assert_eq!(wrapped.len(), 2);
        let Ok(Opened::Welcome(unwrapped)) = opened(&wrapped[0], &made[0].0) else {
            panic!("not opened");
        };
        assert_eq!(unwrapped.anchor, Some(SequenceId::from(9)));

        let other = key(&made[1].0);
        let wrong: Result<_, WelcomeFault> = open(&wrapped[0], |_| Ok(Some(other)));
        assert_eq!(wrong.unwrap_err(), WelcomeFault::Decryption);
        let none: Result<_, WelcomeFault> = open(&wrapped[0], |_| Ok(None));
        assert_eq!(none.unwrap_err(), WelcomeFault::NoKey);
        for field in 0..2 {
            let mut damaged = wrapped[0].clone();
            let Some(Version::V1(v1)) = &mut damaged.version else {
                panic!("not inline");
            };
            let part = if field == 0 {
                &mut v1.data
            } else {
                &mut v1.welcome_metadata
            };
            let mut bytes = part.to_vec();
            *bytes.last_mut().unwrap() ^= 1;
            *part = bytes.into();
            assert_eq!(
                opened(&damaged, &made[0].0).unwrap_err(),
                WelcomeFault::Decryption
            );
        }
    }
}

#[test]
fn another_algorithm_than_advertised_is_a_downgrade_and_an_unknown_one_blocks() {
    let runtime = SimulatedRuntime::new(5);
    let made = recipients(&runtime, WrapperAlgorithm::X25519, 1);
    let list = [made[0].1.clone()];
    let wrapped = wrap(&runtime, &list, &mls_welcome(), SequenceId::from(9)).unwrap();
    let advertised = NamedKey {
        algorithm: WrapperAlgorithm::XWing,
        ..key(&made[0].0)
    };
    let found: Result<_, WelcomeFault> = open(&wrapped[0], |_| Ok(Some(advertised)));
    assert_eq!(found.unwrap_err(), WelcomeFault::Downgrade);

    let mut unknown = wrapped[0].clone();
    let Some(Version::V1(v1)) = &mut unknown.version else {
        panic!("not inline")
    };
    v1.wrapper_algorithm = 9;
    let fault = open(&unknown, |_| Ok::<_, WelcomeFault>(None)).unwrap_err();
    assert_eq!(
        (fault, fault.meaning()),
        (WelcomeFault::UnknownAlgorithm, WelcomeMeaning::Block)
    );
}

#[test]
fn pointers_begin_above_two_readers_and_lead_to_one_welcome() {
    let runtime = SimulatedRuntime::new(5);
    let made = recipients(&runtime, WrapperAlgorithm::XWing, 3);
    let mut list: Vec<_> = made
        .iter()
        .map(|(_, recipient)| recipient.clone())
        .collect();
    let welcome = mls_welcome();
    let wrapped = wrap(&runtime, &list, &welcome, SequenceId::from(9)).unwrap();
    assert_eq!(wrapped.len(), 4);
    let pointee = wrapped[0].version.as_ref().unwrap();
    for ((pair, _), message) in made.iter().zip(&wrapped[1..]) {
        let Ok(Opened::Pointer(pointer)) = opened(message, pair) else {
            panic!("no pointer");
        };
        let unwrapped = pointer.open(pointee).unwrap();
        assert_eq!(unwrapped.anchor, Some(SequenceId::from(9)));
        let to_pointer = pointer.open(message.version.as_ref().unwrap());
        assert_eq!(to_pointer.unwrap_err(), WelcomeFault::PointerToPointer);
        let Version::V1(v1) = pointee else {
            panic!("not inline")
        };
        let mut moved = v1.clone();
        moved.installation_key = vec![9; 32].into();
        let moved = pointer.open(&Version::V1(moved)).unwrap_err();
        assert_eq!(moved, WelcomeFault::WrongDestination);
        let mut resealed = v1.clone();
        resealed.wrapper_algorithm = 1;
        let resealed = pointer.open(&Version::V1(resealed)).unwrap_err();
        assert_eq!(resealed, WelcomeFault::NotSymmetric);
        let mut damaged = v1.clone();
        damaged.data = damaged.data.slice(1..);
        let damaged = pointer.open(&Version::V1(damaged)).unwrap_err();
        assert_eq!(damaged, WelcomeFault::Decryption);
    }
    list[0].reads_pointers = false;
    let wrapped = wrap(&runtime, &list, &welcome, SequenceId::from(9)).unwrap();
    let inline = |message: &WelcomeMessage| matches!(message.version, Some(Version::V1(_)));
    assert_eq!(wrapped.len(), 3);
    assert!(wrapped.iter().all(inline));
}

#[test]
fn an_anchor_lies_before_its_welcome() {
    let (four, five) = (SequenceId::from(4), SequenceId::from(5));
    assert_eq!(check_anchor(Some(four), five, 1), Ok(four));
    assert_eq!(check_anchor(None, five, 1), Err(WelcomeFault::NoMetadata));
    assert_eq!(
        check_anchor(Some(five), five, 1),
        Err(WelcomeFault::AnchorNotBefore)
    );
    let zero = Some(SequenceId::ZERO);
    assert_eq!(
        check_anchor(zero, five, 1),
        Err(WelcomeFault::AnchorMissing)
    );
    assert_eq!(check_anchor(zero, five, 0), Ok(SequenceId::ZERO));
}

#[test]
fn a_group_of_four_is_joined_through_pointers() {
    let one = client(1);
    let others = [client(2), client(3), client(4)];
    let (_, mut group) = one.create(NewConversation::Group(Preset::AdminsOnly));
    let added: Vec<_> = others.iter().map(common::Client::package).collect();
    let built = one.add(&mut group, &added);
    let wrapped = one.wrapped(&added, &built);
    assert_eq!(wrapped.len(), 4);
    for other in &others {
        let joined = other.join(&wrapped);
        assert_eq!(
            joined.epoch_authenticator().as_slice(),
            group.epoch_authenticator().as_slice()
        );
    }
}

#[test]
fn a_new_group_says_what_it_was_made_for() {
    let (one, group, _, joined) = pair();
    let context = GroupContext::of(&joined).unwrap();
    assert_eq!(context, GroupContext::of(&group).unwrap());
    assert_eq!(context.form, ContextForm::Extensions);
    assert_eq!(context.conversation_type, ConversationType::Group);
    assert!(context.is_super_admin(&one.installation.inbox()));
    assert_eq!(
        context.members[&one.installation.inbox()],
        SequenceId::from(3)
    );
    assert!(context.commit_log_seed().is_some() && context.floor().is_none());
    let Policies::Set(policies) = &context.policies else {
        panic!("no set")
    };
    assert_eq!(preset_of(policies), Some(Preset::AllMembers));
    assert!(!format!("{context:?}").contains("name"));

    let two = client(2);
    let (_, dm) = one.create(NewConversation::Dm(two.installation.inbox()));
    let dm = GroupContext::of(&dm).unwrap();
    assert_eq!(dm.conversation_type, ConversationType::Dm);
    assert!(dm.admins.is_empty() && dm.super_admins.is_empty());
    let name = dm.dm_id().unwrap();
    assert!(name.starts_with("dm:0101") && name.contains(":0202"));
}

#[test]
fn a_key_package_is_refused_for_another_owner_or_time() {
    let one = client(1);
    let made = one.write(|txn| Ok(xmtp_mls::key_package::make(txn, &one.installation).unwrap()));
    let Some(xmtp_proto::backend::v1::client_envelope::Payload::KeyPackage(package)) =
        made.unwrap().envelope.payload
    else {
        panic!("no key package");
    };
    let bytes = package.key_package_tls_serialized;
    let (id, inbox) = (one.installation.id(), one.installation.inbox());
    let now = one.runtime.now_ns();
    let rule = |found: Result<_, PackageFault>| found.err().map(|PackageFault(rule)| rule);
    let checked = check(&bytes, &id, &inbox, now).unwrap();
    let capabilities: &Capabilities = checked.package.leaf_node().capabilities();
    assert_eq!(
        (
            capabilities.extensions().len(),
            capabilities.proposals().len()
        ),
        (9, 2)
    );
    let other = client(2).installation;
    assert_eq!(
        rule(check(&bytes, &other.id(), &inbox, now)),
        Some(PackageRule::Installation)
    );
    assert_eq!(
        rule(check(&bytes, &id, &other.inbox(), now)),
        Some(PackageRule::Inbox)
    );
    assert!(matches!(
        rule(check(&bytes, &id, &inbox, 1)),
        Some(PackageRule::Lifetime(_))
    ));
    let mut damaged = bytes.to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    assert_eq!(
        rule(check(&damaged, &id, &inbox, now)),
        Some(PackageRule::Validity)
    );
    assert_eq!(
        rule(check(&bytes[1..], &id, &inbox, now)),
        Some(PackageRule::Encoding)
    );
}
