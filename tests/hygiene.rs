//! What the stack tells of itself holds no payload, no key and no full installation id.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tracing_subscriber::fmt::MakeWriter;
use xmtp::core::delivery::{Filter, Scope};
use xmtp::core::testing::memory::MemoryDisk;
use xmtp::{Account, Client};
use xmtp_testkit::TestBackend;

/// A text that nothing but a payload can hold.
const PAYLOAD: &str = "a-payload-that-no-log-may-hold";
/// A name that nothing but group metadata can hold.
const NAME: &str = "a-name-that-no-log-may-hold";

/// Keeps everything that is logged.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("the log").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Kept {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

async fn client(backend: &TestBackend, secret: u8) -> Client {
    Client::builder()
        .storage(MemoryDisk::new().open())
        .transport(backend.in_process())
        .account(Account::from_wallet_secret(&[secret; 32]).expect("a wallet"))
        .build()
        .await
        .expect("a client")
}

/// Plays a conversation with every level of every module logged, and answers what must not be
/// found, with a name for each.
async fn converse() -> Vec<(&'static str, String)> {
    let mut backend = TestBackend::start().await;
    let (alice, bo) = (client(&backend, 1).await, client(&backend, 2).await);
    let group = alice
        .conversations()
        .new_group(NAME, &[bo.inbox_id()])
        .await
        .expect("a group");
    group.send_text(PAYLOAD).await.expect("a message");
    bo.sync_all().await.expect("a sync");
    let mut consumer = bo
        .messages()
        .consume(Scope::All, Filter::all())
        .await
        .expect("a consumer");
    consumer.next().await.expect("a stream").expect("an item");
    consumer.close().await.expect("a clean end");
    let mut secrets = vec![
        ("a payload", PAYLOAD.to_owned()),
        ("a payload in hex", hex::encode(PAYLOAD)),
        ("a group's name", NAME.to_owned()),
        ("a wallet's secret", hex::encode([1; 32])),
    ];
    for client in [&alice, &bo] {
        let id = client.installation_id();
        secrets.push(("an installation id", id.to_hex()));
        secrets.push((
            "an installation id as bytes",
            format!("{:?}", id.as_bytes()),
        ));
        secrets.push(("an inbox id", client.inbox_id().to_hex()));
        client.close().await.expect("a clean close");
    }
    secrets.push(("a group id", group.id().to_hex()));
    backend.stop().await;
    secrets
}

/// Every level of every module, over a whole conversation.
/// covers: EXT-007, STR-064
#[test]
fn logs_hold_no_payload_no_key_and_no_full_id() {
    let kept = Kept::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(kept.clone())
        .finish();
    // Spans follow their futures, but threads of lanes need the subscriber everywhere.
    tracing::subscriber::set_global_default(subscriber).expect("the only subscriber");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let secrets = runtime.block_on(converse());
    drop(runtime);
    let log = kept.0.lock().expect("the log").clone();
    let log = String::from_utf8_lossy(&log);
    let rooms = [
        "receipt",
        "processing",
        "welcome",
        "send",
        "sync",
        "delivery",
        "dependency",
        "transport",
    ];
    for room in rooms {
        assert!(log.contains(room), "nothing is told of {room}");
    }
    for (what, secret) in secrets {
        assert!(!log.contains(&secret), "the log holds {what}");
    }
}
