//! What a status means: the one place that reads gRPC codes.
//!
//! A status that a backend sent is classified by its code alone. A status that stands for a broken
//! connection was made on this side and has the failure behind it as its source; whatever its code,
//! it says that the backend was not reached, and never that the backend decided something.

use std::error::Error;

use tonic::{Code, ConnectError, Status};
use xmtp_core::transport::TransportError;
use xmtp_proto::backend::v1::publish_error::Reason;
use xmtp_proto::status::{Details, decode_publish_error};

use crate::dial::{DialError, Phase};

/// Classifies a status of a call that leads to `place`, such as `backend.example:5050`.
///
/// Every transport whose backend answers in gRPC statuses uses this table.
pub fn classify_status(place: &str, status: &Status) -> TransportError {
    match status.code() {
        // Both ends apply the ceiling, so this one may have a source.
        Code::OutOfRange => TransportError::OutOfRange,
        code => match status.source() {
            Some(source) => unavailable(broken_connection(place, source)),
            None => of_backend(place, code, status),
        },
    }
}

/// Says that a stream is over and takes no more requests.
pub(crate) fn stream_is_over(place: &str) -> TransportError {
    unavailable(format!("{place}: the stream is over"))
}

fn of_backend(place: &str, code: Code, status: &Status) -> TransportError {
    match code {
        Code::InvalidArgument => refused(status),
        Code::Unavailable => TransportError::Unavailable {
            detail: format!("{place}: the backend answers so"),
            retry_after: Details::decode(status.details()).retry_after,
        },
        // Nothing of the contract: what a stream ends with that was cut off before its status.
        Code::Unknown => unavailable(format!("{place}: {}: no known status", Phase::Http2)),
        Code::DeadlineExceeded => TransportError::DeadlineExceeded,
        Code::Aborted => TransportError::Aborted,
        Code::OutOfRange => TransportError::OutOfRange,
        Code::ResourceExhausted => TransportError::ResourceExhausted,
        Code::Unimplemented => TransportError::Unimplemented,
        Code::Unauthenticated => TransportError::Unauthenticated,
        Code::PermissionDenied => TransportError::PermissionDenied,
        Code::Cancelled => TransportError::Cancelled,
        Code::Internal => TransportError::Internal,
        Code::Ok
        | Code::NotFound
        | Code::AlreadyExists
        | Code::FailedPrecondition
        | Code::DataLoss => TransportError::Protocol {
            rule: "the status is one of the contract",
        },
    }
}

/// Reads which envelope was refused and why, when the status says so.
fn refused(status: &Status) -> TransportError {
    let detail = decode_publish_error(status.details());
    let reason = detail.as_ref().map(|detail| detail.reason());
    TransportError::InvalidArgument {
        index: detail.as_ref().and_then(|detail| detail.index),
        reason: reason.filter(|reason| *reason != Reason::Unspecified),
        message: status.message().to_owned(),
    }
}

fn unavailable(detail: String) -> TransportError {
    TransportError::Unavailable {
        detail,
        retry_after: None,
    }
}

/// Names host, phase and cause of a connection that failed.
fn broken_connection(place: &str, source: &(dyn Error + 'static)) -> String {
    let mut phase = Phase::Http2;
    let mut innermost = source;
    let mut next = Some(source);
    while let Some(error) = next {
        if let Some(dial) = error.downcast_ref::<DialError>() {
            return dial.to_string();
        }
        if error.is::<ConnectError>() {
            // The dial and HTTP/2 tell of themselves; what is left is between them.
            phase = Phase::Tls;
        }
        innermost = error;
        next = error.source();
    }
    format!("{place}: {phase}: {innermost}")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use xmtp_core::limits::ASKED_PAUSE_MAX;
    use xmtp_proto::backend::v1::PublishError;

    use super::*;

    const PLACE: &str = "a.example:5050";

    fn of(code: Code) -> TransportError {
        classify_status(PLACE, &Status::new(code, "text of the backend"))
    }

    fn with_source(code: Code, source: impl Error + Send + Sync + 'static) -> TransportError {
        let mut status = Status::new(code, "");
        status.set_source(Arc::new(source));
        classify_status(PLACE, &status)
    }

    fn detail(error: &TransportError) -> &str {
        match error {
            TransportError::Unavailable { detail, .. } => detail,
            other => panic!("not unavailable: {other:?}"),
        }
    }

    #[test]
    fn codes_of_the_contract_have_one_meaning_each() {
        assert_eq!(of(Code::DeadlineExceeded), TransportError::DeadlineExceeded);
        assert_eq!(of(Code::Aborted), TransportError::Aborted);
        assert_eq!(of(Code::OutOfRange), TransportError::OutOfRange);
        assert_eq!(
            of(Code::ResourceExhausted),
            TransportError::ResourceExhausted
        );
        assert_eq!(of(Code::Unimplemented), TransportError::Unimplemented);
        assert_eq!(of(Code::Unauthenticated), TransportError::Unauthenticated);
        assert_eq!(of(Code::PermissionDenied), TransportError::PermissionDenied);
        assert_eq!(of(Code::Cancelled), TransportError::Cancelled);
        assert_eq!(of(Code::Internal), TransportError::Internal);
        assert_eq!(
            detail(&of(Code::Unavailable)),
            "a.example:5050: the backend answers so"
        );
    }

    #[test]
    fn codes_outside_the_contract_are_never_a_success() {
        assert_eq!(
            detail(&of(Code::Unknown)),
            "a.example:5050: HTTP/2: no known status"
        );
        for code in [
            Code::Ok,
            Code::NotFound,
            Code::FailedPrecondition,
            Code::DataLoss,
        ] {
            assert!(
                matches!(of(code), TransportError::Protocol { .. }),
                "{code:?}"
            );
        }
    }

    #[test]
    fn a_refusal_names_envelope_and_reason() {
        let code = Code::InvalidArgument;
        let error = PublishError {
            index: Some(3),
            reason: Reason::TooLarge.into(),
            message: String::new(),
        };
        let details = Details {
            reason: Some("PUBLISH_REFUSED".to_owned()),
            retry_after: None,
            publish_error: Some(error),
        };
        let details = details.encode(code as i32, "too large");
        let status = Status::with_details(code, "too large", details.into());
        let expected = TransportError::InvalidArgument {
            index: Some(3),
            reason: Some(Reason::TooLarge),
            message: "too large".to_owned(),
        };
        assert_eq!(classify_status(PLACE, &status), expected);
    }

    #[test]
    fn the_pause_that_a_backend_asks_for_comes_along() {
        let code = Code::Unavailable;
        let asked = Duration::from_millis(2_345);
        for pause in [None, Some(asked), Some(Duration::MAX)] {
            let details = Details {
                retry_after: pause,
                ..Details::default()
            };
            let details = details.encode(code as i32, "away").into();
            let error = classify_status(PLACE, &Status::with_details(code, "away", details));
            let expected = match pause {
                None => Duration::ZERO,
                Some(pause) => pause.min(ASKED_PAUSE_MAX),
            };
            assert_eq!(error.asked_pause(), expected);
        }
    }

    #[test]
    fn a_refusal_without_a_readable_detail_has_neither_index_nor_reason() {
        for details in [&b""[..], b"\xff\xff", b"\x08\x03"] {
            let details = details.to_vec().into();
            let status = Status::with_details(Code::InvalidArgument, "no", details);
            let error = classify_status(PLACE, &status);
            let TransportError::InvalidArgument {
                index,
                reason,
                message,
            } = error
            else {
                panic!("not a refusal");
            };
            assert_eq!((index, reason, message.as_str()), (None, None, "no"));
        }
    }

    #[test]
    fn a_broken_connection_is_unavailable_whatever_its_code() {
        let reset = || std::io::Error::other("reset");
        for code in [
            Code::Cancelled,
            Code::Unknown,
            Code::Internal,
            Code::Unavailable,
        ] {
            let error = with_source(code, reset());
            assert_eq!(detail(&error), "a.example:5050: HTTP/2: reset");
        }
        assert_eq!(
            with_source(Code::OutOfRange, reset()),
            TransportError::OutOfRange
        );
    }

    #[test]
    fn a_failed_dial_names_its_phase() {
        let dial = DialError {
            place: PLACE.to_owned(),
            phase: Phase::Dns,
            cause: "no such host".to_owned(),
        };
        let error = with_source(Code::Unavailable, ConnectError(Box::new(dial)));
        assert_eq!(detail(&error), "a.example:5050: DNS: no such host");

        let tls = ConnectError(Box::new(std::io::Error::other("unknown issuer")));
        let error = with_source(Code::Unavailable, tls);
        assert_eq!(detail(&error), "a.example:5050: TLS: unknown issuer");
    }
}
