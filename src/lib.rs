//! End-to-end encrypted group messaging on your own infrastructure: XMTP on MLS.
//!
//! This crate is the one dependency of an application. It re-exports the client and the parts it
//! is composed of, and adds no logic. Those who write a storage engine, a transport or a processor
//! depend on `xmtp-core` alone.
//!
//! | feature | what it brings |
//! | --- | --- |
//! | `sqlite` (default) | [`SqliteStorage`]: SQLCipher, several processes |
//! | `sled` | `SledStorage`: one process, sealed values |
//! | `grpc` (default) | [`GrpcTransport`] |

pub use xmtp_core as core;
pub use xmtp_core::delivery::{
    Delivery, DeliveryCursor, Filter, Message, MessageConsumer, Messages, Scope, StreamError,
};
pub use xmtp_core::error::{Class, Coded};
pub use xmtp_core::send::{SendError, Sent};
pub use xmtp_core::storage::DatabaseKey;
pub use xmtp_core::subscription::{CatchUp, ConnectionState};
pub use xmtp_core::sync::{SyncError, SyncReport};
pub use xmtp_mls as mls;
pub use xmtp_mls::content;
pub use xmtp_mls::{Account, BuildError, Client, ClientBuilder, ClientError, Conversations, Group};
pub use xmtp_proto as proto;
pub use xmtp_proto::{GroupId, InboxId, InstallationId, MessageId, SequenceId};

#[cfg(feature = "sled")]
pub use xmtp_storage_sled::SledStorage;
#[cfg(feature = "sqlite")]
pub use xmtp_storage_sqlite::SqliteStorage;
#[cfg(feature = "grpc")]
pub use xmtp_transport_grpc::GrpcTransport;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[derive(Debug)]
pub struct Readme;
