//! Refuses requests by their head, before anything of their body is read.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::{Either, Ready, ready};
use http::request::Parts;
use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

use super::refusal::refusal;

/// Decides by the head of a request whether it goes on.
///
/// - `check` never waits; it may use what the outer layers left in the extensions.
pub(crate) trait Gate: Send + Sync + 'static {
    /// Lets a request through, or says how it is refused.
    fn check(&self, head: &Parts) -> Result<(), Status>;
}

/// Without a gate every request goes on.
impl<G: Gate> Gate for Option<G> {
    fn check(&self, head: &Parts) -> Result<(), Status> {
        self.as_ref().map_or(Ok(()), |gate| gate.check(head))
    }
}

pub(crate) struct GateLayer<G>(Arc<G>);

impl<G> GateLayer<G> {
    pub(crate) fn new(gate: G) -> Self {
        Self(Arc::new(gate))
    }
}

impl<G> Clone for GateLayer<G> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<G, S> Layer<S> for GateLayer<G> {
    type Service = Gated<G, S>;

    fn layer(&self, inner: S) -> Gated<G, S> {
        let gate = self.0.clone();
        Gated { gate, inner }
    }
}

pub(crate) struct Gated<G, S> {
    gate: Arc<G>,
    inner: S,
}

impl<G, S: Clone> Clone for Gated<G, S> {
    fn clone(&self) -> Self {
        Self {
            gate: self.gate.clone(),
            inner: self.inner.clone(),
        }
    }
}

impl<G, S> Service<Request<Body>> for Gated<G, S>
where
    G: Gate,
    S: Service<Request<Body>, Response = Response<Body>>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Either<Ready<Result<Response<Body>, S::Error>>, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (head, body) = request.into_parts();
        match self.gate.check(&head) {
            Ok(()) => Either::Right(self.inner.call(Request::from_parts(head, body))),
            Err(status) => Either::Left(ready(Ok(refusal(&head.headers, status)))),
        }
    }
}
