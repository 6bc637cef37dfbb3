//! Clients that follow topics, lose their streams, and go on where they were.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};
use xmtp_proto::backend::v1::subscribe_request::{Request, Update};
use xmtp_proto::backend::v1::subscribe_response::Response;
use xmtp_proto::backend::v1::subscription_service_client::SubscriptionServiceClient;
use xmtp_proto::backend::v1::{Pong, ServerEnvelope, SubscribeRequest, SubscribeResponse, Topic};

use super::{Crowd, Link, PATIENCE};
use crate::common::{from, id_of};
use crate::history::StreamRecorder;

/// Frames of the client that wait for the transport, in frames.
const REQUESTS: usize = 256;

/// Distance between the topics of two neighbours, so that every topic has as many subscribers.
const STRIDE: usize = 10;

/// Why a stream is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    /// The server is gone, or ended it.
    Lost,
    /// The client went away.
    Away,
    /// Everything has come.
    Settled,
}

/// Follows topics until everything that was ever published on them has come.
pub(super) async fn run(crowd: Arc<Crowd>, number: usize, mut link: Link) {
    let topics = crowd.topics.iter().cycle().skip(number * STRIDE);
    let topics = topics.take(crowd.plan.topics_per_stream);
    let mut reached: HashMap<Topic, u64> = topics.map(|topic| (topic.clone(), 0)).collect();
    let mut go_away = crowd.go_away.subscribe();
    loop {
        let channel = link.channel().await;
        let (requests, stream) = mpsc::channel(REQUESTS);
        let mut client = SubscriptionServiceClient::new(channel);
        let opened = client.subscribe(ReceiverStream::new(stream)).await;
        let Ok(frames) = opened else {
            link.lost();
            continue;
        };
        let subscription = Subscription {
            crowd: &crowd,
            number,
            recorder: StreamRecorder::new(crowd.recorder.clone()),
            requests: Some(requests),
            frames: frames.into_inner(),
            reached: &mut reached,
            last_update: 0,
            last_applied: 0,
            adding: VecDeque::new(),
            until_churn: crowd.plan.churn,
        };
        match subscription.follow(&mut go_away).await {
            Over::Lost => link.lost(),
            Over::Away => {}
            Over::Settled => return,
        }
    }
}

/// One stream.
struct Subscription<'c> {
    crowd: &'c Crowd,
    number: usize,
    recorder: StreamRecorder,
    requests: Option<mpsc::Sender<SubscribeRequest>>,
    frames: Streaming<SubscribeResponse>,
    /// Up to where each topic has come.
    reached: &'c mut HashMap<Topic, u64>,
    last_update: u64,
    last_applied: u64,
    /// Updates that add a topic again and are not acknowledged, with its cursor.
    adding: VecDeque<(u64, Topic, u64)>,
    /// Messages until a topic is removed and added again.
    until_churn: usize,
}

impl Subscription<'_> {
    async fn follow(mut self, go_away: &mut watch::Receiver<usize>) -> Over {
        let adds = self.reached.iter();
        let adds = adds.map(|(topic, after)| from(topic, *after)).collect();
        self.update(Update {
            adds,
            ..Update::default()
        })
        .await;
        let mut heads = self.crowd.heads.subscribe();
        loop {
            if self.has_all(&heads) {
                return self.settle().await;
            }
            tokio::select! {
                frame = timeout(PATIENCE, self.frames.message()) => {
                    if let Some(over) = self.take(frame.expect("a frame in time")).await {
                        return over;
                    }
                }
                changed = go_away.changed() => {
                    changed.expect("the crowd lives");
                    if *go_away.borrow() % 3 == self.number % 3 {
                        return Over::Away;
                    }
                }
                changed = heads.changed() => changed.expect("the crowd lives"),
            }
        }
    }

    /// Takes what the stream gave; answers why it is over, if it is.
    async fn take(&mut self, given: Result<Option<SubscribeResponse>, Status>) -> Option<Over> {
        let frame = match given {
            Ok(Some(frame)) => frame.response.expect("a frame of some kind"),
            Ok(None) => {
                self.recorder.ended(Ok(()));
                return Some(Over::Lost);
            }
            Err(status) => {
                self.recorder.ended(Err(&status));
                return Some(Over::Lost);
            }
        };
        self.recorder.frame(&frame);
        match frame {
            Response::Applied(applied) => {
                self.last_applied = applied.id;
                if self
                    .adding
                    .front()
                    .is_some_and(|(id, ..)| *id == applied.id)
                {
                    let (_, topic, cursor) = self.adding.pop_front().expect("it is there");
                    self.reached.insert(topic, cursor);
                }
            }
            Response::Messages(messages) => {
                let count = messages.envelopes.len();
                self.crowd
                    .delivered
                    .fetch_add(count as u64, Ordering::Relaxed);
                for row in &messages.envelopes {
                    self.take_row(row).await;
                }
            }
            Response::Ping(ping) => {
                let nonce = ping.nonce;
                self.send(Request::Pong(Pong { nonce })).await;
            }
            Response::Started(_) | Response::Pong(_) => {}
        }
        None
    }

    async fn take_row(&mut self, row: &ServerEnvelope) {
        let topic = row.meta.as_ref().and_then(|meta| meta.topic.clone());
        let topic = topic.expect("a topic");
        self.reached.insert(topic.clone(), id_of(row));
        self.until_churn -= 1;
        if self.until_churn > 0 {
            return;
        }
        self.until_churn = self.crowd.plan.churn;
        let cursor = self.reached[&topic];
        self.update(Update {
            removes: vec![topic.clone()],
            ..Update::default()
        })
        .await;
        self.update(Update {
            adds: vec![from(&topic, cursor)],
            ..Update::default()
        })
        .await;
        self.adding.push_back((self.last_update, topic, cursor));
    }

    async fn update(&mut self, update: Update) {
        self.last_update += 1;
        let update = Update {
            id: self.last_update,
            ..update
        };
        self.recorder.update(&update);
        self.send(Request::Update(update)).await;
    }

    async fn send(&self, request: Request) {
        let request = SubscribeRequest {
            request: Some(request),
        };
        if let Some(requests) = &self.requests {
            // A stream that has ended takes nothing; its frames tell why.
            let _ = requests.send(request).await;
        }
    }

    fn has_all(&self, heads: &watch::Receiver<Option<Arc<HashMap<Topic, u64>>>>) -> bool {
        let heads = heads.borrow();
        let Some(heads) = heads.as_ref() else {
            return false;
        };
        let reached =
            |(topic, after): (&Topic, &u64)| heads.get(topic).is_none_or(|head| after >= head);
        self.last_applied == self.last_update && self.reached.iter().all(reached)
    }

    /// Ends the client's half, and takes what comes until the server has ended its own.
    async fn settle(mut self) -> Over {
        self.requests = None;
        loop {
            let frame = timeout(PATIENCE, self.frames.message()).await;
            if self.take(frame.expect("an end in time")).await.is_some() {
                self.recorder.settled();
                return Over::Settled;
            }
        }
    }
}
