//! Publishing over gRPC from many connections, against bare inserts of the same rows in
//! transactions of as many rows as there are connections, each synced.

use std::path::Path;
use std::time::Instant;

use rusqlite::Connection;
use tokio::task::JoinSet;
use tonic::transport::Endpoint;
use xmtp_backend::config::Database;
use xmtp_backend::{Backend, Config, Running};
use xmtp_proto::backend::v1::publish_service_client::PublishServiceClient;
use xmtp_proto::backend::v1::{ClientEnvelope, PublishRequest};
use xmtp_proto::envelope::{canonical_bytes, message_hash};

use crate::common::{APPLICATION, IDENTIFIER, group_message, private_message};
use crate::report::{RUNS, Report, median, rate};

/// Connections that publish at a time.
pub(crate) const CONNECTIONS: [usize; 4] = [1, 8, 32, 128];
/// Envelopes of one run and round; one envelope a request.
const ENVELOPES: usize = 4096;
/// Topics that are published to.
const TOPICS: usize = 1000;
/// Bytes of ciphertext of each envelope.
const CIPHERTEXT_BYTES: usize = 1024;
/// A time after which a row may be deleted, in nanoseconds.
const EXPIRY_NS: i64 = 1 << 60;

/// One envelope and the row that it becomes.
pub(crate) struct Row {
    pub(crate) envelope: ClientEnvelope,
    pub(crate) topic: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    hash: [u8; 32],
}

/// Makes the row with a number; no two are alike.
pub(crate) fn row(number: usize, topics: usize) -> Row {
    let group = ((number % topics) as u128 + 1).to_be_bytes();
    let mut ciphertext = vec![0x5A; CIPHERTEXT_BYTES];
    ciphertext[..8].copy_from_slice(&(number as u64).to_be_bytes());
    let envelope = group_message(private_message(&group, APPLICATION, &ciphertext));
    let payload = canonical_bytes(&envelope);
    let mut topic = vec![0];
    topic.extend(group);
    Row {
        hash: message_hash(&payload),
        envelope,
        topic,
        payload,
    }
}

/// Starts a server on a database.
pub(crate) async fn serve(path: &Path) -> Running {
    let mut config = Config::ephemeral(IDENTIFIER);
    config.database = Database::Sqlite(path.to_owned());
    config.limits.max_ping_frames_per_second = 100_000;
    config.limits.max_ping_burst = 100_000;
    Backend::start(config).await.expect("it starts")
}

/// Makes an empty database and opens it without the server.
pub(crate) async fn bare(path: &Path) -> Connection {
    serve(path).await.stop().await;
    let connection = Connection::open(path).expect("it opens");
    for (name, value) in [("journal_mode", "wal"), ("synchronous", "full")] {
        connection
            .pragma_update(None, name, value)
            .expect("a pragma");
    }
    connection
}

pub(crate) async fn measure(report: &Report, connections: usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let running = serve(&folder.path().join("ours.db3")).await;
    let bare = bare(&folder.path().join("bare.db3")).await;
    let mut clients = Vec::new();
    for _ in 0..connections {
        let endpoint = Endpoint::from_shared(running.endpoint()).expect("an endpoint");
        let channel = endpoint.connect().await.expect("it accepts");
        clients.push(PublishServiceClient::new(channel));
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
            last = insert(&bare, rows, last).expect("it is stored");
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
    report.print("publish", &labels, median(ours), median(limit), "env/s");
}

/// Inserts rows in one transaction.
pub(crate) fn insert(connection: &Connection, rows: &[Row], last: i64) -> rusqlite::Result<i64> {
    connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    let insert = "INSERT INTO envelope VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    let mut insert = connection.prepare_cached(insert)?;
    let head = "INSERT INTO topic_head VALUES (?1, ?2)
                ON CONFLICT (topic) DO UPDATE SET last_sequence_id = excluded.last_sequence_id";
    let mut head = connection.prepare_cached(head)?;
    let mut id = last;
    for row in rows {
        id += 1;
        let bytes = row.payload.len() as i64;
        let (topic, payload) = (&row.topic, &row.payload);
        insert.execute((
            id,
            topic,
            id,
            EXPIRY_NS + id,
            row.hash,
            false,
            bytes,
            payload,
        ))?;
        head.execute((topic, id))?;
    }
    let sequence = "UPDATE sequence SET last_sequence_id = ?1";
    connection.prepare_cached(sequence)?.execute([id])?;
    connection.prepare_cached("COMMIT")?.execute([])?;
    Ok(id)
}
