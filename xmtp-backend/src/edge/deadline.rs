//! The time that a call may take: what its caller grants by `grpc-timeout`, and a bound of the server.
//!
//! It runs until the answer begins: for a unary call that is reading the request and all of the work,
//! for a stream it is opening it, and a stream has its own times afterwards.

use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use http::{HeaderMap, Request, Response};
use tonic::body::Body;
use tower::{Layer, Service};

use crate::services::Failure;

const GRPC_TIMEOUT: &str = "grpc-timeout";

/// The most digits of a value; more is no timeout.
const MAX_DIGITS: usize = 8;

const GRANTED_TIME_OVER: &str = "the time that the caller granted is over";
const OWN_TIME_OVER: &str = "the request was not read and answered in the time that calls have";

#[derive(Clone, Copy, Debug)]
pub(super) struct DeadlineLayer {
    most: Duration,
}

impl DeadlineLayer {
    /// Bounds every call by `most`, and by what its caller grants.
    pub(super) fn new(most: Duration) -> Self {
        Self { most }
    }
}

impl<S> Layer<S> for DeadlineLayer {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        let most = self.most;
        Limited { inner, most }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Limited<S> {
    inner: S,
    most: Duration,
}

impl<S> Service<Request<Body>> for Limited<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let granted = granted(request.headers());
        let answered = self.inner.call(request);
        let (time, over) = match granted {
            Some(granted) if granted <= self.most => (granted, GRANTED_TIME_OVER),
            _ => (self.most, OWN_TIME_OVER),
        };
        let answered = tokio::time::timeout(time, answered);
        let answered = answered.map(|answered| answered.unwrap_or_else(|_| Ok(too_late(over))));
        answered.boxed()
    }
}

fn too_late(message: &str) -> Response<Body> {
    Failure::CallerTimedOut.status(message).into_http()
}

/// Reads the header; a value that is none grants all the time there is.
fn granted(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(GRPC_TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    if digits.len() > MAX_DIGITS || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::pending;

    use http::HeaderValue;
    use tonic::{Code, Status};
    use tower::service_fn;

    use super::*;

    const QUERY: &str = "/xmtp.backend.v1.QueryService/Query";
    const HEALTH: &str = "/grpc.health.v1.Health/Check";
    const STREAMS: [&str; 3] = [
        "/xmtp.backend.v1.SubscriptionService/Subscribe",
        "/xmtp.backend.v1.SubscriptionService/SubscribeStatic",
        "/grpc.health.v1.Health/Watch",
    ];

    fn request(path: &str, granted: Option<&str>) -> Request<Body> {
        let mut request = Request::builder().uri(path);
        if let Some(granted) = granted {
            request = request.header(GRPC_TIMEOUT, granted);
        }
        request.body(Body::empty()).unwrap()
    }

    #[tokio::test]
    async fn every_answer_begins_in_time_whatever_is_granted() {
        let silent = service_fn(|_| pending::<Result<Response<Body>, Infallible>>());
        let mut limited = DeadlineLayer::new(Duration::ZERO).layer(silent);
        let streams = STREAMS.map(|path| (path, None));
        for (path, granted) in [(QUERY, None), (QUERY, Some("1H")), (HEALTH, None)]
            .into_iter()
            .chain(streams)
        {
            let answered = limited.call(request(path, granted));
            let answered = tokio::time::timeout(Duration::from_secs(20), answered).await;
            let answered = answered.expect("an answer in time").unwrap();
            let status = Status::from_header_map(answered.headers()).unwrap();
            assert_eq!(status.code(), Code::DeadlineExceeded);
            assert_eq!(status.message(), OWN_TIME_OVER);
        }
    }

    #[tokio::test]
    async fn a_shorter_time_that_is_granted_holds_for_every_call() {
        let silent = service_fn(|_| pending::<Result<Response<Body>, Infallible>>());
        let mut limited = DeadlineLayer::new(Duration::MAX).layer(silent);
        for path in [QUERY, STREAMS[0]] {
            let answered = limited.call(request(path, Some("1m"))).await.unwrap();
            let status = Status::from_header_map(answered.headers()).unwrap();
            assert_eq!(status.message(), GRANTED_TIME_OVER);
        }
    }

    #[test]
    fn a_granted_time_is_read_by_its_unit() {
        let read = |value: &'static str| {
            let value = HeaderValue::from_static(value);
            granted(&HeaderMap::from_iter([(
                http::HeaderName::from_static(GRPC_TIMEOUT),
                value,
            )]))
        };
        assert_eq!(read("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(read("3M"), Some(Duration::from_secs(180)));
        assert_eq!(read("4S"), Some(Duration::from_secs(4)));
        assert_eq!(read("5m"), Some(Duration::from_millis(5)));
        assert_eq!(read("6u"), Some(Duration::from_micros(6)));
        assert_eq!(read("7n"), Some(Duration::from_nanos(7)));
        assert_eq!(
            read("99999999H"),
            Some(Duration::from_secs(359_999_996_400))
        );
        for none in ["", "S", "-1S", "+1S", "1", "1s", "999999999S", "1 S"] {
            assert_eq!(read(none), None, "{none:?}");
        }
        assert_eq!(granted(&HeaderMap::new()), None);
    }
}
