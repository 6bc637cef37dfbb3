//! The subscription service on gRPC.
//!
//! It takes the place of the generated server, which would encode every envelope again for every
//! stream that sends it.

use std::convert::Infallible;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use futures_util::stream::{MapErr, TryStreamExt};
use tonic::body::Body;
use tonic::codegen::{Body as HttpBody, Service, StdError, http};
use tonic::server::{Grpc, NamedService, ServerStreamingService, StreamingService};
use tonic::{Request, Response, Status, Streaming};
use xmtp_proto::backend::v1::subscription_service_server::SERVICE_NAME;
use xmtp_proto::backend::v1::{SubscribeRequest, SubscribeStaticRequest};

use super::Services;
use super::codec::FrameCodec;
use super::status::{Failure, complete, unreadable};
use crate::session::Frame;
use crate::stream::{Changing, Fixed, Kind, RawFrames};

/// Serves both kinds of stream.
#[derive(Clone, Debug)]
pub(super) struct SubscriptionServer {
    services: Services,
    /// The largest request, in bytes.
    max_request_bytes: usize,
    /// The largest frame, in bytes.
    max_response_bytes: usize,
}

impl SubscriptionServer {
    pub(super) fn new(
        services: Services,
        max_request_bytes: usize,
        max_response_bytes: usize,
    ) -> Self {
        Self {
            services,
            max_request_bytes,
            max_response_bytes,
        }
    }

    fn grpc<K: Kind>(&self) -> Grpc<FrameCodec<K>> {
        Grpc::new(FrameCodec::default())
            .max_decoding_message_size(self.max_request_bytes)
            .max_encoding_message_size(self.max_response_bytes)
    }
}

impl NamedService for SubscriptionServer {
    const NAME: &'static str = SERVICE_NAME;
}

impl<B> Service<http::Request<B>> for SubscriptionServer
where
    B: HttpBody + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let method = request.uri().path().strip_prefix('/');
        let method = method.and_then(|path| path.strip_prefix(SERVICE_NAME));
        match method {
            Some("/Subscribe") => {
                let (mut grpc, call) = (self.grpc::<Changing>(), Call(self.services.clone()));
                Box::pin(async move { Ok(grpc.streaming(call, request).await) })
            }
            Some("/SubscribeStatic") => {
                let (mut grpc, call) = (self.grpc::<Fixed>(), Call(self.services.clone()));
                Box::pin(async move { Ok(grpc.server_streaming(call, request).await) })
            }
            _ => {
                let status = Failure::UnknownMethod.status("there is no such method");
                Box::pin(async move { Ok(status.into_http()) })
            }
        }
    }
}

/// The frames of a stream whose failures have their reasons.
type Completed = MapErr<RawFrames, fn(Status) -> Status>;

type Opening = BoxFuture<'static, Result<Response<Completed>, Status>>;

fn answer(opened: Result<RawFrames, Status>) -> Result<Response<Completed>, Status> {
    let completed = |frames: RawFrames| frames.map_err(complete as fn(Status) -> Status);
    opened.map(completed).map(Response::new).map_err(complete)
}

struct Call(Services);

impl StreamingService<SubscribeRequest> for Call {
    type Response = Frame;
    type ResponseStream = Completed;
    type Future = Opening;

    fn call(&mut self, request: Request<Streaming<SubscribeRequest>>) -> Opening {
        let services = self.0.clone();
        let requests = request.into_inner().map_err(unreadable);
        Box::pin(async move { answer(services.open_changing(requests).await) })
    }
}

impl ServerStreamingService<SubscribeStaticRequest> for Call {
    type Response = Frame;
    type ResponseStream = Completed;
    type Future = Opening;

    fn call(&mut self, request: Request<SubscribeStaticRequest>) -> Opening {
        let services = self.0.clone();
        let request = request.into_inner();
        Box::pin(async move { answer(services.open_fixed(request).await) })
    }
}
