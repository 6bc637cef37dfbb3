//! The id of a request, by which a caller and an operator find the same log line.

use std::fmt;
use std::task::{Context, Poll};

use futures_util::future::{BoxFuture, FutureExt};
use http::{HeaderName, HeaderValue, Request, Response};
use tonic::body::Body;
use tower::{Layer, Service};
use uuid::Uuid;

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A fresh id, made here; an id that the caller sends counts for nothing.
///
/// It stands in the extensions of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestId(Uuid);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl RequestId {
    fn header_value(self) -> HeaderValue {
        let text = self.to_string();
        HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RequestIdLayer;

impl<S> Layer<S> for RequestIdLayer {
    type Service = Identified<S>;

    fn layer(&self, inner: S) -> Identified<S> {
        Identified { inner }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Identified<S> {
    inner: S,
}

impl<S> Service<Request<Body>> for Identified<S>
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

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let id = RequestId(Uuid::new_v4());
        request.extensions_mut().insert(id);
        let answered = self.inner.call(request);
        let answered = async move {
            let mut response = answered.await?;
            let headers = response.headers_mut();
            headers.insert(X_REQUEST_ID, id.header_value());
            Ok(response)
        };
        answered.boxed()
    }
}
