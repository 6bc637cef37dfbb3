//! Opening many streams, and how long an envelope takes to come through one.

use std::time::Instant;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};
use xmtp_proto::backend::v1::publish_service_client::PublishServiceClient;
use xmtp_proto::backend::v1::subscribe_request::{Request, Update};
use xmtp_proto::backend::v1::subscribe_response::Response;
use xmtp_proto::backend::v1::subscription_service_client::SubscriptionServiceClient;
use xmtp_proto::backend::v1::{
    PublishRequest, SubscribeRequest, SubscribeResponse, Topic, TopicQuery,
};

use crate::report::{Report, percentile};
use crate::rows::row;
use crate::store::{Store, serve};

/// Streams that share a connection; a server allows no more.
const STREAMS_PER_CONNECTION: usize = 100;
/// Envelopes that are timed in one round.
const TIMED: usize = 500;

/// An open stream.
pub(crate) struct Stream {
    pub(crate) requests: mpsc::Sender<SubscribeRequest>,
    pub(crate) frames: Streaming<SubscribeResponse>,
}

impl Stream {
    pub(crate) async fn open(channel: Channel) -> Self {
        let (requests, stream) = mpsc::channel(16);
        let client = SubscriptionServiceClient::new(channel);
        let mut client = client.max_decoding_message_size(64 << 20);
        let opened = client.subscribe(ReceiverStream::new(stream)).await;
        let frames = opened.expect("it opens").into_inner();
        Self { requests, frames }
    }

    pub(crate) async fn send(&self, request: Request) {
        let request = Some(request);
        let sent = self.requests.send(SubscribeRequest { request }).await;
        sent.expect("the stream is open");
    }

    /// Sends the first update.
    pub(crate) async fn add(&self, topics: &[Vec<u8>]) {
        let adds = topics.iter().map(|topic| TopicQuery {
            topic: Some(Topic {
                topic: topic.clone().into(),
            }),
            cursor: None,
        });
        let update = Update {
            id: 1,
            adds: adds.collect(),
            removes: Vec::new(),
        };
        self.send(Request::Update(update)).await;
    }

    pub(crate) async fn next(&mut self) -> Response {
        let frame = self.frames.message().await.expect("no failure");
        frame.expect("no end").response.expect("a frame")
    }

    /// Waits for the acknowledgement of the first update.
    pub(crate) async fn applied(&mut self) {
        while !matches!(self.next().await, Response::Applied(_)) {}
    }

    /// Waits for so many envelopes.
    pub(crate) async fn take(&mut self, mut count: usize) {
        while count > 0 {
            if let Response::Messages(messages) = self.next().await {
                count -= messages.envelopes.len();
            }
        }
    }
}

/// Opens streams, a hundred on each connection.
pub(crate) async fn open_many(endpoint: &str, count: usize) -> Vec<Stream> {
    let mut streams = Vec::with_capacity(count);
    let mut channel = connect(endpoint).await;
    for number in 0..count {
        if number > 0 && number % STREAMS_PER_CONNECTION == 0 {
            channel = connect(endpoint).await;
        }
        streams.push(Stream::open(channel.clone()).await);
    }
    streams
}

pub(crate) async fn connect(endpoint: &str) -> Channel {
    let endpoint = Endpoint::from_shared(endpoint.to_owned()).expect("an endpoint");
    endpoint.connect().await.expect("it accepts")
}

/// Times an envelope from its publish to its delivery; the limit is its acknowledgement.
///
/// - On PostgreSQL it is published through one server and delivered by another.
pub(crate) async fn latency(report: &Report, store: &Store) {
    let database = store.database();
    let running = serve(&database).await;
    let second = match store {
        Store::Sqlite(_) => None,
        Store::Postgres(_) => Some(serve(&database).await),
    };
    let deliverer = second.as_ref().unwrap_or(&running).endpoint();
    let mut stream = Stream::open(connect(&deliverer).await).await;
    let mut client = PublishServiceClient::new(connect(&running.endpoint()).await);
    stream.add(&[row(0, 1).topic]).await;
    stream.applied().await;
    let (mut delivered, mut acknowledged) = (Vec::new(), Vec::new());
    for number in 0..TIMED * report.rounds {
        let envelopes = vec![row(number, 1).envelope];
        let began = Instant::now();
        let (stored, ()) = tokio::join!(
            async {
                let stored = client.publish(PublishRequest { envelopes }).await;
                acknowledged.push(began.elapsed());
                stored
            },
            async {
                stream.take(1).await;
                delivered.push(began.elapsed());
            }
        );
        stored.expect("it is stored");
    }
    drop(stream);
    let servers = 1 + usize::from(second.is_some());
    for server in [Some(running), second].into_iter().flatten() {
        server.stop().await;
    }
    for percent in [50, 99] {
        let ours = percentile(&mut delivered, percent);
        let limit = percentile(&mut acknowledged, percent);
        let labels = format!(r#""servers":{servers},"percentile":{percent},"#);
        report.print("latency", store.name(), &labels, ours, limit, "ms");
    }
}
