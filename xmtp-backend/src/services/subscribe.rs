//! Subscribe and SubscribeStatic.

use std::collections::HashSet;

use futures_util::stream::Stream;
use tonic::Status;
use xmtp_proto::backend::v1::{SubscribeRequest, SubscribeStaticRequest};

use super::status::{at_most, invalid};
use super::{Frames, Services, StaticFrames, decode_topic_query};
use crate::hooks::Call;
use crate::stream::RawFrames;

impl Services {
    /// Opens a stream whose interest the client changes as it goes.
    ///
    /// - The first frame is there before any request is read.
    /// - The end of `requests` ends the stream; so does dropping the returned frames.
    pub async fn subscribe<S>(&self, requests: S) -> Result<Frames, Status>
    where
        S: Stream<Item = Result<SubscribeRequest, Status>> + Send + Unpin + 'static,
    {
        self.open_changing(requests).await.map(Frames)
    }

    /// Opens a stream whose topics are those of the request.
    ///
    /// - The first frame has the target of each topic, in the order of the request.
    /// - Fails with INVALID_ARGUMENT on no topic, too many topics, and a topic named twice.
    /// - Dropping the returned frames ends the stream.
    pub async fn subscribe_static(
        &self,
        request: SubscribeStaticRequest,
    ) -> Result<StaticFrames, Status> {
        self.open_fixed(request).await.map(StaticFrames)
    }

    pub(super) async fn open_changing<S>(&self, requests: S) -> Result<RawFrames, Status>
    where
        S: Stream<Item = Result<SubscribeRequest, Status>> + Send + Unpin + 'static,
    {
        self.begin(Call::Subscribe).await?;
        self.inner.engine.subscribe(requests)
    }

    pub(super) async fn open_fixed(
        &self,
        request: SubscribeStaticRequest,
    ) -> Result<RawFrames, Status> {
        self.begin(Call::SubscribeStatic).await?;
        let (topics, most) = (request.topics, self.inner.limits.max_static_topics);
        if topics.is_empty() {
            return Err(invalid("a static subscription names no topic"));
        }
        at_most(
            topics.len(),
            most,
            "a static subscription names too many topics",
        )?;
        let topics = topics
            .iter()
            .map(decode_topic_query)
            .collect::<Result<Vec<_>, _>>()?;
        let mut seen = HashSet::with_capacity(topics.len());
        if !topics.iter().all(|(topic, _)| seen.insert(*topic)) {
            return Err(invalid("a static subscription names a topic twice"));
        }
        self.inner.engine.subscribe_fixed(topics)
    }
}
