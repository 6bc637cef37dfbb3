//! What a caller is told when a call fails: the one place that picks status codes.

use prost::Message;
use tonic::{Code, Status};
use xmtp_proto::backend::v1::{LimitsConfiguration, PublishError as Detail, publish_error};
use xmtp_proto::status::encode_publish_error;

use crate::store::{PublishError, ReadError, Reason, Refusal};

/// The server or something it needs can not serve now.
pub(crate) fn unavailable() -> Status {
    Status::unavailable("the server is not available, try again later")
}

/// Refuses a request that does not follow the contract.
pub(super) fn invalid(message: &'static str) -> Status {
    Status::invalid_argument(message)
}

/// Refuses a request that names more of something than it may.
pub(super) fn at_most(count: usize, most: u32, message: &'static str) -> Result<(), Status> {
    if count > most as usize {
        Err(invalid(message))
    } else {
        Ok(())
    }
}

/// Checks the size of a response; a response is whole or fails.
pub(super) fn outgoing<M: Message>(response: M, limits: &LimitsConfiguration) -> Result<M, Status> {
    let bytes = response.encoded_len() as u64;
    if bytes > limits.max_response_bytes {
        Err(too_large_response())
    } else {
        Ok(response)
    }
}

fn too_large_response() -> Status {
    Status::out_of_range("the response is larger than limits.max_response_bytes")
}

pub(super) fn of_read(error: ReadError) -> Status {
    match error {
        ReadError::Unavailable => unavailable(),
        ReadError::TooLarge => too_large_response(),
        ReadError::TimedOut => Status::deadline_exceeded("the read took too long"),
        ReadError::Broken(what) => broken(what),
    }
}

/// Translates a failed publish; `index` gives the position in the request.
pub(super) fn of_publish(error: PublishError, index: impl FnOnce(usize) -> usize) -> Status {
    match error {
        PublishError::HeadMoved => {
            Status::aborted("the inbox has a newer update, read it and start again")
        }
        PublishError::Refused { position, refusal } => refused(refusal, Some(index(position))),
        // The same bytes may be sent again whether they are stored or not.
        PublishError::Unavailable | PublishError::UnknownOutcome => unavailable(),
        PublishError::Broken(what) => broken(what),
    }
}

/// Reports that an invariant of the store does not hold.
pub(super) fn broken(what: &'static str) -> Status {
    tracing::error!(what, "an invariant of the store does not hold");
    Status::internal("the server is at fault")
}

/// Refuses a publish; without an index the whole request is at fault.
pub(super) fn refused(refusal: Refusal, index: Option<usize>) -> Status {
    let reason = match refusal.reason {
        Reason::MalformedPayload => publish_error::Reason::MalformedPayload,
        Reason::InvalidKeyPackage => publish_error::Reason::InvalidKeyPackage,
        Reason::InvalidIdentityUpdate => publish_error::Reason::InvalidIdentityUpdate,
        Reason::InvalidSignature => publish_error::Reason::InvalidSignature,
        Reason::TooLarge => publish_error::Reason::TooLarge,
    };
    let detail = Detail {
        index: index.map(|index| u32::try_from(index).unwrap_or(u32::MAX)),
        reason: reason.into(),
        message: refusal.message.to_owned(),
    };
    let code = Code::InvalidArgument;
    let details = encode_publish_error(code as i32, refusal.message, &detail);
    Status::with_details(code, refusal.message, details.into())
}
