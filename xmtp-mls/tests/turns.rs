//! The storage adapter under turns: what is held back, what a fault does, what a replay meets.

mod common;

use std::sync::Arc;

use common::{Client, Failure, client, pair};
use openmls::group::MlsGroup;
use openmls::prelude::ProcessedMessageContent;
use xmtp_core::runtime::{Runtime, SimulatedRuntime};
use xmtp_core::storage::{Database, Durability, StorageError, WriteTxn};
use xmtp_core::testing::faulty::Faulty;
use xmtp_core::testing::memory::MemoryDisk;
use xmtp_mls::group::{
    CommitPlan, Frame, FrameKind, GroupContext, GroupFault, Meaning, NewConversation, Preset,
    build_commit, clear_pending, encrypt, load, merge_pending, process,
};
use xmtp_mls::store::{Deferred, erase_group};
use xmtp_mls::{Installation, Provider};
use xmtp_proto::id::{GroupId, InboxId};

fn id(group: &MlsGroup) -> GroupId {
    GroupId::try_from(group.group_id().as_slice()).unwrap()
}

fn say(from: &Client, group: &mut MlsGroup, text: &str) -> Vec<u8> {
    let say = |txn: &mut WriteTxn<'_>| {
        let provider = Provider::new(txn);
        Ok(encrypt(
            group,
            &provider,
            &from.installation,
            text.as_bytes(),
        )?)
    };
    from.write(say).unwrap()
}

fn hear(
    txn: &mut WriteTxn<'_>,
    deferred: &Deferred,
    group: &mut MlsGroup,
    bytes: &[u8],
) -> Result<Vec<u8>, GroupFault> {
    let provider = Provider::deferring(txn, deferred);
    let processed = process(group, &provider, Frame::decode(bytes)?)?;
    match processed.into_content() {
        ProcessedMessageContent::ApplicationMessage(message) => Ok(message.into_bytes()),
        content => panic!("{content:?}"),
    }
}

#[test]
fn two_members_talk_both_ways_and_after_a_reload() {
    let (one, mut group, two, mut joined) = pair();
    assert_eq!(
        group.epoch_authenticator().as_slice(),
        joined.epoch_authenticator().as_slice()
    );
    let hello = say(&one, &mut group, "hello");
    let frame = Frame::decode(&hello).unwrap();
    assert_eq!((frame.kind(), frame.epoch()), (FrameKind::Application, 1));
    assert_eq!(frame.group_id(), &id(&group));

    let mut heard = Vec::new();
    two.write(|txn| {
        let deferred = Deferred::new();
        heard = hear(txn, &deferred, &mut joined, &hello)?;
        Ok(deferred.flush(&mut joined, txn)?)
    })
    .unwrap();
    assert_eq!(heard, b"hello");

    let answer = say(&two, &mut joined, "hello back");
    let loaded = one.write(|txn| {
        let mut group = load(&Provider::new(txn), &id(&joined))?;
        let deferred = Deferred::new();
        let heard = hear(txn, &deferred, &mut group, &answer)?;
        deferred.flush(&mut group, txn)?;
        Ok(heard)
    });
    assert_eq!(loaded.unwrap(), b"hello back");
}

#[test]
fn a_turn_dropped_without_flush_cannot_commit() {
    let (one, mut group, two, mut joined) = pair();
    let hello = say(&one, &mut group, "hello");
    let refused = two.write(|txn| {
        let deferred = Deferred::new();
        hear(txn, &deferred, &mut joined, &hello)?;
        assert!(deferred.is_dirty() && txn.is_held_back());
        Ok(())
    });
    assert!(matches!(
        refused,
        Err(Failure::Storage(StorageError::HeldBack))
    ));

    // Nothing was consumed: the message is read by a group loaded afresh.
    let heard = two.write(|txn| {
        let mut joined = load(&Provider::new(txn), &id(&group))?;
        let deferred = Deferred::new();
        let heard = hear(txn, &deferred, &mut joined, &hello)?;
        deferred.flush(&mut joined, txn)?;
        Ok(heard)
    });
    assert_eq!(heard.unwrap(), b"hello");
}

#[test]
fn a_replay_is_rejected_within_the_turn_and_after_it() {
    let (one, mut group, two, mut joined) = pair();
    let hello = say(&one, &mut group, "hello");
    two.write(|txn| {
        let deferred = Deferred::new();
        hear(txn, &deferred, &mut joined, &hello)?;
        let again = hear(txn, &deferred, &mut joined, &hello);
        assert_eq!(again, Err(GroupFault::SecretConsumed));
        Ok(deferred.flush(&mut joined, txn)?)
    })
    .unwrap();
    let after = two.write(|txn| {
        let mut joined = load(&Provider::new(txn), &id(&group))?;
        Ok(hear(txn, &Deferred::new(), &mut joined, &hello))
    });
    let fault = after.unwrap().unwrap_err();
    assert_eq!(
        (fault.clone(), fault.meaning()),
        (GroupFault::SecretConsumed, Meaning::Reject)
    );
}

#[test]
fn a_damaged_ciphertext_costs_nothing() {
    let (one, mut group, two, mut joined) = pair();
    let hello = say(&one, &mut group, "hello");
    let heard = two.write(|txn| {
        let deferred = Deferred::new();
        for at in [30, hello.len() / 2, hello.len() - 1] {
            let mut damaged = hello.clone();
            damaged[at] ^= 1;
            let fault = hear(txn, &deferred, &mut joined, &damaged).unwrap_err();
            assert_eq!(fault.meaning(), Meaning::Reject);
            assert!(!deferred.is_dirty());
        }
        let heard = hear(txn, &deferred, &mut joined, &hello)?;
        deferred.flush(&mut joined, txn)?;
        Ok(heard)
    });
    assert_eq!(heard.unwrap(), b"hello");
}

#[test]
fn secrets_cannot_be_read_while_they_are_held_back() {
    let (one, mut group, two, mut joined) = pair();
    let hello = say(&one, &mut group, "hello");
    two.write(|txn| {
        let deferred = Deferred::new();
        hear(txn, &deferred, &mut joined, &hello)?;
        let stale = load(&Provider::new(txn), &id(&group));
        assert_eq!(
            stale.err(),
            Some(GroupFault::Storage(StorageError::HeldBack))
        );
        Ok(deferred.flush(&mut joined, txn)?)
    })
    .unwrap();
}

#[test]
fn the_first_storage_fault_wins_over_what_openmls_says() {
    // Every read of a load and of a commit's processing fails once; none becomes a verdict.
    let runtime: Arc<dyn Runtime> = Arc::new(SimulatedRuntime::new(7));
    let faulty = Faulty::new(MemoryDisk::new().open());
    let database = Database::open(faulty.clone(), runtime.clone()).unwrap();
    let installation = Installation::generate(runtime.as_ref(), InboxId::from_bytes([7; 32]));
    let two = Client {
        runtime,
        database,
        installation,
    };
    let one = client(1);
    let (_, mut group) = one.create(NewConversation::Group(Preset::AllMembers));
    let added = [two.package()];
    let built = one.add(&mut group, &added);
    two.join(&one.wrapped(&added, &built));
    let commit = one
        .write(|txn| {
            let provider = Provider::new(txn);
            let plan = CommitPlan::default();
            Ok(build_commit(
                &mut group,
                &provider,
                &one.installation,
                plan,
            )?)
        })
        .unwrap()
        .commit;

    let attempt = |txn: &mut WriteTxn<'_>| -> Result<(), GroupFault> {
        let mut joined = load(&Provider::new(txn), &id(&group))?;
        let provider = Provider::new(txn);
        let processed = process(&mut joined, &provider, Frame::decode(&commit)?)?;
        match processed.into_content() {
            ProcessedMessageContent::StagedCommitMessage(staged) => {
                provider.settle(joined.merge_staged_commit(&provider, *staged))
            }
            content => panic!("{content:?}"),
        }
    };
    let fault = StorageError::Io {
        action: "read",
        detail: String::new(),
    };
    for ahead in 1..200 {
        faulty.fail_operation(faulty.operations() + ahead, fault.clone());
        match two.database.write(Durability::Ordered, attempt) {
            Err(found) => assert_eq!(found, GroupFault::Storage(fault.clone()), "at {ahead}"),
            Ok(()) => {
                assert!(ahead > 10, "the attempt makes more calls than {ahead}");
                return;
            }
        }
    }
    panic!("the attempt never got through");
}

#[test]
fn commits_stay_pending_until_merged_and_can_be_dropped() {
    let (one, mut group, two, mut joined) = pair();
    let mut metadata = GroupContext::of(&group).unwrap().to_mutable_metadata();
    metadata
        .attributes
        .insert("group_name".to_owned(), "renamed".to_owned());
    let plan = CommitPlan {
        metadata: Some(metadata),
        ..CommitPlan::default()
    };
    let built = one
        .write(|txn| {
            let provider = Provider::new(txn);
            let dropped = build_commit(&mut group, &provider, &one.installation, plan.clone())?;
            assert!(dropped.welcome.is_none());
            let second = build_commit(&mut group, &provider, &one.installation, plan.clone());
            assert_eq!(second, Err(GroupFault::Pending));
            clear_pending(&mut group, &provider)?;
            let built = build_commit(&mut group, &provider, &one.installation, plan)?;
            assert_eq!(group.epoch().as_u64(), 1);
            Ok(built)
        })
        .unwrap();
    one.write(|txn| {
        let provider = Provider::new(txn);
        let mut group = load(&provider, &id(&joined))?;
        merge_pending(&mut group, &provider)?;
        assert_eq!(group.epoch().as_u64(), 2);
        Ok(())
    })
    .unwrap();
    two.write(|txn| {
        let provider = Provider::new(txn);
        let processed = process(&mut joined, &provider, Frame::decode(&built.commit)?)?;
        let ProcessedMessageContent::StagedCommitMessage(staged) = processed.into_content() else {
            panic!("no commit");
        };
        provider.settle(joined.merge_staged_commit(&provider, *staged))?;
        let context = GroupContext::of(&joined).unwrap();
        assert_eq!(context.attributes["group_name"], "renamed");
        Ok(())
    })
    .unwrap();
}

#[test]
fn an_erased_group_leaves_no_row() {
    let (one, group, _, _) = pair();
    one.write(|txn| {
        erase_group(txn, &id(&group))?;
        let gone = load(&Provider::new(txn), &id(&group));
        assert_eq!(gone.err(), Some(GroupFault::NoGroup));
        Ok(())
    })
    .unwrap();
}
