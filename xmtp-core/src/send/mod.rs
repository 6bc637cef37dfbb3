//! Sends: a durable intent, an attempt with exact bytes before anything is published, and
//! confirmation by ordered processing alone.
//!
//! ```text
//! ToPublish -> Prepared -> (SentUnknown) -> Receipted -> Committed -> Processed
//!     ^            |             |             |
//!     |            +-------------+-------------+--> Rejected
//!     +--- own commit lost its race ----+
//! ```
//!
//! A publish receipt proves neither order nor outcome: it never moves F and never confirms.

mod attempt;
pub(crate) mod confirm;
mod intent;
mod plan;
mod publish;
mod sender;
pub(crate) mod store;
#[cfg(test)]
mod tests;
mod welcomes;

pub use attempt::MAX_IN_FLIGHT_MESSAGES;
pub use intent::{MAX_UNFINISHED_INTENTS, NewIntent, QueueError, Queued, queue};
pub use plan::{RequestBounds, Unit, plan};
pub use sender::{Covers, SendError, Sender, Sent};
