//! Traces each call: its name, its outcome's code, and counts; never payloads or ids.

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tracing::Instrument;
use xmtp_proto::backend::v1;

use crate::error::Coded;
use crate::transport::{Subscription, Transport, TransportCapability, TransportError};

/// Opens a span around each call of the inner transport.
#[derive(Clone, Debug)]
pub struct Trace(pub Box<dyn Transport>);

async fn traced<T>(
    call: &'static str,
    count: usize,
    future: impl Future<Output = Result<T, TransportError>>,
) -> Result<T, TransportError> {
    async move {
        let result = future.await;
        match &result {
            Ok(_) => tracing::debug!("done"),
            Err(error) => tracing::debug!(code = error.code(), "failed"),
        }
        result
    }
    .instrument(tracing::debug_span!("transport", call, count))
    .await
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Transport for Trace {
    async fn publish(
        &self,
        request: v1::PublishRequest,
    ) -> Result<v1::PublishResponse, TransportError> {
        let count = request.envelopes.len();
        traced("publish", count, self.0.publish(request)).await
    }

    async fn query(&self, request: v1::QueryRequest) -> Result<v1::QueryResponse, TransportError> {
        let count = request.queries.len();
        traced("query", count, self.0.query(request)).await
    }

    async fn query_newest(
        &self,
        request: v1::QueryNewestRequest,
    ) -> Result<v1::QueryNewestResponse, TransportError> {
        let count = request.topics.len();
        traced("query_newest", count, self.0.query_newest(request)).await
    }

    async fn subscribe(&self) -> Result<Subscription, TransportError> {
        traced("subscribe", 0, self.0.subscribe()).await
    }

    async fn subscribe_static(
        &self,
        request: v1::SubscribeStaticRequest,
    ) -> Result<
        BoxStream<'static, Result<v1::SubscribeStaticResponse, TransportError>>,
        TransportError,
    > {
        let count = request.topics.len();
        traced("subscribe_static", count, self.0.subscribe_static(request)).await
    }

    async fn inbox_ids(
        &self,
        request: v1::GetInboxIdsRequest,
    ) -> Result<v1::GetInboxIdsResponse, TransportError> {
        let count = request.requests.len();
        traced("inbox_ids", count, self.0.inbox_ids(request)).await
    }

    async fn verify_wallet_signatures(
        &self,
        request: v1::VerifySmartContractWalletSignaturesRequest,
    ) -> Result<v1::VerifySmartContractWalletSignaturesResponse, TransportError> {
        let count = request.signatures.len();
        traced("verify", count, self.0.verify_wallet_signatures(request)).await
    }

    async fn configuration(&self) -> Result<v1::GetConfigurationResponse, TransportError> {
        traced("configuration", 0, self.0.configuration()).await
    }

    fn endpoint(&self) -> String {
        self.0.endpoint()
    }

    fn capability(&self) -> TransportCapability {
        self.0.capability()
    }
}
