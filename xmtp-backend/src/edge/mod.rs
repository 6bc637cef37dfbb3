//! What every request passes on its way in, and every response on its way out.
//!
//! One plaintext port takes gRPC and gRPC-Web, over HTTP/1.1 and HTTP/2. [`listen`] accepts the
//! connections, [`patient`] and [`unread`] cut those whose answers nobody reads; [`edge`] is the stack of layers around the services, from the outside in:
//!
//! 1. [`request_id`]: a fresh id on every response, also on refusals and preflights;
//! 2. [`observe`]: counts, traces and logs, by the table in [`route`];
//! 3. [`cors`]: answers preflights, and names what a browser may see;
//! 4. [`gate`]: refuses by the head of a request alone, credentials first, then [`encoding`];
//! 5. gRPC-Web: from here on inwards every request is plain gRPC;
//! 6. [`failure`]: every failure leaves with a reason;
//! 7. [`deadline`]: the time within which an answer begins;
//! 8. the services.
//!
//! A refusal made outside the services goes through [`refusal`], so that a caller always finds a
//! gRPC status of the content type that it speaks.

mod cors;
mod deadline;
mod encoding;
mod failure;
mod gate;
mod listen;
mod observe;
mod outcome;
mod patient;
mod refusal;
mod request_id;
mod route;
mod unread;

use std::convert::Infallible;

use http::{Request, Response};
use tonic::body::Body;
use tonic::service::Routes;
use tonic_web::GrpcWebLayer;
use tower::{Service, ServiceBuilder};

pub(crate) use gate::Gate;
pub(crate) use listen::{Listener, Serving};
pub(crate) use observe::ObserveLayer;
pub(crate) use request_id::RequestId;

use self::cors::cors;
use self::deadline::DeadlineLayer;
use self::encoding::OnlyIdentity;
use self::failure::FailureLayer;
use self::gate::GateLayer;
use self::request_id::RequestIdLayer;
use crate::limits::REQUEST_TIME;

/// Wraps the services in the layers, in the order that the module tells.
pub(crate) fn edge(
    routes: Routes,
    observe: ObserveLayer,
    credentials: impl Gate,
) -> impl Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send + 'static>
+ Clone
+ Send
+ 'static {
    ServiceBuilder::new()
        .layer(RequestIdLayer)
        .layer(observe)
        .layer(cors())
        .layer(GateLayer::new(credentials))
        .layer(GateLayer::new(OnlyIdentity))
        .layer(GrpcWebLayer::new())
        .layer(FailureLayer)
        .layer(DeadlineLayer::new(REQUEST_TIME))
        .service(routes.prepare())
}
