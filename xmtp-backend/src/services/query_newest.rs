//! QueryNewest.

use std::collections::HashSet;

use tonic::Status;
use xmtp_proto::backend::v1::query_newest_response::Result as NewestResult;
use xmtp_proto::backend::v1::{QueryNewestRequest, QueryNewestResponse};
use xmtp_proto::id::Topic;

use super::Services;
use super::status::{at_most, of_read, outgoing, store_bytes};
use super::wire::{client_envelope, decode_topic, wire_meta, wire_topic};
use crate::hooks::Call;
use crate::store::Envelope;

impl Services {
    /// Reads the newest envelope of each topic that has one.
    ///
    /// - Has one result per distinct topic; their order means nothing.
    pub async fn query_newest(
        &self,
        request: QueryNewestRequest,
    ) -> Result<QueryNewestResponse, Status> {
        self.begin(Call::QueryNewest).await?;
        let limits = &self.inner.limits;
        let full = request.include_full_envelope;
        let most = match full {
            true => limits.max_newest_full_topics,
            false => limits.max_newest_metadata_topics,
        };
        at_most(request.topics.len(), most, "the read has too many topics")?;
        let topics: Vec<Topic> = request
            .topics
            .iter()
            .map(decode_topic)
            .collect::<Result<_, _>>()?;
        let mut seen = HashSet::with_capacity(topics.len());
        let topics: Vec<Topic> = topics
            .into_iter()
            .filter(|topic| seen.insert(*topic))
            .collect();
        let max_bytes = store_bytes(limits, topics.len());
        let found = self
            .inner
            .store
            .newest(topics, full, max_bytes)
            .await
            .map_err(of_read)?;
        let results = found
            .iter()
            .map(|row| result(row, full))
            .collect::<Result<_, _>>()?;
        outgoing(QueryNewestResponse { results }, limits)
    }
}

fn result(row: &Envelope, full: bool) -> Result<NewestResult, Status> {
    Ok(NewestResult {
        topic: Some(wire_topic(&row.meta.key.topic)),
        meta: Some(wire_meta(&row.meta)),
        envelope: full.then(|| client_envelope(row)).transpose()?,
    })
}
