//! The two halves of a stream.
//!
//! Requests pass through a bounded queue that the HTTP/2 connection empties, so that opening a
//! stream waits for nobody to send: the call starts with an empty queue and the backend answers
//! before it reads.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, unfold};
use tokio::sync::mpsc;
use tonic::Streaming;
use xmtp_core::transport::{SubscriptionRequests, TransportError};
use xmtp_proto::backend::v1::SubscribeRequest;

use crate::size::within_ceiling;
use crate::status::{classify_status, stream_is_over};

/// The requests of one stream that wait for the connection, in requests.
pub(crate) const REQUEST_QUEUE: usize = 16;

/// The request half; dropping it half-closes the stream.
#[derive(Debug)]
pub(crate) struct Requests {
    pub(crate) place: Arc<str>,
    pub(crate) queue: mpsc::Sender<SubscribeRequest>,
}

impl SubscriptionRequests for Requests {
    fn send(&mut self, request: SubscribeRequest) -> BoxFuture<'_, Result<(), TransportError>> {
        Box::pin(async move {
            let sent = self.queue.send(within_ceiling(request)?).await;
            sent.map_err(|_| stream_is_over(&self.place))
        })
    }
}

/// Passes frames on in order. The first error is told and is the end; only a status of success is
/// an end without an error. Dropping the stream cancels the call.
pub(crate) fn frames<T: Send + 'static>(
    place: Arc<str>,
    streaming: Streaming<T>,
) -> BoxStream<'static, Result<T, TransportError>> {
    let frames = unfold(Some((place, streaming)), |open| async move {
        let (place, mut streaming) = open?;
        match streaming.message().await {
            Ok(Some(frame)) => Some((Ok(frame), Some((place, streaming)))),
            Ok(None) => None,
            Err(status) => Some((Err(classify_status(&place, &status)), None)),
        }
    });
    Box::pin(frames)
}
