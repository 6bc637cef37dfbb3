//! Where envelopes are kept: the domain trait, and one module per engine.
//!
//! The server talks to a store in records of its own with opaque payload bytes; no wire message
//! and no engine type crosses this seam. Engines differ in how they order, wait and recover; what
//! they promise is written at the trait and held by one suite (`conformance.rs`).

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use xmtp_proto::id::{InboxId, SequenceId, Topic};

#[cfg(test)]
mod conformance;
mod decide;
mod feed;
mod memory;
mod memory_data;
mod postgres;
mod record;
#[cfg(test)]
mod simulated;
mod sqlite;
mod turn;

pub use memory::MemoryStore;
pub use postgres::{PostgresOptions, PostgresStore, SetupError, fence};
pub use record::{
    Envelope, EnvelopeKey, Hash, IdentifierKey, IdentityHistory, IdentityWrite, Meta, Page,
    PreparedEnvelope, PruneBudget, PrunePosition, Pruned, Query, Reason, Refusal, Served, Turn,
    TurnBudget, Want,
};
pub use sqlite::{Fenced, OpenError, SqliteSettings, SqliteStore};

/// Keeps envelopes.
///
/// # Behavior
///
/// - Sequence ids start at 1, grow with each stored envelope, and are never used twice, not even
///   after a restart.
/// - Within a topic an id becomes visible only after every lower id there is settled, so every
///   read of a topic is a prefix of it.
/// - What `publish` answered with success is read back by every later read, also after a crash.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync {
    /// Stores the envelopes of one request, all or none.
    ///
    /// - Answers with one record per envelope, in order.
    /// - An envelope with the key of a stored one is not stored again: its record is the stored
    ///   one's, whatever else is said about it in the request.
    /// - Fails with `HeadMoved` if the newest identity update of an inbox is not the expected one.
    /// - Fails with `Refused` at the lowest position that is refused or over its entry limit.
    /// - New records share one reading of the clock and get ids in request order.
    /// - The envelopes of a request have distinct keys.
    async fn publish(&self, envelopes: Vec<PreparedEnvelope>) -> Result<Vec<Meta>, PublishError>;

    /// Looks up stored envelopes by key, in order.
    async fn existing(&self, keys: Vec<EnvelopeKey>) -> Result<Vec<Option<Meta>>, ReadError>;

    /// Reads all updates of an inbox, oldest first, from one snapshot that sees every
    /// acknowledged publish.
    async fn identity_history(&self, topic: Topic) -> Result<IdentityHistory, ReadError>;

    /// Reads a page over several topics from one snapshot that sees every acknowledged publish.
    ///
    /// - Returns at most `limit` envelopes, per topic the lowest above its cursor without a gap.
    /// - Returns at least one whenever any is eligible and `limit` is not zero.
    /// - `has_more` says whether the same snapshot holds another eligible envelope.
    /// - Fails with `TooLarge` rather than drop envelopes to fit `max_bytes`.
    async fn query(&self, query: Query) -> Result<Page, ReadError>;

    /// Reads the newest envelope of each topic that has one; without its payload unless `full`.
    ///
    /// - Fails with `TooLarge` if the payloads do not fit `max_bytes`.
    async fn newest(
        &self,
        topics: Vec<Topic>,
        full: bool,
        max_bytes: usize,
    ) -> Result<Vec<Envelope>, ReadError>;

    /// Looks up the inbox of each identifier, in order: the live association with the highest
    /// sequence id.
    async fn inbox_ids(&self, keys: Vec<IdentifierKey>) -> Result<Vec<Option<InboxId>>, ReadError>;

    /// Reads the newest id of each topic, in order; zero for an empty topic.
    ///
    /// - Never behind what a tail of this store has already given out.
    async fn heads(&self, topics: Vec<Topic>) -> Result<Vec<SequenceId>, ReadError>;

    /// Reads one bounded turn over topics that are behind.
    ///
    /// - Visits the wants in order and answers for a prefix of them, at least one.
    /// - Gives each visited topic its lowest rows in range, at least one if there is one, up to
    ///   the rows and bytes of the budget.
    /// - `complete` says that the range holds no further row in this snapshot.
    async fn fetch_turn(&self, wants: Vec<Want>, budget: TurnBudget) -> Result<Turn, ReadError>;

    /// Is told of what the readers of tails wait for; until then they wait for everything.
    ///
    /// - A tail may then leave out an envelope whose topic is not included when it reads it.
    fn attend(&self, interest: Arc<dyn Interest>) {
        let _ = interest;
    }

    /// Opens a tail, which gives out what becomes visible from now on.
    ///
    /// - Waits until it is known what is visible now.
    async fn tail(&self) -> Result<Box<dyn Tail>, TailError>;

    /// Deletes some of the envelopes that expired before `now_ns`.
    ///
    /// - Looks at expired envelopes in the order of expiry and id, from the position of the budget
    ///   on, and at most at as many as the budget has rows.
    /// - Deletes each of them that is not the newest of its topic, so that a head always names an
    ///   envelope that can be read. Envelopes without an expiry are kept for ever.
    /// - Gives no id again, and keeps heads and lookups as they are.
    /// - What is deleted is forgotten: the same bytes are stored again under a new id.
    /// - A store that several servers share lets one of them prune at a time; for the others there
    ///   is nothing to do.
    async fn prune(&self, now_ns: u64, budget: PruneBudget) -> Result<Pruned, PruneError>;

    /// Finishes what was accepted and lets go of all files.
    async fn close(&self);
}

/// Knows which envelopes anybody waits for.
///
/// # Behavior
///
/// - Whoever becomes interested reads the head of the topic afterwards: what a tail left out before
///   is not above that head.
pub trait Interest: fmt::Debug + Send + Sync {
    /// Says whether anybody waits for envelopes of a topic.
    fn includes(&self, topic: &Topic) -> bool;
}

/// Gives out envelopes as they become visible.
///
/// # Behavior
///
/// - Every envelope that becomes visible after the tail was opened is given out once, unless the
///   store attends to an interest that does not include it.
/// - Within a topic they come in the order of their ids; over topics there is no order.
/// - After an error this tail gives out nothing more: it cannot tell what it missed.
#[async_trait]
pub trait Tail: fmt::Debug + Send {
    /// Waits for the next envelopes.
    async fn next(&mut self) -> Result<Vec<Envelope>, TailError>;
}

/// Reports why a tail ended or could not be opened, and what the caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TailError {
    /// The connection to the database is gone; open another tail.
    #[error("the store can not tell now what becomes visible")]
    Lost,
    /// The replica did not catch up while the first tail was opened; see that it replays.
    #[error(
        "the replica is behind the primary and does not catch up; see that it replays, or leave \
         database.replica_url out"
    )]
    Behind,
    /// More ids are not settled than the tail may remember; open another tail.
    #[error("too many ranges of ids are not settled")]
    Overflow,
    /// The store must be opened again before it can be trusted.
    #[error("the store can no longer tell what becomes visible")]
    Final,
}

/// Reports why a request was not stored, and what the caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// An inbox has a newer update than the request was checked against. Nothing is stored; read
    /// it and start again.
    #[error("the identity log has a newer update")]
    HeadMoved,
    /// An envelope is refused for good. Nothing is stored.
    #[error("envelope {position} is refused")]
    Refused {
        /// Position of the envelope in the request.
        position: usize,
        /// Why it is refused.
        refusal: Refusal,
    },
    /// Nothing is stored; try again later.
    #[error("the store is not available")]
    Unavailable,
    /// Whether the request is stored is unknown; send the same bytes again to learn it.
    #[error("the outcome of the commit is not known")]
    UnknownOutcome,
    /// An invariant of the store does not hold. Nothing is stored, and trying again does not help.
    #[error("the store is broken: {0}")]
    Broken(&'static str),
}

/// Reports why nothing was pruned, and what the caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PruneError {
    /// Try again later, from the same position.
    #[error("the store is not available")]
    Unavailable,
}

/// Reports why a read failed, and what the caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Try again later.
    #[error("the store is not available")]
    Unavailable,
    /// The answer is larger than the caller allows; ask for less.
    #[error("the answer is too large")]
    TooLarge,
    /// The read took too long.
    #[error("the read took too long")]
    TimedOut,
    /// An invariant of the store does not hold, and trying again does not help.
    #[error("the store is broken: {0}")]
    Broken(&'static str),
}
