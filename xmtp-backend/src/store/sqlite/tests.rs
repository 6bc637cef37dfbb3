use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::Connection;

use super::*;
use crate::store::conformance::{Stopped, envelope, group};
use crate::telemetry::metrics;

fn open(folder: &tempfile::TempDir, settings: SqliteSettings) -> SqliteStore {
    let path = folder.path().join("backend.db3");
    SqliteStore::open(&path, "org.example.test", Arc::new(Stopped), settings).unwrap()
}

/// Begins to read; the snapshot stays until the next commit.
fn begin(reader: &Connection) {
    reader.execute_batch("BEGIN").unwrap();
    let sql = "SELECT count(*) FROM topic_head";
    let read: i64 = reader.query_row(sql, [], |row| row.get(0)).unwrap();
    assert!(read >= 0);
}

/// Reads with two connections of which one is always in a snapshot.
fn overlap(path: &Path, is_over: &AtomicBool) {
    let readers = [(); 2].map(|()| Connection::open(path).unwrap());
    begin(&readers[0]);
    for round in 1.. {
        begin(&readers[round % 2]);
        readers[(round + 1) % 2].execute_batch("COMMIT").unwrap();
        if is_over.load(Ordering::Relaxed) {
            return;
        }
    }
}

#[tokio::test]
async fn a_log_under_reads_that_overlap_is_emptied() {
    const LOG_PAGES: i32 = 1_500;
    const PAGE: u64 = 4096;
    const PAYLOAD: usize = 400_000;
    let folder = tempfile::tempdir().unwrap();
    let settings = SqliteSettings {
        log_pages: LOG_PAGES,
        ..SqliteSettings::default()
    };
    let store = open(&folder, settings);
    let is_over = Arc::new(AtomicBool::new(false));
    let (path, told) = (folder.path().join("backend.db3"), is_over.clone());
    let reads = std::thread::spawn(move || overlap(&path, &told));
    let bound = LOG_PAGES as u64 * PAGE;
    let (mut largest, mut written) = (0, 0);
    for number in 0_u32.. {
        let mut payload = number.to_be_bytes().to_vec();
        payload.resize(PAYLOAD, 0);
        store
            .publish(vec![envelope(group(1), payload)])
            .await
            .unwrap();
        let log = std::fs::metadata(folder.path().join("backend.db3-wal")).unwrap();
        largest = largest.max(log.len());
        written += PAYLOAD as u64;
        if written > 4 * bound {
            break;
        }
    }
    is_over.store(true, Ordering::Relaxed);
    reads.join().unwrap();
    assert!(largest < 2 * bound, "{largest} bytes");
    store.close().await;
}

#[tokio::test]
async fn a_read_ends_when_its_time_is_over() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder, SqliteSettings::default());
    let envelopes = (0_u32..500).map(|number| envelope(group(1), number.to_be_bytes()));
    store.publish(envelopes.collect()).await.unwrap();
    store.close().await;
    for (time, ends) in [(Duration::ZERO, true), (Duration::from_secs(20), false)] {
        let settings = SqliteSettings {
            max_statement_time: time,
            ..SqliteSettings::default()
        };
        let store = open(&folder, settings);
        let want = Want {
            topic: group(1),
            after: SequenceId::ZERO,
            through: SequenceId::MAX,
        };
        let budget = TurnBudget {
            topic_rows: 1000,
            topic_bytes: usize::MAX,
            bytes: usize::MAX,
        };
        let turn = store.fetch_turn(vec![want], budget).await;
        match ends {
            true => assert_eq!(turn.unwrap_err(), ReadError::TimedOut),
            false => assert_eq!(turn.unwrap().served[0].rows.len(), 500),
        }
        let heads = store.heads(vec![group(1)]).await;
        assert!(
            heads.is_ok(),
            "a short read passes, and the connection is whole"
        );
        store.close().await;
    }
}

#[tokio::test]
async fn every_error_of_the_database_is_counted() {
    metrics::install().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder, SqliteSettings::default());
    let other = Connection::open(folder.path().join("backend.db3")).unwrap();
    other.execute_batch("DROP TABLE topic_head").unwrap();
    let before = refused();
    assert_eq!(
        store.heads(vec![group(1)]).await,
        Err(ReadError::Unavailable)
    );
    assert!(refused() > before, "a read");
    let before = refused();
    let published = store.publish(vec![envelope(group(1), *b"a")]).await;
    assert_eq!(published, Err(PublishError::Unavailable));
    assert!(refused() > before, "a publish");
    store.close().await;
}

/// Returns how many statements were refused so far, over all stores of the process.
fn refused() -> u64 {
    let text = metrics::handle().expect("it counts").render();
    let line = "xmtp_db_errors_total{kind=\"refused\"} ";
    let number = text.lines().find_map(|found| found.strip_prefix(line));
    number.map_or(0, |number| number.parse().unwrap())
}
