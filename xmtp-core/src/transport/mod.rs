//! The wire seam: the eight calls of `xmtp.backend.v1`, in wire messages.
//!
//! Core checks what arrives into domain types exactly once, at admission; a transport neither
//! retries, splits, nor interprets.

mod error;
pub mod layer;

use std::fmt::Debug;

use async_trait::async_trait;
use dyn_clone::DynClone;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use xmtp_proto::backend::v1;

pub use error::TransportError;

/// A wire to one backend; cheap to clone, held as `Box<dyn Transport>`.
///
/// # Behavior
/// - Every call is one request; failures are told, never hidden by a repeat.
/// - Dropping a call's future cancels it.
/// - Frames of a subscription arrive in order; its end is told as an error or as a clean end,
///   and trailers that carry an error are never taken for a clean end.
#[async_trait]
pub trait Transport: Debug + DynClone + Send + Sync {
    /// Publishes envelopes in one atomic request.
    async fn publish(
        &self,
        request: v1::PublishRequest,
    ) -> Result<v1::PublishResponse, TransportError>;

    /// Reads a page of topics after their cursors, from the primary.
    async fn query(&self, request: v1::QueryRequest) -> Result<v1::QueryResponse, TransportError>;

    /// Reads the newest envelope of topics; may lag.
    async fn query_newest(
        &self,
        request: v1::QueryNewestRequest,
    ) -> Result<v1::QueryNewestResponse, TransportError>;

    /// Opens a bidirectional subscription.
    async fn subscribe(&self) -> Result<Subscription, TransportError>;

    /// Opens a subscription to a fixed set of topics.
    async fn subscribe_static(
        &self,
        request: v1::SubscribeStaticRequest,
    ) -> Result<
        BoxStream<'static, Result<v1::SubscribeStaticResponse, TransportError>>,
        TransportError,
    >;

    /// Looks up the inboxes of identifiers; may lag.
    async fn inbox_ids(
        &self,
        request: v1::GetInboxIdsRequest,
    ) -> Result<v1::GetInboxIdsResponse, TransportError>;

    /// Has smart contract wallet signatures checked on their chains.
    async fn verify_wallet_signatures(
        &self,
        request: v1::VerifySmartContractWalletSignaturesRequest,
    ) -> Result<v1::VerifySmartContractWalletSignaturesResponse, TransportError>;

    /// Reads the server configuration, without a credential.
    async fn configuration(&self) -> Result<v1::GetConfigurationResponse, TransportError>;

    /// Answers where this transport leads, as configured; for the stored copy's URL check.
    fn endpoint(&self) -> String;

    /// States what this transport can do.
    fn capability(&self) -> TransportCapability;
}

dyn_clone::clone_trait_object!(Transport);

/// What a transport can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportCapability {
    /// The transport's name for the stack card, such as `grpc`.
    pub name: &'static str,
    /// Whether [`Transport::subscribe`] works; otherwise only static subscriptions do.
    pub bidirectional: bool,
    /// Whether a credential source is configured (CFG-062).
    pub credential_source: bool,
}

/// An open bidirectional subscription. Dropping it ends the stream.
pub struct Subscription {
    /// Where requests go.
    pub requests: Box<dyn SubscriptionRequests>,
    /// Frames in order. `None` is a clean end by the server.
    pub frames: BoxStream<'static, Result<v1::SubscribeResponse, TransportError>>,
}

impl Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Subscription")
    }
}

/// The request half of a bidirectional subscription. Dropping it half-closes the stream.
pub trait SubscriptionRequests: Send {
    /// Hands a request to the transport; waits while its bounded queue is full.
    fn send(&mut self, request: v1::SubscribeRequest) -> BoxFuture<'_, Result<(), TransportError>>;
}
