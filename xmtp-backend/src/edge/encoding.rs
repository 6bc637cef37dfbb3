//! Compressed requests are refused: what a request costs must show in its length.

use http::header::CONTENT_ENCODING;
use http::request::Parts;
use tonic::Status;

use super::gate::Gate;
use crate::services::Failure;

const GRPC_ENCODING: &str = "grpc-encoding";

/// Lets only uncompressed requests through.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnlyIdentity;

impl Gate for OnlyIdentity {
    fn check(&self, head: &Parts) -> Result<(), Status> {
        let encodings = [GRPC_ENCODING, CONTENT_ENCODING.as_str()];
        let mut values = encodings
            .iter()
            .flat_map(|name| head.headers.get_all(*name));
        match values.all(|value| value.as_bytes().eq_ignore_ascii_case(b"identity")) {
            true => Ok(()),
            false => {
                let message = "compressed requests are not accepted, send it as it is";
                Err(Failure::CompressedRequest.status(message))
            }
        }
    }
}
