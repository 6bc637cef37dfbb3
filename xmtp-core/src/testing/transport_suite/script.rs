//! What cases say in one line: requests, and the frames of a stream.

use futures_util::StreamExt;
use xmtp_proto::backend::v1;
use xmtp_proto::backend::v1::subscribe_request::{Request, Update};
use xmtp_proto::backend::v1::subscribe_response::{Applied, Response};

use super::TransportFixture;
use crate::transport::{Subscription, TransportError};

/// Publishes the envelopes `numbers` of a topic in one request.
pub(super) async fn publish(
    fixture: &dyn TransportFixture,
    topic_seed: u8,
    numbers: impl IntoIterator<Item = u32>,
) -> Vec<v1::EnvelopeMeta> {
    let numbers = numbers.into_iter();
    let envelopes = numbers.map(|n| fixture.envelope(topic_seed, n)).collect();
    publish_all(fixture, envelopes).await
}

/// Publishes envelopes in one request.
pub(super) async fn publish_all(
    fixture: &dyn TransportFixture,
    envelopes: Vec<v1::ClientEnvelope>,
) -> Vec<v1::EnvelopeMeta> {
    let published = fixture
        .transport()
        .publish(v1::PublishRequest { envelopes })
        .await;
    published
        .expect("the envelopes are admitted")
        .envelope_metas
}

/// Reads a page of one topic after a cursor.
pub(super) async fn query(
    fixture: &dyn TransportFixture,
    topic_seed: u8,
    after: u64,
    limit: u32,
) -> v1::QueryResponse {
    let queries = vec![after_cursor(fixture, topic_seed, after)];
    let page = fixture
        .transport()
        .query(v1::QueryRequest { queries, limit })
        .await;
    page.expect("a page")
}

pub(super) fn after_cursor(
    fixture: &dyn TransportFixture,
    topic_seed: u8,
    after: u64,
) -> v1::TopicQuery {
    let cursor = Some(v1::Cursor { sequence_id: after });
    v1::TopicQuery {
        topic: Some(fixture.topic(topic_seed)),
        cursor,
    }
}

pub(super) fn has_more(page: &v1::QueryResponse) -> bool {
    page.continuation
        .as_ref()
        .expect("a page says whether there is more")
        .has_more
}

pub(super) fn sequence(meta: &v1::EnvelopeMeta) -> u64 {
    meta.cursor
        .as_ref()
        .expect("a record has a position")
        .sequence_id
}

pub(super) fn meta(envelope: &v1::ServerEnvelope) -> &v1::EnvelopeMeta {
    envelope
        .meta
        .as_ref()
        .expect("a stored envelope has a record")
}

pub(super) fn sequences(envelopes: &[v1::ServerEnvelope]) -> Vec<u64> {
    envelopes
        .iter()
        .map(|envelope| sequence(meta(envelope)))
        .collect()
}

/// An open stream, past its first frame.
pub(super) struct Stream {
    pub(super) subscription: Subscription,
}

impl Stream {
    /// Opens a stream and reads Started.
    pub(super) async fn open(fixture: &dyn TransportFixture) -> Self {
        let subscription = fixture
            .transport()
            .subscribe()
            .await
            .expect("a stream opens");
        let mut stream = Self { subscription };
        match stream.frame().await {
            Response::Started(_) => stream,
            other => panic!("the first frame is {other:?}"),
        }
    }

    /// Opens a stream that follows topics from their beginning, and reads Applied.
    pub(super) async fn following(fixture: &dyn TransportFixture, topic_seeds: &[u8]) -> Self {
        let mut stream = Self::open(fixture).await;
        let adds = topic_seeds
            .iter()
            .map(|seed| after_cursor(fixture, *seed, 0))
            .collect();
        stream
            .update(Update {
                id: 1,
                adds,
                removes: vec![],
            })
            .await;
        stream.applied().await;
        stream
    }

    pub(super) async fn update(&mut self, update: Update) {
        self.send(Some(Request::Update(update)))
            .await
            .expect("an open stream takes requests");
    }

    pub(super) async fn send(&mut self, request: Option<Request>) -> Result<(), TransportError> {
        self.subscription
            .requests
            .send(v1::SubscribeRequest { request })
            .await
    }

    /// Reads what comes next: a frame, an error, or nothing at a clean end.
    ///
    /// - Pings are answered and not told.
    pub(super) async fn next(&mut self) -> Option<Result<Response, TransportError>> {
        loop {
            let frame = match self.subscription.frames.next().await? {
                Ok(frame) => frame.response.expect("a frame has a kind"),
                Err(error) => return Some(Err(error)),
            };
            let Response::Ping(ping) = frame else {
                return Some(Ok(frame));
            };
            let pong = Request::Pong(v1::Pong { nonce: ping.nonce });
            // A stream that ended since will say so itself.
            let _ = self.send(Some(pong)).await;
        }
    }

    /// Reads the next frame of a stream that is well.
    pub(super) async fn frame(&mut self) -> Response {
        self.next()
            .await
            .expect("the stream goes on")
            .expect("the stream is well")
    }

    pub(super) async fn applied(&mut self) -> Applied {
        match self.frame().await {
            Response::Applied(applied) => applied,
            other => panic!("not Applied but {other:?}"),
        }
    }

    /// Reads frames until so many envelopes have come; all of them must be messages.
    pub(super) async fn messages(&mut self, count: usize) -> Vec<v1::ServerEnvelope> {
        let mut envelopes = Vec::new();
        while envelopes.len() < count {
            match self.frame().await {
                Response::Messages(messages) => envelopes.extend(messages.envelopes),
                other => panic!("not Messages but {other:?}"),
            }
        }
        assert_eq!(envelopes.len(), count, "more envelopes than were published");
        envelopes
    }

    /// Reads frames up to the error that ends the stream.
    pub(super) async fn error(&mut self) -> TransportError {
        loop {
            match self.next().await {
                Some(Ok(_)) => {}
                Some(Err(error)) => return error,
                None => panic!("a clean end instead of an error"),
            }
        }
    }
}
