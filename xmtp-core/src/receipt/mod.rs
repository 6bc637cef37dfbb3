//! F: admits an ordered prefix and advances the received boundary in the same transaction.
//!
//! Nothing else moves F but a validated join anchor (STR-062, STR-083). Receipt knows nothing of
//! processing: what it admits is encrypted bytes that may mean nothing (STR-064).

mod budget;
mod check;
pub(crate) mod order;
pub(crate) mod store;
#[cfg(test)]
mod tests;

use std::fmt;

use bytes::Bytes;
use prost::Message;
use thiserror::Error;
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{SequenceId, Topic, TopicKind};

use crate::error::{Class, Coded};
use crate::storage::{StorageError, WriteTxn};

pub use budget::{Capacity, CapacityScope};
pub use check::check;

/// Envelopes of one topic in order, from an exclusive start.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The topic.
    pub topic: Topic,
    /// Where the source started, exclusive; at or below F, or the batch is refused.
    pub after: SequenceId,
    /// The envelopes, strictly rising.
    pub envelopes: Vec<Received>,
}

/// One received envelope, checked in shape.
#[derive(Clone)]
pub struct Received {
    /// Its sequence id.
    pub sequence_id: SequenceId,
    /// The row that is stored while it waits; the backend's hash is kept as given.
    pub envelope: stored::PendingEnvelope,
}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.envelope.payload.len();
        write!(f, "Received({}, {bytes} bytes)", self.sequence_id)
    }
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Envelopes that were new and are pending now.
    pub new: usize,
    /// Envelopes at or below F before, which are handled or pending already.
    pub overlap: usize,
    /// F after the batch.
    pub received: SequenceId,
    /// Why a suffix was left out, if one was; it is fetched again from F.
    pub left_out: Option<Capacity>,
}

/// Why a batch is refused whole. Pending data and F are unchanged.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AdmissionError {
    /// The batch breaks the shape of an ordered prefix.
    #[error("the backend sent {rule}; the batch is refused and read again from durable state")]
    Shape {
        /// What is wrong with it.
        rule: &'static str,
    },
    /// The source starts beyond what was received; the prefix between is missing.
    #[error(
        "a source starts after {after} but {received} is received; the prefix between is fetched first"
    )]
    StartsBeyond {
        /// Where the source starts.
        after: u64,
        /// F.
        received: u64,
    },
    /// The backend was put back to an earlier state: its order does not hold what is received.
    #[error(
        "the backend's order of a topic no longer holds what was received through {received}; it was \
         put back to an earlier state, so ask its operator: receipt of this topic is stopped"
    )]
    WentBack {
        /// F.
        received: u64,
    },
    /// The batch comes from behind a fence of the backend, and does not show what is at F.
    #[error(
        "the backend was fenced after {received} is received; it is read again from there, to see \
         whether its order goes on"
    )]
    Unproven {
        /// F.
        received: u64,
    },
    /// Nothing of the batch fits.
    #[error("pending data is at its bound ({0}); receipt goes on when processing makes room")]
    Capacity(Capacity),
    /// The database failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl Coded for AdmissionError {
    fn code(&self) -> &'static str {
        match self {
            Self::Shape { .. } => "receipt.shape",
            Self::StartsBeyond { .. } => "receipt.starts_beyond",
            Self::WentBack { .. } => "receipt.went_back",
            Self::Unproven { .. } => "receipt.unproven",
            Self::Capacity(_) => "capacity.pending_full",
            Self::Storage(error) => error.code(),
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Shape { .. } | Self::StartsBeyond { .. } | Self::Unproven { .. } => Class::Retry,
            Self::WentBack { .. } => Class::UserAction,
            Self::Capacity(_) => Class::Wait,
            Self::Storage(error) => error.class(),
        }
    }
}

/// Admits the part of a batch that is new and fits, and advances F to its end (STR-061).
///
/// # Behavior
/// - Overlap with F keeps the one row that is there, or none where it is handled already.
/// - Row and byte bounds of batch, topic and kind are checked before anything is written.
/// - An empty batch changes nothing.
/// - A batch that shows that the backend's order went back below F changes nothing, and so does one
///   that comes from behind a fence and does not show what is at F (EXT-002).
pub fn admit(txn: &mut WriteTxn<'_>, batch: &Batch) -> Result<Admitted, AdmissionError> {
    let fresh = look(txn, batch)?;
    store_pending(txn, &batch.topic, fresh.envelopes)?;
    let _span = tracing::debug_span!("receipt", topic = %batch.topic.short()).entered();
    let (new, overlap) = (fresh.envelopes.len(), fresh.overlap);
    tracing::trace!(new, overlap, "a batch is admitted");
    Ok(fresh.admitted())
}

/// The part of a batch that is above F and fits every bound.
#[derive(Clone, Copy)]
pub(crate) struct Fresh<'b> {
    /// Its envelopes.
    pub(crate) envelopes: &'b [Received],
    overlap: usize,
    /// F.
    received: SequenceId,
    /// The bound that keeps the rest out.
    left_out: Option<Capacity>,
}

impl Fresh<'_> {
    /// Says that all of them were taken.
    pub(crate) fn admitted(&self) -> Admitted {
        self.taken(self.envelopes.len(), self.left_out)
    }

    /// Says that some of them were taken and the rest is for the next transaction.
    pub(crate) fn admitted_in_part(&self, new: usize, kind: TopicKind) -> Admitted {
        let scope = CapacityScope::Batch;
        self.taken(new, Some(Capacity { scope, kind }))
    }

    fn taken(&self, new: usize, left_out: Option<Capacity>) -> Admitted {
        let last = self.envelopes[..new].last();
        Admitted {
            new,
            overlap: self.overlap,
            received: last.map_or(self.received, |last| last.sequence_id),
            left_out,
        }
    }
}

/// Finds the part of a batch that is new and fits; writes nothing.
pub(crate) fn look<'b>(txn: &WriteTxn<'_>, batch: &'b Batch) -> Result<Fresh<'b>, AdmissionError> {
    let record = store::topic(txn, &batch.topic)?;
    let received = SequenceId::saturating(record.received);
    if batch.after > received {
        return Err(AdmissionError::StartsBeyond {
            after: batch.after.get(),
            received: received.get(),
        });
    }
    match order::judge(&record, batch, txn.now_ns()) {
        order::Order::GoesOn => {}
        order::Order::Unproven => {
            return Err(AdmissionError::Unproven {
                received: received.get(),
            });
        }
        order::Order::WentBack => {
            tracing::error!(topic = %batch.topic.short(), "the backend was put back; receipt stops");
            return Err(AdmissionError::WentBack {
                received: received.get(),
            });
        }
    }
    let overlap = batch
        .envelopes
        .partition_point(|envelope| envelope.sequence_id <= received);
    let kind = batch.topic.kind();
    let budget = store::kind_budget(txn, kind)?;
    let envelopes = &batch.envelopes[overlap..];
    let (fits, left_out) = budget::fitting(kind, &record, &budget, envelopes);
    if let (0, Some(capacity)) = (fits, left_out) {
        return Err(AdmissionError::Capacity(capacity));
    }
    Ok(Fresh {
        envelopes: &envelopes[..fits],
        overlap,
        received,
        left_out,
    })
}

/// Moves F over an envelope, and keeps what shows later that the order goes on from it.
pub(crate) fn move_f(record: &mut stored::TopicRecord, last: &Received) {
    record.received = last.sequence_id.get();
    record.received_hash.clone_from(&last.envelope.message_hash);
    record.received_expiry_ns = last.envelope.expiry_ns;
}

/// Stores envelopes that [`look`] found as pending rows, and F behind them.
pub(crate) fn store_pending(
    txn: &mut WriteTxn<'_>,
    topic: &Topic,
    fresh: &[Received],
) -> Result<(), StorageError> {
    let Some(last) = fresh.last() else {
        return Ok(());
    };
    let mut record = store::topic(txn, topic)?;
    let mut budget = store::kind_budget(txn, topic.kind())?;
    for envelope in fresh {
        store::insert_pending(txn, topic, envelope.sequence_id, &envelope.envelope)?;
        budget::add(&mut record, &mut budget, &envelope.envelope);
    }
    move_f(&mut record, last);
    store::put_topic(txn, topic, &record)?;
    store::put_kind_budget(txn, topic.kind(), &budget)
}

/// Removes handled envelopes from what waits: `rows` and `bytes` of one topic.
pub(crate) fn release(
    txn: &mut WriteTxn<'_>,
    kind: TopicKind,
    record: &mut stored::TopicRecord,
    rows: u64,
    bytes: u64,
) -> Result<(), StorageError> {
    let mut budget = store::kind_budget(txn, kind)?;
    budget::subtract(record, &mut budget, rows, bytes)?;
    store::put_kind_budget(txn, kind, &budget)
}

/// Decodes the stored payload of a pending envelope.
pub(crate) fn decode(
    envelope: &stored::PendingEnvelope,
) -> Option<xmtp_proto::backend::v1::ClientEnvelope> {
    xmtp_proto::backend::v1::ClientEnvelope::decode(Bytes::clone(&envelope.payload)).ok()
}
