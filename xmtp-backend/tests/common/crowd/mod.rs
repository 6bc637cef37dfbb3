//! Many clients on real sockets against one server process that is killed, stopped and started.
//!
//! A run has rounds. In each, publishers store a fixed number of requests, readers page through
//! topics, subscribers add and remove topics and go away and come back, and in the middle one fault
//! is done. Whatever a client does not know, it settles by sending the same bytes again. Everything
//! is recorded and checked in the end.

#![allow(dead_code, reason = "each program uses a part of it")]

mod link;
mod publisher;
mod server;
mod subscriber;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use xmtp_proto::backend::v1::{QueryRequest, ServerEnvelope, Topic};

use crate::common::{IDENTIFIER, from, id_of};
use crate::history::{History, Recorder};

pub(crate) use link::Link;
pub(crate) use server::{Server, Starter};

/// How long anything may take; it can only fail a run.
const PATIENCE: Duration = Duration::from_secs(120);

/// The greatest page, in envelopes.
const PAGE: u32 = 1000;

/// How large a run is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    pub(crate) topics: usize,
    pub(crate) streams: usize,
    pub(crate) topics_per_stream: usize,
    pub(crate) publishers: usize,
    /// Requests of one publisher in one round.
    pub(crate) requests: usize,
    /// Envelopes of one request.
    pub(crate) envelopes: usize,
    /// Messages after which a subscriber removes a topic and adds it again.
    pub(crate) churn: usize,
    pub(crate) seed: u64,
}

impl Default for Plan {
    /// Three rounds of a thousand topics and a hundred streams; a round delivers 32,000 envelopes.
    fn default() -> Self {
        Self {
            rounds: 3,
            topics: 1000,
            streams: 100,
            topics_per_stream: 100,
            publishers: 8,
            requests: 20,
            envelopes: 20,
            churn: 100,
            seed: 20_260_101,
        }
    }
}

/// Writes the configuration of a server that a crowd uses.
pub(crate) fn config_text(database: &str) -> String {
    format!(
        "[server]\nidentifier = \"{IDENTIFIER}\"\nlisten = \"127.0.0.1:0\"\nmax_drain_duration_ms = 1000\n\
         [telemetry]\nmetrics_listen = \"\"\n[database]\nurl = \"{database}\"\n\
         [limits]\nmax_update_frames_per_second = 1000\nmax_update_burst = 1000\n"
    )
}

impl Plan {
    /// Answers how many requests are stored in one round.
    fn requests_per_round(&self) -> u64 {
        (self.publishers * self.requests) as u64
    }
}

/// What all clients share.
struct Crowd {
    plan: Plan,
    recorder: Arc<Recorder>,
    topics: Vec<Topic>,
    /// How many requests are stored.
    stored: watch::Sender<u64>,
    /// The number of the last call to go away; each subscriber hears every third.
    go_away: watch::Sender<usize>,
    /// The newest id of each topic, once nobody publishes any more.
    heads: watch::Sender<Option<Arc<HashMap<Topic, u64>>>>,
    delivered: AtomicU64,
}

/// The faults, one a round, in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Kill,
    GoAway,
    Stop,
}

impl Fault {
    fn of(round: usize) -> Self {
        [Self::Kill, Self::GoAway, Self::Stop][round % 3]
    }
}

/// Runs the plan on a server and returns what everybody saw.
pub(crate) async fn run(plan: Plan, starter: Starter) -> History {
    let mut server = Server::start(starter).await;
    let crowd = Arc::new(Crowd {
        plan,
        recorder: Arc::default(),
        topics: (0..plan.topics).map(group).collect(),
        stored: watch::Sender::new(0),
        go_away: watch::Sender::new(usize::MAX),
        heads: watch::Sender::new(None),
        delivered: AtomicU64::new(0),
    });
    let mut subscribers = JoinSet::new();
    for number in 0..plan.streams {
        subscribers.spawn(subscriber::run(crowd.clone(), number, server.link()));
    }
    let mut topics = crowd.topics.clone();
    for round in 0..plan.rounds {
        let mut working = JoinSet::new();
        let mut identities = JoinSet::new();
        for number in 0..plan.publishers {
            let seed = plan.seed ^ ((round * plan.publishers + number) as u64 + 1);
            working.spawn(publisher::publish(
                crowd.clone(),
                seed,
                round,
                number,
                server.link(),
            ));
        }
        working.spawn(publisher::read(
            crowd.clone(),
            round as u64 + 1,
            server.link(),
        ));
        let (link, other) = (server.link(), server.link());
        identities.spawn(publisher::update_identity(
            crowd.clone(),
            round as u64,
            link,
            other,
        ));
        server = fault(&crowd, round, server).await;
        while let Some(ended) = working.join_next().await {
            ended.expect("a client that publishes or reads");
        }
        while let Some(topic) = identities.join_next().await {
            topics.push(topic.expect("a client with an inbox"));
        }
    }
    let log = read_log(&crowd, &topics, server.link()).await;
    crowd.heads.send_replace(Some(Arc::new(heads(&log))));
    let settled = async {
        while let Some(ended) = subscribers.join_next().await {
            ended.expect("a subscriber");
        }
    };
    let settled = tokio::time::timeout(PATIENCE, settled).await;
    settled.expect("everything comes to everybody in time");
    server.stop().await;
    crowd.recorder.finish(&log)
}

/// Does the round's fault when half of its requests are stored.
async fn fault(crowd: &Crowd, round: usize, server: Server) -> Server {
    let half = crowd.plan.requests_per_round() * (2 * round as u64 + 1) / 2;
    let mut stored = crowd.stored.subscribe();
    let reached = tokio::time::timeout(PATIENCE, stored.wait_for(|stored| *stored >= half));
    reached
        .await
        .expect("the round goes on")
        .expect("the crowd lives");
    match Fault::of(round) {
        Fault::Kill => server.kill_and_start().await,
        Fault::Stop => server.stop_and_start().await,
        Fault::GoAway => {
            crowd.go_away.send_replace(round);
            server
        }
    }
}

/// Reads every topic to its end.
async fn read_log(crowd: &Crowd, topics: &[Topic], mut link: Link) -> Vec<ServerEnvelope> {
    let mut log = Vec::new();
    for topic in topics {
        let mut after = 0;
        loop {
            let request = QueryRequest {
                queries: vec![from(topic, after)],
                limit: PAGE,
            };
            let page = publisher::query(crowd, &mut link, request).await;
            let more = page.continuation.is_some_and(|more| more.has_more);
            after = page.envelopes.last().map_or(after, id_of);
            log.extend(page.envelopes);
            if !more {
                break;
            }
        }
    }
    log
}

fn heads(log: &[ServerEnvelope]) -> HashMap<Topic, u64> {
    let head = |row: &ServerEnvelope| {
        let topic = row.meta.as_ref().and_then(|meta| meta.topic.clone());
        (topic.expect("a topic"), id_of(row))
    };
    log.iter().map(head).collect()
}

/// Makes the topic of a group.
fn group(number: usize) -> Topic {
    let mut topic = vec![0];
    topic.extend(group_id(number));
    Topic {
        topic: topic.into(),
    }
}

fn group_id(number: usize) -> [u8; 16] {
    (number as u128 + 1).to_be_bytes()
}

/// Numbers that look random and come from a seed.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }
}
