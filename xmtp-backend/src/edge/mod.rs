//! What every request passes on its way in, and every response on its way out.
//!
//! One plaintext port takes gRPC and gRPC-Web, over HTTP/1.1 and HTTP/2. [`listen`] accepts the
//! connections; [`edge`] is the stack of layers around the services, from the outside in:
//!
//! 1. [`request_id`]: a fresh id on every response, also on refusals and preflights;
//! 2. [`cors`]: answers preflights, and names what a browser may see;
//! 3. [`gate`]: refuses by the head of a request alone, credentials first, then [`encoding`];
//! 4. gRPC-Web: from here on inwards every request is plain gRPC;
//! 5. [`failure`]: every failure leaves with a reason;
//! 6. [`deadline`]: the time that the caller grants;
//! 7. the services.
//!
//! A refusal made outside the services goes through [`refusal`], so that a caller always finds a
//! gRPC status of the content type that it speaks.

mod cors;
mod deadline;
mod encoding;
mod failure;
mod gate;
mod listen;
mod refusal;
mod request_id;

use std::convert::Infallible;

use http::{Request, Response};
use tonic::body::Body;
use tonic::service::Routes;
use tonic_web::GrpcWebLayer;
use tower::{Service, ServiceBuilder};

pub(crate) use listen::{Listener, Serving};

use self::cors::cors;
use self::deadline::DeadlineLayer;
use self::encoding::OnlyIdentity;
use self::failure::FailureLayer;
use self::gate::GateLayer;
use self::request_id::RequestIdLayer;

/// Wraps the services in the layers, in the order that the module tells.
pub(crate) fn edge(
    routes: Routes,
) -> impl Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send + 'static>
+ Clone
+ Send
+ 'static {
    ServiceBuilder::new()
        .layer(RequestIdLayer)
        .layer(cors())
        .layer(GateLayer::new(OnlyIdentity))
        .layer(GrpcWebLayer::new())
        .layer(FailureLayer)
        .layer(DeadlineLayer)
        .service(routes.prepare())
}
