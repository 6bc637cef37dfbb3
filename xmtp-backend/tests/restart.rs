//! What a durable server keeps over a restart, and whom it refuses.

mod common;

use std::path::Path;

use common::*;
use xmtp_backend::config::Database;
use xmtp_backend::store::OpenError;
use xmtp_backend::{Backend, Config, StartError};
use xmtp_identity::UpdateBuilder;

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
