//! Query.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::Ordering;

use tonic::Status;
use xmtp_proto::backend::v1::{Continuation, QueryRequest, QueryResponse};
use xmtp_proto::id::{SequenceId, Topic, TopicKind};

use super::Services;
use super::status::{at_most, invalid, of_read, outgoing, store_bytes};
use super::wire::{decode_topic_query, server_envelope};
use crate::hooks::Call;
use crate::store::Query;

impl Services {
    /// Reads a page over several topics.
    ///
    /// - The limit counts envelopes over all topics; zero stands for the default one.
    /// - A topic that is named twice counts from its lowest cursor.
    pub async fn query(&self, request: QueryRequest) -> Result<QueryResponse, Status> {
        self.begin(Call::Query).await?;
        let limits = &self.inner.limits;
        at_most(
            request.queries.len(),
            limits.max_query_topics,
            "the query has too many topics",
        )?;
        let topics = merge(&request)?;
        if topics.is_empty() {
            return Ok(QueryResponse::default_page());
        }
        let limit = match request.limit {
            0 => limits.default_query_limit,
            limit => limit.min(limits.max_query_limit),
        };
        let first = self.inner.turn.fetch_add(1, Ordering::Relaxed) % topics.len();
        let max_bytes = store_bytes(limits, limit as usize);
        let query = Query {
            topics,
            limit: limit as usize,
            first,
            max_bytes,
        };
        let page = self.inner.store.query(query).await.map_err(of_read)?;
        let envelopes = page
            .envelopes
            .iter()
            .map(server_envelope)
            .collect::<Result<_, _>>()?;
        let continuation = Some(Continuation {
            has_more: page.has_more,
        });
        outgoing(
            QueryResponse {
                envelopes,
                continuation,
            },
            limits,
        )
    }
}

/// The page of a query over nothing.
trait DefaultPage {
    fn default_page() -> Self;
}

impl DefaultPage for QueryResponse {
    fn default_page() -> Self {
        Self {
            envelopes: Vec::new(),
            continuation: Some(Continuation { has_more: false }),
        }
    }
}

/// Reads every topic and cursor, then merges those of one topic; topics stay in order.
fn merge(request: &QueryRequest) -> Result<Vec<(Topic, SequenceId)>, Status> {
    let mut topics: Vec<(Topic, SequenceId)> = Vec::with_capacity(request.queries.len());
    let mut places = HashMap::new();
    for query in &request.queries {
        let (topic, cursor) = decode_topic_query(query)?;
        if topic.kind() == TopicKind::KeyPackage {
            return Err(invalid(
                "key packages are not queried, only their newest is read",
            ));
        }
        match places.entry(topic) {
            Entry::Vacant(place) => {
                place.insert(topics.len());
                topics.push((topic, cursor));
            }
            Entry::Occupied(place) => {
                let lowest = &mut topics[*place.get()].1;
                *lowest = cursor.min(*lowest);
            }
        }
    }
    Ok(topics)
}
