//! Faults of the wire, by a script that prints itself.
//!
//! A fault happens at a counted place, once, and nowhere else: a failing test says
//! `seed 7: drop the reply of publish 2; cut the stream after frame 3`, and the same words make the
//! same run. Every fault is one that a network or a lagging replica can cause; none invents bytes.

mod script;

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt, unfold};
use parking_lot::Mutex;
use xmtp_core::transport::{Subscription, Transport, TransportCapability, TransportError};
use xmtp_proto::backend::v1;
use xmtp_proto::backend::v1::query_newest_response::Result as Newest;

pub use script::{Fault, Script};

/// Breaks what passes over another transport, as a script says.
///
/// # Behavior
/// - Clones share the script and its counts.
/// - Calls and frames that the script does not name pass unchanged.
/// - Frames are counted over all streams of the transport.
#[derive(Clone, Debug)]
pub struct FaultTransport {
    inner: Box<dyn Transport>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    script: Script,
    publishes: u32,
    queries: u32,
    newest_reads: u32,
    frames: u32,
    /// What the newest read of each topic answered last, without lag.
    newest: HashMap<Bytes, Newest>,
}

impl State {
    /// Tells whether the script has this fault, and takes it out.
    fn happens(&mut self, fault: Fault) -> bool {
        self.script.take(fault)
    }
}

impl FaultTransport {
    /// Wraps a transport.
    pub fn new(script: Script, inner: Box<dyn Transport>) -> Self {
        let state = State {
            script,
            publishes: 0,
            queries: 0,
            newest_reads: 0,
            frames: 0,
            newest: HashMap::new(),
        };
        Self {
            inner,
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Answers the faults that have not happened yet.
    pub fn remaining(&self) -> Script {
        self.state.lock().script.clone()
    }

    /// Counts the frames that came so far, over all streams.
    pub fn frames(&self) -> u32 {
        self.state.lock().frames
    }

    fn faulty<T: Clone + Send + 'static>(
        &self,
        frames: BoxStream<'static, Result<T, TransportError>>,
    ) -> BoxStream<'static, Result<T, TransportError>> {
        let open = Faulted {
            frames,
            again: None,
            is_cut: false,
            state: self.state.clone(),
        };
        Box::pin(unfold(open, |mut open| async move {
            let next = open.next().await?;
            Some((next, open))
        }))
    }
}

/// One stream on its way through the script.
struct Faulted<T> {
    frames: BoxStream<'static, Result<T, TransportError>>,
    /// A frame that is to come a second time.
    again: Option<T>,
    is_cut: bool,
    state: Arc<Mutex<State>>,
}

impl<T: Clone> Faulted<T> {
    async fn next(&mut self) -> Option<Result<T, TransportError>> {
        if let Some(frame) = self.again.take() {
            return Some(Ok(frame));
        }
        if self.is_cut {
            return None;
        }
        let frame = match self.frames.next().await? {
            Ok(frame) => frame,
            Err(error) => return Some(Err(error)),
        };
        let mut state = self.state.lock();
        state.frames += 1;
        let count = state.frames;
        if state.happens(Fault::CutBeforeFrame(count)) {
            self.is_cut = true;
            return Some(Err(broken("the stream is cut")));
        }
        if state.happens(Fault::DuplicateFrame(count)) {
            self.again = Some(frame.clone());
        }
        Some(Ok(frame))
    }
}

fn broken(what: &str) -> TransportError {
    TransportError::Unavailable {
        detail: format!("by script: {what}"),
        retry_after: None,
    }
}

/// Replaces answers by those of the read before, as from a replica that has not moved since.
fn lag(fresh: &mut Vec<Newest>, older: &HashMap<Bytes, Newest>, full: bool) {
    let mut lagging = Vec::with_capacity(fresh.len());
    for result in fresh.drain(..) {
        // Without the envelope the older answer does not fit this read; as if never written.
        let known = older
            .get(&key(&result))
            .filter(|known| !full || known.envelope.is_some());
        lagging.extend(known.map(|known| Newest {
            envelope: known.envelope.clone().filter(|_| full),
            ..known.clone()
        }));
    }
    *fresh = lagging;
}

fn key(result: &Newest) -> Bytes {
    result
        .topic
        .as_ref()
        .map(|topic| topic.topic.clone())
        .unwrap_or_default()
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Transport for FaultTransport {
    async fn publish(
        &self,
        request: v1::PublishRequest,
    ) -> Result<v1::PublishResponse, TransportError> {
        let (is_lost, reply_is_lost) = {
            let mut state = self.state.lock();
            state.publishes += 1;
            let count = state.publishes;
            (
                state.happens(Fault::LosePublish(count)),
                state.happens(Fault::DropReply(count)),
            )
        };
        if is_lost {
            return Err(broken("the publish is lost"));
        }
        let response = self.inner.publish(request).await?;
        if reply_is_lost {
            return Err(broken("the reply of the publish is lost"));
        }
        Ok(response)
    }

    async fn query(&self, request: v1::QueryRequest) -> Result<v1::QueryResponse, TransportError> {
        let fails = {
            let mut state = self.state.lock();
            state.queries += 1;
            let count = state.queries;
            state.happens(Fault::FailQuery(count))
        };
        match fails {
            true => Err(broken("the query fails")),
            false => self.inner.query(request).await,
        }
    }

    async fn query_newest(
        &self,
        request: v1::QueryNewestRequest,
    ) -> Result<v1::QueryNewestResponse, TransportError> {
        let full = request.include_full_envelope;
        let mut response = self.inner.query_newest(request).await?;
        let mut state = self.state.lock();
        state.newest_reads += 1;
        let count = state.newest_reads;
        let fresh = response.results.clone();
        if state.happens(Fault::LagNewest(count)) {
            lag(&mut response.results, &state.newest, full);
        }
        state
            .newest
            .extend(fresh.into_iter().map(|result| (key(&result), result)));
        Ok(response)
    }

    async fn subscribe(&self) -> Result<Subscription, TransportError> {
        let Subscription { requests, frames } = self.inner.subscribe().await?;
        Ok(Subscription {
            requests,
            frames: self.faulty(frames),
        })
    }

    async fn subscribe_static(
        &self,
        request: v1::SubscribeStaticRequest,
    ) -> Result<
        BoxStream<'static, Result<v1::SubscribeStaticResponse, TransportError>>,
        TransportError,
    > {
        Ok(self.faulty(self.inner.subscribe_static(request).await?))
    }

    async fn inbox_ids(
        &self,
        request: v1::GetInboxIdsRequest,
    ) -> Result<v1::GetInboxIdsResponse, TransportError> {
        self.inner.inbox_ids(request).await
    }

    async fn verify_wallet_signatures(
        &self,
        request: v1::VerifySmartContractWalletSignaturesRequest,
    ) -> Result<v1::VerifySmartContractWalletSignaturesResponse, TransportError> {
        self.inner.verify_wallet_signatures(request).await
    }

    async fn configuration(&self) -> Result<v1::GetConfigurationResponse, TransportError> {
        self.inner.configuration().await
    }

    fn endpoint(&self) -> String {
        self.inner.endpoint()
    }

    fn capability(&self) -> TransportCapability {
        self.inner.capability()
    }
}
