//! The last word on failures: each leaves with a reason, also those that the transport made.
//!
//! The services give every failure its reason. What is left without one here was made by the
//! library underneath: a request it could not read, or a call that does not exist.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt};
use http::{HeaderMap, Request, Response};
use http_body::{Frame, SizeHint};
use tonic::body::Body;
use tonic::{Code, Status};
use tower::{Layer, Service};

use super::outcome::Outcome;
use crate::services::unreadable;

#[derive(Clone, Copy, Debug)]
pub(super) struct FailureLayer;

impl<S> Layer<S> for FailureLayer {
    type Service = Explained<S>;

    fn layer(&self, inner: S) -> Explained<S> {
        Explained { inner }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Explained<S> {
    inner: S,
}

impl<S> Service<Request<Body>> for Explained<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let outcome = request.extensions().get::<Outcome>().cloned();
        let answered = self.inner.call(request);
        let explain = |response| explained(response, outcome);
        let answered = answered.map(|answered| answered.map(explain));
        answered.boxed()
    }
}

/// A status stands in the head of a response that is nothing else, or behind a body.
fn explained(mut response: Response<Body>, outcome: Option<Outcome>) -> Response<Body> {
    match explain(response.headers_mut(), outcome.as_ref()) {
        true => response,
        false => response.map(|inner| Body::new(Trailing { inner, outcome })),
    }
}

/// Completes the status in `headers`; false when there is none.
fn explain(headers: &mut HeaderMap, outcome: Option<&Outcome>) -> bool {
    let Some(mut status) = Status::from_header_map(headers) else {
        return false;
    };
    if status.code() != Code::Ok && status.details().is_empty() {
        status = unreadable(Status::new(status.code(), status.message()));
        // Only a status that can not stand in a header fails, and then the one it has stays.
        let _ = status.add_header(headers);
    }
    if let Some(outcome) = outcome {
        outcome.set(status.code());
    }
    true
}

/// A body whose trailers are completed.
struct Trailing {
    inner: Body,
    outcome: Option<Outcome>,
}

impl http_body::Body for Trailing {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Self { inner, outcome } = &mut *self;
        let mut frame = ready!(Pin::new(inner).poll_frame(cx));
        if let Some(Ok(frame)) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            explain(trailers, outcome.as_ref());
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
