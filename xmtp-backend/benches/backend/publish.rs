//! Publishing over gRPC from many connections, against bare inserts of the same rows in
//! transactions of as many rows as there are connections, each synced.

use std::time::Instant;

use tokio::task::JoinSet;
use xmtp_proto::backend::v1::PublishRequest;
use xmtp_proto::backend::v1::publish_service_client::PublishServiceClient;

use crate::bare::Bare;
use crate::report::{RUNS, Report, median, rate};
use crate::rows::{Row, row};
use crate::store::{Store, serve};
use crate::streams::connect;

/// Connections that publish at a time.
pub(crate) const CONNECTIONS: [usize; 4] = [1, 8, 32, 128];
/// Envelopes of one run and round; one envelope a request.
const ENVELOPES: usize = 4096;
/// Topics that are published to.
const TOPICS: usize = 1000;

pub(crate) async fn measure(report: &Report, store: &Store, connections: usize) {
    let running = serve(&store.database()).await;
    let bare = Bare::create(store).await;
    let mut clients = Vec::new();
    for _ in 0..connections {
        clients.push(PublishServiceClient::new(
            connect(&running.endpoint()).await,
        ));
    }
    // One connection waits for each sync by itself.
    let count = (ENVELOPES * report.rounds).min(256 * connections * report.rounds);
    let (mut ours, mut limit, mut last) = (Vec::new(), Vec::new(), 0);
    for run in 0..=RUNS {
        let rows: Vec<Row> = (0..count)
            .map(|place| row(run * count + place, TOPICS))
            .collect();
        let mut requests = vec![Vec::new(); connections];
        for (place, row) in rows.iter().enumerate() {
            requests[place % connections].push(row.envelope.clone());
        }
        let began = Instant::now();
        let mut publishing = JoinSet::new();
        for (client, requests) in clients.iter().zip(requests) {
            let mut client = client.clone();
            publishing.spawn(async move {
                for envelope in requests {
                    let envelopes = vec![envelope];
                    client
                        .publish(PublishRequest { envelopes })
                        .await
                        .expect("it is stored");
                }
            });
        }
        while let Some(done) = publishing.join_next().await {
            done.expect("a client");
        }
        let ours_took = began.elapsed();
        let began = Instant::now();
        for rows in rows.chunks(connections) {
            last = bare.insert(rows, last).await;
        }
        let limit_took = began.elapsed();
        // The first run warms both sides up.
        if run > 0 {
            ours.push(rate(count, ours_took));
            limit.push(rate(count, limit_took));
        }
    }
    running.stop().await;
    let labels = format!(r#""connections":{connections},"#);
    report.print(
        "publish",
        store.name(),
        &labels,
        median(ours),
        median(limit),
        "env/s",
    );
}
