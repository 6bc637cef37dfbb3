//! What can go wrong when a client is built or asked for something.

use thiserror::Error;
use xmtp_core::engine::fetch::FetchError;
use xmtp_core::error::{Class, Coded};
use xmtp_core::send::{QueueError, SendError};
use xmtp_core::storage::{OpenError, StorageError};
use xmtp_core::sync::SyncError;
use xmtp_core::transport::TransportError;

/// Why a client is not built.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Parts are missing; all of them are named.
    #[error("the client is incomplete: add {}", .parts.join(", "))]
    Missing {
        /// The builder calls to add.
        parts: Vec<&'static str>,
    },
    /// The database does not open, or does not fit.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The database has no account and none was given.
    #[error("this database has no account yet; add .account(...)")]
    NoAccount,
    /// The database belongs to another account.
    #[error("this database belongs to another account; open that account's database")]
    OtherAccount,
    /// The account could not be registered.
    #[error("the account could not be registered: {reason}")]
    Registration {
        /// What failed.
        reason: &'static str,
    },
    /// The inbox has as many installations as the backend allows.
    #[error("the inbox has {count} installations and {max} are allowed; revoke one first")]
    InstallationLimit {
        /// Installations of the inbox.
        count: usize,
        /// The bound.
        max: usize,
    },
    /// The backend did not answer.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// Fetching the own inbox failed.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The database failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl Coded for BuildError {
    fn code(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "build.missing",
            Self::Open(error) => error.code(),
            Self::NoAccount => "build.no_account",
            Self::OtherAccount => "build.other_account",
            Self::Registration { .. } => "build.registration",
            Self::InstallationLimit { .. } => "build.installation_limit",
            Self::Transport(error) => error.code(),
            Self::Fetch(error) => error.code(),
            Self::Storage(error) => error.code(),
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Open(error) => error.class(),
            Self::Transport(error) => error.class(),
            Self::Fetch(error) => error.class(),
            Self::Storage(error) => error.class(),
            Self::Registration { .. } => Class::Permanent,
            _ => Class::UserAction,
        }
    }
}

/// Why a call on a client failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// A member's inbox has no identity log at the backend.
    #[error("an inbox is unknown to the backend; check the inbox id")]
    UnknownInbox,
    /// None of an inbox's installations can be added.
    #[error(
        "none of the {count} installations of an inbox can be added; it has to publish a new key package"
    )]
    NotAddable {
        /// How many there are.
        count: usize,
    },
    /// The group is not known on this installation.
    #[error("this installation does not know the group; sync first")]
    UnknownGroup,
    /// The MLS library or local state failed.
    #[error("the group could not be created locally ({code}); retry")]
    Local {
        /// The fault's code.
        code: &'static str,
    },
    /// It was not sent, or is not confirmed.
    #[error(transparent)]
    Send(#[from] SendError),
    /// It was not queued.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// A sync did not complete.
    #[error(transparent)]
    Sync(#[from] SyncError),
    /// The backend did not answer.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// Fetching failed.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The database failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl Coded for ClientError {
    fn code(&self) -> &'static str {
        match self {
            Self::UnknownInbox => "conversation.unknown_inbox",
            Self::NotAddable { .. } => "conversation.not_addable",
            Self::UnknownGroup => "conversation.unknown_group",
            Self::Local { code } => code,
            Self::Send(error) => error.code(),
            Self::Queue(error) => error.code(),
            Self::Sync(error) => error.code(),
            Self::Transport(error) => error.code(),
            Self::Fetch(error) => error.code(),
            Self::Storage(error) => error.code(),
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::UnknownInbox | Self::NotAddable { .. } | Self::UnknownGroup => Class::UserAction,
            Self::Local { .. } => Class::Retry,
            Self::Send(error) => error.class(),
            Self::Queue(error) => error.class(),
            Self::Sync(error) => error.class(),
            Self::Transport(error) => error.class(),
            Self::Fetch(error) => error.class(),
            Self::Storage(error) => error.class(),
        }
    }
}
