//! Bounded Query pages after durable F, through the one receive path.

use std::collections::BTreeMap;
use std::time::Duration;

use thiserror::Error;
use xmtp_proto::backend::v1;
use xmtp_proto::limits::{BACKEND_DEFAULT_MAX_QUERY_LIMIT, BACKEND_DEFAULT_MAX_QUERY_TOPICS};
use xmtp_proto::{SequenceId, Topic};

use super::context::Context;
use super::receive::{Received, receive, received};
use crate::error::{Class, Coded};
use crate::limits::MAX_FETCHED_ROWS;
use crate::receipt::{AdmissionError, Capacity, check};
use crate::storage::StorageError;
use crate::transport::TransportError;

/// Why a page could not be fetched or admitted.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum FetchError {
    /// The backend did not answer with a page.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The page was refused.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// The database failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl FetchError {
    /// Answers the least pause before another try, as the backend asks for it.
    pub(crate) fn asked_pause(&self) -> Duration {
        match self {
            Self::Transport(error) => error.asked_pause(),
            _ => Duration::ZERO,
        }
    }
}

impl Coded for FetchError {
    fn code(&self) -> &'static str {
        match self {
            Self::Transport(error) => error.code(),
            Self::Admission(error) => error.code(),
            Self::Storage(error) => error.code(),
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Transport(error) => error.class(),
            Self::Admission(error) => error.class(),
            Self::Storage(error) => error.class(),
        }
    }
}

/// What one page brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// New envelopes admitted.
    pub new: usize,
    /// Whether more rows were there in the page's own snapshot.
    pub more: bool,
    /// Topics whose receipt is paused, each with its bound.
    pub paused: Vec<(Topic, Capacity)>,
    /// Topics whose order at the backend went back below F; nothing of them is admitted any more
    /// (EXT-002).
    pub gone_back: Vec<Topic>,
}

impl Fetched {
    /// Tells whether every topic was admitted as far as the page had it.
    pub fn is_whole(&self) -> bool {
        self.paused.is_empty() && self.gone_back.is_empty()
    }
}

/// Fetches one page of up to [`BACKEND_DEFAULT_MAX_QUERY_TOPICS`] topics after their durable F.
///
/// # Behavior
/// - Reads F fresh, so overlap with other receivers is only overlap.
/// - A topic at its bound is named in `paused` and keeps its F; the others go on.
/// - A topic that goes on behind a fence is read again from the envelope at F; one that lacks it is
///   named in `gone_back`, and the others go on.
///
/// # Errors
/// When the backend, the page's shape or the database fails. Nothing of the page is admitted then
/// but what an earlier transaction committed.
pub async fn fetch_page(context: &Context, topics: &[Topic]) -> Result<Fetched, FetchError> {
    let topics = &topics[..topics.len().min(BACKEND_DEFAULT_MAX_QUERY_TOPICS as usize)];
    let floors = received(context, topics.to_vec()).await?;
    let floors: BTreeMap<Topic, SequenceId> = topics.iter().copied().zip(floors).collect();
    let request = v1::QueryRequest {
        queries: floors
            .iter()
            .map(|(topic, after)| query(topic, *after))
            .collect(),
        limit: BACKEND_DEFAULT_MAX_QUERY_LIMIT.min(MAX_FETCHED_ROWS as u32),
    };
    let response = context.transport.query(request).await?;
    let more = response.continuation.is_some_and(|next| next.has_more);
    let mut batches = Vec::new();
    for (topic, envelopes) in by_topic(response.envelopes)? {
        let after = *floors.get(&topic).ok_or(AdmissionError::Shape {
            rule: "an envelope of a topic that was not asked for",
        })?;
        batches.push(check(topic, after, envelopes)?);
    }
    let asked: Vec<Topic> = batches.iter().map(|batch| batch.topic).collect();
    let mut fetched = Fetched {
        new: 0,
        more,
        paused: Vec::new(),
        gone_back: Vec::new(),
    };
    for (topic, outcome) in asked.into_iter().zip(receive(context, batches).await?) {
        let outcome = match outcome {
            Err(AdmissionError::Unproven { received }) => {
                read_from(context, topic, SequenceId::saturating(received)).await?
            }
            outcome => outcome,
        };
        match outcome {
            Ok(admitted) => {
                fetched.new += admitted.new;
                fetched.more |= admitted.left_out.is_some();
            }
            Err(AdmissionError::Capacity(bound)) => fetched.paused.push((topic, bound)),
            Err(AdmissionError::WentBack { .. }) => fetched.gone_back.push(topic),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(fetched)
}

/// Reads a topic from the primary again, with the envelope at F: it shows whether the order goes on
/// from there.
async fn read_from(
    context: &Context,
    topic: Topic,
    received: SequenceId,
) -> Result<Received, FetchError> {
    let before = SequenceId::saturating(received.get().saturating_sub(1));
    let request = v1::QueryRequest {
        queries: vec![query(&topic, before)],
        limit: BACKEND_DEFAULT_MAX_QUERY_LIMIT.min(MAX_FETCHED_ROWS as u32),
    };
    let response = context.transport.query(request).await?;
    let batch = check(topic, before, response.envelopes)?;
    let mut outcomes = receive(context, vec![batch]).await?;
    outcomes
        .pop()
        .ok_or(FetchError::Storage(StorageError::Invariant {
            rule: "a batch has an outcome",
        }))
}

/// Makes the query of one topic.
fn query(topic: &Topic, after: SequenceId) -> v1::TopicQuery {
    v1::TopicQuery {
        topic: Some(topic.to_proto()),
        cursor: Some(v1::Cursor {
            sequence_id: after.get(),
        }),
    }
}

/// Splits a page by topic, each in page order.
///
/// # Errors
/// When an envelope names no topic of the wire.
pub fn by_topic(
    envelopes: Vec<v1::ServerEnvelope>,
) -> Result<Vec<(Topic, Vec<v1::ServerEnvelope>)>, AdmissionError> {
    let mut split: BTreeMap<Topic, Vec<v1::ServerEnvelope>> = BTreeMap::new();
    for envelope in envelopes {
        let topic = envelope
            .meta
            .as_ref()
            .and_then(|meta| meta.topic.as_ref())
            .and_then(|topic| Topic::parse(&topic.topic).ok())
            .ok_or(AdmissionError::Shape {
                rule: "an envelope without a topic",
            })?;
        split.entry(topic).or_default().push(envelope);
    }
    Ok(split.into_iter().collect())
}
