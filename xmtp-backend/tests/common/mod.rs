//! A server on a real socket, and envelopes to publish.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod web;

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use openmls::prelude::{
    BasicCredential, Ciphersuite, CredentialWithKey, KeyPackage as MlsKeyPackage, Lifetime,
};
use openmls_basic_credential::SignatureKeyPair;
use openmls_rust_crypto::OpenMlsRustCrypto;
use prost::Message;
use tls_codec::Serialize;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use xmtp_backend::config::{Database, PostgresSettings, Secret};
use xmtp_backend::testing::Postgres;
use xmtp_backend::{Backend, Config, Running};
use xmtp_identity::{InstallationKey, LocalWallet, UpdateBuilder};
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::backend::v1::publish_error::Reason;
use xmtp_proto::backend::v1::publish_service_client::PublishServiceClient;
use xmtp_proto::backend::v1::query_service_client::QueryServiceClient;
use xmtp_proto::backend::v1::subscribe_request::{Request, Update};
use xmtp_proto::backend::v1::subscribe_response::{Applied, Response};
use xmtp_proto::backend::v1::subscription_service_client::SubscriptionServiceClient;
use xmtp_proto::backend::v1::{
    ClientEnvelope, Cursor, EnvelopeMeta, GroupMessage, KeyPackage, Ping, Pong, PublishRequest,
    PublishResponse, QueryRequest, QueryResponse, ServerEnvelope, SubscribeRequest,
    SubscribeResponse, Topic, TopicQuery, WelcomeMessage, welcome_message,
};
use xmtp_proto::content::MlsCredential;
use xmtp_proto::id::InboxId;
use xmtp_proto::identity::IdentityUpdate;
use xmtp_proto::status::decode_publish_error;

pub(crate) const IDENTIFIER: &str = "org.example.test";

/// How long anything may take; it can only fail a test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Whether this file belongs to the tests that run the suites on PostgreSQL.
const ON_POSTGRES: bool = matches!(env!("CARGO_CRATE_NAME").as_bytes(), b"postgres");

/// Returns the address of an empty database, in this folder where it is a file.
///
/// - Where PostgreSQL is not installed, and that is not a failure, it is a file too.
pub(crate) fn database_url(folder: &Path) -> String {
    let server = if ON_POSTGRES {
        Postgres::shared()
    } else {
        None
    };
    match server {
        Some(server) => server.database(),
        None => format!("sqlite:{}", folder.join("backend.db3").display()),
    }
}

/// Returns the defaults for a server on an empty store.
pub(crate) fn config() -> Config {
    let mut config = Config::ephemeral(IDENTIFIER);
    if ON_POSTGRES && let Some(server) = Postgres::shared() {
        config.database = on_postgres(&server.database());
    }
    config
}

/// Returns a database of PostgreSQL.
pub(crate) fn on_postgres(url: &str) -> Database {
    Database::Postgres(PostgresSettings {
        url: Secret::new(url),
        replica_url: None,
    })
}

/// A server and a client on a real socket.
pub(crate) struct Peer {
    pub(crate) running: Running,
    pub(crate) channel: Channel,
}

impl Peer {
    pub(crate) async fn start(config: Config) -> Self {
        let running = Backend::start(config).await.expect("the server starts");
        let endpoint = Endpoint::from_shared(running.endpoint()).expect("an endpoint");
        let channel = endpoint.connect().await.expect("the server accepts");
        Self { running, channel }
    }

    pub(crate) async fn ephemeral() -> Self {
        Self::start(config()).await
    }

    pub(crate) async fn publish(
        &self,
        envelopes: Vec<ClientEnvelope>,
    ) -> Result<PublishResponse, Status> {
        let mut client = PublishServiceClient::new(self.channel.clone());
        client
            .publish(PublishRequest { envelopes })
            .await
            .map(tonic::Response::into_inner)
    }

    /// Publishes one envelope that must be accepted.
    pub(crate) async fn publish_one(&self, envelope: ClientEnvelope) -> EnvelopeMeta {
        let response = self.publish(vec![envelope]).await.expect("it is accepted");
        response
            .envelope_metas
            .into_iter()
            .next()
            .expect("one record")
    }

    pub(crate) async fn query(&self, request: QueryRequest) -> Result<QueryResponse, Status> {
        let client = QueryServiceClient::new(self.channel.clone());
        let mut client = client.max_decoding_message_size(64 << 20);
        client.query(request).await.map(tonic::Response::into_inner)
    }

    /// Reads all of a topic.
    pub(crate) async fn read(&self, topic: &Topic) -> Vec<ServerEnvelope> {
        let request = QueryRequest {
            queries: vec![from(topic, 0)],
            limit: 1000,
        };
        self.query(request).await.expect("it is read").envelopes
    }

    pub(crate) async fn subscribe(&self) -> Subscriber {
        self.try_subscribe(None).await.expect("it opens")
    }

    /// Opens a stream with a credential, or with none.
    pub(crate) async fn try_subscribe(
        &self,
        authorization: Option<&str>,
    ) -> Result<Subscriber, Status> {
        let (requests, stream) = mpsc::channel(200);
        let client = SubscriptionServiceClient::new(self.channel.clone());
        let mut client = client.max_decoding_message_size(64 << 20);
        let mut request = tonic::Request::new(ReceiverStream::new(stream));
        if let Some(value) = authorization {
            let value = value.parse().expect("a header value");
            request.metadata_mut().insert("authorization", value);
        }
        let frames = client.subscribe(request).await?;
        Ok(Subscriber {
            requests: Some(requests),
            frames: frames.into_inner(),
            held: VecDeque::new(),
        })
    }
}

/// The client's end of a stream.
pub(crate) struct Subscriber {
    requests: Option<mpsc::Sender<SubscribeRequest>>,
    frames: Streaming<SubscribeResponse>,
    held: VecDeque<ServerEnvelope>,
}

impl Subscriber {
    pub(crate) async fn send(&self, request: Request) {
        self.send_raw(SubscribeRequest {
            request: Some(request),
        })
        .await;
    }

    pub(crate) async fn send_raw(&self, request: SubscribeRequest) {
        let requests = self.requests.as_ref().expect("the stream is open");
        // A stream that has ended takes nothing; the test sees that on its frames.
        let _ = requests.send(request).await;
    }

    pub(crate) async fn update(&self, id: u64, adds: Vec<TopicQuery>, removes: Vec<Topic>) {
        self.send(Request::Update(Update { id, adds, removes }))
            .await;
    }

    pub(crate) async fn ping(&self, nonce: u64) {
        self.send(Request::Ping(Ping { nonce })).await;
    }

    pub(crate) async fn pong(&self, nonce: u64) {
        self.send(Request::Pong(Pong { nonce })).await;
    }

    /// Ends the client's half of the stream.
    pub(crate) fn half_close(&mut self) {
        self.requests = None;
    }

    /// Waits for the next frame; `Ok(None)` is a clean end.
    pub(crate) async fn next(&mut self) -> Result<Option<Response>, Status> {
        let frame = timeout(PATIENCE, self.frames.message())
            .await
            .expect("a frame in time")?;
        Ok(frame.map(|frame| frame.response.expect("a frame of some kind")))
    }

    pub(crate) async fn frame(&mut self) -> Response {
        self.next().await.expect("no failure").expect("no end")
    }

    pub(crate) async fn started(&mut self) -> u32 {
        match self.frame().await {
            Response::Started(started) => started.keepalive_interval_ms,
            other => panic!("not a start: {other:?}"),
        }
    }

    /// Waits for an acknowledgement; messages before it are held.
    pub(crate) async fn applied(&mut self) -> Applied {
        loop {
            match self.frame().await {
                Response::Applied(applied) => return applied,
                Response::Messages(messages) => self.held.extend(messages.envelopes),
                other => panic!("not an acknowledgement: {other:?}"),
            }
        }
    }

    /// Waits for the next envelope.
    pub(crate) async fn envelope(&mut self) -> ServerEnvelope {
        loop {
            if let Some(envelope) = self.held.pop_front() {
                return envelope;
            }
            match self.frame().await {
                Response::Messages(messages) => self.held.extend(messages.envelopes),
                other => panic!("not messages: {other:?}"),
            }
        }
    }

    /// Waits for the ids of the next envelopes.
    pub(crate) async fn ids(&mut self, count: usize) -> Vec<u64> {
        let mut ids = Vec::new();
        while ids.len() < count {
            ids.push(id_of(&self.envelope().await));
        }
        ids
    }

    /// Waits for the failure that ends the stream.
    pub(crate) async fn failure(&mut self) -> Status {
        loop {
            match self.next().await {
                Err(status) => return status,
                Ok(None) => panic!("the stream ended cleanly"),
                Ok(Some(_)) => {}
            }
        }
    }
}

pub(crate) fn id_of(envelope: &ServerEnvelope) -> u64 {
    sequence_id(envelope.meta.as_ref().expect("a record"))
}

pub(crate) fn sequence_id(meta: &EnvelopeMeta) -> u64 {
    meta.cursor.as_ref().expect("a position").sequence_id
}

pub(crate) fn topic_of(meta: &EnvelopeMeta) -> Topic {
    meta.topic.clone().expect("a topic")
}

pub(crate) fn from(topic: &Topic, after: u64) -> TopicQuery {
    TopicQuery {
        topic: Some(topic.clone()),
        cursor: Some(Cursor { sequence_id: after }),
    }
}

fn topic(kind: u8, identifier: &[u8]) -> Topic {
    Topic {
        topic: [&[kind], identifier].concat().into(),
    }
}

pub(crate) fn group_topic(group: u8) -> Topic {
    topic(0, &[group; 16])
}

pub(crate) fn welcome_topic(installation: u8) -> Topic {
    topic(1, &[installation; 32])
}

pub(crate) fn identity_topic(inbox: InboxId) -> Topic {
    topic(2, inbox.as_bytes())
}

pub(crate) fn envelope(payload: Payload) -> ClientEnvelope {
    ClientEnvelope {
        payload: Some(payload),
    }
}

/// The content types of MLS.
pub(crate) const APPLICATION: u8 = 1;
pub(crate) const PROPOSAL: u8 = 2;
pub(crate) const COMMIT: u8 = 3;

/// Makes the bytes of an MLS private message.
pub(crate) fn private_message(group_id: &[u8], content_type: u8, ciphertext: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 1, 0, 2];
    push_vector(&mut bytes, group_id);
    bytes.extend(7_u64.to_be_bytes());
    bytes.push(content_type);
    push_vector(&mut bytes, b"");
    push_vector(&mut bytes, b"sender");
    push_vector(&mut bytes, ciphertext);
    bytes
}

/// Appends a vector with its length in the form of QUIC.
fn push_vector(bytes: &mut Vec<u8>, content: &[u8]) {
    let length = u32::try_from(content.len()).expect("a short vector");
    match length {
        0..=63 => bytes.push(length as u8),
        64..=16_383 => bytes.extend((length as u16 | 0x4000).to_be_bytes()),
        _ => bytes.extend((length | 0x8000_0000).to_be_bytes()),
    }
    bytes.extend(content);
}

pub(crate) fn group_message(data: Vec<u8>) -> ClientEnvelope {
    let message = GroupMessage {
        data: data.into(),
        ..GroupMessage::default()
    };
    envelope(Payload::GroupMessage(message))
}

/// Makes an application message of a group.
pub(crate) fn message(group: u8, text: &str) -> ClientEnvelope {
    group_message(private_message(&[group; 16], APPLICATION, text.as_bytes()))
}

pub(crate) fn welcome(installation_key: &[u8], data: &str) -> ClientEnvelope {
    let welcome = welcome_message::V1 {
        installation_key: installation_key.to_vec().into(),
        data: data.to_owned().into(),
        ..welcome_message::V1::default()
    };
    let version = Some(welcome_message::Version::V1(welcome));
    envelope(Payload::WelcomeMessage(WelcomeMessage { version }))
}

/// Makes the bytes of a valid key package, and the key of its signatures.
pub(crate) fn key_package_bytes(credential: &[u8], lifetime: Lifetime) -> (Vec<u8>, Vec<u8>) {
    let suite = Ciphersuite::MLS_128_DHKEMX25519_CHACHA20POLY1305_SHA256_Ed25519;
    let provider = OpenMlsRustCrypto::default();
    let signer = SignatureKeyPair::new(suite.signature_algorithm()).expect("a key");
    let credential = CredentialWithKey {
        credential: BasicCredential::new(credential.to_vec()).into(),
        signature_key: signer.to_public_vec().into(),
    };
    let builder = MlsKeyPackage::builder().key_package_lifetime(lifetime);
    let bundle = builder
        .build(suite, &provider, &signer, credential)
        .expect("a key package");
    let bytes = bundle
        .key_package()
        .tls_serialize_detached()
        .expect("bytes");
    (bytes, signer.to_public_vec())
}

pub(crate) fn credential(inbox_id: &str) -> Vec<u8> {
    MlsCredential {
        inbox_id: inbox_id.to_owned(),
    }
    .encode_to_vec()
}

pub(crate) fn key_package(bytes: Vec<u8>) -> ClientEnvelope {
    envelope(Payload::KeyPackage(KeyPackage {
        key_package_tls_serialized: bytes.into(),
    }))
}

/// An account with a wallet and an installation.
pub(crate) struct Account {
    pub(crate) wallet: LocalWallet,
    pub(crate) installation: InstallationKey,
}

impl Account {
    pub(crate) fn new(number: u8) -> Self {
        let wallet = LocalWallet::from_secret(&[number; 32]).expect("a key");
        Self {
            wallet,
            installation: InstallationKey::from_seed(&[number; 32]),
        }
    }

    /// Makes the update that creates an inbox of this account.
    pub(crate) fn create(&self, nonce: u64) -> (InboxId, IdentityUpdate) {
        let create = UpdateBuilder::create_inbox(self.wallet.identifier().clone(), nonce);
        let create = create.add_installation(self.installation.id());
        let inbox = create.inbox_id();
        (inbox, self.sign(create))
    }

    /// Signs an update with all that this account has.
    pub(crate) fn sign(&self, update: UpdateBuilder) -> IdentityUpdate {
        let mut unsigned = update.build(1_700_000_000_000_000_000).expect("an update");
        let text = unsigned.signature_text().to_owned();
        for signer in unsigned.missing_signers() {
            let signature = match signer == *self.wallet.identifier() {
                true => self.wallet.sign_text(&text),
                false => self.installation.sign_text(&text),
            };
            let signature = signature.expect("a signature");
            unsigned = unsigned
                .with_signature(signature)
                .expect("an expected signature");
        }
        unsigned.finish().expect("a signed update")
    }

    pub(crate) fn address(&self) -> String {
        self.wallet.identifier().text()
    }
}

pub(crate) fn identity(update: IdentityUpdate) -> ClientEnvelope {
    envelope(Payload::IdentityUpdate(update))
}

/// Checks a refusal, which names the reason and the index of the envelope.
pub(crate) fn assert_refused(status: &Status, reason: Reason, index: Option<u32>) {
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    let detail = decode_publish_error(status.details()).expect("a detail");
    assert_eq!(
        (detail.reason(), detail.index),
        (reason, index),
        "{detail:?}"
    );
}

/// Publishes messages of a group and returns their ids.
pub(crate) async fn publish_texts(peer: &Peer, group: u8, texts: &[&str]) -> Vec<u64> {
    let envelopes = texts.iter().map(|text| message(group, text)).collect();
    let metas = peer.publish(envelopes).await.unwrap().envelope_metas;
    metas.iter().map(sequence_id).collect()
}

/// Opens a stream and takes its first frame.
pub(crate) async fn opened(peer: &Peer) -> Subscriber {
    let mut stream = peer.subscribe().await;
    stream.started().await;
    stream
}
