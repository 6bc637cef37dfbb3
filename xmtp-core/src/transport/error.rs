//! What a call can fail with. Each transport maps its status codes here in one file.

use std::time::Duration;

use thiserror::Error;
use xmtp_proto::backend::v1::publish_error::Reason;

use crate::error::{Class, Coded};
use crate::limits::ASKED_PAUSE_MAX;

/// A failed call, classified by status code alone (wire contract 2.7).
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TransportError {
    /// The backend could not be reached, or says that it is unavailable.
    #[error("the backend is unavailable ({detail}); retry with a pause")]
    Unavailable {
        /// Which phase failed and how, free of payload.
        detail: String,
        /// The pause that the backend asks for, if it does.
        retry_after: Option<Duration>,
    },
    /// The time for the call ran out.
    #[error("the call took too long; retry with a pause")]
    DeadlineExceeded,
    /// The backend moved on between check and commit; read again, rebuild, resend.
    #[error("the state at the backend changed during the call; read it again, then resend")]
    Aborted,
    /// The request is refused and must never be resent unchanged.
    #[error("the backend refuses the request: {message}")]
    InvalidArgument {
        /// The index of the failing envelope, for a publish that names one.
        index: Option<u32>,
        /// The reason, for a publish that gives one.
        reason: Option<Reason>,
        /// The backend's sentence.
        message: String,
    },
    /// A request or response is over the transport's size limit; a publish may have happened.
    #[error("a message is over the transport's size limit; split it, and read before resending")]
    OutOfRange,
    /// A stream or quota is exhausted.
    #[error("a limit of the backend is exhausted; retry with a pause")]
    ResourceExhausted,
    /// The backend does not know the call.
    #[error("the backend does not offer this call; upgrade the backend")]
    Unimplemented,
    /// The credential was rejected.
    #[error("the credential was rejected; supply a fresh one")]
    Unauthenticated,
    /// The credential lacks a scope.
    #[error("the credential lacks a required scope; ask the operator")]
    PermissionDenied,
    /// The remote end cancelled the call.
    #[error("the call was cancelled by the backend")]
    Cancelled,
    /// A broken rule at the backend.
    #[error("the backend failed inside; retry later and report it")]
    Internal,
    /// The answer breaks the wire contract.
    #[error("the backend's answer breaks the contract: {rule}")]
    Protocol {
        /// The broken rule.
        rule: &'static str,
    },
    /// The connection belongs to another backend or is latched by a client-wide error.
    #[error("this client's connection is blocked: {code}")]
    Blocked {
        /// The code of the client-wide error.
        code: &'static str,
    },
}

impl TransportError {
    /// Tells whether the same request may be sent again after a pause.
    pub fn is_retryable(&self) -> bool {
        matches!(self.class(), Class::Retry)
    }

    /// Answers the least pause before the call is made again, as the backend asks for it.
    ///
    /// - At most [`ASKED_PAUSE_MAX`], whatever the backend says; zero when it says nothing.
    pub fn asked_pause(&self) -> Duration {
        match self {
            Self::Unavailable { retry_after, .. } => {
                retry_after.unwrap_or_default().min(ASKED_PAUSE_MAX)
            }
            _ => Duration::ZERO,
        }
    }

    /// Tells whether a publish that failed so may have been committed.
    ///
    /// Only a definite refusal proves that nothing was stored.
    pub fn is_ambiguous(&self) -> bool {
        !matches!(
            self,
            Self::InvalidArgument { .. }
                | Self::Unimplemented
                | Self::Unauthenticated
                | Self::PermissionDenied
                | Self::Aborted
                | Self::Blocked { .. }
        )
    }
}

impl Coded for TransportError {
    fn code(&self) -> &'static str {
        match self {
            Self::Unavailable { .. } => "transport.unavailable",
            Self::DeadlineExceeded => "transport.deadline_exceeded",
            Self::Aborted => "transport.aborted",
            Self::InvalidArgument { .. } => "transport.invalid_argument",
            Self::OutOfRange => "transport.out_of_range",
            Self::ResourceExhausted => "transport.resource_exhausted",
            Self::Unimplemented => "transport.unimplemented",
            Self::Unauthenticated => "transport.unauthenticated",
            Self::PermissionDenied => "transport.permission_denied",
            Self::Cancelled => "transport.cancelled",
            Self::Internal => "transport.internal",
            Self::Protocol { .. } => "transport.protocol",
            Self::Blocked { .. } => "transport.blocked",
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Unavailable { .. }
            | Self::DeadlineExceeded
            | Self::ResourceExhausted
            | Self::Aborted
            | Self::Internal => Class::Retry,
            Self::InvalidArgument { .. }
            | Self::OutOfRange
            | Self::Cancelled
            | Self::Protocol { .. } => Class::Permanent,
            Self::Unimplemented
            | Self::Unauthenticated
            | Self::PermissionDenied
            | Self::Blocked { .. } => Class::UserAction,
        }
    }
}
