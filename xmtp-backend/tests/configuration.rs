//! The configuration file: what refuses to start, what is published.

mod common;

#[path = "configuration/auth.rs"]
mod auth;
#[path = "configuration/deploy.rs"]
mod deploy;
#[path = "configuration/sections.rs"]
mod sections;

use std::path::Path;

use common::*;
use prost::Message;
use tonic::Code;
use xmtp_backend::config::Database;
use xmtp_backend::{Backend, Config, StartError};
use xmtp_proto::backend::v1::configuration_service_client::ConfigurationServiceClient;
use xmtp_proto::backend::v1::{GetConfigurationRequest, GetConfigurationResponse, QueryRequest};
use xmtp_proto::limits;

const DATABASE: &str = "[database]\nurl = \"memory:\"\n";

/// Returns the text of a file with an identifier and more; it serves no metrics, because tests run
/// beside each other.
fn file(more: &str) -> String {
    let server = "[server]\nidentifier = \"org.example.test\"\nlisten = \"127.0.0.1:0\"\n";
    let telemetry = match more.contains("[telemetry]") {
        true => "",
        false => "[telemetry]\nmetrics_listen = \"\"\n",
    };
    format!("{server}{DATABASE}{telemetry}{more}")
}

/// Checks that a file is refused with an error that names the field.
fn refuses(text: &str, field: &str) {
    let error = Config::from_toml(text).expect_err(field).to_string();
    assert!(error.starts_with(&format!("{field}: ")), "{error}");
}

async fn served(text: &str) -> GetConfigurationResponse {
    let peer = Peer::start(Config::from_toml(text).expect("a configuration")).await;
    let mut client = ConfigurationServiceClient::new(peer.channel.clone());
    client
        .get_configuration(GetConfigurationRequest {})
        .await
        .unwrap()
        .into_inner()
}

/// covers: CFG-001, CFG-002, CFG-102
#[test]
fn an_identifier_is_required_and_well_formed() {
    refuses(DATABASE, "server.identifier");
    refuses(
        &format!("[server]\nlog_level = \"info\"\n{DATABASE}"),
        "server.identifier",
    );
    let with = |identifier: &str| format!("[server]\nidentifier = {identifier:?}\n{DATABASE}");
    for bad in ["", "a b", "a\tb", "a\u{a0}b", "a\u{7f}b", &"a".repeat(257)] {
        refuses(&with(bad), "server.identifier");
    }
    for good in ["a", &"a".repeat(256), "org.example.\u{e9}"] {
        assert!(Config::from_toml(&with(good)).is_ok(), "{good}");
    }
}

/// covers: CFG-005, CFG-006, CFG-102
#[tokio::test]
async fn a_lowest_version_is_a_version_or_absent() {
    assert_eq!(served(&file("")).await.min_libxmtp_version, "");
    let with = |version: &str| {
        file("").replace(
            "[database]",
            &format!("min_libxmtp_version = {version:?}\n[database]"),
        )
    };
    assert_eq!(
        served(&with("1.12.0-dev")).await.min_libxmtp_version,
        "1.12.0-dev"
    );
    for bad in ["", "1", "1.2", "v1.2.3", "1.2.3.4"] {
        refuses(&with(bad), "server.min_libxmtp_version");
    }
}

/// covers: CFG-007, CFG-102
#[test]
fn transport_sizes_have_a_ceiling() {
    for field in ["max_request_bytes", "max_response_bytes"] {
        refuses(
            &file(&format!("[limits]\n{field} = 26214401\n")),
            &format!("limits.{field}"),
        );
        assert!(Config::from_toml(&file(&format!("[limits]\n{field} = 26214400\n"))).is_ok());
    }
}

/// covers: CFG-008, CFG-102
#[test]
fn a_response_that_is_too_large_is_named() {
    let chains = |count: u32| {
        let chain = |number: u32| format!("\"eip155:{number}\" = \"https://example.org\"\n");
        file(&format!(
            "[chains]\n{}",
            (1..=count).map(chain).collect::<String>()
        ))
    };
    assert!(Config::from_toml(&chains(1000)).is_ok());
    refuses(&chains(6000), "GetConfigurationResponse");
}

/// covers: CFG-026, CFG-101
#[tokio::test]
async fn what_the_file_says_is_published() {
    let more = "[limits]\nmax_query_limit = 77\ndefault_query_limit = 7\n\
                [retention]\nwelcome_seconds = 99\n\
                [mls]\nmax_group_members = 12\ncommit_log_enabled = false\n\
                [auth]\nenabled = false\n\
                [chains]\n\"eip155:8453\" = \"https://key@example.org\"\n\"eip155:1\" = \"http://localhost\"\n";
    let response = served(&file(more)).await;
    assert_eq!(response.identifier, "org.example.test");
    assert_eq!(response.server_version, env!("CARGO_PKG_VERSION"));
    assert_eq!(
        response.smart_contract_wallet_chains,
        ["eip155:1", "eip155:8453"]
    );
    assert!(!response.auth.unwrap().enabled);
    let (limits, retention) = (response.limits.unwrap(), response.retention.unwrap());
    assert_eq!(
        (limits.max_query_limit, limits.default_query_limit),
        (77, 7)
    );
    assert_eq!(retention.welcome_seconds, 99);
    let mls = response.mls.unwrap();
    assert_eq!(
        (mls.max_group_members, mls.commit_log_enabled),
        (12, Some(false))
    );
    let rest = limits::default_limits();
    let expected = xmtp_proto::backend::v1::LimitsConfiguration {
        max_query_limit: 77,
        default_query_limit: 7,
        ..rest
    };
    assert_eq!(limits, expected);
}

/// covers: CFG-024, CFG-026
#[tokio::test]
async fn nothing_published_is_zero_or_secret() {
    let more = "[chains]\n\"eip155:1\" = \"https://secret.example.org\"\n";
    let response = served(&file(more)).await;
    let bytes = response.encode_to_vec();
    for secret in ["secret", "memory", "127.0.0.1"] {
        assert!(
            !bytes
                .windows(secret.len())
                .any(|window| window == secret.as_bytes()),
            "{secret}"
        );
    }
    // Every numbered field of the three messages is on the wire, because proto3 leaves out zeros.
    let fields = |bytes: Vec<u8>| {
        let (mut rest, mut count) = (bytes.as_slice(), 0);
        while !rest.is_empty() {
            prost::encoding::decode_varint(&mut rest).unwrap();
            prost::encoding::decode_varint(&mut rest).unwrap();
            count += 1;
        }
        count
    };
    assert_eq!(fields(response.limits.unwrap().encode_to_vec()), 20);
    assert_eq!(fields(response.retention.unwrap().encode_to_vec()), 3);
    assert_eq!(fields(response.mls.unwrap().encode_to_vec()), 3);
}

/// covers: STR-031
#[test]
fn relations_between_values_are_checked() {
    let cases = [
        (
            "[limits]\nmax_envelope_bytes = 2097152\n",
            "limits.max_envelope_bytes",
        ),
        (
            "[limits]\nmax_response_bytes = 1048576\n",
            "limits.max_envelope_bytes",
        ),
        (
            "[limits]\nmax_request_bytes = 1048580\n",
            "limits.max_envelope_bytes",
        ),
        (
            "[limits]\nmax_query_limit = 99\n",
            "limits.default_query_limit",
        ),
        (
            "[limits]\nmax_update_adds = 100001\n",
            "limits.max_update_adds",
        ),
        (
            "[limits]\nmax_query_topics = 0\n",
            "limits.max_query_topics",
        ),
        (
            "[streams]\nmax_pong_wait_ms = 30000\n",
            "streams.max_pong_wait_ms",
        ),
        (
            "[streams]\nkeepalive_interval_ms = 0\n",
            "streams.keepalive_interval_ms",
        ),
        (
            "[retention]\nwelcome_seconds = 9223372037\n",
            "retention.welcome_seconds",
        ),
        (
            "[retention]\nwelcome_seconds = 9223372036\n",
            "retention.welcome_seconds",
        ),
        (
            "[mls]\nmax_group_members = 65536\n",
            "mls.max_group_members",
        ),
        (
            "[mls]\nmax_installations_per_inbox = 0\n",
            "mls.max_installations_per_inbox",
        ),
        (
            "[chains]\n\"eip155:x\" = \"https://a\"\n",
            "chains.eip155:x",
        ),
        ("[chains]\n\"eip155:1\" = \"ftp://a\"\n", "chains.eip155:1"),
        ("[limits]\nother = 1\n", "limits.other"),
        (
            "[limits]\nmax_query_limit = \"secret\"\n",
            "limits.max_query_limit",
        ),
        ("[other]\n", "other"),
    ];
    for (more, field) in cases {
        refuses(&file(more), field);
    }
    let largest = limits::MESSAGES_FRAME_BYTES - limits::ENVELOPE_OVERHEAD_BYTES;
    assert!(
        Config::from_toml(&file(&format!(
            "[limits]\nmax_envelope_bytes = {largest}\n"
        )))
        .is_ok()
    );
}

#[test]
fn errors_name_fields_and_show_no_values() {
    refuses("[server]\nidentifier = \"a\"\n", "database.url");
    for url in [
        "",
        "memory",
        "memory:x",
        "sqlite:",
        "postgres:secret",
        "postgres://",
        "mysql://user:secret@host",
    ] {
        let text = file("").replace("memory:", url);
        refuses(&text, "database.url");
        assert!(
            !Config::from_toml(&text)
                .unwrap_err()
                .to_string()
                .contains("secret")
        );
    }
    let text = file("[limits]\nmax_query_limit = \"secret\"\n");
    assert!(
        !Config::from_toml(&text)
            .unwrap_err()
            .to_string()
            .contains("secret")
    );
    refuses(
        &file("").replace("memory:", "env:XMTP_BACKEND_NOT_SET"),
        "database.url",
    );
    let text = file("[chains]\n\"eip155:1\" = \"env:XMTP_BACKEND_NOT_SET\"\n");
    refuses(&text, "chains.eip155:1");
    refuses(
        &file("").replace("127.0.0.1:0", "localhost"),
        "server.listen",
    );
}

/// covers: CFG-098
#[tokio::test]
async fn the_development_file_starts_a_server() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dev.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("CHANGE IT") && text.contains("NEVER CHANGE IT AGAIN"));
    let mut config = Config::load(&path).unwrap();
    let Database::Sqlite(_) = config.database else {
        panic!("it keeps what it is told")
    };
    let folder = tempfile::tempdir().unwrap();
    config.database = Database::Sqlite(folder.path().join("dev.db3"));
    config.server.listen.set_port(0);
    config.telemetry.metrics_listen = None;
    let peer = Peer::start(config).await;
    peer.publish_one(message(1, "a")).await;
    peer.running.stop().await;
}

#[tokio::test]
async fn a_configuration_from_code_is_checked_too() {
    let error = Backend::start(Config::ephemeral("a b")).await.unwrap_err();
    let StartError::Config(error) = error else {
        panic!("{error}")
    };
    assert_eq!(error.field, "server.identifier");
}

/// covers: CFG-090
#[tokio::test]
async fn limits_are_enforced_at_their_configured_values() {
    let more = "[limits]\nmax_query_topics = 2\nmax_query_limit = 3\ndefault_query_limit = 1\n";
    let peer = Peer::start(Config::from_toml(&file(more)).unwrap()).await;
    let texts = ["a", "b", "c", "d"];
    peer.publish(texts.iter().map(|text| message(1, text)).collect())
        .await
        .unwrap();
    let query = async |topics, limit| {
        let queries = vec![from(&group_topic(1), 0); topics];
        peer.query(QueryRequest { queries, limit }).await
    };
    assert_eq!(query(2, 0).await.unwrap().envelopes.len(), 1);
    assert_eq!(query(2, 9).await.unwrap().envelopes.len(), 3);
    assert_eq!(query(3, 1).await.unwrap_err().code(), Code::InvalidArgument);
}
