//! What a caller is told when a call fails: the one place that picks status codes and reasons.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use prost::Message;
use tonic::{Code, Status};
use xmtp_proto::backend::v1::{LimitsConfiguration, PublishError as Detail, publish_error};
use xmtp_proto::status::Details;

use crate::limits::{OVERHEAD_BYTES, RETRY_AFTER_LEAST, RETRY_AFTER_SPREAD};
use crate::store::{PublishError, ReadError, Reason, Refusal};
use crate::telemetry::metrics;

/// The ways in which a call or a stream fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The request does not follow the contract.
    Malformed,
    /// The request names more of something than it may.
    TooMany,
    /// An envelope, or the whole publish, may not be stored.
    PublishRefused,
    /// The inbox has a newer update than the one that was built upon.
    IdentityHeadMoved,
    /// The server, or something it needs, can not serve now.
    Unavailable,
    /// A publish took longer than it may.
    PublishTimedOut,
    /// A read took longer than it may.
    ReadTimedOut,
    /// The time that the caller granted is over.
    CallerTimedOut,
    /// A ping was not answered in time.
    PongMissed,
    /// Frames of one kind came faster than they may.
    RateExceeded,
    /// The caller reads more slowly than the stream fills.
    SlowConsumer,
    /// Something that must be sent whole is larger than it may be.
    FrameTooLarge,
    /// The request is larger than the transport takes.
    RequestTooLarge,
    /// The response would be larger than the transport takes.
    ResponseTooLarge,
    /// There is no such call.
    UnknownMethod,
    /// The request is compressed.
    CompressedRequest,
    /// There is nothing of that name.
    NotFound,
    /// There is no credential.
    CredentialMissing,
    /// The credential does not have its form.
    CredentialMalformed,
    /// The token is signed in a way that is not taken.
    CredentialAlgorithm,
    /// No key of this server signed the token.
    CredentialUntrusted,
    /// The token's time is over.
    CredentialExpired,
    /// The token's time has not come.
    CredentialNotYetValid,
    /// The token is meant for others.
    CredentialAudience,
    /// The token comes from others.
    CredentialIssuer,
    /// The credential is good and does not allow the call.
    ScopeMissing,
    /// The call was given up by its caller.
    Cancelled,
    /// A rule of the server itself does not hold.
    ServerFault,
}

impl Failure {
    /// The table: each failure has one code and one reason, and neither ever changes.
    const fn row(self) -> (Code, &'static str) {
        match self {
            Self::Malformed => (Code::InvalidArgument, "MALFORMED_REQUEST"),
            Self::TooMany => (Code::InvalidArgument, "TOO_MANY_ITEMS"),
            Self::PublishRefused => (Code::InvalidArgument, "PUBLISH_REFUSED"),
            Self::IdentityHeadMoved => (Code::Aborted, "IDENTITY_HEAD_MOVED"),
            Self::Unavailable => (Code::Unavailable, "SERVER_UNAVAILABLE"),
            Self::PublishTimedOut => (Code::DeadlineExceeded, "PUBLISH_TIMED_OUT"),
            Self::ReadTimedOut => (Code::DeadlineExceeded, "READ_TIMED_OUT"),
            Self::CallerTimedOut => (Code::DeadlineExceeded, "CALLER_TIMED_OUT"),
            Self::PongMissed => (Code::DeadlineExceeded, "PONG_MISSED"),
            Self::RateExceeded => (Code::ResourceExhausted, "RATE_EXCEEDED"),
            Self::SlowConsumer => (Code::ResourceExhausted, "SLOW_CONSUMER"),
            Self::FrameTooLarge => (Code::ResourceExhausted, "FRAME_TOO_LARGE"),
            Self::RequestTooLarge => (Code::OutOfRange, "REQUEST_TOO_LARGE"),
            Self::ResponseTooLarge => (Code::OutOfRange, "RESPONSE_TOO_LARGE"),
            Self::UnknownMethod => (Code::Unimplemented, "UNKNOWN_METHOD"),
            Self::CompressedRequest => (Code::Unimplemented, "COMPRESSED_REQUEST"),
            Self::NotFound => (Code::NotFound, "NOT_FOUND"),
            Self::CredentialMissing => (Code::Unauthenticated, "CREDENTIAL_MISSING"),
            Self::CredentialMalformed => (Code::Unauthenticated, "CREDENTIAL_MALFORMED"),
            Self::CredentialAlgorithm => (Code::Unauthenticated, "CREDENTIAL_ALGORITHM"),
            Self::CredentialUntrusted => (Code::Unauthenticated, "CREDENTIAL_UNTRUSTED"),
            Self::CredentialExpired => (Code::Unauthenticated, "CREDENTIAL_EXPIRED"),
            Self::CredentialNotYetValid => (Code::Unauthenticated, "CREDENTIAL_NOT_YET_VALID"),
            Self::CredentialAudience => (Code::Unauthenticated, "CREDENTIAL_AUDIENCE"),
            Self::CredentialIssuer => (Code::Unauthenticated, "CREDENTIAL_ISSUER"),
            Self::ScopeMissing => (Code::PermissionDenied, "SCOPE_MISSING"),
            Self::Cancelled => (Code::Cancelled, "CANCELLED"),
            Self::ServerFault => (Code::Internal, "SERVER_FAULT"),
        }
    }

    /// Makes the status, with its reason and, if it is worth trying again, with a pause.
    pub(crate) fn status(self, message: impl Into<String>) -> Status {
        self.with_detail(message.into(), None)
    }

    fn with_detail(self, message: String, publish_error: Option<Detail>) -> Status {
        let (code, reason) = self.row();
        let details = Details {
            reason: Some(reason.to_owned()),
            retry_after: (code == Code::Unavailable).then(retry_after),
            publish_error,
        };
        let details = details.encode(code as i32, &message);
        Status::with_details(code, message, details.into())
    }

    /// Says which failure a code stands for when nothing more is known.
    fn of_code(code: Code) -> Self {
        match code {
            Code::InvalidArgument => Self::Malformed,
            Code::Aborted => Self::IdentityHeadMoved,
            Code::Unavailable => Self::Unavailable,
            Code::DeadlineExceeded => Self::CallerTimedOut,
            Code::ResourceExhausted => Self::SlowConsumer,
            Code::OutOfRange => Self::RequestTooLarge,
            Code::Unimplemented => Self::UnknownMethod,
            Code::NotFound => Self::NotFound,
            Code::Unauthenticated => Self::CredentialMissing,
            Code::PermissionDenied => Self::ScopeMissing,
            Code::Cancelled => Self::Cancelled,
            _ => Self::ServerFault,
        }
    }
}

/// Gives a status the reason that every failure has, unless it has one.
pub(crate) fn complete(status: Status) -> Status {
    if status.code() == Code::Ok || !status.details().is_empty() {
        return status;
    }
    Failure::of_code(status.code()).status(status.message())
}

/// Translates what the transport says of a request that it could not read.
///
/// - It says INTERNAL of bytes that are no message; the contract blames whoever sent them.
pub(crate) fn unreadable(status: Status) -> Status {
    match status.code() {
        Code::Internal if status.details().is_empty() => {
            Failure::Malformed.status("the request can not be read")
        }
        Code::OutOfRange if status.details().is_empty() => {
            Failure::RequestTooLarge.status("the request is larger than its call takes")
        }
        _ => complete(status),
    }
}

/// Picks a pause, so that callers who failed together do not come back together.
fn retry_after() -> Duration {
    let random = RandomState::new().build_hasher().finish();
    let spread = u64::try_from(RETRY_AFTER_SPREAD.as_millis()).unwrap_or(u64::MAX);
    RETRY_AFTER_LEAST + Duration::from_millis(random % spread)
}

/// The server or something it needs can not serve now.
pub(crate) fn unavailable() -> Status {
    Failure::Unavailable.status("the server is not available, try again later")
}

/// Refuses a request that does not follow the contract.
pub(crate) fn invalid(message: &'static str) -> Status {
    Failure::Malformed.status(message)
}

/// Refuses a request that names more of something than it may.
pub(super) fn at_most(count: usize, most: u32, message: &'static str) -> Result<(), Status> {
    if count > most as usize {
        Err(Failure::TooMany.status(message))
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

/// Returns the bytes that the store may read for a response of so many envelopes.
///
/// - The store counts more than the wire beside each payload, so that it never refuses what fits;
///   [`outgoing`] has the last word.
pub(super) fn store_bytes(limits: &LimitsConfiguration, envelopes: usize) -> usize {
    let response = usize::try_from(limits.max_response_bytes).unwrap_or(usize::MAX);
    response.saturating_add(envelopes.saturating_mul(OVERHEAD_BYTES))
}

fn too_large_response() -> Status {
    Failure::ResponseTooLarge.status("the response is larger than limits.max_response_bytes")
}

pub(super) fn of_read(error: ReadError) -> Status {
    match error {
        ReadError::Unavailable => unavailable(),
        ReadError::TooLarge => too_large_response(),
        ReadError::TimedOut => Failure::ReadTimedOut.status("the read took too long"),
        ReadError::Broken(what) => broken(what),
    }
}

/// Translates a failed publish; `index` gives the position in the request.
pub(super) fn of_publish(error: PublishError, index: impl FnOnce(usize) -> usize) -> Status {
    match error {
        PublishError::HeadMoved => Failure::IdentityHeadMoved
            .status("the inbox has a newer update, read it and start again"),
        PublishError::Refused { position, refusal } => refused(refusal, Some(index(position))),
        // The same bytes may be sent again whether they are stored or not.
        PublishError::Unavailable | PublishError::UnknownOutcome => unavailable(),
        PublishError::Broken(what) => broken(what),
    }
}

/// Reports that an invariant of the store does not hold.
pub(super) fn broken(what: &'static str) -> Status {
    tracing::error!(what, "an invariant of the store does not hold");
    at_fault()
}

/// Reports a failure that no caller can do anything about.
pub(super) fn at_fault() -> Status {
    Failure::ServerFault.status("the server is at fault")
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
    metrics::publish_rejected(reason.as_str_name());
    let detail = Detail {
        index: index.map(|index| u32::try_from(index).unwrap_or(u32::MAX)),
        reason: reason.into(),
        message: refusal.message.to_owned(),
    };
    Failure::PublishRefused.with_detail(refusal.message.to_owned(), Some(detail))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_failure_tells_its_reason_and_only_unavailable_asks_for_a_pause() {
        for code in (0..=16).map(Code::from_i32) {
            let status = complete(Status::new(code, "said"));
            let details = Details::decode(status.details());
            if code == Code::Ok {
                assert_eq!(details, Details::default());
                continue;
            }
            assert_eq!(status.message(), "said");
            let reason = details.reason.expect("a reason");
            let is_capital = |byte: u8| byte.is_ascii_uppercase() || byte == b'_';
            assert!(reason.bytes().all(is_capital), "{reason}");
            let asks = details.retry_after.is_some();
            assert_eq!(asks, code == Code::Unavailable, "{code:?}");
        }
        let own = Failure::SlowConsumer.status("said");
        let details = own.details().to_vec();
        assert_eq!(
            complete(own).details(),
            details,
            "a reason is never replaced"
        );
    }

    #[test]
    fn pauses_differ_and_stay_within_their_bounds() {
        let pauses: HashSet<Duration> = (0..100).map(|_| retry_after()).collect();
        let most = RETRY_AFTER_LEAST + RETRY_AFTER_SPREAD;
        let bounds = RETRY_AFTER_LEAST..most;
        assert!(pauses.iter().all(|pause| bounds.contains(pause)));
        assert!(pauses.len() > 50, "{} of 100 differ", pauses.len());
    }

    #[test]
    fn whoever_sends_bytes_that_are_no_message_is_to_blame() {
        let reason = |status: &Status| Details::decode(status.details()).reason;
        let status = unreadable(Status::internal("failed to decode"));
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(reason(&status).as_deref(), Some("MALFORMED_REQUEST"));
        let status = unreadable(Status::out_of_range("too large"));
        assert_eq!(status.code(), Code::OutOfRange);
        assert_eq!(reason(&status).as_deref(), Some("REQUEST_TOO_LARGE"));
        let status = unreadable(at_fault());
        assert_eq!(status.code(), Code::Internal, "what the services say stays");
    }

    #[test]
    fn each_failure_of_the_store_has_its_reason() {
        let reason = |status: Status| Details::decode(status.details()).reason.unwrap();
        let read = |error| reason(of_read(error));
        assert_eq!(read(ReadError::TimedOut), "READ_TIMED_OUT");
        assert_eq!(read(ReadError::TooLarge), "RESPONSE_TOO_LARGE");
        assert_eq!(read(ReadError::Unavailable), "SERVER_UNAVAILABLE");
        assert_eq!(read(ReadError::Broken("a rule")), "SERVER_FAULT");
        let publish = |error| reason(of_publish(error, |position| position));
        assert_eq!(publish(PublishError::HeadMoved), "IDENTITY_HEAD_MOVED");
        assert_eq!(publish(PublishError::UnknownOutcome), "SERVER_UNAVAILABLE");
        assert_eq!(publish(PublishError::Broken("a rule")), "SERVER_FAULT");
        assert_eq!(
            reason(complete(Status::cancelled("by its caller"))),
            "CANCELLED"
        );
    }
}
