//! Repeats reads that failed in passing. Publishing is repeated by `send` alone, so that budgets
//! do not multiply; subscriptions are reopened by `subscription`.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use xmtp_proto::backend::v1;

use crate::runtime::{Runtime, RuntimeExt};
use crate::transport::{Subscription, Transport, TransportCapability, TransportError};

/// Tries of one read.
const MAX_READ_TRIES: u32 = 3;
/// Pause after the first failed try; tripled after each further one, and at least what the backend
/// asks for.
const FIRST_READ_PAUSE: Duration = Duration::from_millis(50);

/// Repeats reads of the inner transport a bounded number of times.
#[derive(Clone, Debug)]
pub struct Retry {
    inner: Box<dyn Transport>,
    runtime: Arc<dyn Runtime>,
}

impl Retry {
    /// Wraps a transport.
    pub fn new(inner: Box<dyn Transport>, runtime: Arc<dyn Runtime>) -> Self {
        Self { inner, runtime }
    }

    async fn read<T, F>(&self, call: impl Fn() -> F) -> Result<T, TransportError>
    where
        F: Future<Output = Result<T, TransportError>>,
    {
        let mut pause = FIRST_READ_PAUSE;
        for _ in 1..MAX_READ_TRIES {
            match call().await {
                Err(error) if error.is_retryable() => {
                    self.runtime.sleep(pause.max(error.asked_pause())).await;
                }
                settled => return settled,
            }
            pause *= 3;
        }
        call().await
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Transport for Retry {
    async fn publish(
        &self,
        request: v1::PublishRequest,
    ) -> Result<v1::PublishResponse, TransportError> {
        self.inner.publish(request).await
    }

    async fn query(&self, request: v1::QueryRequest) -> Result<v1::QueryResponse, TransportError> {
        self.read(|| self.inner.query(request.clone())).await
    }

    async fn query_newest(
        &self,
        request: v1::QueryNewestRequest,
    ) -> Result<v1::QueryNewestResponse, TransportError> {
        self.read(|| self.inner.query_newest(request.clone())).await
    }

    async fn subscribe(&self) -> Result<Subscription, TransportError> {
        self.inner.subscribe().await
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
        self.read(|| self.inner.inbox_ids(request.clone())).await
    }

    async fn verify_wallet_signatures(
        &self,
        request: v1::VerifySmartContractWalletSignaturesRequest,
    ) -> Result<v1::VerifySmartContractWalletSignaturesResponse, TransportError> {
        self.read(|| self.inner.verify_wallet_signatures(request.clone()))
            .await
    }

    async fn configuration(&self) -> Result<v1::GetConfigurationResponse, TransportError> {
        self.read(|| self.inner.configuration()).await
    }

    fn endpoint(&self) -> String {
        self.inner.endpoint()
    }

    fn capability(&self) -> TransportCapability {
        self.inner.capability()
    }
}
