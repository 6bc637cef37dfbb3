//! What a stream takes while nothing happens on it, in a process of its own.
//!
//! `XMTP_ROUNDS` says how many streams are opened; the bound holds for any number.

#![cfg(target_os = "linux")]

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use common::*;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};
use xmtp_proto::backend::v1::subscribe_request::{Request, Update};
use xmtp_proto::backend::v1::subscribe_response::Response;
use xmtp_proto::backend::v1::subscription_service_client::SubscriptionServiceClient;
use xmtp_proto::backend::v1::{SubscribeRequest, SubscribeResponse, Topic};

/// What an idle stream may take of the server's memory, in bytes: 60 KiB.
const IDLE_STREAM_BYTES: usize = 60 * 1024;

/// The topics of each stream.
const TOPICS: usize = 50;

/// The streams of each connection: what the server takes by default.
const CONNECTION_STREAMS: usize = 100;

/// A server in a process of its own; it dies with the test.
struct Server {
    child: Child,
    endpoint: Endpoint,
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("backend.toml");
        let text = "[server]\nidentifier = \"org.example.test\"\nlisten = \"127.0.0.1:0\"\n\
                    [database]\nurl = \"memory:\"\n";
        std::fs::write(&config, text).expect("a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_xmtp-backend"));
        command.arg("--config").arg(&config).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut log = BufReader::new(child.stdout.take().expect("its output"));
        let port = loop {
            let mut line = String::new();
            assert!(log.read_line(&mut line).expect("a log") > 0, "it ended");
            if let Some((_, rest)) = line.split_once("127.0.0.1:") {
                let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
                break rest[..digits].to_owned();
            }
        };
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}"));
        Self {
            child,
            endpoint: endpoint.expect("an address"),
        }
    }

    /// Reads how much memory the process has in use, in bytes.
    fn resident(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
        kibibytes.expect("a number") * 1024
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Both ends of a client's stream, which keep it open.
type Open = (mpsc::Sender<SubscribeRequest>, Streaming<SubscribeResponse>);

/// Opens a stream and waits until its topics are registered.
async fn open(channel: &Channel, number: usize) -> Open {
    let topic = |index: usize| {
        let mut topic = vec![1; 33];
        topic[1..9].copy_from_slice(&((number * TOPICS + index) as u64).to_be_bytes());
        from(
            &Topic {
                topic: topic.into(),
            },
            0,
        )
    };
    let (send, requests) = mpsc::channel(1);
    let mut client = SubscriptionServiceClient::new(channel.clone());
    let frames = client.subscribe(ReceiverStream::new(requests)).await;
    let mut frames = frames.expect("it opens").into_inner();
    let update = Update {
        id: 1,
        adds: (0..TOPICS).map(topic).collect(),
        removes: vec![],
    };
    let request = SubscribeRequest {
        request: Some(Request::Update(update)),
    };
    send.send(request).await.expect("it is sent");
    loop {
        let frame = timeout(PATIENCE, frames.message()).await;
        let frame = frame.expect("a frame in time").expect("no failure");
        match frame.and_then(|frame| frame.response).expect("a frame") {
            Response::Started(_) => {}
            Response::Applied(_) => return (send, frames),
            other => panic!("unexpected: {other:?}"),
        }
    }
}

/// Opens streams over as many connections as they take.
async fn open_all(server: &Server, numbers: std::ops::Range<usize>) -> Vec<Open> {
    let numbers: Vec<usize> = numbers.collect();
    let mut streams = Vec::with_capacity(numbers.len());
    for part in numbers.chunks(CONNECTION_STREAMS) {
        let channel = server.endpoint.connect().await.expect("it accepts");
        for number in part {
            streams.push(open(&channel, *number).await);
        }
    }
    streams
}

#[allow(clippy::print_stdout, reason = "the measure is what one runs it for")]
#[tokio::test]
async fn an_idle_stream_of_fifty_topics_stays_small() {
    let rounds = std::env::var("XMTP_ROUNDS").ok();
    let count: usize = rounds.and_then(|rounds| rounds.parse().ok()).unwrap_or(400);
    let server = Server::start();
    // The first streams take what a server takes once.
    let first = open_all(&server, 0..CONNECTION_STREAMS).await;
    let before = server.resident();
    let streams = open_all(&server, CONNECTION_STREAMS..CONNECTION_STREAMS + count).await;
    let after = server.resident();
    let each = after.saturating_sub(before) / count;
    println!("{count} streams of {TOPICS} topics: {each} bytes each, {after} in all");
    assert!(each <= IDLE_STREAM_BYTES, "{each} bytes a stream");
    drop((first, streams));
}
