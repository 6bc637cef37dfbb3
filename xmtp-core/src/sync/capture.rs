//! Captures fixed targets: heads as the serving database shows them, metadata only.

use std::collections::BTreeMap;

use xmtp_proto::backend::v1;
use xmtp_proto::{SequenceId, Topic};

use crate::engine::context::Context;
use crate::transport::TransportError;

/// Asks for the heads of at most one request's worth of topics. A topic that is not named in the
/// answer has nothing, which is a head of zero (STR-040).
pub(super) async fn heads(
    context: &Context,
    topics: &[Topic],
) -> Result<Vec<(Topic, SequenceId)>, TransportError> {
    let request = v1::QueryNewestRequest {
        topics: topics.iter().map(Topic::to_proto).collect(),
        include_full_envelope: false,
    };
    let response = context.transport.query_newest(request).await?;
    let mut found = BTreeMap::new();
    for result in response.results {
        let topic = result.topic.as_ref();
        let topic = topic.and_then(|topic| Topic::parse(&topic.topic).ok());
        let cursor = result.meta.and_then(|meta| meta.cursor);
        let head = cursor.and_then(|cursor| SequenceId::checked(cursor.sequence_id).ok());
        let (Some(topic), Some(head)) = (topic, head) else {
            return Err(TransportError::Protocol {
                rule: "a newest envelope without a topic or a sequence id in range",
            });
        };
        found.insert(topic, head);
    }
    let head = |topic: &Topic| found.get(topic).copied().unwrap_or_default();
    Ok(topics.iter().map(|topic| (*topic, head(topic))).collect())
}
