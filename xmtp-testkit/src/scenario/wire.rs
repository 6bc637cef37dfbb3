//! A wire on which one person sees other envelopes than the backend holds.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::stream::{BoxStream, StreamExt};
use parking_lot::Mutex;
use xmtp_core::transport::{Subscription, Transport, TransportCapability, TransportError};
use xmtp_proto::backend::v1;
use xmtp_proto::backend::v1::{ClientEnvelope, ServerEnvelope};

use crate::InProcessTransport;

/// What is shown in the place of stored envelopes, by sequence id.
///
/// The backend's metadata stays, its hash included, so a shown envelope never has the hash that
/// its bytes would have.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown(Arc<Mutex<BTreeMap<u64, ClientEnvelope>>>);

impl Shown {
    /// Shows an envelope from now on.
    pub(super) fn show(&self, sequence: u64, envelope: ClientEnvelope) {
        self.0.lock().insert(sequence, envelope);
    }

    fn over(&self, envelopes: &mut [ServerEnvelope]) {
        let shown = self.0.lock();
        for envelope in envelopes {
            let cursor = envelope.meta.as_ref().and_then(|meta| meta.cursor);
            let sequence = cursor.map_or(0, |cursor| cursor.sequence_id);
            if let Some(other) = shown.get(&sequence) {
                envelope.envelope = Some(other.clone());
            }
        }
    }
}

/// The wire of one person.
#[derive(Clone, Debug)]
pub(super) struct Wire {
    pub(super) inner: InProcessTransport,
    pub(super) shown: Shown,
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Transport for Wire {
    async fn publish(
        &self,
        request: v1::PublishRequest,
    ) -> Result<v1::PublishResponse, TransportError> {
        self.inner.publish(request).await
    }

    async fn query(&self, request: v1::QueryRequest) -> Result<v1::QueryResponse, TransportError> {
        let mut response = self.inner.query(request).await?;
        self.shown.over(&mut response.envelopes);
        Ok(response)
    }

    async fn query_newest(
        &self,
        request: v1::QueryNewestRequest,
    ) -> Result<v1::QueryNewestResponse, TransportError> {
        self.inner.query_newest(request).await
    }

    async fn subscribe(&self) -> Result<Subscription, TransportError> {
        use v1::subscribe_response::Response;
        let Subscription { requests, frames } = self.inner.subscribe().await?;
        let shown = self.shown.clone();
        let frames = frames.map(move |frame| {
            let mut frame = frame?;
            if let Some(Response::Messages(messages)) = &mut frame.response {
                shown.over(&mut messages.envelopes);
            }
            Ok(frame)
        });
        Ok(Subscription {
            requests,
            frames: Box::pin(frames),
        })
    }

    async fn subscribe_static(
        &self,
        request: v1::SubscribeStaticRequest,
    ) -> Result<
        BoxStream<'static, Result<v1::SubscribeStaticResponse, TransportError>>,
        TransportError,
    > {
        self.inner.subscribe_static(request).await
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
