//! The calls of a backend without a socket.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, StreamExt, unfold};
use tokio::sync::mpsc;
use tonic::Status;
use xmtp_backend::Services;
use xmtp_core::transport::{
    Subscription, SubscriptionRequests, Transport, TransportCapability, TransportError,
};
use xmtp_proto::backend::v1;
use xmtp_transport_grpc::classify_status;

/// What errors name as the place of the backend.
const PLACE: &str = "in process";

/// The requests of one stream that wait for the backend, in requests.
const REQUEST_QUEUE: usize = 16;

/// A transport that calls the services of a backend in the same process.
///
/// # Behavior
/// - Statuses become errors by the table of the gRPC transport.
/// - It leads to one run of a backend and fails for good when that stops.
#[derive(Clone, Debug)]
pub struct InProcessTransport {
    services: Arc<Services>,
}

impl InProcessTransport {
    /// Makes a transport to the backend behind `services`.
    pub fn new(services: Services) -> Self {
        Self {
            services: Arc::new(services),
        }
    }
}

fn told<T>(result: Result<T, Status>) -> Result<T, TransportError> {
    result.map_err(|status| classify_status(PLACE, &status))
}

/// The request half of a stream; dropping it half-closes the stream.
struct Requests(mpsc::Sender<v1::SubscribeRequest>);

impl SubscriptionRequests for Requests {
    fn send(&mut self, request: v1::SubscribeRequest) -> BoxFuture<'_, Result<(), TransportError>> {
        Box::pin(async move {
            let sent = self.0.send(request).await;
            sent.map_err(|_| TransportError::Unavailable {
                detail: format!("{PLACE}: the stream is over"),
                retry_after: None,
            })
        })
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Transport for InProcessTransport {
    async fn publish(
        &self,
        request: v1::PublishRequest,
    ) -> Result<v1::PublishResponse, TransportError> {
        told(self.services.publish(request).await)
    }

    async fn query(&self, request: v1::QueryRequest) -> Result<v1::QueryResponse, TransportError> {
        told(self.services.query(request).await)
    }

    async fn query_newest(
        &self,
        request: v1::QueryNewestRequest,
    ) -> Result<v1::QueryNewestResponse, TransportError> {
        told(self.services.query_newest(request).await)
    }

    async fn subscribe(&self) -> Result<Subscription, TransportError> {
        let (queue, requests) = mpsc::channel(REQUEST_QUEUE);
        let requests = unfold(requests, |mut requests| async move {
            let request = requests.recv().await?;
            Some((Ok(request), requests))
        });
        let frames = told(self.services.subscribe(Box::pin(requests)).await)?;
        Ok(Subscription {
            requests: Box::new(Requests(queue)),
            frames: Box::pin(frames.map(told)),
        })
    }

    async fn subscribe_static(
        &self,
        request: v1::SubscribeStaticRequest,
    ) -> Result<
        BoxStream<'static, Result<v1::SubscribeStaticResponse, TransportError>>,
        TransportError,
    > {
        let frames = told(self.services.subscribe_static(request).await)?;
        Ok(Box::pin(frames.map(told)))
    }

    async fn inbox_ids(
        &self,
        request: v1::GetInboxIdsRequest,
    ) -> Result<v1::GetInboxIdsResponse, TransportError> {
        told(self.services.inbox_ids(request).await)
    }

    async fn verify_wallet_signatures(
        &self,
        request: v1::VerifySmartContractWalletSignaturesRequest,
    ) -> Result<v1::VerifySmartContractWalletSignaturesResponse, TransportError> {
        told(
            self.services
                .verify_smart_contract_wallet_signatures(request)
                .await,
        )
    }

    async fn configuration(&self) -> Result<v1::GetConfigurationResponse, TransportError> {
        told(
            self.services
                .configuration(v1::GetConfigurationRequest {})
                .await,
        )
    }

    fn endpoint(&self) -> String {
        "in-process:".to_owned()
    }

    fn capability(&self) -> TransportCapability {
        TransportCapability {
            name: "in-process",
            bidirectional: true,
            credential_source: false,
        }
    }
}
