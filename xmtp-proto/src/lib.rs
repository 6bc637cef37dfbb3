//! The wire, content and stored messages, and the id newtypes.
//!
//! Everything that crosses the network or outlives the process is declared
//! here, and nothing here decides anything: this crate depends on no other
//! crate of the workspace and holds no state. The `.proto` sources under
//! `proto/` are the only description of an encoding; `tests/snapshots` freezes
//! the bytes.
//!
//! Fields of type `bytes` are [`bytes::Bytes`], and maps are ordered, so equal
//! messages encode to equal bytes.

pub mod envelope;
mod generated;
pub mod id;
pub mod limits;
mod redact;
pub mod status;

/// Backend messages and services.
pub mod backend {
    /// The messages of `xmtp.backend.v1`, and its services under the features
    /// `grpc-client` and `grpc-server`.
    pub use crate::generated::xmtp::backend::v1;
}

/// The messages of `xmtp.identity.associations`.
pub use generated::xmtp::identity::associations as identity;

/// The messages of `xmtp.mls.message_contents`.
pub use generated::xmtp::mls::message_contents as content;

/// Stored values.
pub mod storage {
    /// The messages of `xmtp.storage.v1`.
    pub use crate::generated::xmtp::storage::v1;
}

pub use bytes;
pub use id::{
    DatabaseId, GroupId, IdError, InboxId, InstallationId, MessageId, SequenceId, Topic, TopicKind,
};
pub use prost;

/// Names the public release whose rules this build implements.
pub const COMPATIBLE_LIBXMTP_VERSION: &str = "1.11.0";

/// Holds the encoded `FileDescriptorSet` of every `.proto` source.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
