//! Subscribe and SubscribeStatic.

use futures_util::stream::Stream;
use tonic::Status;
use xmtp_proto::backend::v1::{SubscribeRequest, SubscribeStaticRequest};

use super::{Frames, Services};
use crate::hooks::Call;

impl Services {
    /// Opens a stream whose interest the client changes as it goes.
    ///
    /// - The first frame is there before any request is read.
    /// - The end of `requests` ends the stream; so does dropping the returned frames.
    pub async fn subscribe<S>(&self, requests: S) -> Result<Frames, Status>
    where
        S: Stream<Item = Result<SubscribeRequest, Status>> + Send + Unpin + 'static,
    {
        self.begin(Call::Subscribe).await?;
        self.inner.engine.subscribe(requests)
    }

    /// Not available yet.
    pub async fn subscribe_static(
        &self,
        _request: SubscribeStaticRequest,
    ) -> Result<std::convert::Infallible, Status> {
        self.begin(Call::SubscribeStatic).await?;
        Err(Status::unimplemented(
            "static subscriptions are not served by this build",
        ))
    }
}
