//! Key packages of running clients over a real backend: replaced in time, kept while somebody may
//! need them, and made once however many processes look.
//!
//! The clock of the clients begins behind the machine's and is moved by hand. It never passes the
//! machine's, by which a backend and MLS check the lifetime of a package too.

mod shared;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use shared::{ENDPOINT, HOME, PATIENCE, close, grpc, sqlite, told};
use xmtp_core::limits::WELCOME_RETENTION;
use xmtp_core::runtime::Runtime;
use xmtp_core::storage::{All, Domain, Order, Page, Read, Snapshot, Storage, StorageError, schema};
use xmtp_core::testing::memory::MemoryDisk;
use xmtp_core::transport::Transport;
use xmtp_mls::Client;
use xmtp_mls::key_package::{DESTROY_AFTER_NS, ROTATE_AFTER_NS, ROTATE_AFTER_WELCOME_NS, Rotation};
use xmtp_proto::Topic;
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::backend::v1::welcome_message::{V1, Version};
use xmtp_proto::backend::v1::{ClientEnvelope, PublishRequest, QueryNewestRequest, WelcomeMessage};
use xmtp_proto::envelope::canonical_bytes;
use xmtp_proto::storage::v1::KeyPackageRecord;
use xmtp_testkit::process::{Child, role, say};
use xmtp_testkit::{Fault, FaultTransport, Script, ShiftedRuntime, TestBackend};

/// Where the clock begins: within the lifetime of a package, and with room to move.
const BEHIND: Duration = Duration::from_secs(80 * 24 * 60 * 60);
const ROTATE_AFTER: Duration = Duration::from_nanos(ROTATE_AFTER_NS);
const ROTATE_AFTER_WELCOME: Duration = Duration::from_nanos(ROTATE_AFTER_WELCOME_NS);
const DESTROY_AFTER: Duration = Duration::from_nanos(DESTROY_AFTER_NS);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// The publishes of a registration: the first package, and the identity update.
const REGISTRATION: u32 = 2;
/// More than are ever tried.
const ENDLESS: u32 = 1_000;
/// More rows than any table of these tests has.
const MANY_ROWS: u32 = 100_000;

const BO: [u8; 32] = [41; 32];
const CAROL: [u8; 32] = [42; 32];

async fn open(
    secret: &[u8; 32],
    storage: Arc<dyn Storage>,
    transport: impl Transport + 'static,
    clock: &Arc<ShiftedRuntime>,
) -> Client {
    shared::open(secret, storage, transport, clock.clone()).await
}

/// Makes a wire on which every publish is lost from the `first` one on.
fn losing(inner: Box<dyn Transport>, first: u32) -> FaultTransport {
    let script = Script::of((first..ENDLESS).map(Fault::LosePublish));
    FaultTransport::new(script, inner)
}

/// Waits until a publish was lost on such a wire.
async fn tried(client: &Client, wire: &FaultTransport, first: u32) {
    let all = (ENDLESS - first) as usize;
    until(client, "a try", |_| wire.remaining().faults().len() < all).await;
}

fn read<T>(client: &Client, f: impl FnOnce(&dyn Snapshot) -> Result<T, StorageError>) -> T {
    let database = &client.engine().context().database;
    database.read(f).expect("the database is read")
}

fn rotation(client: &Client) -> Rotation {
    read(client, |snapshot| Rotation::read(snapshot))
}

/// Reads every kept package, oldest first.
fn packages(client: &Client) -> Vec<KeyPackageRecord> {
    let rows = read(client, |snapshot| {
        snapshot.page(schema::KEY_PACKAGE, &All, None, many())
    });
    let mut packages: Vec<_> = rows.rows.into_iter().map(|(_, package)| package).collect();
    packages.sort_by_key(|package| package.created_ns);
    packages
}

fn many() -> Page {
    Page {
        rows: MANY_ROWS,
        bytes: u32::MAX,
        order: Order::Ascending,
    }
}

/// Tells whether the MLS library still keeps the private halves of a package.
fn has_private_keys(client: &Client, package: &KeyPackageRecord) -> bool {
    let rows = read(client, |snapshot| {
        snapshot.page(schema::MLS, &All, None, many())
    });
    let init_key = &package.init_key[..];
    rows.rows
        .iter()
        .any(|(_, row)| row.0.windows(init_key.len()).any(|part| part == init_key))
}

/// Waits until a database is as asked for.
async fn until(client: &Client, what: &str, is_so: impl Fn(&Client) -> bool) {
    let mut changes = client.engine().context().database.changes();
    let waiting = async {
        while !is_so(client) {
            let domains = Domain::Mls.bit() | Domain::Welcomes.bit() | Domain::Progress.bit();
            changes.changed_or_poll(domains).await.expect("it is open");
        }
    };
    let waited = tokio::time::timeout(PATIENCE, waiting).await;
    assert!(waited.is_ok(), "never came: {what}");
}

/// Waits until a package that is not among `known` is confirmed and nothing is left to publish.
async fn next_package(client: &Client, known: &[KeyPackageRecord]) -> KeyPackageRecord {
    let newer = |client: &Client| {
        let rotation = rotation(client);
        let is_whole = rotation.unconfirmed().next().is_none();
        let current = rotation.current().cloned().filter(|_| is_whole);
        current.filter(|current| known.iter().all(|known| known.hash_ref != current.hash_ref))
    };
    until(client, "a new key package", |client| {
        newer(client).is_some()
    })
    .await;
    newer(client).expect("it was there")
}

/// Reads the package that the backend hands out.
async fn handed_out(backend: &TestBackend, client: &Client) -> Bytes {
    let topic = Topic::key_package(&client.installation_id());
    let request = QueryNewestRequest {
        topics: vec![topic.to_proto()],
        include_full_envelope: true,
    };
    let answer = backend.in_process().query_newest(request).await;
    let newest = answer.expect("an answer").results.pop().expect("a result");
    let envelope = newest.envelope.expect("an envelope");
    canonical_bytes(&envelope).into()
}

/// Brings bo into a new group, and waits until its Welcome is accepted.
async fn welcome(carol: &Client, bo: &Client) {
    let group = carol
        .conversations()
        .new_group("a room", &[bo.inbox_id()])
        .await
        .expect("a group");
    let id = group.id();
    until(bo, "a joined group", |bo| {
        let record = read(bo, |snapshot| snapshot.row(schema::GROUP, &id));
        record.is_some_and(|record| record.active)
    })
    .await;
}

/// Sends bo a Welcome of a wrapping that nobody knows, which is held for a day.
async fn unknown_welcome(backend: &TestBackend, bo: &Client) {
    let unknown = WelcomeMessage {
        version: Some(Version::V1(V1 {
            installation_key: Bytes::copy_from_slice(bo.installation_id().as_bytes()),
            data: Bytes::from_static(b"sealed"),
            hpke_public_key: Bytes::from_static(&[7; 32]),
            wrapper_algorithm: 99,
            welcome_metadata: Bytes::from_static(b"sealed"),
        })),
    };
    let request = PublishRequest {
        envelopes: vec![ClientEnvelope {
            payload: Some(Payload::WelcomeMessage(unknown)),
        }],
    };
    let published = backend.in_process().publish(request).await;
    published.expect("a Welcome is opaque to the backend");
    // Once it was looked at, the day begins.
    until(bo, "a blocked Welcome", |bo| {
        let rows = read(bo, |snapshot| {
            snapshot.page(schema::WELCOME, &All, None, many())
        });
        rows.rows.iter().any(|(_, retry)| retry.blocked)
    })
    .await;
}

fn is_unresolved(client: &Client) -> bool {
    let topic = client.engine().context().welcome_topic;
    read(client, |snapshot| {
        xmtp_core::welcome::has_unresolved(snapshot, &topic)
    })
}

/// A package is replaced at thirty days, by one with other keys, and the backend hands it out.
#[tokio::test(flavor = "multi_thread")]
async fn a_package_is_replaced_after_thirty_days() {
    let mut backend = TestBackend::start().await;
    let clock = ShiftedRuntime::behind(BEHIND);
    let bo = open(&BO, MemoryDisk::new().open(), backend.in_process(), &clock).await;
    let mut known = packages(&bo);
    assert_eq!(known.len(), 1);
    for _ in 0..2 {
        let last = known.last().expect("a package").clone();
        clock.advance(ROTATE_AFTER - DAY);
        assert_eq!(rotation(&bo).current(), Some(&last));
        clock.advance(DAY);
        let next = next_package(&bo, &known).await;
        assert!(next.created_ns >= last.created_ns + ROTATE_AFTER_NS);
        assert_ne!(next.init_key, last.init_key);
        assert_ne!(next.wrapper_public_key, last.wrapper_public_key);
        assert_eq!(handed_out(&backend, &bo).await, next.envelope);
        let old = packages(&bo)
            .into_iter()
            .find(|old| old.hash_ref == last.hash_ref);
        assert_eq!(old.expect("it is kept").superseded_ns, next.confirmed_ns);
        known.push(next);
    }
    close(&bo).await;
    backend.stop().await;
}

/// A package is replaced soon after a Welcome was accepted; the private keys of the old one go a
/// day after the new one is confirmed, but none while a Welcome is unresolved.
#[tokio::test(flavor = "multi_thread")]
async fn keys_of_a_used_package_go_after_a_day_and_never_under_an_unresolved_welcome() {
    let mut backend = TestBackend::start().await;
    let clock = ShiftedRuntime::behind(BEHIND);
    let bo = open(&BO, MemoryDisk::new().open(), backend.in_process(), &clock).await;
    let carol = open(
        &CAROL,
        MemoryDisk::new().open(),
        backend.in_process(),
        &clock,
    )
    .await;
    bo.go_live();
    let mut known = packages(&bo);
    let first = known[0].clone();
    let rotate = async |known: &mut Vec<KeyPackageRecord>| {
        let before = clock.now_ns();
        welcome(&carol, &bo).await;
        clock.advance(ROTATE_AFTER_WELCOME);
        let next = next_package(&bo, known).await;
        assert!(next.created_ns >= before + ROTATE_AFTER_WELCOME_NS);
        known.push(next);
    };
    rotate(&mut known).await;
    let second = known[1].clone();
    clock.advance(DESTROY_AFTER / 2);
    unknown_welcome(&backend, &bo).await;
    // A day after the second was confirmed, and half a day before the Welcome is given up.
    clock.advance(DESTROY_AFTER / 2);
    rotate(&mut known).await;
    // What is looked at in one round is done before the upload of the next.
    rotate(&mut known).await;
    assert!(is_unresolved(&bo));
    assert_eq!(packages(&bo).len(), known.len());
    for package in &known {
        assert!(has_private_keys(&bo, package), "keys were destroyed");
    }

    clock.advance(WELCOME_RETENTION / 2);
    until(&bo, "the end of the first package", |bo| {
        !packages(bo)
            .iter()
            .any(|kept| kept.hash_ref == first.hash_ref)
    })
    .await;
    assert!(!is_unresolved(&bo));
    assert!(!has_private_keys(&bo, &first), "keys were left behind");
    // The third, which replaced the second, was confirmed half a day ago.
    assert_eq!(packages(&bo)[0].hash_ref, second.hash_ref);
    assert!(has_private_keys(&bo, &second));
    clock.advance(DESTROY_AFTER / 2);
    until(&bo, "the end of all but the current package", |bo| {
        packages(bo).len() == 1
    })
    .await;
    let last = known.last().expect("a package");
    assert_eq!(packages(&bo)[0].hash_ref, last.hash_ref);
    assert!(known[..3].iter().all(|gone| !has_private_keys(&bo, gone)));
    assert!(has_private_keys(&bo, last));
    close(&bo).await;
    close(&carol).await;
    backend.stop().await;
}

/// A Welcome that was sent to the old package and waits at the backend unseen is received before the
/// old private keys may go, so it is joined, however late.
///
/// covers: STR-081
#[tokio::test(flavor = "multi_thread")]
async fn no_keys_go_before_the_welcomes_that_wait_at_the_backend() {
    let mut backend = TestBackend::start().await;
    let clock = ShiftedRuntime::behind(BEHIND);
    let bo = open(&BO, MemoryDisk::new().open(), backend.in_process(), &clock).await;
    let carol = open(
        &CAROL,
        MemoryDisk::new().open(),
        backend.in_process(),
        &clock,
    )
    .await;
    let known = packages(&bo);
    let group = carol
        .conversations()
        .new_group("a room", &[bo.inbox_id()])
        .await
        .expect("a group");
    // Nobody receives for bo, who goes on to another package.
    clock.advance(ROTATE_AFTER);
    next_package(&bo, &known).await;
    clock.advance(DESTROY_AFTER);
    until(&bo, "the end of the old package", |bo| {
        packages(bo).len() == 1
    })
    .await;
    let id = group.id();
    let record = read(&bo, |snapshot| snapshot.row(schema::GROUP, &id));
    assert!(record.is_some_and(|record| record.active), "it was joined");
    close(&bo).await;
    close(&carol).await;
    backend.stop().await;
}

/// The power goes when the upload of a new package was tried, and when it was stored but not
/// answered: its private keys are there after the restart, and the same package is completed.
#[tokio::test(flavor = "multi_thread")]
async fn private_keys_are_durable_before_the_upload() {
    let mut backend = TestBackend::start().await;
    for (number, is_stored) in [false, true].into_iter().enumerate() {
        let clock = ShiftedRuntime::behind(BEHIND);
        let disk = MemoryDisk::new();
        let upload = REGISTRATION + 1;
        let mut faults: Vec<Fault> = (upload..ENDLESS).map(Fault::LosePublish).collect();
        if is_stored {
            faults[0] = Fault::DropReply(upload);
        }
        let all = faults.len();
        let wire = FaultTransport::new(Script::of(faults), Box::new(backend.in_process()));
        let number = number as u8;
        let (secret, other) = ([50 + number; 32], [60 + number; 32]);
        let bo = open(&secret, disk.open(), wire.clone(), &clock).await;
        let known = packages(&bo);
        clock.advance(ROTATE_AFTER);
        until(&bo, "an upload", |_| wire.remaining().faults().len() < all).await;
        let made = rotation(&bo).unconfirmed().next_back().cloned();
        let made = made.expect("it is kept before it is published");
        disk.lose_unflushed(0);
        let _ = bo.close().await;

        let bo = open(&secret, disk.open(), backend.in_process(), &clock).await;
        let next = next_package(&bo, &known).await;
        assert_eq!(next.hash_ref, made.hash_ref, "another one was made");
        assert!(has_private_keys(&bo, &next));
        assert_eq!(packages(&bo).len(), 2);
        assert_eq!(handed_out(&backend, &bo).await, next.envelope);
        let carol = open(
            &other,
            MemoryDisk::new().open(),
            backend.in_process(),
            &clock,
        )
        .await;
        bo.go_live();
        welcome(&carol, &bo).await;
        close(&bo).await;
        close(&carol).await;
    }
    backend.stop().await;
}

/// Two handles on one database find a package due while the backend is out of reach: they make one
/// between them, both try to publish it, and whoever can does.
#[tokio::test(flavor = "multi_thread")]
async fn two_handles_make_one_package() {
    let mut backend = TestBackend::start().await;
    let clock = ShiftedRuntime::behind(BEHIND);
    let disk = MemoryDisk::new();
    let one_wire = losing(Box::new(backend.in_process()), REGISTRATION + 1);
    let two_wire = losing(Box::new(backend.in_process()), 1);
    let one = open(&BO, disk.open(), one_wire.clone(), &clock).await;
    let two = open(&BO, disk.open(), two_wire.clone(), &clock).await;
    clock.advance(ROTATE_AFTER);
    tried(&one, &one_wire, REGISTRATION + 1).await;
    tried(&two, &two_wire, 1).await;
    let known = packages(&one);
    assert_eq!(known.len(), 2, "a package was made twice");
    assert_eq!(rotation(&two).unconfirmed().count(), 1);
    close(&one).await;
    close(&two).await;

    let bo = open(&BO, disk.open(), backend.in_process(), &clock).await;
    let next = next_package(&bo, &known[..1]).await;
    assert_eq!(next.hash_ref, known[1].hash_ref);
    assert_eq!(packages(&bo).len(), 2);
    assert_eq!(packages(&bo)[0].superseded_ns, next.confirmed_ns);
    assert_eq!(handed_out(&backend, &bo).await, next.envelope);
    close(&bo).await;
    backend.stop().await;
}

/// Tries in a process of its own to publish the package that is due, and says which it was.
async fn rotating(home: &str, endpoint: &str) {
    let wire = losing(Box::new(grpc(endpoint)), 1);
    let clock = ShiftedRuntime::behind(BEHIND - ROTATE_AFTER);
    let bo = open(&BO, sqlite(home), wire.clone(), &clock).await;
    tried(&bo, &wire, 1).await;
    let made = rotation(&bo).unconfirmed().next_back().cloned();
    let made = made.expect("it is kept before it is published");
    say(&format!("made {}", hex::encode(&made.hash_ref)));
    close(&bo).await;
}

/// The same of two processes on one encrypted database.
#[tokio::test(flavor = "multi_thread")]
async fn two_processes_make_one_package() {
    const NAME: &str = "two_processes_make_one_package";
    if role().is_some() {
        return rotating(&told(HOME), &told(ENDPOINT)).await;
    }
    let mut backend = TestBackend::start().await;
    let home = tempfile::tempdir().expect("a folder");
    let path = home.path().to_str().expect("a folder with a plain name");
    let clock = ShiftedRuntime::behind(BEHIND);
    let bo = open(&BO, sqlite(path), backend.in_process(), &clock).await;
    let known = packages(&bo);
    assert_eq!(known.len(), 1);
    close(&bo).await;
    let endpoint = backend.endpoint();
    let variables = [(HOME, path), (ENDPOINT, endpoint.as_str())];
    let mut children = ["one", "two"].map(|role| Child::spawn(NAME, role, &variables));
    let said = tokio::task::block_in_place(|| {
        let said = children.each_mut().map(|child| child.next_line(PATIENCE));
        for child in &mut children {
            assert!(child.wait().success());
        }
        said
    });
    assert_eq!(said[0], said[1]);

    clock.advance(ROTATE_AFTER);
    let bo = open(&BO, sqlite(path), backend.in_process(), &clock).await;
    let next = next_package(&bo, &known).await;
    assert_eq!(said[0], format!("made {}", hex::encode(&next.hash_ref)));
    assert_eq!(packages(&bo).len(), 2, "a package was made twice");
    assert_eq!(handed_out(&backend, &bo).await, next.envelope);
    close(&bo).await;
    backend.stop().await;
}
