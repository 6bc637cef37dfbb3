//! The eight calls.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};
use xmtp_core::transport::{Subscription, Transport, TransportCapability, TransportError};
use xmtp_proto::backend::v1;
use xmtp_proto::backend::v1::configuration_service_client::ConfigurationServiceClient;
use xmtp_proto::backend::v1::identity_service_client::IdentityServiceClient;
use xmtp_proto::backend::v1::publish_service_client::PublishServiceClient;
use xmtp_proto::backend::v1::query_service_client::QueryServiceClient;
use xmtp_proto::backend::v1::subscription_service_client::SubscriptionServiceClient;

use crate::builder::{Builder, ConnectError};
use crate::dial::{Target, dial};
use crate::headers::Headers;
use crate::size::{MAX_MESSAGE_BYTES, within_ceiling};
use crate::status::classify_status;
use crate::stream::{REQUEST_QUEUE, Requests, frames};

type Connection = InterceptedService<Channel, Headers>;

/// A backend behind gRPC. Clones share connections.
///
/// # Behavior
/// - Connects when it is first used, and again when the connection is gone.
/// - Calls and streams have a connection each.
/// - A call that takes longer than the request timeout is cancelled and told as
///   [`TransportError::DeadlineExceeded`]; so is a stream that takes that long to open.
/// - A request over the ceiling is [`TransportError::OutOfRange`] and is not sent.
/// - A backend that can not be reached is told with host, phase and cause.
#[derive(Clone)]
pub struct GrpcTransport {
    inner: Arc<Inner>,
}

struct Inner {
    url: String,
    target: Target,
    /// The target as errors name it.
    place: Arc<str>,
    endpoint: Endpoint,
    headers: Headers,
    request_timeout: Duration,
    connect_timeout: Duration,
    calls: OnceLock<Channel>,
    streams: OnceLock<Channel>,
}

impl fmt::Debug for GrpcTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcTransport")
            .field("target", &self.inner.target)
            .finish_non_exhaustive()
    }
}

/// Makes a client of a generated service with the limits of the contract, which apply to each
/// message of a stream as they do to a call.
macro_rules! client {
    ($service:ident, $connection:expr) => {
        $service::new($connection)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    };
}

impl GrpcTransport {
    /// Makes a transport with defaults; connects when it is first used.
    pub fn connect_lazy(url: impl Into<String>) -> Result<Self, ConnectError> {
        Builder::new(url).connect_lazy()
    }

    /// Starts to make a transport.
    pub fn builder(url: impl Into<String>) -> Builder {
        Builder::new(url)
    }

    pub(crate) fn new(
        url: String,
        target: Target,
        endpoint: Endpoint,
        headers: Headers,
        request_timeout: Duration,
        connect_timeout: Duration,
    ) -> Self {
        let place = target.to_string().into();
        let (calls, streams) = (OnceLock::new(), OnceLock::new());
        let inner = Inner {
            url,
            target,
            place,
            endpoint,
            headers,
            request_timeout,
            connect_timeout,
            calls,
            streams,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    fn calls(&self) -> Connection {
        self.connection(&self.inner.calls)
    }

    fn streams(&self) -> Connection {
        self.connection(&self.inner.streams)
    }

    /// The connection is made here and not earlier because it needs a runtime.
    fn connection(&self, channel: &OnceLock<Channel>) -> Connection {
        let channel = channel.get_or_init(|| {
            let (target, connect_timeout) = (self.inner.target.clone(), self.inner.connect_timeout);
            let connector = tower::service_fn(move |_| dial(target.clone(), connect_timeout));
            self.inner.endpoint.connect_with_connector_lazy(connector)
        });
        InterceptedService::new(channel.clone(), self.inner.headers.clone())
    }

    /// Waits for a response, no longer than allowed.
    async fn within<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, TransportError> {
        match timeout(self.inner.request_timeout, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(classify_status(&self.inner.place, &status)),
            Err(_) => Err(TransportError::DeadlineExceeded),
        }
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Transport for GrpcTransport {
    async fn publish(
        &self,
        request: v1::PublishRequest,
    ) -> Result<v1::PublishResponse, TransportError> {
        let mut client = client!(PublishServiceClient, self.calls());
        self.within(client.publish(within_ceiling(request)?)).await
    }

    async fn query(&self, request: v1::QueryRequest) -> Result<v1::QueryResponse, TransportError> {
        let mut client = client!(QueryServiceClient, self.calls());
        self.within(client.query(within_ceiling(request)?)).await
    }

    async fn query_newest(
        &self,
        request: v1::QueryNewestRequest,
    ) -> Result<v1::QueryNewestResponse, TransportError> {
        let mut client = client!(QueryServiceClient, self.calls());
        self.within(client.query_newest(within_ceiling(request)?))
            .await
    }

    async fn subscribe(&self) -> Result<Subscription, TransportError> {
        let mut client = client!(SubscriptionServiceClient, self.streams());
        let (queue, requests) = mpsc::channel(REQUEST_QUEUE);
        let streaming = self
            .within(client.subscribe(ReceiverStream::new(requests)))
            .await?;
        let place = self.inner.place.clone();
        Ok(Subscription {
            requests: Box::new(Requests {
                place: place.clone(),
                queue,
            }),
            frames: frames(place, streaming),
        })
    }

    async fn subscribe_static(
        &self,
        request: v1::SubscribeStaticRequest,
    ) -> Result<
        BoxStream<'static, Result<v1::SubscribeStaticResponse, TransportError>>,
        TransportError,
    > {
        let mut client = client!(SubscriptionServiceClient, self.streams());
        let streaming = self
            .within(client.subscribe_static(within_ceiling(request)?))
            .await?;
        Ok(frames(self.inner.place.clone(), streaming))
    }

    async fn inbox_ids(
        &self,
        request: v1::GetInboxIdsRequest,
    ) -> Result<v1::GetInboxIdsResponse, TransportError> {
        let mut client = client!(IdentityServiceClient, self.calls());
        self.within(client.get_inbox_ids(within_ceiling(request)?))
            .await
    }

    async fn verify_wallet_signatures(
        &self,
        request: v1::VerifySmartContractWalletSignaturesRequest,
    ) -> Result<v1::VerifySmartContractWalletSignaturesResponse, TransportError> {
        let mut client = client!(IdentityServiceClient, self.calls());
        self.within(client.verify_smart_contract_wallet_signatures(within_ceiling(request)?))
            .await
    }

    async fn configuration(&self) -> Result<v1::GetConfigurationResponse, TransportError> {
        let mut client = client!(ConfigurationServiceClient, self.calls());
        self.within(client.get_configuration(v1::GetConfigurationRequest {}))
            .await
    }

    fn endpoint(&self) -> String {
        self.inner.url.clone()
    }

    fn capability(&self) -> TransportCapability {
        TransportCapability {
            name: "grpc",
            bidirectional: true,
            credential_source: false,
        }
    }
}
