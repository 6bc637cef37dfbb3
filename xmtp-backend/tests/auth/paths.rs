//! Which paths need a credential.

use serde_json::json;
use xmtp_proto::backend::v1::QueryRequest;
use xmtp_proto::backend::v1::subscribe_response::Response;

use super::*;
use crate::common::web::Web;

const PUBLIC: [&str; 6] = [
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.health.v1.Health/List",
    "/grpc.health.v1.Health/Unknown",
    "/xmtp.backend.v1.ConfigurationService/GetConfiguration",
    "/xmtp.backend.v1.ConfigurationService/Unknown",
];

const CLOSED: [&str; 14] = [
    "/xmtp.backend.v1.PublishService/Publish",
    QUERY,
    "/xmtp.backend.v1.QueryService/QueryNewest",
    "/xmtp.backend.v1.QueryService/Get",
    "/xmtp.backend.v1.SubscriptionService/Subscribe",
    "/xmtp.backend.v1.SubscriptionService/SubscribeStatic",
    "/xmtp.backend.v1.IdentityService/GetInboxIds",
    "/xmtp.backend.v1.IdentityService/VerifySmartContractWalletSignatures",
    "/xmtp.backend.v1.ConfigurationServices/GetConfiguration",
    "/xmtp.backend.v1.NotificationService/Register",
    "/grpc.health.v2.Health/Check",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/unknown",
    "/",
];

/// Starts a server with one key, and returns a token of it.
async fn one_key() -> (Peer, String) {
    let clock = TestClock::new();
    let signer = Signer::new("a", SigningAlgorithm::EdDsa);
    let peer = serving(section(inline(&[&signer])), &clock).await;
    let token = signer.sign(&json!({ "exp": clock.seconds() + 60 }));
    (peer, token)
}

fn is_admitted(answer: &Result<(), Status>) -> bool {
    let code = answer.as_ref().err().map(Status::code);
    !matches!(code, Some(Code::Unauthenticated | Code::PermissionDenied))
}

/// covers: CFG-020, CFG-092, CFG-093
#[tokio::test]
async fn every_path_but_two_services_needs_a_credential() {
    let (peer, token) = one_key().await;
    let good = format!("Bearer {token}");
    for path in PUBLIC {
        for authorization in [None, Some("Bearer bad"), Some(good.as_str())] {
            let answer = call(&peer, path, authorization).await;
            assert!(is_admitted(&answer), "{path} {answer:?}");
            if path.ends_with("Unknown") {
                assert_eq!(answer.unwrap_err().code(), Code::Unimplemented, "{path}");
            }
        }
    }
    for path in CLOSED {
        for authorization in [None, Some("Bearer bad"), Some("Bearer ")] {
            let status = call(&peer, path, authorization).await.expect_err(path);
            assert_eq!(status.code(), Code::Unauthenticated, "{path}");
        }
        let answer = call(&peer, path, Some(&good)).await;
        assert!(is_admitted(&answer), "{path} {answer:?}");
    }
    let unknown = call(&peer, "/unknown", Some(&good)).await;
    assert_eq!(unknown.unwrap_err().code(), Code::Unimplemented);
}

/// covers: CFG-020, CFG-092, CFG-093
#[tokio::test]
async fn a_browser_needs_a_credential_for_the_same_paths() {
    let (peer, token) = one_key().await;
    let good = format!("Bearer {token}");
    let status = async |path: &str, headers: &[(&str, &str)]| {
        let mut web = Web::connect(peer.running.address()).await;
        let head = web
            .post(path, headers, &web::framed(&QueryRequest::default()))
            .await;
        (
            head.status,
            head.headers.get("grpc-status").map(str::to_owned),
        )
    };
    let refused = (200, Some("16".to_owned()));
    for path in CLOSED {
        assert_eq!(status(path, &[]).await, refused, "{path}");
        assert_eq!(
            status(path, &[("authorization", "Bearer bad")]).await,
            refused,
            "{path}"
        );
        assert_ne!(
            status(path, &[("authorization", &good)]).await,
            refused,
            "{path}"
        );
    }
    for path in PUBLIC {
        assert_ne!(status(path, &[]).await, refused, "{path}");
        assert_ne!(
            status(path, &[("authorization", "Bearer bad")]).await,
            refused,
            "{path}"
        );
    }
}

/// covers: CFG-020, CFG-092
#[tokio::test]
async fn a_preflight_is_answered_without_a_credential() {
    let (peer, _) = one_key().await;
    for path in PUBLIC.into_iter().chain(CLOSED) {
        let mut web = Web::connect(peer.running.address()).await;
        let headers = [
            ("origin", "https://example.org"),
            ("access-control-request-method", "POST"),
            (
                "access-control-request-headers",
                "authorization,content-type,x-grpc-web",
            ),
        ];
        web.send_head(&format!("OPTIONS {path}"), &headers).await;
        let head = web.head().await;
        assert_eq!(head.status, 200, "{path}");
        let allowed = head
            .headers
            .get("access-control-allow-headers")
            .expect("headers");
        assert!(allowed.contains("authorization"), "{path}");
        assert_eq!(head.headers.get("grpc-status"), None, "{path}");
    }
}

/// What no gRPC client would send needs a credential too.
///
/// covers: CFG-093
#[tokio::test]
async fn a_plain_request_needs_a_credential() {
    let (peer, _) = one_key().await;
    for line in [
        "GET /",
        "GET /xmtp.backend.v1.QueryService/Query",
        "PUT /unknown",
    ] {
        let mut web = Web::connect(peer.running.address()).await;
        web.send_head(line, &[("content-length", "0")]).await;
        assert_eq!(
            web.head().await.headers.get("grpc-status"),
            Some("16"),
            "{line}"
        );
    }
}

/// covers: CFG-092
#[tokio::test]
async fn a_stream_is_judged_when_it_opens_and_not_again() {
    let clock = TestClock::new();
    let signer = Signer::new("a", SigningAlgorithm::EdDsa);
    let peer = serving(section(inline(&[&signer])), &clock).await;
    let token = signer.sign(&json!({ "exp": clock.seconds() + 60 }));
    let authorization = format!("Bearer {token}");
    let mut stream = peer
        .try_subscribe(Some(&authorization))
        .await
        .expect("it opens");
    stream.started().await;
    clock.advance(HOUR);
    assert_code(&peer, &token, Code::Unauthenticated).await;
    stream.ping(7).await;
    let Response::Pong(pong) = stream.frame().await else {
        panic!("an answer")
    };
    assert_eq!(pong.nonce, 7);
}

/// covers: CFG-004
#[tokio::test]
async fn without_the_section_no_path_needs_a_credential() {
    let peer = Peer::ephemeral().await;
    for path in PUBLIC.into_iter().chain(CLOSED) {
        for authorization in [None, Some("Bearer bad")] {
            let answer = call(&peer, path, authorization).await;
            assert!(is_admitted(&answer), "{path} {answer:?}");
        }
    }
}
