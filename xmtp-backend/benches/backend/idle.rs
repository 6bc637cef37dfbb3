//! What an idle stream costs a server process, and how fast all come back after it was killed,
//! against how fast they came at first.

use std::process::Command;
use std::time::Instant;

use tokio::task::JoinSet;

use crate::common::IDENTIFIER;
use crate::crowd::Server;
use crate::report::{Report, rate};
use crate::rows::row;
use crate::streams::{Stream, open_many};

/// Streams of one round, and at the most.
const STREAMS: usize = 1000;
const MAX_STREAMS: usize = 10_000;
/// Topics of each stream.
const TOPICS: usize = 50;
/// Streams that one client opens.
const GROUP: usize = 100;
/// What a stream may cost, in KiB.
const MAX_KIB: f64 = 60.0;

pub(crate) async fn measure(report: &Report) {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("backend.toml");
    let text = format!(
        "[server]\nidentifier = \"{IDENTIFIER}\"\nlisten = \"127.0.0.1:0\"\n\
         [telemetry]\nmetrics_listen = \"\"\n[database]\nurl = \"sqlite:{}\"\n",
        folder.path().join("ours.db3").display()
    );
    std::fs::write(&config, text).expect("a file");
    let starter = move || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xmtp-backend"));
        command.arg("--config").arg(&config);
        command
    };
    let server = Server::start(Box::new(starter)).await;
    let count = (STREAMS * report.rounds).min(MAX_STREAMS);
    // The first streams make the process as large as it is without any.
    drop(open(server.endpoint(), GROUP).await);
    let before = resident_kib(server.id());
    let began = Instant::now();
    let streams = open(server.endpoint(), count).await;
    let limit = rate(count, began.elapsed());
    let each = (resident_kib(server.id()) - before) / count as f64;
    let labels = format!(r#""streams":{count},"#);
    report.print("idle_stream", "sqlite", &labels, each, MAX_KIB, "KiB");

    let server = server.kill_and_start().await;
    drop(streams);
    let began = Instant::now();
    let streams = open(server.endpoint(), count).await;
    let ours = rate(streams.len(), began.elapsed());
    report.print("reconnect", "sqlite", &labels, ours, limit, "streams/s");
    server.kill().await;
}

/// Opens streams with their topics, many clients at a time.
async fn open(endpoint: String, count: usize) -> Vec<Stream> {
    let mut opening = JoinSet::new();
    for group in 0..count / GROUP {
        let endpoint = endpoint.clone();
        opening.spawn(async move {
            let mut streams = open_many(&endpoint, GROUP).await;
            for (number, stream) in streams.iter_mut().enumerate() {
                let first = (group * GROUP + number) * TOPICS;
                let topics = (first..first + TOPICS).map(|number| row(number, usize::MAX).topic);
                stream.add(&topics.collect::<Vec<_>>()).await;
            }
            for stream in &mut streams {
                stream.applied().await;
            }
            streams
        });
    }
    let mut streams = Vec::with_capacity(count);
    while let Some(opened) = opening.join_next().await {
        streams.extend(opened.expect("a client"));
    }
    streams
}

fn resident_kib(process: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number
        .and_then(|number| number.parse().ok())
        .expect("a number")
}
