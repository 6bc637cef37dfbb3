//! What a browser may send, and what it may read of an answer.
//!
//! Any origin may call: the server has no cookies, so an origin proves nothing about the caller.

use http::{HeaderName, Method};
use tower_http::cors::{Any, CorsLayer};

use crate::limits::PREFLIGHT_AGE;

/// The request headers of the contract, and those that gRPC-Web clients add.
const ALLOWED_HEADERS: [&str; 9] = [
    "authorization",
    "x-app-version",
    "x-libxmtp-version",
    "traceparent",
    "tracestate",
    "content-type",
    "x-grpc-web",
    "x-user-agent",
    "grpc-timeout",
];

/// The response headers that a script may read.
const EXPOSED_HEADERS: [&str; 4] = [
    "grpc-status",
    "grpc-message",
    "grpc-status-details-bin",
    "x-request-id",
];

/// Answers preflights before anything asks for a credential.
pub(super) fn cors() -> CorsLayer {
    CorsLayer::new()
        .allow_origin(Any)
        .allow_methods([Method::POST])
        .allow_headers(ALLOWED_HEADERS.map(HeaderName::from_static))
        .expose_headers(EXPOSED_HEADERS.map(HeaderName::from_static))
        .max_age(PREFLIGHT_AGE)
}
