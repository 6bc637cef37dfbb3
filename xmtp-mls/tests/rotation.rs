//! When key packages are due and when their keys go.

mod common;

use common::{Client, Failure, client};
use openmls::prelude::Welcome;
use std::sync::Arc;
use std::time::Duration;
use xmtp_core::runtime::{Runtime, SimulatedRuntime};
use xmtp_core::storage::{Database, StorageError};
use xmtp_core::testing::memory::MemoryDisk;
use xmtp_mls::Installation;
use xmtp_mls::group::{JoinFault, NewConversation, Preset, stage_join};
use xmtp_mls::key_package::{
    DESTROY_AFTER_NS, ROTATE_AFTER_NS, ROTATE_AFTER_WELCOME_NS, Rotation, confirm, destroy, make,
    named_key, note_welcome,
};
use xmtp_mls::welcome::{Opened, WelcomeFault, open};
use xmtp_proto::id::InboxId;

fn rotation(client: &Client) -> Rotation {
    client
        .database
        .read::<_, StorageError>(|snapshot| Rotation::read(snapshot))
        .unwrap()
}

fn ticking(seed: u8) -> (Client, xmtp_core::runtime::SimulatedClock) {
    let runtime = SimulatedRuntime::new(seed.into());
    let clock = runtime.clock();
    let runtime: Arc<dyn Runtime> = Arc::new(runtime);
    let database = Database::open(MemoryDisk::new().open(), runtime.clone()).unwrap();
    let inbox = InboxId::from_bytes([seed; 32]);
    let installation = Installation::generate(runtime.as_ref(), inbox);
    (
        Client {
            runtime,
            database,
            installation,
        },
        clock,
    )
}

fn make_one(client: &Client) -> Vec<u8> {
    let made = client.write(|txn| Ok(make(txn, &client.installation).unwrap()));
    made.unwrap().hash_ref
}

fn confirm_one(client: &Client, hash_ref: &[u8]) {
    let now = client.runtime.now_ns();
    client
        .write(|txn| Ok(confirm(txn, hash_ref, now)?))
        .unwrap();
}

#[test]
fn a_package_is_due_by_age_and_soon_after_a_welcome() {
    let (one, clock) = ticking(1);
    assert!(rotation(&one).needs_rotation(0));
    let first = make_one(&one);
    assert!(rotation(&one).current().is_none());
    assert_eq!(rotation(&one).unconfirmed().count(), 1);
    confirm_one(&one, &first);
    let read = rotation(&one);
    let made = one.runtime.now_ns();
    assert_eq!(read.current().unwrap().hash_ref, first);
    assert_eq!(read.due_ns(), made + ROTATE_AFTER_NS);

    clock.advance(Duration::from_secs(60));
    one.write(|txn| Ok(note_welcome(txn)?)).unwrap();
    let accepted = one.runtime.now_ns();
    let read = rotation(&one);
    assert_eq!(read.due_ns(), accepted + ROTATE_AFTER_WELCOME_NS);
    assert!(!read.needs_rotation(accepted));
    clock.advance(Duration::from_secs(1));
    one.write(|txn| Ok(note_welcome(txn)?)).unwrap();
    assert_eq!(rotation(&one).due_ns(), read.due_ns(), "put off by another");
    assert!(read.needs_rotation(accepted + ROTATE_AFTER_WELCOME_NS));

    clock.advance(Duration::from_secs(6));
    make_one(&one);
    assert_eq!(
        rotation(&one).due_ns(),
        one.runtime.now_ns() + ROTATE_AFTER_NS
    );
}

#[test]
fn old_keys_go_a_day_after_a_newer_package_and_never_under_an_open_welcome() {
    let (one, clock) = ticking(1);
    let first = make_one(&one);
    confirm_one(&one, &first);
    clock.advance(Duration::from_secs(10));
    let second = make_one(&one);
    assert_eq!(rotation(&one).superseded().count(), 0);
    confirm_one(&one, &second);
    let read = rotation(&one);
    assert_eq!(read.current().unwrap().hash_ref, second);
    assert_eq!(read.superseded().count(), 1);
    let confirmed = one.runtime.now_ns();
    assert_eq!(
        read.destroyable(confirmed + DESTROY_AFTER_NS - 1, false)
            .count(),
        0
    );
    assert_eq!(
        read.destroyable(confirmed + DESTROY_AFTER_NS, true).count(),
        0
    );
    let gone: Vec<_> = read
        .destroyable(confirmed + DESTROY_AFTER_NS, false)
        .collect();
    assert_eq!(gone.len(), 1);
    assert_eq!(gone[0].hash_ref, first);
    let wrapper = gone[0].wrapper_public_key.clone();
    one.write(|txn| {
        assert!(named_key(txn, &wrapper)?.is_some());
        destroy(txn, &first)?;
        assert!(named_key(txn, &wrapper)?.is_none());
        Ok(())
    })
    .unwrap();
    assert_eq!(rotation(&one).superseded().count(), 0);
}

#[test]
fn a_destroyed_package_joins_nothing() {
    let (one, two) = (client(1), client(2));
    let (_, mut group) = one.create(NewConversation::Group(Preset::AllMembers));
    let added = [two.package()];
    let built = one.add(&mut group, &added);
    let wrapped = one.wrapped(&added, &built);
    let hash_ref = rotation(&two)
        .unconfirmed()
        .next()
        .unwrap()
        .hash_ref
        .to_vec();
    let welcome: Welcome = two
        .write(|txn| {
            let opened = open(&wrapped[0], |public| {
                named_key(txn, public).map_err(Failure::from)
            })?;
            match opened {
                Opened::Welcome(welcome) => Ok(welcome.welcome),
                Opened::Pointer(_) => panic!("a pointer"),
            }
        })
        .unwrap();
    two.write(|txn| {
        destroy(txn, &hash_ref)?;
        let refused = stage_join(txn, welcome).unwrap_err();
        assert_eq!(refused, JoinFault::Welcome(WelcomeFault::NoKey));
        Ok(())
    })
    .unwrap();
}
