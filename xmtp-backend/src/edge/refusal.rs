//! An answer that is nothing but a failure.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, Response};
use tonic::Status;
use tonic::body::Body;

use crate::services::complete;

/// Answers a request with a status, in the content type that its caller reads.
pub(super) fn refusal(request_headers: &HeaderMap, status: Status) -> Response<Body> {
    let mut response = complete(status).into_http::<Body>();
    let spoken = request_headers.get(CONTENT_TYPE);
    let web = spoken.filter(|spoken| spoken.as_bytes().starts_with(b"application/grpc-web"));
    if let Some(web) = web {
        response.headers_mut().insert(CONTENT_TYPE, web.clone());
    }
    response
}
