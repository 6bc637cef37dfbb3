//! The time that a caller grants by `grpc-timeout`.
//!
//! It runs until the answer begins: for a unary call that is all of it, and a stream has its own
//! times afterwards.

use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, FutureExt};
use http::{HeaderMap, Request, Response};
use tonic::body::Body;
use tower::{Layer, Service};

use crate::services::Failure;

const GRPC_TIMEOUT: &str = "grpc-timeout";

/// The most digits of a value; more is no timeout.
const MAX_DIGITS: usize = 8;

#[derive(Clone, Copy, Debug)]
pub(super) struct DeadlineLayer;

impl<S> Layer<S> for DeadlineLayer {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited { inner }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Limited<S> {
    inner: S,
}

impl<S> Service<Request<Body>> for Limited<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Either<S::Future, BoxFuture<'static, Result<Response<Body>, S::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let granted = granted(request.headers());
        let answered = self.inner.call(request);
        let Some(granted) = granted else {
            return Either::Left(answered);
        };
        let answered = tokio::time::timeout(granted, answered);
        let answered = answered.map(|answered| answered.unwrap_or_else(|_| Ok(too_late())));
        Either::Right(answered.boxed())
    }
}

fn too_late() -> Response<Body> {
    let message = "the time that the caller granted is over";
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
    use http::HeaderValue;

    use super::*;

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
