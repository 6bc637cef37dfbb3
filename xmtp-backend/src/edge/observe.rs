//! Counts, traces and logs each request, by its call and its sizes and by nothing else of it.
//!
//! A request is over when its response body is, or is dropped. What is told then: the call by the
//! table of [`Route`], the code, the duration and the bytes of both bodies. Neither a path that is
//! not in the table nor any header is shown, save the trace that a caller continues.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt};
use http::{Method, Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use tokio::time::Instant;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::{Layer, Service};
use tracing::{Instrument, Span};

use super::outcome::Outcome;
use super::request_id::RequestId;
use super::route::Route;
use crate::telemetry::{continue_trace, metrics};

/// What is told beside each request.
#[derive(Clone, Debug)]
pub(crate) struct ObserveLayer {
    /// The identifier of this backend.
    pub(crate) identifier: Arc<str>,
    /// Whether each finished request is logged.
    pub(crate) request_logger: bool,
}

impl<S> Layer<S> for ObserveLayer {
    type Service = Observed<S>;

    fn layer(&self, inner: S) -> Observed<S> {
        let settings = self.clone();
        Observed { settings, inner }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Observed<S> {
    settings: ObserveLayer,
    inner: S,
}

impl<S> Service<Request<Body>> for Observed<S>
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
        let route = Route::of(request.uri().path());
        let Some(route) = route.filter(|_| request.method() != Method::OPTIONS) else {
            return self.inner.call(request).boxed();
        };
        let record = Record::begin(route, &request, &self.settings);
        request.extensions_mut().insert(record.outcome.clone());
        let received = record.received.clone();
        let request = request.map(|inner| {
            Body::new(Counted {
                inner,
                bytes: received,
            })
        });
        let span = record.span.clone();
        let answered = span.in_scope(|| self.inner.call(request));
        let answered = async move { Ok(record.finish_with(answered.await?)) };
        answered.instrument(span).boxed()
    }
}

/// What is known of a request that is not over; dropping it ends it.
struct Record {
    route: Route,
    request_id: Option<RequestId>,
    settings: ObserveLayer,
    span: Span,
    outcome: Outcome,
    began: Instant,
    received: Arc<AtomicU64>,
    sent: Arc<AtomicU64>,
}

impl Record {
    fn begin(route: Route, request: &Request<Body>, settings: &ObserveLayer) -> Self {
        metrics::call_started(&route.labels());
        let request_id = request.extensions().get::<RequestId>().copied();
        let (service, method) = (route.service(), route.method());
        let span = tracing::info_span!(
            "request",
            otel.name = format!("{service}/{method}"),
            otel.kind = "server",
            rpc.system = "grpc",
            rpc.service = service,
            rpc.method = method,
            request_id = request_id.map(tracing::field::display),
            grpc_code = tracing::field::Empty,
        );
        continue_trace(&span, request.headers());
        Self {
            route,
            request_id,
            settings: settings.clone(),
            span,
            outcome: Outcome::new(),
            began: Instant::now(),
            received: Arc::default(),
            sent: Arc::default(),
        }
    }

    /// Watches a response until its body is over.
    fn finish_with(self, response: Response<Body>) -> Response<Body> {
        let told = Status::from_header_map(response.headers()).map(|status| status.code());
        let refused = refused_by_http(response.status());
        if let Some(code) = told.or(refused) {
            self.outcome.set(code);
        }
        let bytes = self.sent.clone();
        response.map(|inner| {
            let inner = Counted { inner, bytes };
            let record = self;
            Body::new(Watched {
                inner,
                _record: record,
            })
        })
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let (code, elapsed) = (self.outcome.code(), self.began.elapsed());
        let bytes = [&self.received, &self.sent].map(|bytes| bytes.load(Ordering::Relaxed));
        metrics::call_ended(&self.route.labels(), code, elapsed, bytes);
        let code = metrics::code_name(code);
        self.span.record("grpc_code", code);
        if self.settings.request_logger {
            tracing::info!(
                parent: &self.span,
                service = self.route.service(),
                method = self.route.method(),
                code,
                duration_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
                request_bytes = bytes[0],
                response_bytes = bytes[1],
                request_id = self.request_id.map(tracing::field::display),
                identifier = &*self.settings.identifier,
                "a request is complete"
            );
        }
    }
}

/// Translates an answer that is no gRPC: what HTTP itself refuses is no call that there is.
fn refused_by_http(status: StatusCode) -> Option<Code> {
    match status {
        StatusCode::OK => None,
        status if status.is_client_error() => Some(Code::Unimplemented),
        _ => Some(Code::Unknown),
    }
}

/// A body whose bytes are counted.
struct Counted {
    inner: Body,
    bytes: Arc<AtomicU64>,
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
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

/// A response body that ends the record with itself.
struct Watched {
    inner: Counted,
    _record: Record,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
