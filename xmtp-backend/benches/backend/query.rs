//! Pages of a hundred envelopes through the calls, against a bare select of the same rows.

use std::hint::black_box;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use xmtp_proto::backend::v1::{Cursor, PublishRequest, QueryRequest, Topic, TopicQuery};

use crate::publish::{bare, insert, row, serve};
use crate::report::{RUNS, Report, median, rate};

const TOPICS: usize = 16;
const PAGE: usize = 100;
/// Envelopes that are stored.
const STORED: usize = 16_000;
/// Envelopes of one request that stores them.
const REQUEST: usize = 500;
/// Pages of one run and round.
const PAGES: usize = 500;

pub(crate) async fn measure(report: &Report) {
    let folder = tempfile::tempdir().expect("a folder");
    let running = serve(&folder.path().join("ours.db3")).await;
    let bare = bare(&folder.path().join("bare.db3")).await;
    let services = running.services();
    let rows: Vec<_> = (0..STORED).map(|number| row(number, TOPICS)).collect();
    let mut last = 0;
    for rows in rows.chunks(REQUEST) {
        let envelopes = rows.iter().map(|row| row.envelope.clone()).collect();
        services
            .publish(PublishRequest { envelopes })
            .await
            .expect("it is stored");
        last = insert(&bare, rows, last).expect("it is stored");
    }
    let (mut ours, mut limit) = (Vec::new(), Vec::new());
    let places = (STORED - 2 * TOPICS * PAGE) as u64;
    for run in 0..=RUNS {
        let (mut ours_took, mut limit_took) = (Duration::ZERO, Duration::ZERO);
        let count = PAGES * report.rounds;
        for page in 0..count {
            let topic = &rows[page % TOPICS].topic;
            let after = page as u64 * 7919 % places;
            let query = TopicQuery {
                topic: Some(Topic {
                    topic: topic.clone().into(),
                }),
                cursor: Some(Cursor { sequence_id: after }),
            };
            let request = QueryRequest {
                queries: vec![query],
                limit: PAGE as u32,
            };
            let began = Instant::now();
            let found = services
                .query(request)
                .await
                .expect("it is read")
                .envelopes
                .len();
            ours_took += began.elapsed();
            let began = Instant::now();
            let bare = select(&bare, topic, after as i64).expect("it is read");
            limit_took += began.elapsed();
            assert_eq!((found, bare), (PAGE, PAGE), "both sides read the same rows");
        }
        if run > 0 {
            ours.push(rate(count * PAGE, ours_took));
            limit.push(rate(count * PAGE, limit_took));
        }
    }
    running.stop().await;
    report.print("query", "", median(ours), median(limit), "env/s");
}

fn select(connection: &Connection, topic: &[u8], after: i64) -> rusqlite::Result<usize> {
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
