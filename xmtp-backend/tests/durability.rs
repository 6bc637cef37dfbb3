//! What the SQLite store keeps when the power goes, and what it does when the disk fails.
//!
//! The program runs with `preload/disk.c` between it and the system. The disk copies each file of
//! the database whenever it is synced: those copies are what a loss of power would leave, at the
//! worst. On demand it has no room, or fails to sync.

mod common;
#[path = "common/crowd/mod.rs"]
mod crowd;
#[path = "common/history/mod.rs"]
mod history;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use common::*;
use crowd::{Link, Server};
use prost::bytes::Bytes;
use tokio::time::timeout;
use tonic::{Code, Status, Streaming};
use xmtp_backend::hooks::SystemClock;
use xmtp_backend::store::{
    EnvelopeKey, Hash, PreparedEnvelope, SqliteSettings, SqliteStore, Store,
};
use xmtp_proto::backend::v1::publish_service_client::PublishServiceClient;
use xmtp_proto::backend::v1::query_service_client::QueryServiceClient;
use xmtp_proto::backend::v1::subscription_service_client::SubscriptionServiceClient;
use xmtp_proto::backend::v1::{ClientEnvelope, PublishRequest, QueryRequest, SubscribeResponse};
use xmtp_proto::envelope::{canonical_bytes, message_hash};
use xmtp_proto::id::{GroupId, Topic};

const DATABASE: &str = "backend.db3";

/// A server on a disk that fails on demand.
struct Disk {
    folder: tempfile::TempDir,
    /// What is acknowledged: id and key.
    acknowledged: Vec<(u64, EnvelopeKey)>,
}

impl Disk {
    /// Prepares the disk; `None` where there is no C compiler, which CI must have.
    #[allow(clippy::print_stderr)]
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/preload/disk.c");
        let mut compile = Command::new("cc");
        compile
            .args(["-shared", "-fPIC", "-o"])
            .arg(folder.path().join("disk.so"));
        let compiled = compile.arg(source).arg("-ldl").status();
        let Ok(compiled) = compiled else {
            assert!(std::env::var_os("CI").is_none(), "cc is needed in CI");
            eprintln!("cc is missing, so the disk is not tested");
            return None;
        };
        assert!(compiled.success(), "the disk compiles");
        std::fs::create_dir(folder.path().join("kept")).unwrap();
        Some(Self {
            folder,
            acknowledged: Vec::new(),
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn start(&self) -> (Server, Link) {
        let text = format!(
            "[server]\nidentifier = \"{IDENTIFIER}\"\nlisten = \"127.0.0.1:0\"\n\
             max_drain_duration_ms = 300\n[telemetry]\nmetrics_listen = \"\"\n[database]\nurl = \"sqlite:{}\"\n",
            self.path(DATABASE).display()
        );
        let config = self.path("backend.toml");
        std::fs::write(&config, text).unwrap();
        let variables = [
            ("LD_PRELOAD", self.path("disk.so")),
            ("DISK_DATABASE", self.path(DATABASE)),
            ("DISK_FAULT", self.path("fault")),
            ("DISK_SYNCS", self.path("syncs")),
            ("DISK_KEPT", self.path("kept")),
        ];
        let starter = move || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_xmtp-backend"));
            command.arg("--config").arg(&config).stderr(Stdio::null());
            command.envs(variables.clone());
            command
        };
        let server = Server::start(Box::new(starter)).await;
        let link = server.link();
        (server, link)
    }

    fn fail(&self, fault: &str) {
        std::fs::write(self.path("fault"), fault).unwrap();
    }

    fn mend(&self) {
        std::fs::remove_file(self.path("fault")).unwrap();
    }

    /// Publishes an envelope that must be acknowledged.
    async fn publish(&mut self, link: &mut Link, number: usize, bytes: usize) {
        let envelope = numbered(number, bytes);
        let id = publish(link, &envelope).await.expect("it is stored");
        self.acknowledged.push((id, key(&envelope)));
    }

    /// Returns the mark as it was first written: it is not synced again, so no later one may be
    /// there after a loss of power.
    fn first_mark(&self) -> Vec<u8> {
        let mut mark = self.read(false, ".mark");
        let digits = mark.len() - 21..mark.len() - 1;
        mark[digits].fill(b'0');
        mark
    }

    /// Reads one of the files as it is, or as it was when it was last synced.
    fn read(&self, kept: bool, suffix: &str) -> Vec<u8> {
        let folder = if kept { "kept/" } else { "" };
        let path = self.path(&format!("{folder}{DATABASE}{suffix}"));
        std::fs::read(path).unwrap_or_default()
    }
}

fn numbered(number: usize, bytes: usize) -> ClientEnvelope {
    message(1, &format!("{number} {}", "x".repeat(bytes)))
}

fn key(envelope: &ClientEnvelope) -> EnvelopeKey {
    EnvelopeKey {
        topic: Topic::group(&GroupId::from_bytes([1; 16])),
        hash: Hash(message_hash(&canonical_bytes(envelope))),
    }
}

async fn publish(link: &mut Link, envelope: &ClientEnvelope) -> Result<u64, Status> {
    let mut client = PublishServiceClient::new(link.channel().await);
    let envelopes = vec![envelope.clone()];
    let response = client.publish(PublishRequest { envelopes }).await?;
    Ok(sequence_id(&response.into_inner().envelope_metas[0]))
}

async fn ids(link: &mut Link) -> Vec<u64> {
    let client = QueryServiceClient::new(link.channel().await);
    let mut client = client.max_decoding_message_size(64 << 20);
    let request = QueryRequest {
        queries: vec![from(&group_topic(1), 0)],
        limit: 1000,
    };
    let page = client.query(request).await.expect("reads go on");
    page.into_inner().envelopes.iter().map(id_of).collect()
}

/// Opens what a loss of power left, and answers how many of the acknowledged rows are there.
async fn recovered(database: &[u8], log: &[u8], disk: &Disk) -> usize {
    let acknowledged = disk.acknowledged.as_slice();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(DATABASE);
    std::fs::write(&path, database).unwrap();
    std::fs::write(folder.path().join(format!("{DATABASE}-wal")), log).unwrap();
    let mark = folder.path().join(format!("{DATABASE}.mark"));
    std::fs::write(mark, disk.first_mark()).unwrap();
    let settings = SqliteSettings::default();
    let store = SqliteStore::open(&path, IDENTIFIER, Arc::new(SystemClock), settings);
    let store = store.expect("it opens");
    let keys = acknowledged.iter().map(|(_, key)| *key).collect();
    let found = store.existing(keys).await.expect("it is read");
    let there = found
        .iter()
        .zip(acknowledged)
        .filter(|(meta, (id, _))| meta.is_some_and(|meta| meta.sequence_id.get() == *id));
    let there = there.count();
    let payload = Bytes::from_static(b"the next");
    let next = PreparedEnvelope {
        key: EnvelopeKey {
            hash: Hash(message_hash(&payload)),
            ..acknowledged[0].1
        },
        payload,
        is_commit_or_proposal: false,
        retention_ns: None,
        identity: None,
        refused: None,
    };
    let next = store.publish(vec![next]).await.expect("it is stored");
    let last = acknowledged[..there].iter().map(|(id, _)| *id).max();
    assert!(last.is_none_or(|last| next[0].sequence_id.get() > last));
    store.close().await;
    there
}

#[tokio::test]
async fn what_is_acknowledged_is_synced() {
    // Together more than one log, so that the log is moved and begins anew.
    const ROWS: usize = 60;
    const BYTES: usize = 150_000;
    let Some(mut disk) = Disk::new() else { return };
    let (server, mut link) = disk.start().await;
    for number in 0..ROWS {
        disk.publish(&mut link, number, BYTES).await;
        if number % 4 != 3 {
            continue;
        }
        // What was written and not synced may be on the disk or not.
        for (kept_database, kept_log) in [(true, true), (true, false), (false, true)] {
            let database = disk.read(kept_database, "");
            let log = disk.read(kept_log, "-wal");
            let there = recovered(&database, &log, &disk).await;
            assert_eq!(there, number + 1, "{kept_database} {kept_log}");
        }
    }
    assert!(
        disk.read(true, "-wal").len() < ROWS * BYTES,
        "the log was moved"
    );
    server.kill().await;
}

#[tokio::test]
async fn a_log_cut_behind_the_last_acknowledged_commit_keeps_every_row() {
    const ROWS: usize = 8;
    /// Places that are tried between the last acknowledged commit and the end.
    const CUTS: usize = 40;
    let Some(mut disk) = Disk::new() else { return };
    let (server, mut link) = disk.start().await;
    for number in 0..ROWS {
        disk.publish(&mut link, number, 300).await;
    }
    let end = disk.read(true, "-wal").len();
    for number in ROWS..2 * ROWS {
        publish(&mut link, &numbered(number, 9000))
            .await
            .expect("it is stored");
    }
    let (database, log) = (disk.read(false, ""), disk.read(false, "-wal"));
    server.kill().await;
    let step = ((log.len() - end) / CUTS).max(1);
    for cut in (end..=log.len()).step_by(step) {
        let there = recovered(&database, &log[..cut], &disk).await;
        assert_eq!(there, ROWS, "cut at {cut} of {}", log.len());
        let mut torn = log.clone();
        torn[cut..].fill(0xA5);
        let there = recovered(&database, &torn, &disk).await;
        assert_eq!(there, ROWS, "torn at {cut} of {}", log.len());
    }
    let there = recovered(&database, &log[..end - 1], &disk).await;
    assert_eq!(there, ROWS - 1, "one byte less is one row less");
}

#[tokio::test]
async fn after_a_failed_sync_the_process_ends() {
    let Some(mut disk) = Disk::new() else { return };
    let (server, mut link) = disk.start().await;
    for number in 0..3 {
        disk.publish(&mut link, number, 300).await;
    }
    disk.fail("sync");
    let failed = publish(&mut link, &numbered(3, 300)).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
    let status = server.ended().await;
    assert!(!status.success());
    let syncs = std::fs::read(disk.path("syncs")).unwrap();
    assert_eq!(syncs.len(), 1, "it is not tried again");

    disk.mend();
    let (server, mut link) = disk.start().await;
    disk.publish(&mut link, 3, 300).await;
    let acknowledged: Vec<u64> = disk.acknowledged.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids(&mut link).await, acknowledged, "each row once");
    let (database, log) = (disk.read(true, ""), disk.read(true, "-wal"));
    let there = recovered(&database, &log, &disk).await;
    assert_eq!(there, 4, "nothing stands on what was not synced");
    server.kill().await;
}

#[tokio::test]
async fn a_full_disk_refuses_and_reads_go_on() {
    /// Writes of one commit, at the most.
    const WRITES: usize = 40;
    let Some(mut disk) = Disk::new() else { return };
    let (server, mut link) = disk.start().await;
    for number in 0..3 {
        disk.publish(&mut link, number, 300).await;
    }
    let mut refused = 0;
    for writes in 0..WRITES {
        disk.fail(&format!("full {writes}"));
        let number = 100 + writes;
        match publish(&mut link, &numbered(number, 3000)).await {
            Ok(id) => disk.acknowledged.push((id, key(&numbered(number, 3000)))),
            Err(status) => {
                assert_eq!(status.code(), Code::Unavailable);
                refused += 1;
            }
        }
        let acknowledged: Vec<u64> = disk.acknowledged.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids(&mut link).await, acknowledged, "after {writes} writes");
        disk.mend();
        disk.publish(&mut link, writes + 1000, 300).await;
    }
    assert!(refused > 3 && refused < WRITES, "{refused} were refused");
    server.kill().await;
    let (server, mut link) = disk.start().await;
    let acknowledged: Vec<u64> = disk.acknowledged.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids(&mut link).await, acknowledged, "nothing else is stored");
    server.kill().await;
}

/// Opens a stream and takes its first frame.
async fn subscribe(link: &mut Link) -> Result<Streaming<SubscribeResponse>, Status> {
    let mut client = SubscriptionServiceClient::new(link.channel().await);
    let mut frames = client
        .subscribe(tokio_stream::pending())
        .await?
        .into_inner();
    frames.message().await?.expect("a first frame");
    Ok(frames)
}

#[tokio::test]
async fn a_full_disk_closes_streams_until_there_is_room() {
    let Some(mut disk) = Disk::new() else { return };
    let (server, mut link) = disk.start().await;
    disk.publish(&mut link, 0, 300).await;
    let mut stream = subscribe(&mut link).await.expect("it opens");
    disk.fail("full 0");
    let refused = publish(&mut link, &numbered(1, 300)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    let ended = timeout(PATIENCE, stream.message()).await;
    let ended = ended.expect("it ends").unwrap_err();
    assert_eq!(ended.code(), Code::Unavailable);
    assert_eq!(ids(&mut link).await.len(), 1, "reads go on");
    let refused = subscribe(&mut link).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "and no stream opens");
    disk.mend();
    let opened = async {
        // Nothing is published meanwhile: the server looks by itself whether there is room.
        while subscribe(&mut link).await.is_err() {}
    };
    timeout(PATIENCE, opened).await.expect("streams open again");
    disk.publish(&mut link, 2, 300).await;
    assert_eq!(ids(&mut link).await.len(), 2);
    server.kill().await;
}
