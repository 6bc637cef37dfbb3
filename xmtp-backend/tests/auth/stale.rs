//! Keys that can not be refreshed for too long: the server ends.

use serde_json::json;
use tokio::process::Command;
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use xmtp_backend::Ended;

use super::*;
use crate::key_server::{Answer, KeyServer, key_set};

/// covers: CFG-092
#[tokio::test]
async fn keys_that_are_too_old_end_the_server() {
    let clock = TestClock::new();
    let signer = Signer::new("a", SigningAlgorithm::EdDsa);
    let keys = KeyServer::start(key_set(&[&signer])).await;
    let mut peer = serving(section(fetched(&keys.url)), &clock).await;
    let token = signer.sign(&json!({ "exp": clock.seconds() + 86_400 }));
    let mut stream = peer
        .try_subscribe(Some(&format!("Bearer {token}")))
        .await
        .expect("it opens");
    stream.started().await;
    keys.answer(Answer::Status(500));
    clock.begun(1, |wait| wait == HOUR).await;
    clock.advance(HOUR - Duration::from_secs(1));
    query(&peer, &token)
        .await
        .expect("the keys are a second from being too old");
    clock.advance(Duration::from_secs(1));
    let ended = tokio::time::timeout(PATIENCE, peer.running.wait()).await;
    assert_eq!(ended.expect("it ends in time"), Ended::KeysTooOld);
    assert_eq!(health(&peer).await, ServingStatus::NotServing as i32);
    assert_code(&peer, &token, Code::Unavailable).await;
    assert_eq!(stream.failure().await.code(), Code::Unavailable);
    peer.running.stop().await;
}

async fn health(peer: &Peer) -> i32 {
    let mut client = HealthClient::new(peer.channel.clone());
    let answer = client.check(HealthCheckRequest::default()).await;
    answer
        .expect("health needs no credential")
        .into_inner()
        .status
}

/// Whoever runs a server in a program of their own may wait for something else.
///
/// covers: CFG-092
#[tokio::test]
async fn keys_that_are_too_old_end_the_server_though_nobody_waits_for_it() {
    let clock = TestClock::new();
    let signer = Signer::new("a", SigningAlgorithm::EdDsa);
    let keys = KeyServer::start(key_set(&[&signer])).await;
    let peer = serving(section(fetched(&keys.url)), &clock).await;
    let token = signer.sign(&json!({ "exp": clock.seconds() + 86_400 }));
    let mut stream = peer
        .try_subscribe(Some(&format!("Bearer {token}")))
        .await
        .expect("it opens");
    stream.started().await;
    keys.answer(Answer::Status(500));
    clock.begun(1, |wait| wait == HOUR).await;
    clock.advance(HOUR);
    assert_eq!(stream.failure().await.code(), Code::Unavailable);
    assert_eq!(health(&peer).await, ServingStatus::NotServing as i32);
    assert_code(&peer, &token, Code::Unavailable).await;
}

/// The age counts from the last fetch that succeeded, and from its beginning.
///
/// covers: CFG-092
#[tokio::test]
async fn a_refresh_that_succeeds_makes_the_keys_young_again() {
    let clock = TestClock::new();
    let signer = Signer::new("a", SigningAlgorithm::EdDsa);
    let keys = KeyServer::start(key_set(&[&signer])).await;
    let mut peer = serving(section(fetched(&keys.url)), &clock).await;
    let minutes = |count: u64| Duration::from_secs(60 * count);
    clock.begun(1, |wait| wait == HOUR).await;
    clock.advance(minutes(6));
    // The refresh has come back when the age is counted anew.
    clock.begun(2, |wait| wait == HOUR).await;
    keys.answer(Answer::Status(500));
    clock.advance(minutes(59));
    let token = signer.sign(&json!({ "exp": clock.seconds() + 86_400 }));
    query(&peer, &token)
        .await
        .expect("65 minutes after the start");
    clock.advance(minutes(1));
    let ended = tokio::time::timeout(PATIENCE, peer.running.wait()).await;
    assert_eq!(ended.expect("it ends in time"), Ended::KeysTooOld);
}

/// covers: CFG-092
#[tokio::test]
async fn the_program_ends_with_a_failure_when_its_keys_are_too_old() {
    let signer = Signer::new("a", SigningAlgorithm::EdDsa);
    let keys = KeyServer::start(key_set(&[&signer])).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("backend.toml");
    let text = format!(
        "[server]\nidentifier = \"{IDENTIFIER}\"\nlisten = \"127.0.0.1:0\"\n\
         [telemetry]\nmetrics_listen = \"\"\n\
         [database]\nurl = \"memory:\"\n\
         [auth]\nenabled = true\njwks_url = \"{}\"\n\
         jwks_refresh_seconds = 1\njwks_max_stale_seconds = 12\n",
        keys.url
    );
    std::fs::write(&path, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_xmtp-backend"));
    command.arg("--config").arg(&path).kill_on_drop(true);
    let ending = tokio::time::timeout(PATIENCE * 3, command.output());
    let failing = async {
        keys.asked(1).await;
        keys.answer(Answer::Status(500));
    };
    let (ended, ()) = tokio::join!(ending, failing);
    let output = ended.expect("it ends in time").unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("the key set is too old"), "{said}");
}
