//! Mocks of the wire seam.
#![allow(missing_docs)] // the macro makes an undocumented module for each mocked trait

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use mockall::mock;
use xmtp_proto::backend::v1;

use crate::transport::{
    Subscription, SubscriptionRequests, Transport, TransportCapability, TransportError,
};

/// The frames of a subscription to a fixed set of topics.
type StaticFrames = BoxStream<'static, Result<v1::SubscribeStaticResponse, TransportError>>;

mock! {
    /// A mocked wire. The parts of a client hold clones of it: expect `clone` too.
    #[derive(Debug)]
    pub Transport {}

    impl Clone for Transport {
        fn clone(&self) -> Self;
    }

    #[async_trait]
    impl Transport for Transport {
        async fn publish(
            &self,
            request: v1::PublishRequest,
        ) -> Result<v1::PublishResponse, TransportError>;
        async fn query(
            &self,
            request: v1::QueryRequest,
        ) -> Result<v1::QueryResponse, TransportError>;
        async fn query_newest(
            &self,
            request: v1::QueryNewestRequest,
        ) -> Result<v1::QueryNewestResponse, TransportError>;
        async fn subscribe(&self) -> Result<Subscription, TransportError>;
        async fn subscribe_static(
            &self,
            request: v1::SubscribeStaticRequest,
        ) -> Result<StaticFrames, TransportError>;
        async fn inbox_ids(
            &self,
            request: v1::GetInboxIdsRequest,
        ) -> Result<v1::GetInboxIdsResponse, TransportError>;
        async fn verify_wallet_signatures(
            &self,
            request: v1::VerifySmartContractWalletSignaturesRequest,
        ) -> Result<v1::VerifySmartContractWalletSignaturesResponse, TransportError>;
        async fn configuration(&self) -> Result<v1::GetConfigurationResponse, TransportError>;
        fn endpoint(&self) -> String;
        fn capability(&self) -> TransportCapability;
    }
}

mock! {
    /// The mocked request half of a subscription.
    #[derive(Debug)]
    pub SubscriptionRequests {}

    impl SubscriptionRequests for SubscriptionRequests {
        fn send<'a>(
            &'a mut self,
            request: v1::SubscribeRequest,
        ) -> BoxFuture<'a, Result<(), TransportError>>;
    }
}
