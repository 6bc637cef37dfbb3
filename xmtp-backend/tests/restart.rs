//! What a durable server keeps over a restart, and whom it refuses.

mod common;

use std::path::Path;

use common::*;
use xmtp_backend::config::Database;
use xmtp_backend::hooks::{Clock, SystemClock};
use xmtp_backend::store::OpenError;
use xmtp_backend::{Backend, Config, StartError};
use xmtp_identity::UpdateBuilder;
use xmtp_proto::backend::v1::QueryRequest;

fn durable(path: &Path) -> Config {
    let mut config = Config::ephemeral(IDENTIFIER);
    config.database = Database::Sqlite(path.to_owned());
    config
}

/// covers: EXT-001
#[tokio::test]
async fn a_restart_keeps_everything() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("backend.db3");
    let account = Account::new(1);
    let (inbox, create) = account.create(0);
    let request = vec![message(1, "a"), identity(create), message(1, "b")];

    let peer = Peer::start(durable(&path)).await;
    let first = peer.publish(request.clone()).await.unwrap();
    let read = peer.read(&group_topic(1)).await;
    peer.running.stop().await;

    let peer = Peer::start(durable(&path)).await;
    assert_eq!(peer.read(&group_topic(1)).await, read);
    assert_eq!(
        peer.publish(request).await.unwrap(),
        first,
        "a retry finds what is stored"
    );
    let next = peer.publish_one(message(2, "c")).await;
    assert_eq!(sequence_id(&next), 4, "no id is used twice");
    let wallet = account.wallet.identifier().clone();
    let revoke =
        UpdateBuilder::update_inbox(inbox, wallet).revoke(account.installation.identifier());
    peer.publish_one(identity(account.sign(revoke))).await;
    let mut stream = peer.subscribe().await;
    stream.started().await;
    stream
        .update(1, vec![from(&group_topic(1), 0)], vec![])
        .await;
    stream.applied().await;
    assert_eq!(stream.ids(2).await, [1, 3]);
}

#[tokio::test]
async fn a_database_has_one_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("backend.db3");
    let first = Backend::start(durable(&path)).await.unwrap();
    let second = Backend::start(durable(&path)).await.unwrap_err();
    assert!(
        matches!(second, StartError::Store(OpenError::InUse)),
        "{second}"
    );
    first.stop().await;
    Backend::start(durable(&path)).await.unwrap().stop().await;
}

#[tokio::test]
async fn a_database_belongs_to_one_deployment() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("backend.db3");
    Backend::start(durable(&path)).await.unwrap().stop().await;
    let mut other = durable(&path);
    other.server.identifier = "org.example.other".to_owned();
    let error = Backend::start(other).await.unwrap_err();
    assert!(
        matches!(error, StartError::Store(OpenError::OtherDeployment)),
        "{error}"
    );
    assert!(error.to_string().contains("server.identifier"));
    Backend::start(durable(&path)).await.unwrap().stop().await;
}

#[tokio::test]
async fn a_foreign_file_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("backend.db3");
    let text = b"this is not a database, but it is longer than a header of one would be, by a lot";
    std::fs::write(&path, text.repeat(20)).unwrap();
    let error = Backend::start(durable(&path)).await.unwrap_err();
    assert!(
        matches!(error, StartError::Store(OpenError::Foreign)),
        "{error}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), text.repeat(20));
    let missing = folder.path().join("nowhere").join("backend.db3");
    let error = Backend::start(durable(&missing)).await.unwrap_err();
    assert!(
        matches!(error, StartError::Store(OpenError::Files(_))),
        "{error}"
    );
}

/// Takes a copy as an operator does, while the server runs.
fn back_up(path: &Path, copy: &Path) {
    let connection = rusqlite::Connection::open(path).unwrap();
    let copy = copy.to_str().unwrap();
    connection.execute("VACUUM INTO ?1", [copy]).unwrap();
}

/// Puts a copy in the place of a database that no server has open.
fn restore(copy: &Path, path: &Path) {
    for suffix in ["-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        // A server that stopped has taken them away.
        let _ = std::fs::remove_file(name);
    }
    std::fs::copy(copy, path).unwrap();
}

async fn is_not_fenced(config: Config) {
    let error = Backend::start(config).await.unwrap_err();
    let is_not_fenced = matches!(error, StartError::Store(OpenError::NotFenced));
    assert!(is_not_fenced, "{error}");
    assert!(error.to_string().contains("xmtp-backend fence"), "{error}");
}

#[tokio::test]
async fn a_restored_database_is_refused_until_it_is_fenced() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (
        folder.path().join("backend.db3"),
        folder.path().join("copy"),
    );
    let peer = Peer::start(durable(&path)).await;
    peer.publish_one(message(1, "kept")).await;
    back_up(&path, &copy);
    let lost = peer.publish_one(message(1, "lost")).await;
    let error = Backend::fence(&durable(&path)).await.unwrap_err();
    assert!(
        matches!(error, StartError::Store(OpenError::InUse)),
        "{error}"
    );
    peer.running.stop().await;

    restore(&copy, &path);
    is_not_fenced(durable(&path)).await;
    is_not_fenced(durable(&path)).await;
    let fenced = Backend::fence(&durable(&path)).await.unwrap();
    assert_eq!(
        fenced.from.unwrap().get(),
        sequence_id(&lost),
        "the mark knows more than the copy"
    );
    let distance = fenced.to.get() - fenced.from.unwrap().get();
    assert!(distance > 1 << 32 && fenced.to.get().is_multiple_of(1 << 32));
    for round in 1..3 {
        let peer = Peer::start(durable(&path)).await;
        let next = peer
            .publish_one(message(1, &format!("after {round}")))
            .await;
        assert_eq!(
            sequence_id(&next),
            fenced.to.get() + round,
            "a restart needs no fence"
        );
        // Whoever has seen what is lost sees what came after the fence.
        let queries = vec![from(&group_topic(1), sequence_id(&lost))];
        let page = peer
            .query(QueryRequest { queries, limit: 9 })
            .await
            .unwrap();
        assert_eq!(page.envelopes.len() as u64, round);
        peer.running.stop().await;
    }
}

#[tokio::test]
async fn a_database_without_its_mark_or_a_mark_without_its_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("backend.db3");
    let peer = Peer::start(durable(&path)).await;
    peer.publish_one(message(1, "a")).await;
    peer.running.stop().await;

    // A copy in another place, whose age nobody knows.
    let moved = folder.path().join("moved.db3");
    std::fs::copy(&path, &moved).unwrap();
    is_not_fenced(durable(&moved)).await;
    let fenced = Backend::fence(&durable(&moved)).await.unwrap();
    assert_eq!(fenced.from.unwrap().get(), 1);
    Backend::start(durable(&moved)).await.unwrap().stop().await;

    // The mark of another database.
    let mark = |path: &Path| path.with_extension("db3.mark");
    std::fs::copy(mark(&path), mark(&moved)).unwrap();
    let other = folder.path().join("other.db3");
    Backend::start(durable(&other)).await.unwrap().stop().await;
    std::fs::copy(mark(&other), mark(&moved)).unwrap();
    is_not_fenced(durable(&moved)).await;

    // A database that is gone while its clients are not.
    std::fs::remove_file(&path).unwrap();
    is_not_fenced(durable(&path)).await;
    Backend::fence(&durable(&path)).await.unwrap();
    let peer = Peer::start(durable(&path)).await;
    assert!(sequence_id(&peer.publish_one(message(1, "b")).await) > 1 << 32);
}

#[derive(Debug)]
struct Later(u64);

impl Clock for Later {
    fn now_ns(&self) -> u64 {
        SystemClock.now_ns() + self.0
    }
}

#[tokio::test]
async fn a_server_prunes_what_has_expired() {
    const RETENTION_NS: u64 = 7_776_000 * 1_000_000_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("backend.db3");
    let peer = Peer::start(durable(&path)).await;
    for text in ["a", "b", "c"] {
        peer.publish_one(message(1, text)).await;
    }
    peer.running.stop().await;
    assert_eq!(Backend::prune(&durable(&path)).await.unwrap(), 0);

    let mut later = durable(&path);
    later.clock = std::sync::Arc::new(Later(RETENTION_NS));
    let peer = Peer::start(later.clone()).await;
    let pruned = async {
        while peer.read(&group_topic(1)).await.len() > 1 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, pruned)
        .await
        .expect("it is pruned");
    let newest = &peer.read(&group_topic(1)).await[0];
    assert_eq!(sequence_id(newest.meta.as_ref().unwrap()), 3);
    peer.publish_one(message(1, "d")).await;
    let error = Backend::prune(&later).await.unwrap_err();
    assert!(
        matches!(error, StartError::Store(OpenError::InUse)),
        "{error}"
    );
    peer.running.stop().await;
    assert_eq!(
        Backend::prune(&later).await.unwrap(),
        1,
        "the one that was the newest"
    );
}
