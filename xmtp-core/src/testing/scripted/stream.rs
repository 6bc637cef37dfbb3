//! The two halves of a scripted stream.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use futures_util::stream::Stream;
use parking_lot::Mutex;
use xmtp_proto::backend::v1;
use xmtp_proto::backend::v1::subscribe_response::Response;

use super::server::Server;
use crate::runtime::{Runtime, RuntimeExt};
use crate::transport::{Subscription, SubscriptionRequests, TransportError};

/// Makes both halves of an open stream.
pub(super) fn subscription(
    server: Arc<Mutex<Server>>,
    runtime: Arc<dyn Runtime>,
    number: u64,
) -> Subscription {
    let requests = Requests {
        server: server.clone(),
        number,
    };
    let frames = Frames {
        server,
        runtime,
        number,
        keepalive: None,
    };
    Subscription {
        requests: Box::new(requests),
        frames: Box::pin(frames),
    }
}

struct Requests {
    server: Arc<Mutex<Server>>,
    number: u64,
}

impl SubscriptionRequests for Requests {
    fn send(&mut self, request: v1::SubscribeRequest) -> BoxFuture<'_, Result<(), TransportError>> {
        Box::pin(async move { self.server.lock().request(self.number, request) })
    }
}

struct Frames {
    server: Arc<Mutex<Server>>,
    runtime: Arc<dyn Runtime>,
    number: u64,
    keepalive: Option<BoxFuture<'static, ()>>,
}

impl Stream for Frames {
    type Item = Result<v1::SubscribeResponse, TransportError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let number = self.number;
        let (next, interval) = {
            let mut server = self.server.lock();
            let next = server.next(number, context.waker());
            (next, server.keepalive_interval())
        };
        if let Some(frame) = next {
            self.keepalive = None;
            return Poll::Ready(frame);
        }
        let Some(interval) = interval else {
            self.keepalive = None;
            return Poll::Pending;
        };
        let runtime = self.runtime.clone();
        let keepalive = self
            .keepalive
            .get_or_insert_with(|| runtime.sleep(interval));
        if keepalive.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        self.keepalive = None;
        Poll::Ready(Some(Ok(v1::SubscribeResponse {
            response: Some(Response::Ping(v1::Ping { nonce: number })),
        })))
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.server.lock().close(self.number);
    }
}
