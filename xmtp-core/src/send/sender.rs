//! Drives intents to their outcome.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use thiserror::Error;
use tracing::Instrument;
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::storage::v1::IntentState;
use xmtp_proto::{GroupId, MessageId, SequenceId, Topic};

use super::{NewIntent, QueueError, Queued, attempt, publish, queue, store};
use crate::delivery;
use crate::engine::context::Context;
use crate::engine::depend::{Answer, fetch_for};
use crate::engine::fetch::{FetchError, fetch_page};
use crate::engine::receive::received;
use crate::error::{Class, Coded};
use crate::limits::{IDENTITY_RETRY_PAUSE, RECEIVER_FALLBACK_INTERVAL};
use crate::processor::Dependency;
use crate::receipt::{self, AdmissionError};
use crate::storage::{Domain, Durability, Priority, StorageError};

/// Rounds of one drive; what is left is found by the next.
const MAX_DRIVE_ROUNDS: usize = 16;

/// A send that ordered processing has confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The intent's number; 0 when the message was published before this call.
    pub intent: u64,
    /// The stable message id, for a message.
    pub message_id: Option<MessageId>,
    /// Its sequence id at the backend.
    pub sequence: SequenceId,
}

/// Why a send is not confirmed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SendError {
    /// It was not queued.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The backend or ordered processing refused it.
    #[error("the send was rejected ({reason}); change it and send again")]
    Rejected {
        /// The stable reason code.
        reason: String,
    },
    /// The change it asks for was in effect already.
    #[error("the change was already in effect; nothing was sent")]
    Superseded,
    /// It is published, and not confirmed within the deadline.
    #[error("already published as {sequence}; do not resend, it confirms during sync or streaming")]
    PublishedUnconfirmed {
        /// The stable message id, for a message.
        message_id: Option<MessageId>,
        /// Its sequence id at the backend.
        sequence: SequenceId,
    },
    /// The backend was put back to an earlier state: it gave a place in the order of the group to
    /// this send that it had given before, or no longer holds what is received.
    #[error(
        "the backend lost what is received of the group through {received}; do not resend, ask its \
         operator, and begin the group anew"
    )]
    WentBack {
        /// F.
        received: u64,
    },
    /// Its outcome is not known within the deadline; its exact bytes are kept and sent again.
    #[error("the outcome is not known yet; do not resend, the same bytes are sent again")]
    OutcomeUnknown {
        /// The stable message id, for a message.
        message_id: Option<MessageId>,
    },
    /// The database failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl Coded for SendError {
    fn code(&self) -> &'static str {
        match self {
            Self::Queue(error) => error.code(),
            Self::Rejected { .. } => "send.rejected",
            Self::Superseded => "send.superseded",
            Self::PublishedUnconfirmed { .. } => "send.published_unconfirmed",
            Self::WentBack { .. } => "send.went_back",
            Self::OutcomeUnknown { .. } => "send.outcome_unknown",
            Self::Storage(error) => error.code(),
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Queue(error) => error.class(),
            Self::Rejected { .. } | Self::Superseded => Class::Permanent,
            Self::WentBack { .. } => Class::UserAction,
            Self::PublishedUnconfirmed { .. } | Self::OutcomeUnknown { .. } => Class::Wait,
            Self::Storage(error) => error.class(),
        }
    }
}

/// Tells whether a healthy receiver covers a topic.
pub type Covers = Arc<dyn Fn(&Topic) -> bool + Send + Sync>;

/// Drives the intents of a database; cheap to clone.
#[derive(Clone)]
pub struct Sender {
    context: Context,
    covers: Covers,
    turns: Arc<Mutex<HashMap<GroupId, Turn>>>,
    /// When what a group's next intent needs may be asked for again.
    asked: Arc<Mutex<HashMap<GroupId, Duration>>>,
}

type Turn = Arc<tokio::sync::Mutex<()>>;

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

impl Sender {
    /// Makes a sender.
    pub fn new(context: Context, covers: Covers) -> Self {
        Self {
            context,
            covers,
            turns: Arc::default(),
            asked: Arc::default(),
        }
    }

    /// Queues an intent and answers once that is durable.
    ///
    /// # Errors
    /// When it is refused; nothing is stored then.
    pub async fn enqueue(&self, new: NewIntent) -> Result<Queued, QueueError> {
        self.context
            .database
            .write_queued(Priority::Foreground, Durability::Flushed, move |txn| {
                queue(txn, &new)
            })
            .await
    }

    /// Queues an intent and drives it until ordered processing reports its outcome.
    ///
    /// # Behavior
    /// - Cancelling it keeps the durable intent; a worker drives it on.
    /// - A deadline never abandons the attempt (STR-114).
    ///
    /// # Errors
    /// When it is refused or rejected, or when its outcome is open at the deadline.
    pub async fn send(&self, new: NewIntent, timeout: Duration) -> Result<Sent, SendError> {
        let (group, message_id) = (new.group, new.message_id);
        match self.enqueue(new).await? {
            Queued::Published(number) => self.published(number, message_id).await,
            Queued::Intent(number) => self.outcome(group, number, timeout).await,
        }
    }

    /// Drives a queued intent until its outcome is known.
    ///
    /// # Errors
    /// When it is rejected, or when its outcome is open at the deadline.
    pub async fn outcome(
        &self,
        group: GroupId,
        number: u64,
        timeout: Duration,
    ) -> Result<Sent, SendError> {
        let started = self.context.runtime.monotonic();
        let deadline = started.saturating_add(timeout);
        let mut changes = self.context.database.changes();
        let wakes = Domain::Outgoing.bit() | Domain::Progress.bit();
        let driving = async {
            loop {
                if let Some(result) = self.settled(number).await? {
                    return result;
                }
                match self.drive(group).await {
                    Ok(()) => {}
                    Err(FetchError::Admission(AdmissionError::WentBack { received })) => {
                        return Err(SendError::WentBack { received });
                    }
                    Err(error) => tracing::debug!(code = error.code(), "sending goes on"),
                }
                if let Some(result) = self.settled(number).await? {
                    return result;
                }
                match self.receive_echo(group, number, started, deadline).await {
                    Ok(()) => {}
                    Err(FetchError::Admission(AdmissionError::WentBack { received })) => {
                        return Err(SendError::WentBack { received });
                    }
                    Err(error) => tracing::debug!(code = error.code(), "no echo is received yet"),
                }
                if let Some(result) = self.settled(number).await? {
                    return result;
                }
                if changes.changed_or_poll(wakes).await.is_err() {
                    return Err(SendError::Storage(StorageError::Closed));
                }
            }
        };
        tokio::select! {
            biased;
            result = driving => result,
            () = self.context.runtime.sleep_until(deadline) => self.open_outcome(number).await,
        }
    }

    /// Prepares and publishes what a group has to send, as far as it goes now.
    ///
    /// # Errors
    /// When the backend or the database fails; attempts are kept.
    pub async fn drive(&self, group: GroupId) -> Result<(), FetchError> {
        let turn = self.turns.lock().entry(group).or_default().clone();
        let _turn = turn.lock().await;
        let span = tracing::debug_span!("send", group = %group.short());
        let result = self.rounds(group).instrument(span).await;
        let mut turns = self.turns.lock();
        // The map holds one handle and this call another; a waiter would make it three.
        if Arc::strong_count(&turn) <= 2 {
            turns.remove(&group);
        }
        result
    }

    async fn rounds(&self, group: GroupId) -> Result<(), FetchError> {
        for _ in 0..MAX_DRIVE_ROUNDS {
            let processor = self.context.processors.group.clone();
            let done = self
                .context
                .database
                .write_queued(Priority::Foreground, Durability::Flushed, move |txn| {
                    attempt::prepare(txn, &*processor, &group)
                })
                .await?;
            publish::publish(&self.context, group, &done.prepared).await?;
            if !done.waits.is_empty() && self.has_come(group, &done.waits).await? {
                continue;
            }
            if done.prepared.len() < attempt::MAX_IN_FLIGHT_MESSAGES {
                break;
            }
        }
        Ok(())
    }

    /// Asks the backend for what an intent needs before it can be prepared, with a pause between;
    /// answers whether all of it is there.
    async fn has_come(&self, group: GroupId, needed: &[Dependency]) -> Result<bool, FetchError> {
        let now = self.context.runtime.monotonic();
        let paused = self.asked.lock().get(&group).copied();
        if paused.is_some_and(|until| until > now) {
            return Ok(false);
        }
        self.asked.lock().insert(group, now + IDENTITY_RETRY_PAUSE);
        let mut is_there = true;
        for dependency in needed {
            is_there &= fetch_for(&self.context, dependency).await? == Answer::Ready;
        }
        if is_there {
            self.asked.lock().remove(&group);
        }
        Ok(is_there)
    }

    /// Fetches the echoes of receipted attempts up to an intent, also of those that an earlier or
    /// another process left before it: at once without a healthy receiver, otherwise after the
    /// fallback interval, counted from the start of the operation.
    async fn receive_echo(
        &self,
        group: GroupId,
        number: u64,
        started: Duration,
        deadline: Duration,
    ) -> Result<(), FetchError> {
        let topic = Topic::group(&group);
        let is_missing = self
            .context
            .database
            .read_queued(move |snapshot| {
                let received = receipt::store::topic(snapshot, &topic)?.received;
                let unfinished = store::unfinished(snapshot, &group)?;
                Ok::<_, StorageError>(unfinished.iter().any(|intent| {
                    intent.intent_id <= number
                        && intent.state() == IntentState::Receipted
                        && receipt_sequence(intent).get() > received
                }))
            })
            .await?;
        let fallback = started.saturating_add(RECEIVER_FALLBACK_INTERVAL);
        let waits_for_receiver = (self.covers)(&topic)
            && self.context.runtime.monotonic() < fallback
            && fallback < deadline;
        if is_missing && !waits_for_receiver {
            let fetched = fetch_page(&self.context, &[topic]).await?;
            if !fetched.gone_back.is_empty() {
                let received = received(&self.context, vec![topic]).await?[0].get();
                return Err(AdmissionError::WentBack { received }.into());
            }
        }
        Ok(())
    }

    /// Reads the outcome of an intent, if it has one.
    async fn settled(&self, number: u64) -> Result<Option<Result<Sent, SendError>>, StorageError> {
        let intent = self.intent(number).await?;
        Ok(match intent.state() {
            IntentState::Processed => Some(Ok(Sent {
                intent: number,
                message_id: message_id(&intent),
                sequence: receipt_sequence(&intent),
            })),
            IntentState::Rejected => Some(Err(SendError::Rejected {
                reason: intent.rejection,
            })),
            IntentState::Superseded => Some(Err(SendError::Superseded)),
            _ => None,
        })
    }

    /// Says what is known of an intent at its deadline.
    async fn open_outcome(&self, number: u64) -> Result<Sent, SendError> {
        if let Some(result) = self.settled(number).await? {
            return result;
        }
        let intent = self.intent(number).await?;
        let message_id = message_id(&intent);
        let sequence = receipt_sequence(&intent);
        if sequence > SequenceId::ZERO {
            return Err(SendError::PublishedUnconfirmed {
                message_id,
                sequence,
            });
        }
        Err(SendError::OutcomeUnknown { message_id })
    }

    async fn published(
        &self,
        number: u64,
        message_id: Option<MessageId>,
    ) -> Result<Sent, SendError> {
        let sequence = self
            .context
            .database
            .read_queued(move |snapshot| delivery::store::sequence_of(snapshot, number))
            .await?;
        Ok(Sent {
            intent: 0,
            message_id,
            sequence,
        })
    }

    async fn intent(&self, number: u64) -> Result<stored::Intent, StorageError> {
        self.context
            .database
            .read_queued(move |snapshot| store::intent(snapshot, number))
            .await?
            .ok_or(StorageError::Invariant {
                rule: "a queued intent is kept until its outcome is read",
            })
    }
}

fn message_id(intent: &stored::Intent) -> Option<MessageId> {
    MessageId::try_from(&intent.message_id[..]).ok()
}

fn receipt_sequence(intent: &stored::Intent) -> SequenceId {
    let sequence = intent
        .attempt
        .as_ref()
        .map(|attempt| attempt.receipt_sequence_id);
    SequenceId::saturating(sequence.unwrap_or_default())
}
