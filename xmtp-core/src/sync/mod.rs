//! H: processes a set of topics through targets that are fixed when the run begins.
//!
//! A run shares receipt and processing with everything else; it has no stream and no processor of
//! its own. Traffic beyond its targets never extends it (STR-041, STR-044), and what it committed
//! stays when it ends early: another run goes on from there.

mod capture;
mod fetch;
mod obligation;
mod run;
#[cfg(test)]
mod scale_tests;
mod store;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use thiserror::Error;
use tokio::sync::watch;
use xmtp_proto::{SequenceId, Topic};

use crate::engine::context::Context;
use crate::error::{Class, Coded};
use crate::limits::DEFAULT_BARRIER_TIMEOUT;
use crate::storage::StorageError;
use crate::subscription::progress::Position;

/// What to process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncRequest {
    /// The starting topics; repeated ones count once.
    pub topics: Vec<Topic>,
    /// Whether groups that Welcomes at or below the starting Welcome target lead to are processed
    /// too. It needs the Welcome topic among `topics`.
    pub include_discovered: bool,
    /// How long the whole run may take.
    pub timeout: Duration,
}

impl SyncRequest {
    /// Asks for topics with the default timeout.
    pub fn new(topics: impl IntoIterator<Item = Topic>) -> Self {
        Self {
            topics: topics.into_iter().collect(),
            include_discovered: false,
            timeout: DEFAULT_BARRIER_TIMEOUT,
        }
    }
}

/// What a complete run did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncReport {
    /// Topics that were processed through their targets.
    pub topics: usize,
    /// Messages that became deliverable in their groups while the run lasted.
    pub messages: u64,
}

/// Why a run did not end complete.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SyncError {
    /// Some topics are not processed through their targets.
    #[error(transparent)]
    Incomplete(Box<Incomplete>),
    /// The database failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl Coded for SyncError {
    fn code(&self) -> &'static str {
        match self {
            Self::Incomplete(_) => "sync.incomplete",
            Self::Storage(error) => error.code(),
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Incomplete(incomplete) if incomplete.reason == Reason::Blocked => {
                Class::UserAction
            }
            Self::Incomplete(_) => Class::Retry,
            Self::Storage(error) => error.class(),
        }
    }
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its time was over.
    Deadline,
    /// Everything that was left is blocked.
    Blocked,
    /// The caller ended it.
    Cancelled,
    /// The backend gave an answer that a repeat cannot change.
    Connection,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deadline => "the time was over",
            Self::Blocked => "what is left is blocked",
            Self::Cancelled => "it was cancelled",
            Self::Connection => "the backend refused",
        })
    }
}

/// A run that ended with something left. What it committed is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incomplete {
    /// Why it ended.
    pub reason: Reason,
    /// What is left, in topic order; never empty.
    pub obligations: Vec<Obligation>,
    /// Topics that were processed through their targets.
    pub completed: usize,
}

impl std::error::Error for Incomplete {}

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, reason) = (self.obligations.len(), self.reason);
        write!(
            f,
            "sync ended with {open} topics open ({reason}) and {} complete; call again to resume",
            self.completed
        )?;
        let causes = obligation::top_causes(&self.obligations);
        if causes.is_empty() {
            Ok(())
        } else {
            write!(f, "; they wait on: {causes}")
        }
    }
}

/// One topic that is not processed through its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obligation {
    /// The topic.
    pub topic: Topic,
    /// Its fixed target H; `None` when the backend did not tell it.
    pub target: Option<SequenceId>,
    /// F.
    pub received: SequenceId,
    /// P, or the Welcomes through H that are not completed.
    pub progress: Position,
    /// Why it is not complete.
    pub cause: Cause,
}

/// Why one topic is not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The time was over.
    Deadline {
        /// The code of what its head waits for, if it waits.
        waiting: Option<String>,
    },
    /// It cannot go on without an upgrade or a repair.
    Blocked {
        /// The stable code of the cause.
        code: String,
    },
    /// The caller ended the run.
    Cancelled,
    /// The backend did not answer.
    Connection {
        /// The stable code of the failure.
        code: &'static str,
        /// Whether the same request may succeed later.
        is_retryable: bool,
    },
    /// Pending data is at its bound; processing has to make room.
    Capacity,
    /// The backend does not serve this topic.
    InvalidTopic,
    /// The backend was put back to an earlier state, below what is received of this topic.
    GoneBack,
}

impl Cause {
    /// Answers the stable code.
    pub fn code(&self) -> &str {
        match self {
            Self::Deadline { waiting: None } => "deadline",
            Self::Deadline {
                waiting: Some(code),
            }
            | Self::Blocked { code } => code,
            Self::Cancelled => "cancelled",
            Self::Connection { code, .. } => code,
            Self::Capacity => "capacity.pending_full",
            Self::InvalidTopic => "invalid_topic",
            Self::GoneBack => "receipt.went_back",
        }
    }
}

/// How far a run is, for those who draw it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncProgress {
    /// Every topic enrolled so far, in topic order.
    pub topics: Vec<TopicSync>,
}

/// How far one topic of a run is, against a target that never moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicSync {
    /// The topic.
    pub topic: Topic,
    /// Its fixed target H; `None` until it is captured.
    pub target: Option<SequenceId>,
    /// F.
    pub received: SequenceId,
    /// P, or the Welcomes through H that are not completed.
    pub progress: Position,
    /// Whether it is processed through its target.
    pub is_complete: bool,
}

/// How a caller follows and ends a run.
#[derive(Default)]
pub struct SyncControls {
    /// Where progress is told.
    pub progress: Option<watch::Sender<Arc<SyncProgress>>>,
    /// Ends the run when it completes.
    pub cancel: Option<BoxFuture<'static, ()>>,
}

impl fmt::Debug for SyncControls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SyncControls")
    }
}

/// Processes topics through their heads of this moment, as the serving database shows them.
///
/// # Behavior
/// - Success means processed through the sampled heads, replica lag included; it does not claim
///   every commit of the primary (STR-044).
/// - Topics that are received already are not fetched again.
/// - One blocked topic does not keep the others from completing.
/// - Dropping the future ends the run and its interests alone; committed work stays.
///
/// # Errors
/// [`SyncError::Incomplete`] names every topic that is not processed through its target.
pub async fn sync(context: &Context, request: SyncRequest) -> Result<SyncReport, SyncError> {
    sync_with(context, request, SyncControls::default()).await
}

/// Processes topics like [`sync`], with progress and cancellation.
///
/// # Errors
/// As [`sync`].
pub async fn sync_with(
    context: &Context,
    request: SyncRequest,
    controls: SyncControls,
) -> Result<SyncReport, SyncError> {
    run::run(context, request, controls).await
}
