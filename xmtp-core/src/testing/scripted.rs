//! A backend double that is stricter than the real one, and processors that do what payloads say.
//!
//! The backend refuses what a real one would forgive: repeated topics, empty requests, limits
//! above the bounds. Faults come only where a test asks for them, so a failing test names what
//! went wrong. A group message carries its group in its first 16 bytes, because nothing here
//! parses MLS.

mod client;
mod faults;
mod processor;
mod server;
mod stream;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use parking_lot::Mutex;
use xmtp_proto::backend::v1;
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::backend::v1::welcome_message;
use xmtp_proto::identity::IdentityUpdate;
use xmtp_proto::{GroupId, InboxId, InstallationId, Topic};

use crate::runtime::{Runtime, RuntimeExt};
use crate::transport::{Subscription, Transport, TransportCapability, TransportError};

pub use client::{INSTALLATION, ScriptedClient};
pub use faults::{Call, Fault, FrameFault};
pub use processor::{ScriptedProcessor, processors};
use server::Server;

/// A backend in memory, with a script of faults; cheap to clone.
#[derive(Clone)]
pub struct ScriptedBackend {
    server: Arc<Mutex<Server>>,
    runtime: Arc<dyn Runtime>,
}

impl fmt::Debug for ScriptedBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("scripted")
    }
}

impl ScriptedBackend {
    /// Makes an empty backend whose time is the runtime's.
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self {
            server: Arc::default(),
            runtime,
        }
    }

    /// Answers a transport that leads here.
    pub fn transport(&self) -> Box<dyn Transport> {
        Box::new(ScriptedTransport {
            backend: self.clone(),
        })
    }

    /// Stores envelopes as another client would; answers their sequence ids.
    ///
    /// # Panics
    /// When an envelope names no topic.
    pub fn store(&self, envelopes: impl IntoIterator<Item = v1::ClientEnvelope>) -> Vec<u64> {
        let request = v1::PublishRequest {
            envelopes: envelopes.into_iter().collect(),
        };
        let stored = self.server.lock().publish(request, self.runtime.now_ns());
        let metas = stored
            .expect("the script stores what is valid")
            .envelope_metas;
        let sequences = metas.into_iter().map(|meta| meta.cursor);
        sequences
            .map(|cursor| cursor.map_or(0, |cursor| cursor.sequence_id))
            .collect()
    }

    /// Fails the next calls of a kind, in order, one fault for each call.
    pub fn fail(&self, call: Call, faults: impl IntoIterator<Item = Fault>) {
        let mut server = self.server.lock();
        server.faults.entry(call).or_default().extend(faults);
    }

    /// Changes the next frames of message streams, in order; `None` leaves one as it is.
    pub fn distort(&self, faults: impl IntoIterator<Item = Option<FrameFault>>) {
        self.server.lock().frame_faults.extend(faults);
    }

    /// Opens every next stream with an empty Messages frame instead of Started, or not.
    pub fn skip_started(&self, skips: bool) {
        self.server.lock().skips_started = skips;
    }

    /// Lets heads be seen only through a sequence id: a replica that lags. Query reads on.
    pub fn lag_at(&self, sequence: Option<u64>) {
        self.server.lock().lag = sequence;
    }

    /// Puts the backend back to the state through a sequence id, as from a backup; ids go on above
    /// `next`, which a fence has raised, or which was forgotten too. Open streams are cut.
    pub fn put_back(&self, through: u64, next: u64) {
        let mut server = self.server.lock();
        server.put_back(through, next);
        server.cut(None);
    }

    /// Sets the keepalive interval that streams state, in milliseconds.
    pub fn keepalive(&self, milliseconds: u32) {
        self.server.lock().keepalive_ms = milliseconds;
    }

    /// Swallows everything, in both directions, without any error, or stops doing so.
    pub fn blackhole(&self, swallows: bool) {
        self.server.lock().set_blackhole(swallows);
    }

    /// Ends every open stream, with an error or cleanly.
    pub fn cut(&self, error: Option<TransportError>) {
        self.server.lock().cut(error);
    }

    /// Sends a Ping on every open stream.
    pub fn ping(&self, nonce: u64) {
        self.server.lock().ping(nonce);
    }

    /// Counts the calls of a kind so far.
    pub fn calls(&self, call: Call) -> usize {
        self.server.lock().calls.get(&call).copied().unwrap_or(0)
    }

    /// Answers the topics and cursors of every query so far.
    pub fn queries(&self) -> Vec<BTreeMap<Topic, u64>> {
        self.server.lock().queries.clone()
    }

    /// Answers every request of streams so far, in order, with the number of its stream.
    pub fn requests(&self) -> Vec<(u64, v1::SubscribeRequest)> {
        self.server.lock().requests.clone()
    }

    /// Answers when each stream was opened.
    pub fn opened(&self) -> Vec<Duration> {
        self.server.lock().opened.clone()
    }

    /// Answers what is registered on the open streams, with the sequence id sent last.
    pub fn registered(&self) -> BTreeMap<Topic, u64> {
        self.server.lock().registered()
    }

    /// Counts the envelopes handed out so far, by a query or a stream.
    pub fn handed_out(&self) -> usize {
        self.server.lock().handed_out
    }

    /// Counts one call and plays its fault. `Ok(true)` says that the reply is to be dropped.
    async fn admit(&self, call: Call) -> Result<bool, TransportError> {
        let fault = self.server.lock().admit(call);
        match fault {
            None => Ok(false),
            Some(Fault::Refuse(error)) => Err(error),
            Some(Fault::DropReply) => Ok(true),
            Some(Fault::Delay(delay)) => {
                self.runtime.sleep(delay).await;
                Ok(false)
            }
            Some(Fault::Hang) => std::future::pending().await,
        }
    }

    async fn call<T>(
        &self,
        call: Call,
        serve: impl FnOnce(&mut Server) -> Result<T, TransportError> + Send,
    ) -> Result<T, TransportError> {
        let drops_reply = self.admit(call).await?;
        let served = serve(&mut self.server.lock());
        if drops_reply {
            return Err(TransportError::Unavailable {
                detail: "the reply was dropped".to_owned(),
                retry_after: None,
            });
        }
        served
    }
}

#[derive(Clone, Debug)]
struct ScriptedTransport {
    backend: ScriptedBackend,
}

const UNSCRIPTED: TransportError = TransportError::Unimplemented;

#[async_trait]
impl Transport for ScriptedTransport {
    async fn publish(
        &self,
        request: v1::PublishRequest,
    ) -> Result<v1::PublishResponse, TransportError> {
        let now = self.backend.runtime.now_ns();
        let serve = move |server: &mut Server| server.publish(request, now);
        self.backend.call(Call::Publish, serve).await
    }

    async fn query(&self, request: v1::QueryRequest) -> Result<v1::QueryResponse, TransportError> {
        let serve = move |server: &mut Server| server.query(request);
        self.backend.call(Call::Query, serve).await
    }

    async fn query_newest(
        &self,
        request: v1::QueryNewestRequest,
    ) -> Result<v1::QueryNewestResponse, TransportError> {
        let serve = move |server: &mut Server| server.query_newest(&request);
        self.backend.call(Call::QueryNewest, serve).await
    }

    async fn subscribe(&self) -> Result<Subscription, TransportError> {
        let now = self.backend.runtime.monotonic();
        let open = move |server: &mut Server| Ok(server.open(now));
        let stream = self.backend.call(Call::Subscribe, open).await?;
        let backend = self.backend.clone();
        Ok(stream::subscription(
            backend.server,
            backend.runtime,
            stream,
        ))
    }

    async fn subscribe_static(
        &self,
        _request: v1::SubscribeStaticRequest,
    ) -> Result<
        BoxStream<'static, Result<v1::SubscribeStaticResponse, TransportError>>,
        TransportError,
    > {
        Err(UNSCRIPTED)
    }

    async fn inbox_ids(
        &self,
        _request: v1::GetInboxIdsRequest,
    ) -> Result<v1::GetInboxIdsResponse, TransportError> {
        Err(UNSCRIPTED)
    }

    async fn verify_wallet_signatures(
        &self,
        _request: v1::VerifySmartContractWalletSignaturesRequest,
    ) -> Result<v1::VerifySmartContractWalletSignaturesResponse, TransportError> {
        Err(UNSCRIPTED)
    }

    async fn configuration(&self) -> Result<v1::GetConfigurationResponse, TransportError> {
        Err(UNSCRIPTED)
    }

    fn endpoint(&self) -> String {
        "scripted:".to_owned()
    }

    fn capability(&self) -> TransportCapability {
        TransportCapability {
            name: "scripted",
            bidirectional: true,
            credential_source: false,
        }
    }
}

/// Makes the envelope of a group message. The processor reads `text` as its script.
pub fn group_envelope(group: &GroupId, text: &str) -> v1::ClientEnvelope {
    let mut data = group.as_bytes().to_vec();
    data.extend_from_slice(text.as_bytes());
    envelope(Payload::GroupMessage(v1::GroupMessage {
        data: data.into(),
        ..Default::default()
    }))
}

/// Makes the envelope of a Welcome for an installation.
pub fn welcome_envelope(installation: &InstallationId, text: &str) -> v1::ClientEnvelope {
    let welcome = welcome_message::V1 {
        installation_key: Bytes::copy_from_slice(installation.as_bytes()),
        data: Bytes::copy_from_slice(text.as_bytes()),
        ..Default::default()
    };
    envelope(Payload::WelcomeMessage(v1::WelcomeMessage {
        version: Some(welcome_message::Version::V1(welcome)),
    }))
}

/// Makes the envelope of an identity update; one with the time `u64::MAX` is invalid.
pub fn identity_envelope(inbox: &InboxId, time: u64) -> v1::ClientEnvelope {
    envelope(Payload::IdentityUpdate(IdentityUpdate {
        inbox_id: inbox.to_hex(),
        client_timestamp_ns: time,
        ..Default::default()
    }))
}

fn envelope(payload: Payload) -> v1::ClientEnvelope {
    v1::ClientEnvelope {
        payload: Some(payload),
    }
}
