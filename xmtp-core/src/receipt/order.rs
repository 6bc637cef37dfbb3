//! Whether the backend's order of a topic still holds what was received of it (EXT-002).
//!
//! A backend that was put back to an earlier state has lost what lay behind it, and is fenced before
//! it serves again: its ids go on in a later block, above all that were given out. A client notices
//! this by the envelope at F. An ordered source that covers F and goes past it holds that envelope
//! unchanged, unless it has expired; and whatever comes from a later block than F is admitted only
//! from a source that covers F.

use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{SequenceId, Topic};

use super::{Batch, store};
use crate::limits::{BACKEND_FENCE_IDS, EXPIRY_MARGIN};
use crate::storage::{Read, StorageError};

/// What a batch says of the order that F belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// It goes on from F as far as anyone can tell.
    GoesOn,
    /// It comes from behind a fence, and its source does not cover F.
    Unproven,
    /// What is at F was given out otherwise, or is there no more.
    WentBack,
}

/// Judges a batch by what is known of the envelope at F.
pub(super) fn judge(record: &stored::TopicRecord, batch: &Batch, now_ns: u64) -> Order {
    let received = SequenceId::saturating(record.received);
    if received == SequenceId::ZERO {
        return Order::GoesOn;
    }
    let fresh = batch
        .envelopes
        .partition_point(|envelope| envelope.sequence_id <= received);
    let (overlap, fresh) = batch.envelopes.split_at(fresh);
    let at_received = overlap
        .last()
        .filter(|envelope| envelope.sequence_id == received);
    if let Some(found) = at_received {
        let hash = &found.envelope.message_hash;
        let is_same = record.received_hash.is_empty() || record.received_hash == *hash;
        return if is_same {
            Order::GoesOn
        } else {
            Order::WentBack
        };
    }
    let Some(first) = fresh.first() else {
        return Order::GoesOn;
    };
    if batch.after < received {
        // The source was read past F, and F is not in it.
        let now_ns = now_ns.max(first.envelope.server_ns);
        return if may_be_gone(record, now_ns) {
            Order::GoesOn
        } else {
            Order::WentBack
        };
    }
    let block = |sequence: SequenceId| sequence.get() / BACKEND_FENCE_IDS;
    if block(first.sequence_id) == block(received) {
        Order::GoesOn
    } else {
        Order::Unproven
    }
}

/// Tells whether the backend may have deleted the envelope at F as expired, or nothing is known of
/// it.
fn may_be_gone(record: &stored::TopicRecord, now_ns: u64) -> bool {
    match record.received_expiry_ns {
        0 => record.received_hash.is_empty(),
        expiry => expiry <= now_ns.saturating_add(EXPIRY_MARGIN.as_nanos() as u64),
    }
}

/// Tells whether a receipt of an attempt whose outcome is open fits what was received: a place at or
/// below F is that of an envelope that waits here, with the hash of the receipt. Anything else at
/// that place was given out before.
pub(crate) fn holds_receipt(
    snapshot: &(impl Read + ?Sized),
    topic: &Topic,
    sequence: SequenceId,
    hash: &[u8],
) -> Result<bool, StorageError> {
    let record = store::topic(snapshot, topic)?;
    let (received, anchor) = (record.received, record.anchor);
    if sequence.get() > received || sequence.get() <= anchor {
        return Ok(true);
    }
    let pending = store::pending(snapshot, topic, sequence)?;
    Ok(pending.is_some_and(|pending| pending.message_hash == hash))
}
