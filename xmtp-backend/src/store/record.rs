//! The records that cross the seam between the server and its store.

use std::fmt;

use bytes::Bytes;
use xmtp_identity::projection::IdentifierChange;
use xmtp_proto::id::{SequenceId, Topic};

/// Identifies an envelope by what it is: two envelopes with one key are one envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EnvelopeKey {
    /// The topic.
    pub topic: Topic,
    /// SHA-256 of the stored bytes.
    pub hash: Hash,
}

/// The SHA-256 of an envelope's stored bytes; its `Debug` shows nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hash(pub [u8; 32]);

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hash")
    }
}

/// What the store knows about an envelope beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// The position.
    pub sequence_id: SequenceId,
    /// The topic and the hash.
    pub key: EnvelopeKey,
    /// When it was stored, in nanoseconds since 1970.
    pub server_ns: u64,
    /// From when on it may be deleted, in nanoseconds since 1970; `None` for never.
    pub expiry_ns: Option<u64>,
    /// Whether it is framed as a commit or a proposal.
    pub is_commit_or_proposal: bool,
}

/// A stored envelope.
#[derive(Clone, PartialEq, Eq)]
pub struct Envelope {
    /// What is known about it.
    pub meta: Meta,
    /// The stored bytes.
    pub payload: Bytes,
}

impl fmt::Debug for Envelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let payload_bytes = self.payload.len();
        let mut shown = f.debug_struct("Envelope");
        shown
            .field("meta", &self.meta)
            .field("payload_bytes", &payload_bytes)
            .finish()
    }
}

/// An envelope that is to be stored.
#[derive(Clone)]
pub struct PreparedEnvelope {
    /// The topic and the hash of `payload`.
    pub key: EnvelopeKey,
    /// The bytes to store.
    pub payload: Bytes,
    /// Whether it is framed as a commit or a proposal.
    pub is_commit_or_proposal: bool,
    /// How long it is kept, in nanoseconds; `None` for ever.
    pub retention_ns: Option<u64>,
    /// What an identity update does beside being stored.
    pub identity: Option<IdentityWrite>,
    /// Why it is refused unless it is stored already.
    pub refused: Option<Refusal>,
}

impl fmt::Debug for PreparedEnvelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("PreparedEnvelope");
        shown
            .field("key", &self.key)
            .field("refused", &self.refused)
            .finish_non_exhaustive()
    }
}

/// What an identity update does beside being stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityWrite {
    /// The newest update that the check has seen; zero for none.
    pub expected_head: SequenceId,
    /// The most updates that the inbox may have, in updates.
    pub max_entries: u32,
    /// How the lookup from identifiers to inboxes changes.
    pub changes: Vec<IdentifierChange>,
}

/// Says why an envelope is refused for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The class, which the wire carries.
    pub reason: Reason,
    /// The rule in fixed words.
    pub message: &'static str,
}

/// The classes of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The payload can not be read.
    MalformedPayload,
    /// The key package does not hold.
    InvalidKeyPackage,
    /// The identity update does not apply.
    InvalidIdentityUpdate,
    /// A signature does not hold.
    InvalidSignature,
    /// A bound is exceeded.
    TooLarge,
}

/// All updates of an inbox.
#[derive(Clone, Debug, Default)]
pub struct IdentityHistory {
    /// The stored bytes, oldest first.
    pub entries: Vec<Bytes>,
    /// The position of the newest; zero for none.
    pub head: SequenceId,
}

/// Asks for a page over several topics.
#[derive(Clone, Debug)]
pub struct Query {
    /// The topics, each once, with the exclusive cursor of each.
    pub topics: Vec<(Topic, SequenceId)>,
    /// The most envelopes, in envelopes.
    pub limit: usize,
    /// Where in `topics` the search begins, so that over many pages every topic has its turn.
    pub first: usize,
    /// The most bytes, payloads and overhead.
    pub max_bytes: usize,
}

/// A page over several topics.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The envelopes, grouped by topic, ascending within each.
    pub envelopes: Vec<Envelope>,
    /// Whether more are eligible.
    pub has_more: bool,
}

/// Identifies a member of inboxes by kind and normal text.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct IdentifierKey {
    /// The number of the kind on the wire.
    pub kind: i32,
    /// The text under which the identifier is looked up.
    pub text: String,
}

impl fmt::Debug for IdentifierKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentifierKey")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// A topic that is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// The topic.
    pub topic: Topic,
    /// The position after which rows are wanted.
    pub after: SequenceId,
    /// The last position that is wanted; known to be visible.
    pub through: SequenceId,
}

/// Bounds one fetch turn. Bytes are payload bytes plus an overhead per envelope.
#[derive(Clone, Copy, Debug)]
pub struct TurnBudget {
    /// The most rows of one topic, in rows.
    pub topic_rows: usize,
    /// The most bytes of one topic, unless its first row is larger.
    pub topic_bytes: usize,
    /// The most bytes of the turn, unless its first row is larger.
    pub bytes: usize,
}

/// How much one step of pruning looks at, and where it begins.
#[derive(Clone, Copy, Debug)]
pub struct PruneBudget {
    /// The most rows that are looked at, in rows; at least 1.
    pub rows: usize,
    /// The last row that an earlier step looked at; `None` begins with the row that expired first.
    pub after: Option<PrunePosition>,
}

/// A place in the order in which rows expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PrunePosition {
    /// When the row expires, in nanoseconds since 1970.
    pub expiry_ns: u64,
    /// The row, among those that expire at the same time.
    pub sequence_id: SequenceId,
}

/// What one step of pruning did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// How many rows are gone.
    pub deleted: usize,
    /// Where the next step begins; `None` after the last expired row.
    pub next: Option<PrunePosition>,
}

/// What one fetch turn brought.
#[derive(Clone, Debug, Default)]
pub struct Turn {
    /// One entry for each visited want, in order.
    pub served: Vec<Served>,
}

/// What one fetch turn brought for one want.
#[derive(Clone, Debug, Default)]
pub struct Served {
    /// The rows, ascending.
    pub rows: Vec<Envelope>,
    /// Whether the range holds no further row.
    pub complete: bool,
}
