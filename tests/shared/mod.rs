//! What tests with several processes share: an account's client on each side, what it was told and
//! what it says, and the checks at its end.

#![allow(dead_code)] // Each test executable uses a part of it.

pub(crate) mod crowd;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use xmtp_core::delivery::{Filter, Message, Scope};
use xmtp_core::limits::DEFAULT_CONSUMER_LEASE_DURATION;
use xmtp_core::storage::{DatabaseKey, Storage, verify};
use xmtp_core::transport::Transport;
use xmtp_mls::content::decode_text;
use xmtp_mls::{Account, Client};
use xmtp_proto::GroupId;
use xmtp_proto::content::EncodedContent;
use xmtp_storage_sqlite::SqliteStorage;
use xmtp_testkit::ShiftedRuntime;
use xmtp_transport_grpc::GrpcTransport;

/// How long one thing may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The lease of a consumer of now has lapsed for whoever's clock is this much ahead.
pub(crate) const LEASE_IS_OVER: Duration =
    DEFAULT_CONSUMER_LEASE_DURATION.saturating_add(Duration::from_secs(1));
/// The key of every database.
pub(crate) const KEY: [u8; 32] = [8; 32];
/// Tells a child the folder of its database.
pub(crate) const HOME: &str = "XMTP_TEST_HOME";
/// Tells a child where the backend is.
pub(crate) const ENDPOINT: &str = "XMTP_TEST_ENDPOINT";
/// More than a conversation has.
const MAX_TEXTS: u32 = 128;

/// Reads what a child is told.
pub(crate) fn told(variable: &str) -> String {
    std::env::var(variable).expect("a child is told")
}

pub(crate) fn account(secret: &[u8; 32]) -> Account {
    Account::from_wallet_secret(secret).expect("a wallet's secret")
}

/// Opens the encrypted database in a folder that several processes may share.
pub(crate) fn sqlite(home: &str) -> Arc<dyn Storage> {
    SqliteStorage::options(Path::new(home).join("bo.db"))
        .key(DatabaseKey::new(KEY))
        .open()
        .expect("the database opens")
}

/// Connects to the backend of another process.
pub(crate) fn grpc(endpoint: &str) -> GrpcTransport {
    GrpcTransport::connect_lazy(endpoint).expect("an endpoint")
}

/// Opens a client by a clock.
pub(crate) async fn open(
    secret: &[u8; 32],
    storage: Arc<dyn Storage>,
    transport: impl Transport + 'static,
    clock: Arc<ShiftedRuntime>,
) -> Client {
    Client::builder()
        .storage(storage)
        .transport(transport)
        .account(account(secret))
        .runtime(clock)
        .build()
        .await
        .expect("a client")
}

/// Makes the machine's own clock.
pub(crate) fn now() -> Arc<ShiftedRuntime> {
    ShiftedRuntime::ahead(Duration::ZERO)
}

pub(crate) fn text_of(message: &Message) -> Option<String> {
    let content = EncodedContent::decode(message.content.clone()).ok()?;
    decode_text(&content).ok().map(str::to_owned)
}

/// Reads the texts of a group in delivery order.
pub(crate) async fn texts_of(client: &Client, group: GroupId) -> Vec<String> {
    let messages = client.engine().messages();
    let history = messages.history(Scope::from(group), Filter::all(), MAX_TEXTS);
    let mut found = history.await.expect("a history").messages;
    found.sort_by_key(|message| message.number);
    found.iter().filter_map(text_of).collect()
}

/// Checks the rules of a client's database and closes it.
pub(crate) async fn close(client: &Client) {
    let faults = verify::verify_database(&client.engine().context().database);
    let id = client.inbox_id();
    assert_eq!(faults, Ok(()), "the database of {id:?} breaks its rules");
    client.close().await.expect("a close");
}
