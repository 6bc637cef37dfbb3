//! Time and the points at which a test may hold or fail the server.
//!
//! Both stand in [`Config`](crate::Config), so that a test needs no special build: the server asks
//! the same questions in production and always gets the same answers.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;

/// Tells the time of day, and waits for it to pass.
#[async_trait]
pub trait Clock: fmt::Debug + Send + Sync {
    /// Returns nanoseconds since 1970.
    fn now_ns(&self) -> u64;

    /// Waits until as much time has passed.
    ///
    /// - Dropping the future ends the wait.
    async fn wait(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

/// The clock of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ns(&self) -> u64 {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Names a point at which the server asks its hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Point {
    /// A call has arrived and nothing is done yet.
    Call(Call),
    /// A publish is stored and its response is not yet sent.
    Committed,
    /// The topics of an update are registered and their heads are not yet read.
    Registered,
    /// The heads of an update are read and the acknowledgement is not yet queued.
    HeadsRead,
    /// A fetch turn is read and its rows are not yet queued.
    Fetched,
    /// A publish holds its topics and has taken no id. Failing here loses its connection.
    TopicsLocked,
    /// A publish has taken its ids and is not committed. Failing here loses its connection.
    Allocated,
    /// A publish is committed and the store does not know yet. Failing here loses the answer.
    CommitSent,
    /// A poll has read what was skipped before and nothing new. Failing here loses the tail.
    GapsRead,
}

/// Names a call of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Call {
    Publish,
    Query,
    QueryNewest,
    Subscribe,
    SubscribeStatic,
    GetInboxIds,
    VerifySmartContractWalletSignatures,
    GetConfiguration,
}

/// Says how the server goes on after a point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// As usual.
    #[default]
    Go,
    /// The call or the stream fails with UNAVAILABLE. What is stored stays stored.
    Unavailable,
}

/// Holds or fails the server at a [`Point`].
#[async_trait]
pub trait Hooks: fmt::Debug + Send + Sync {
    /// Decides how to go on; the server waits for the answer.
    async fn reach(&self, point: Point) -> Verdict {
        let _ = point;
        Verdict::Go
    }
}

/// No hooks: the server never waits and never fails.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHooks;

#[async_trait]
impl Hooks for NoHooks {}
