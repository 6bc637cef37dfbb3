//! A `PublishError` as a detail of a gRPC status.
//!
//! The detail is how a client learns which envelope was refused and why; both
//! sides meet here so that neither writes the encoding twice.

use prost::{Message, Name};

use crate::backend::v1::PublishError;

/// The part of `google.rpc.Status` in use.
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Detail>,
}

/// A `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
struct Detail {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// Encodes a refusal as the details of a gRPC status.
///
/// - `code` and `message` are those of the status itself.
pub fn encode_publish_error(code: i32, message: &str, error: &PublishError) -> Vec<u8> {
    Status {
        code,
        message: message.to_owned(),
        details: vec![Detail {
            type_url: PublishError::type_url(),
            value: error.encode_to_vec(),
        }],
    }
    .encode_to_vec()
}

/// Returns the refusal in the details of a gRPC status, or nothing when they
/// hold none.
pub fn decode_publish_error(details: &[u8]) -> Option<PublishError> {
    let status = Status::decode(details).ok()?;
    let full_name = PublishError::full_name();
    let detail = status
        .details
        .iter()
        .find(|detail| detail.type_url.rsplit('/').next() == Some(&full_name))?;
    PublishError::decode(detail.value.as_slice()).ok()
}
