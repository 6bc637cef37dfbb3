//! The ids of the protocol, one type each.
//!
//! No id shows itself: `Debug` and [`ShortId`] give the kind and four bytes of
//! a digest, enough to follow an id through a log and too little to find it.
//! Whoever needs the text asks for it with `to_hex`. Sequence ids are positions
//! and not identities, so they do show.

mod sequence;
mod short;
mod topic;
mod types;

pub use sequence::SequenceId;
pub use short::ShortId;
pub use topic::{Topic, TopicKind};
pub use types::{DatabaseId, GroupId, InboxId, InstallationId, MessageId};

/// Says why bytes or text are not an id; never carries them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdError {
    /// The bytes have another length than the id.
    #[error("{kind} has {expected} bytes, not {actual}")]
    Length {
        /// The kind of id.
        kind: &'static str,
        /// The length of the id, in bytes.
        expected: usize,
        /// The length found, in bytes.
        actual: usize,
    },
    /// The text is not the lowercase hex of the id.
    #[error("{kind} is not {expected} lowercase hex digits")]
    Hex {
        /// The kind of id.
        kind: &'static str,
        /// The number of digits.
        expected: usize,
    },
    /// The bytes of a topic are empty.
    #[error("topic has no kind byte")]
    EmptyTopic,
    /// The first byte of a topic names no kind.
    #[error("topic kind {byte} is unknown")]
    TopicKind {
        /// The byte.
        byte: u8,
    },
    /// The number is above the greatest sequence id.
    #[error("sequence id {value} is above the greatest one")]
    Sequence {
        /// The number.
        value: u64,
    },
}
