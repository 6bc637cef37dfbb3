//! The one transaction of the default consumer: it proves ownership, moves D, and picks the next
//! item, all or nothing.

use std::sync::Arc;

use super::error::StreamError;
use super::filter::Selection;
use super::lease::{self, LeaseToken};
use super::message::Message;
use super::scan::{Candidate, Judgement, judge};
use super::store;
use crate::error::{Class, Coded};
use crate::limits::RETRY_FIRST_PAUSE;
use crate::runtime::RuntimeExt;
use crate::storage::{Database, Durability, Priority, StorageError, WriteTxn};
use xmtp_proto::DatabaseId;

/// Candidates that one transaction looks at.
pub(super) const HEADS_PER_STEP: usize = 32;
/// Times that a step is tried before the reader stops.
const TRIES: u32 = 4;

/// What a step is to do.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) owner: LeaseToken,
    /// The item that the application asked to acknowledge.
    pub(super) ack: Option<Candidate>,
    /// What may be handed over next, in order.
    pub(super) heads: Vec<Candidate>,
    pub(super) selection: Arc<Selection>,
}

/// What a step did.
#[derive(Debug)]
pub(super) struct Stepped {
    /// Candidates that were settled, the item included.
    pub(super) consumed: usize,
    /// What is to be handed over.
    pub(super) item: Option<(Candidate, Message)>,
}

/// Runs a step in a transaction. A failure of the database is retried a few times (STR-095).
///
/// Cancelling it leaves the step done or not done; repeating a step that was done is harmless.
pub(super) async fn run(database: &Database, step: Step) -> Result<Stepped, StreamError> {
    let mut pause = RETRY_FIRST_PAUSE;
    let mut tries = 0;
    loop {
        tries += 1;
        let (id, attempt) = (database.id(), step.clone());
        let outcome = database
            .write_queued(Priority::Foreground, Durability::Ordered, move |txn| {
                attempt.apply(id, txn)
            })
            .await;
        let cause = match outcome {
            Err(StreamError::Storage(cause)) => cause,
            outcome => return outcome,
        };
        if tries == TRIES || cause.class() != Class::Retry {
            return Err(match step.ack {
                Some(_) => StreamError::AckNotStored { cause },
                None => StreamError::Storage(cause),
            });
        }
        database.runtime().sleep(pause).await;
        pause *= 2;
    }
}

impl Step {
    fn apply(&self, id: DatabaseId, txn: &mut WriteTxn<'_>) -> Result<Stepped, StreamError> {
        lease::renew(txn, self.owner)?;
        if let Some(ack) = &self.ack {
            advance(txn, ack)?;
        }
        let now_ns = txn.now_ns();
        for (at, candidate) in self.heads.iter().enumerate() {
            if candidate.number <= store::delivered(txn, &candidate.group)? {
                continue;
            }
            match judge(txn, candidate, &self.selection, now_ns)? {
                Judgement::Skip => {}
                Judgement::Excluded => advance(txn, candidate)?,
                Judgement::Deliver(message) => {
                    let message = Message::new(id, candidate.number, *message)?;
                    return Ok(Stepped {
                        consumed: at + 1,
                        item: Some((*candidate, message)),
                    });
                }
            }
        }
        Ok(Stepped {
            consumed: self.heads.len(),
            item: None,
        })
    }
}

/// Moves D of a group up to a candidate, never back.
fn advance(txn: &mut WriteTxn<'_>, to: &Candidate) -> Result<(), StorageError> {
    if to.number > store::delivered(txn, &to.group)? {
        store::put_delivered(txn, &to.group, to.number)?;
    }
    Ok(())
}
