//! One topic to a thousand streams, against a bare tonic service that streams the same frames.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use futures_util::StreamExt;
use tokio::sync::broadcast;
use tokio::task::JoinSet;
use tokio_stream::Stream as Frames;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response as Answer, Status, Streaming};
use xmtp_proto::backend::v1::subscribe_response::{Messages, Response, Started};
use xmtp_proto::backend::v1::subscription_service_server::{
    SubscriptionService, SubscriptionServiceServer,
};
use xmtp_proto::backend::v1::{
    PublishRequest, QueryRequest, ServerEnvelope, SubscribeRequest, SubscribeResponse,
    SubscribeStaticRequest, SubscribeStaticResponse, Topic,
};

use crate::common::from;
use crate::report::{RUNS, Report, median, rate};
use crate::rows::row;
use crate::store::{Store, serve};
use crate::streams::{Stream, open_many};

const STREAMS: usize = 1000;
/// Envelopes of one publish, and of one frame of the bare service.
const FRAME: usize = 8;
/// Publishes of one run and round.
const FRAMES: usize = 8;

type Boxed<T> = Pin<Box<dyn Frames<Item = Result<T, Status>> + Send>>;

/// A service that only streams what it is told.
struct Bare(broadcast::Sender<Arc<Vec<ServerEnvelope>>>);

#[tonic::async_trait]
impl SubscriptionService for Bare {
    type SubscribeStream = Boxed<SubscribeResponse>;
    type SubscribeStaticStream = Boxed<SubscribeStaticResponse>;

    async fn subscribe(
        &self,
        _: Request<Streaming<SubscribeRequest>>,
    ) -> Result<Answer<Self::SubscribeStream>, Status> {
        let frame = |response| {
            Ok(SubscribeResponse {
                response: Some(response),
            })
        };
        let started = Response::Started(Started::default());
        let told = tokio_stream::wrappers::BroadcastStream::new(self.0.subscribe());
        let told = told.map(move |rows| {
            let rows = rows.expect("no frame is dropped");
            let envelopes = rows.as_ref().clone();
            frame(Response::Messages(Messages { envelopes }))
        });
        let frames = tokio_stream::once(frame(started)).chain(told);
        Ok(Answer::new(Box::pin(frames)))
    }

    async fn subscribe_static(
        &self,
        _: Request<SubscribeStaticRequest>,
    ) -> Result<Answer<Self::SubscribeStaticStream>, Status> {
        Err(Status::unimplemented("not measured"))
    }
}

pub(crate) async fn measure(report: &Report, store: &Store) {
    let running = serve(&store.database()).await;
    let services = running.services();
    let topic = row(0, 1).topic;
    let mut ours_streams = open_many(&running.endpoint(), STREAMS).await;
    for stream in &mut ours_streams {
        stream.add(std::slice::from_ref(&topic)).await;
        stream.applied().await;
    }
    let count = FRAMES * report.rounds;
    let (tell, _) = broadcast::channel(count);
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().expect("an address"));
    let incoming = incoming.expect("a port").with_nodelay(Some(true));
    let address = incoming.local_addr().expect("an address");
    let service = SubscriptionServiceServer::new(Bare(tell.clone()));
    let server = Server::builder()
        .add_service(service)
        .serve_with_incoming(incoming);
    let server = tokio::spawn(server);
    let mut bare_streams = open_many(&format!("http://{address}"), STREAMS).await;
    for stream in &mut bare_streams {
        stream.next().await;
    }
    let (mut ours, mut limit) = (Vec::new(), Vec::new());
    let mut last = 0;
    for run in 0..=RUNS {
        let began = Instant::now();
        let taking = take_all(ours_streams, count * FRAME);
        for frame in 0..count {
            let first = (run * count + frame) * FRAME;
            let envelopes = (first..first + FRAME).map(|number| row(number, 1).envelope);
            let envelopes = envelopes.collect();
            services
                .publish(PublishRequest { envelopes })
                .await
                .expect("it is stored");
        }
        ours_streams = joined(taking).await;
        let ours_took = began.elapsed();

        let rows = read(&services, &topic, &mut last, count * FRAME).await;
        let began = Instant::now();
        let taking = take_all(bare_streams, count * FRAME);
        for frame in rows.chunks(FRAME) {
            tell.send(Arc::new(frame.to_vec()))
                .expect("somebody listens");
        }
        bare_streams = joined(taking).await;
        let limit_took = began.elapsed();
        if run > 0 {
            ours.push(rate(count * FRAME * STREAMS, ours_took));
            limit.push(rate(count * FRAME * STREAMS, limit_took));
        }
    }
    server.abort();
    drop(ours_streams);
    running.stop().await;
    let labels = format!(r#""streams":{STREAMS},"#);
    report.print(
        "fan_out",
        store.name(),
        &labels,
        median(ours),
        median(limit),
        "env/s",
    );
}

/// Reads the rows that were just published.
async fn read(
    services: &xmtp_backend::Services,
    topic: &[u8],
    last: &mut u64,
    count: usize,
) -> Vec<ServerEnvelope> {
    let topic = Topic {
        topic: topic.to_vec().into(),
    };
    let mut rows = Vec::new();
    while rows.len() < count {
        let request = QueryRequest {
            queries: vec![from(&topic, *last)],
            limit: 1000,
        };
        rows.extend(services.query(request).await.expect("it is read").envelopes);
        *last = rows.last().map_or(*last, crate::common::id_of);
    }
    rows
}

/// Lets every stream take so many envelopes.
fn take_all(streams: Vec<Stream>, count: usize) -> JoinSet<Stream> {
    let mut taking = JoinSet::new();
    for mut stream in streams {
        taking.spawn(async move {
            stream.take(count).await;
            stream
        });
    }
    taking
}

async fn joined(mut taking: JoinSet<Stream>) -> Vec<Stream> {
    let mut streams = Vec::with_capacity(STREAMS);
    while let Some(stream) = taking.join_next().await {
        streams.push(stream.expect("a client"));
    }
    streams
}
