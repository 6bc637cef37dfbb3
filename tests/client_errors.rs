//! Errors of building a client and of asking it for something, each reached by its real cause.

mod shared;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use shared::{account, close, now};
use xmtp_core::error::{Class, Coded};
use xmtp_core::limits::TURN_TARGET_TIME;
use xmtp_core::runtime::{Job, Lane, Runtime};
use xmtp_core::testing::memory::MemoryDisk;
use xmtp_core::transport::Transport;
use xmtp_identity::{InstallationKey, LocalWallet, UnsignedUpdate, UpdateBuilder};
use xmtp_mls::{BuildError, Client, ClientBuilder};
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::backend::v1::{ClientEnvelope, PublishRequest};
use xmtp_proto::limits::BACKEND_DEFAULT_MAX_INSTALLATIONS_PER_INBOX;
use xmtp_proto::{GroupId, InboxId};
use xmtp_testkit::{
    Fault, FaultTransport, InProcessTransport, Script, ShiftedRuntime, TestBackend,
};

const BO: [u8; 32] = [91; 32];
const CAROL: [u8; 32] = [92; 32];
/// More than are ever tried.
const ENDLESS: u32 = 1_000;

/// A builder of a client that lacks nothing but its account.
fn builder(disk: &MemoryDisk, wire: impl Transport + 'static) -> ClientBuilder {
    Client::builder()
        .storage(disk.open())
        .transport(wire)
        .runtime(now())
}

async fn refused(builder: ClientBuilder) -> (&'static str, Class) {
    let error: BuildError = builder.build().await.map(drop).expect_err("it is refused");
    (error.code(), error.class())
}

/// What is missing, of somebody else, or not to be registered is told before anything else happens,
/// and what the builder made until then is used by the next one.
///
/// covers: EXT-008
#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_refused_with_its_cause() {
    let mut backend = TestBackend::start().await;
    let disk = MemoryDisk::new();
    let bare = Client::builder().runtime(now());
    assert_eq!(refused(bare).await, ("build.missing", Class::UserAction));
    let nobody = builder(&disk, backend.in_process());
    assert_eq!(
        refused(nobody).await,
        ("build.no_account", Class::UserAction)
    );

    let lost: Vec<Fault> = (1..ENDLESS).map(Fault::LosePublish).collect();
    let deaf = FaultTransport::new(Script::of(lost), Box::new(backend.in_process()));
    let unheard = builder(&disk, deaf).account(account(&BO));
    let (code, _) = refused(unheard).await;
    assert_eq!(code, "build.registration");

    let bo = builder(&disk, backend.in_process()).account(account(&BO));
    let bo = bo.build().await.expect("it goes on where it ended");
    close(&bo).await;
    let carols = builder(&disk, backend.in_process()).account(account(&CAROL));
    assert_eq!(
        refused(carols).await,
        ("build.other_account", Class::UserAction)
    );
    backend.stop().await;
}

/// A machine so slow that each look at the clock is later than a turn may last.
#[derive(Debug)]
struct Slow {
    inner: Arc<ShiftedRuntime>,
    looks: AtomicU32,
}

impl Slow {
    fn start() -> Arc<Self> {
        Arc::new(Self {
            inner: now(),
            looks: AtomicU32::new(0),
        })
    }

    fn lost(&self) -> Duration {
        TURN_TARGET_TIME * self.looks.load(Ordering::SeqCst)
    }
}

impl Runtime for Slow {
    fn now_ns(&self) -> u64 {
        self.inner.now_ns()
    }

    fn monotonic(&self) -> Duration {
        self.looks.fetch_add(1, Ordering::SeqCst);
        self.inner.monotonic() + self.lost()
    }

    fn sleep_until(&self, deadline: Duration) -> BoxFuture<'static, ()> {
        self.inner.sleep_until(deadline.saturating_sub(self.lost()))
    }

    fn start(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        self.inner.start(name, task);
    }

    fn lane(&self, name: &'static str) -> Arc<dyn Lane> {
        self.inner.lane(name)
    }

    fn offload(&self, job: Job) {
        self.inner.offload(job);
    }

    fn fill(&self, buffer: &mut [u8]) {
        self.inner.fill(buffer);
    }
}

/// Clients that begin on one empty database at once register one installation of one inbox.
///
/// covers: STR-070
#[tokio::test(flavor = "multi_thread")]
async fn clients_of_one_database_register_once() {
    let mut backend = TestBackend::start().await;
    let disk = MemoryDisk::new();
    let begin = || {
        builder(&disk, backend.in_process())
            .account(account(&BO))
            .build()
    };
    let (one, two, three) = tokio::join!(begin(), begin(), begin());
    let clients = [one, two, three].map(|built| built.expect("it is registered"));
    for client in &clients {
        assert_eq!(client.inbox_id(), clients[0].inbox_id());
        assert_eq!(client.installation_id(), clients[0].installation_id());
    }
    for client in &clients {
        close(client).await;
    }
    backend.stop().await;
}

/// An inbox takes as many installations as the backend allows, and no more, also where each turn
/// applies a single update of its log.
///
/// covers: EXT-008
#[tokio::test(flavor = "multi_thread")]
async fn an_inbox_is_full_at_its_bound() {
    let mut backend = TestBackend::start().await;
    let one_more = |backend: &TestBackend| {
        builder(&MemoryDisk::new(), backend.in_process())
            .account(account(&BO))
            .runtime(Slow::start())
    };
    for number in 0..BACKEND_DEFAULT_MAX_INSTALLATIONS_PER_INBOX {
        let client = one_more(&backend).build().await;
        let client = client.unwrap_or_else(|error| panic!("number {number}: {error}"));
        close(&client).await;
    }
    let told = refused(one_more(&backend)).await;
    assert_eq!(told, ("build.installation_limit", Class::UserAction));
    backend.stop().await;
}

/// Registers an inbox whose one installation has no key package.
async fn register_by_hand(wire: &InProcessTransport) -> InboxId {
    let wallet = LocalWallet::from_secret(&[93; 32]).expect("a secret");
    let key = InstallationKey::from_seed(&[94; 32]);
    let builder = UpdateBuilder::create_inbox(wallet.identifier().clone(), 1);
    let builder = builder.add_installation(key.id());
    let inbox = builder.inbox_id();
    let unsigned = builder.build(1_000_000_000).expect("an update");
    let text = unsigned.signature_text().to_owned();
    let signed = unsigned
        .with_signature(wallet.sign_text(&text).expect("signed"))
        .and_then(|unsigned| unsigned.with_signature(key.sign_text(&text).expect("signed")))
        .and_then(UnsignedUpdate::finish);
    let update = Payload::IdentityUpdate(signed.expect("it is whole"));
    let request = PublishRequest {
        envelopes: vec![ClientEnvelope {
            payload: Some(update),
        }],
    };
    wire.publish(request).await.expect("it is taken");
    inbox
}

/// Who is unknown, who cannot be added, and which group is not held here are told by their codes.
///
/// covers: EXT-008
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_done_in_conversations_is_told() {
    let mut backend = TestBackend::start().await;
    let bo = builder(&MemoryDisk::new(), backend.in_process()).account(account(&BO));
    let bo = bo.build().await.expect("a client");
    let conversations = bo.conversations();
    let unknown = InboxId::from_bytes([1; 32]);
    let told = conversations.new_group("a", &[unknown]).await;
    let told = told.map(drop).expect_err("nobody knows it");
    assert_eq!(told.code(), "conversation.unknown_inbox");
    let bare = register_by_hand(&backend.in_process()).await;
    let told = conversations.new_group("a", &[bare]).await;
    let told = told.map(drop).expect_err("it has no key package");
    assert_eq!(told.code(), "conversation.not_addable");
    let nowhere = conversations.group(GroupId::from_bytes([1; 16]));
    let told = nowhere.name().await.expect_err("it is not here");
    assert_eq!(told.code(), "conversation.unknown_group");
    assert_eq!(told.class(), Class::UserAction);
    close(&bo).await;
    backend.stop().await;
}
