//! Who may call: paths, tokens, keys and key sets, over real sockets.

mod clock;
#[path = "../common/mod.rs"]
mod common;
mod key_server;
mod key_sets;
mod log;
mod paths;
mod rejections;
mod signer;
mod stale;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use tonic::client::Grpc;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use xmtp_backend::config::{Auth, InlineKey, JwksSettings, KeySource, Secret, SigningAlgorithm};
use xmtp_backend::{Backend, Config};
use xmtp_proto::backend::v1::configuration_service_client::ConfigurationServiceClient;
use xmtp_proto::backend::v1::{AuthConfiguration, GetConfigurationRequest};

use clock::TestClock;
use common::*;
use signer::Signer;

const QUERY: &str = "/xmtp.backend.v1.QueryService/Query";

/// An API key.
const API_KEY: &str = "monitor-0123456789-0123456789-abc";

/// Returns a section that asks for no more than a token.
fn section(keys: KeySource) -> Auth {
    Auth {
        keys,
        api_keys: BTreeMap::new(),
        audiences: Vec::new(),
        issuers: Vec::new(),
        required_scopes: Vec::new(),
        leeway_seconds: 60,
    }
}

fn inline(signers: &[&Signer]) -> KeySource {
    let key = |signer: &&Signer| InlineKey {
        kid: signer.kid.clone(),
        alg: signer.algorithm,
        public_key: signer.pem.clone(),
    };
    KeySource::Inline(signers.iter().map(key).collect())
}

fn fetched(url: &str) -> KeySource {
    KeySource::Jwks(JwksSettings {
        url: Secret::new(url),
        refresh_seconds: 300,
        max_stale_seconds: 3600,
    })
}

fn config(auth: Auth, clock: &Arc<TestClock>) -> Config {
    let mut config = Config::ephemeral(IDENTIFIER);
    config.auth = Some(auth);
    config.clock = clock.clone();
    config
}

async fn serving(auth: Auth, clock: &Arc<TestClock>) -> Peer {
    Peer::start(config(auth, clock)).await
}

/// Sends an empty message to any path and tells how the call begins.
async fn call(peer: &Peer, path: &str, authorization: Option<&str>) -> Result<(), Status> {
    let mut client = Grpc::new(peer.channel.clone());
    client.ready().await.expect("a connection");
    let mut request = Request::new(());
    if let Some(value) = authorization {
        let value = value.parse().expect("a header value");
        request.metadata_mut().insert("authorization", value);
    }
    let path = PathAndQuery::try_from(path).expect("a path");
    let codec = ProstCodec::<(), ()>::default();
    let answer = client.server_streaming(request, path, codec);
    let answer = tokio::time::timeout(PATIENCE, answer)
        .await
        .expect("an answer in time");
    answer.map(drop)
}

/// Sends a query with a token and tells whether it is admitted.
async fn query(peer: &Peer, token: &str) -> Result<(), Status> {
    call(peer, QUERY, Some(&format!("Bearer {token}"))).await
}

async fn assert_code(peer: &Peer, token: &str, code: Code) {
    let status = query(peer, token).await.expect_err("it is turned away");
    assert_eq!(status.code(), code, "{status:?}");
}

/// Returns what clients are told of authentication.
async fn published(peer: &Peer) -> AuthConfiguration {
    let mut client = ConfigurationServiceClient::new(peer.channel.clone());
    let answer = client.get_configuration(GetConfigurationRequest {}).await;
    answer
        .expect("no credential is needed")
        .into_inner()
        .auth
        .expect("the section")
}

const HOUR: Duration = Duration::from_secs(3600);
