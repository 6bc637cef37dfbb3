//! The backend's store behind its calls, in process, against bare SQLite.

use std::hint::black_box;
use std::path::Path;

use rusqlite::Connection;
use tokio::runtime::Runtime;
use xmtp_backend::config::Database;
use xmtp_backend::{Backend, Config, Services};
use xmtp_core::runtime::{NativeRuntime, Runtime as _};
use xmtp_proto::backend::v1;
use xmtp_proto::envelope::{canonical_bytes, message_hash};
use xmtp_testkit::{IDENTIFIER, mls_bytes};

use crate::report::{Failure, Name, Report};
use crate::sqlite;

/// Envelopes of one publish.
const PUBLISHED: usize = 64;
/// Envelopes of one page.
const PAGE: usize = 100;
/// Publishes of one slice.
const PUBLISHES: usize = 8;
/// Queries of one slice.
const QUERIES: usize = 64;
/// Topics that are published to.
const TOPICS: usize = 16;
/// Bytes of ciphertext of each envelope.
const CIPHERTEXT_BYTES: usize = 1100;
/// A time after which a group message may be deleted, in nanoseconds.
const EXPIRY_NS: i64 = 1 << 60;

/// Measures publishing, and then reading what was published.
pub(crate) fn measure(report: &mut Report, runtime: &Runtime) -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let services = runtime.block_on(open(&folder.path().join("ours.db")))?;
    let bare = folder.path().join("bare.db");
    runtime.block_on(async {
        open(&bare).await?.close().await;
        Ok::<_, Failure>(())
    })?;
    let writer = sqlite::backend_writer(&bare)?;
    let reader = sqlite::backend_reader(&bare)?;
    let random = NativeRuntime::current();
    let rounds = report.rounds();

    let mut last = 0;
    report.figure(&name("publish"), |run| {
        for _ in 0..rounds * PUBLISHES {
            let rows = rows(&random);
            let request = v1::PublishRequest {
                envelopes: rows.iter().map(|row| row.envelope.clone()).collect(),
            };
            run.ours(|| runtime.block_on(services.publish(request)))?;
            last = run.limit(|| publish_bare(&writer, &rows, last))?;
        }
        Ok(rounds * PUBLISHES * PUBLISHED)
    })?;
    // All envelopes are spread evenly, so that a page begins anywhere but at the end.
    let places = (last - TOPICS as i64 * PAGE as i64).max(1);
    let mut place = 0;
    report.figure(&name("query"), |run| {
        for call in 0..rounds * QUERIES {
            place = (place + 7919) % places;
            let topic = mls_bytes::group_topic(group(call % TOPICS));
            let query = v1::TopicQuery {
                topic: Some(topic.to_proto()),
                cursor: Some(v1::Cursor {
                    sequence_id: place.cast_unsigned(),
                }),
            };
            let request = v1::QueryRequest {
                queries: vec![query],
                limit: PAGE as u32,
            };
            let page = run.ours(|| runtime.block_on(services.query(request)))?;
            let found = run.limit(|| query_bare(&reader, topic.as_bytes(), place))?;
            if (page.envelopes.len(), found) != (PAGE, PAGE) {
                return Err("the two sides did not read the same rows".into());
            }
        }
        Ok(rounds * QUERIES * PAGE)
    })?;
    runtime.block_on(services.close());
    Ok(())
}

fn name(measure: &str) -> Name<'_> {
    Name {
        measure,
        label: Some(("store", "sqlite".into())),
        unit: "envelopes/s",
    }
}

async fn open(path: &Path) -> Result<Services, Failure> {
    let mut config = Config::ephemeral(IDENTIFIER);
    config.database = Database::Sqlite(path.to_owned());
    Ok(Backend::services(&config).await?)
}

/// What both sides are given.
struct Row {
    envelope: v1::ClientEnvelope,
    topic: Vec<u8>,
    payload: Vec<u8>,
    hash: [u8; 32],
}

fn group(place: usize) -> [u8; 16] {
    [place as u8 + 1; 16]
}

fn rows(random: &NativeRuntime) -> Vec<Row> {
    let row = |place: usize| {
        let mut ciphertext = [0; CIPHERTEXT_BYTES];
        random.fill(&mut ciphertext);
        let envelope = mls_bytes::group_message(group(place % TOPICS), &ciphertext);
        let payload = canonical_bytes(&envelope);
        Row {
            topic: mls_bytes::group_topic(group(place % TOPICS))
                .as_bytes()
                .to_vec(),
            hash: message_hash(&payload),
            envelope,
            payload,
        }
    };
    (0..PUBLISHED).map(row).collect()
}

fn publish_bare(connection: &Connection, rows: &[Row], last: i64) -> rusqlite::Result<i64> {
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
    connection
        .prepare_cached("UPDATE sequence SET last_sequence_id = ?1")?
        .execute([id])?;
    connection.prepare_cached("COMMIT")?.execute([])?;
    Ok(id)
}

fn query_bare(connection: &Connection, topic: &[u8], after: i64) -> rusqlite::Result<usize> {
    let sql = "SELECT sequence_id, topic, message_hash, server_ns, expiry_ns,
                      is_commit_or_proposal, payload
               FROM envelope WHERE topic = ?1 AND sequence_id > ?2 ORDER BY sequence_id LIMIT ?3";
    let mut select = connection.prepare_cached(sql)?;
    let mut rows = select.query((topic, after, PAGE as i64))?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        for column in 0..7 {
            black_box(row.get_ref(column)?);
        }
        count += 1;
    }
    Ok(count)
}
