//! The details of a gRPC status.
//!
//! A failure says more than its code: a stable reason, how long to wait, and which envelope was
//! refused. Both sides meet here so that neither writes the encoding twice. The messages are those
//! of `google.rpc`, as far as they are in use.

use std::collections::BTreeMap;
use std::time::Duration;

use prost::{Message, Name};

use crate::backend::v1::PublishError;

/// The domain of the reasons: the contract that gives them.
pub const ERROR_DOMAIN: &str = "xmtp.backend.v1";

/// What the details of a status hold; what is not known is skipped.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Details {
    /// The stable reason, in capitals, such as `IDENTITY_HEAD_MOVED`.
    pub reason: Option<String>,
    /// How long to wait before the call is made again.
    pub retry_after: Option<Duration>,
    /// Which envelope of a publish was refused, and why.
    pub publish_error: Option<PublishError>,
}

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

/// A `google.rpc.ErrorInfo`.
#[derive(Clone, PartialEq, Message)]
struct ErrorInfo {
    #[prost(string, tag = "1")]
    reason: String,
    #[prost(string, tag = "2")]
    domain: String,
    #[prost(btree_map = "string, string", tag = "3")]
    metadata: BTreeMap<String, String>,
}

/// A `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Delay>,
}

/// A `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, Message)]
struct Delay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

macro_rules! named {
    ($message:ident) => {
        impl Name for $message {
            const NAME: &'static str = stringify!($message);
            const PACKAGE: &'static str = "google.rpc";

            fn type_url() -> String {
                format!("type.googleapis.com/{}", Self::full_name())
            }
        }
    };
}

named!(ErrorInfo);
named!(RetryInfo);

impl Detail {
    fn new<M: Message + Name>(message: &M) -> Self {
        Self {
            type_url: M::type_url(),
            value: message.encode_to_vec(),
        }
    }
}

impl Details {
    /// Encodes them for a status.
    ///
    /// - `code` and `message` are those of the status itself.
    pub fn encode(&self, code: i32, message: &str) -> Vec<u8> {
        let reason = self.reason.as_ref().map(|reason| {
            Detail::new(&ErrorInfo {
                reason: reason.clone(),
                domain: ERROR_DOMAIN.to_owned(),
                metadata: BTreeMap::new(),
            })
        });
        let retry = self.retry_after.map(|delay| {
            let retry_delay = Some(Delay {
                seconds: i64::try_from(delay.as_secs()).unwrap_or(i64::MAX),
                nanos: i32::try_from(delay.subsec_nanos()).unwrap_or(0),
            });
            Detail::new(&RetryInfo { retry_delay })
        });
        let refused = self.publish_error.as_ref().map(Detail::new);
        Status {
            code,
            message: message.to_owned(),
            details: [reason, retry, refused].into_iter().flatten().collect(),
        }
        .encode_to_vec()
    }

    /// Reads the details of a status; bytes that are none hold nothing.
    ///
    /// - A reason of another domain is not one of these.
    pub fn decode(details: &[u8]) -> Self {
        let Ok(status) = Status::decode(details) else {
            return Self::default();
        };
        let info: Option<ErrorInfo> = status.find();
        let reason = info.filter(|info| info.domain == ERROR_DOMAIN);
        let retry: Option<RetryInfo> = status.find();
        Self {
            reason: reason.map(|info| info.reason),
            retry_after: retry.and_then(|retry| retry.retry_delay?.duration()),
            publish_error: status.find(),
        }
    }
}

impl Status {
    fn find<M: Message + Name + Default>(&self) -> Option<M> {
        let full_name = M::full_name();
        let is_one = |detail: &&Detail| detail.type_url.rsplit('/').next() == Some(&full_name);
        let detail = self.details.iter().find(is_one)?;
        M::decode(detail.value.as_slice()).ok()
    }
}

impl Delay {
    fn duration(self) -> Option<Duration> {
        let seconds = u64::try_from(self.seconds).ok()?;
        let nanos = u32::try_from(self.nanos).ok()?;
        (nanos < 1_000_000_000).then(|| Duration::new(seconds, nanos))
    }
}

/// Returns the refusal in the details of a gRPC status, or nothing when they hold none.
pub fn decode_publish_error(details: &[u8]) -> Option<PublishError> {
    Details::decode(details).publish_error
}
