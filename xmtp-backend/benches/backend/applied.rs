//! How long the acknowledgement of a large update takes, against bare reads of the same heads, and
//! how long a Pong takes meanwhile.

use std::time::{Duration, Instant};

use xmtp_proto::backend::v1::subscribe_request::Request;
use xmtp_proto::backend::v1::subscribe_response::Response;
use xmtp_proto::backend::v1::{Ping, PublishRequest};

use crate::bare::Bare;
use crate::report::{RUNS, Report, median, percentile};
use crate::rows::row;
use crate::store::{Store, serve};
use crate::streams::{Stream, connect};

/// Topics of the update.
pub(crate) const TOPICS: [usize; 2] = [1000, 100_000];
/// Topics of one publish.
const REQUEST: usize = 1000;
/// Pings that are timed while nothing else happens.
const IDLE_PINGS: usize = 500;

pub(crate) async fn measure(report: &Report, store: &Store, count: usize) {
    let database = store.database();
    let running = serve(&database).await;
    let services = running.services();
    let mut topics = Vec::with_capacity(count);
    for first in (0..count).step_by(REQUEST) {
        let rows: Vec<_> = (first..first + REQUEST)
            .map(|number| row(number, count))
            .collect();
        let envelopes = rows.iter().map(|row| row.envelope.clone()).collect();
        services
            .publish(PublishRequest { envelopes })
            .await
            .expect("it is stored");
        topics.extend(rows.into_iter().map(|row| row.topic));
    }
    let bare = Bare::open(&database).await;
    let (mut ours, mut limit) = (Vec::new(), Vec::new());
    let (mut idle, mut busy) = (Vec::new(), Vec::new());
    for run in 0..=RUNS {
        let mut stream = Stream::open(connect(&running.endpoint()).await).await;
        for nonce in 0..IDLE_PINGS as u64 {
            let began = Instant::now();
            stream.send(Request::Ping(Ping { nonce })).await;
            while !matches!(stream.next().await, Response::Pong(_)) {}
            idle.push(began.elapsed());
        }
        let (took, pongs) = apply(&mut stream, &topics).await;
        busy.extend(pongs);
        let began = Instant::now();
        let found = bare.heads(&topics).await;
        let limit_took = began.elapsed();
        assert_eq!(found, count, "every topic has a head");
        if run > 0 {
            ours.push(took.as_secs_f64() * 1e3);
            limit.push(limit_took.as_secs_f64() * 1e3);
        }
    }
    running.stop().await;
    let labels = format!(r#""topics":{count},"#);
    report.print(
        "applied",
        store.name(),
        &labels,
        median(ours),
        median(limit),
        "ms",
    );
    let (busy, idle) = (percentile(&mut busy, 99), percentile(&mut idle, 99));
    report.print(
        "pong_while_applying",
        store.name(),
        &labels,
        busy,
        idle,
        "ms",
    );
}

/// Sends the update and then pings until it is acknowledged.
async fn apply(stream: &mut Stream, topics: &[Vec<u8>]) -> (Duration, Vec<Duration>) {
    // From the cursor's end, so that no history follows.
    let began = Instant::now();
    stream.add(topics).await;
    let (mut pongs, mut nonce) = (Vec::new(), 1 << 32);
    loop {
        let sent = Instant::now();
        stream.send(Request::Ping(Ping { nonce })).await;
        nonce += 1;
        loop {
            match stream.next().await {
                Response::Applied(_) => return (began.elapsed(), pongs),
                Response::Pong(_) => break,
                _ => {}
            }
        }
        pongs.push(sent.elapsed());
    }
}
