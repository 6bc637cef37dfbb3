//! Pages of a hundred envelopes through the calls, against a bare select of the same rows.

use std::time::{Duration, Instant};

use xmtp_proto::backend::v1::{Cursor, PublishRequest, QueryRequest, Topic, TopicQuery};

use crate::bare::Bare;
use crate::report::{RUNS, Report, median, rate};
use crate::rows::row;
use crate::store::{Store, serve};

const TOPICS: usize = 16;
const PAGE: usize = 100;
/// Envelopes that are stored.
const STORED: usize = 16_000;
/// Envelopes of one request that stores them.
const REQUEST: usize = 500;
/// Pages of one run and round.
const PAGES: usize = 500;

pub(crate) async fn measure(report: &Report, store: &Store) {
    let running = serve(&store.database()).await;
    let bare = Bare::create(store).await;
    let services = running.services();
    let rows: Vec<_> = (0..STORED).map(|number| row(number, TOPICS)).collect();
    let mut last = 0;
    for rows in rows.chunks(REQUEST) {
        let envelopes = rows.iter().map(|row| row.envelope.clone()).collect();
        services
            .publish(PublishRequest { envelopes })
            .await
            .expect("it is stored");
        last = bare.insert(rows, last).await;
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
            let bare = bare.select(topic, after as i64, PAGE as i64).await;
            limit_took += began.elapsed();
            assert_eq!((found, bare), (PAGE, PAGE), "both sides read the same rows");
        }
        if run > 0 {
            ours.push(rate(count * PAGE, ours_took));
            limit.push(rate(count * PAGE, limit_took));
        }
    }
    running.stop().await;
    report.print(
        "query",
        store.name(),
        "",
        median(ours),
        median(limit),
        "env/s",
    );
}
