//! gRPC-Web over HTTP/1.1 and HTTP/2, and what every response carries.

mod common;

use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use common::web::{Head, Headers, WEB, Web, WebFrame, framed, http2, plain};
use common::*;
use http::{Method, Request};
use tonic::Code;
use tonic::body::Body;
use tonic_web::{GrpcWebCall, GrpcWebClientLayer};
use tower::ServiceBuilder;
use xmtp_proto::backend::v1::configuration_service_client::ConfigurationServiceClient;
use xmtp_proto::backend::v1::query_service_client::QueryServiceClient;
use xmtp_proto::backend::v1::subscribe_request::{Request as Said, Update};
use xmtp_proto::backend::v1::subscribe_response::Response as Frame;
use xmtp_proto::backend::v1::subscribe_static_response::Response as StaticFrame;
use xmtp_proto::backend::v1::subscription_service_client::SubscriptionServiceClient;
use xmtp_proto::backend::v1::{
    GetConfigurationRequest, GetConfigurationResponse, PublishRequest, PublishResponse,
    QueryRequest, QueryResponse, SubscribeRequest, SubscribeResponse, SubscribeStaticRequest,
    SubscribeStaticResponse,
};
use xmtp_proto::status::Details;

const PUBLISH: &str = "/xmtp.backend.v1.PublishService/Publish";
const QUERY: &str = "/xmtp.backend.v1.QueryService/Query";
const SUBSCRIBE: &str = "/xmtp.backend.v1.SubscriptionService/Subscribe";
const SUBSCRIBE_STATIC: &str = "/xmtp.backend.v1.SubscriptionService/SubscribeStatic";
const CONFIGURATION: &str = "/xmtp.backend.v1.ConfigurationService/GetConfiguration";
const HEALTH: &str = "/grpc.health.v1.Health/Check";

/// A call, a stream, what needs no credential, and what does not exist.
const PATHS: [&str; 7] = [
    PUBLISH,
    SUBSCRIBE,
    CONFIGURATION,
    HEALTH,
    "/xmtp.backend.v1.QueryService/Get",
    "/other.Service/Call",
    "/",
];

async fn connected(peer: &Peer) -> Web {
    Web::connect(peer.running.address()).await
}

fn is_uuid(text: &str) -> bool {
    let parts: Vec<usize> = text.split('-').map(str::len).collect();
    let hex = |byte: u8| byte == b'-' || byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    parts == [8, 4, 4, 4, 12] && text.bytes().all(hex)
}

/// Checks what every response carries and returns its id.
fn request_id(headers: &Headers) -> String {
    let id = headers.get("x-request-id").expect("an id");
    assert!(is_uuid(id), "{id}");
    assert_eq!(headers.get("access-control-allow-origin"), Some("*"));
    id.to_owned()
}

fn assert_status(frame: &WebFrame, code: Code) {
    let status = (code as i32).to_string();
    assert_eq!(frame.trailers().get("grpc-status"), Some(status.as_str()));
}

fn said(request: Said) -> Vec<u8> {
    framed(&SubscribeRequest {
        request: Some(request),
    })
}

async fn next_frame(web: &mut Web) -> Frame {
    let frame = web.frame().await.expect("no end");
    let response: SubscribeResponse = frame.message();
    response.response.expect("a frame of some kind")
}

/// covers: STR-055
#[tokio::test]
async fn a_call_over_http_1_ends_in_trailers_within_its_body() {
    let peer = Peer::ephemeral().await;
    let mut web = connected(&peer).await;
    let envelopes = vec![message(1, "hello")];
    let (head, frames) = web.call(PUBLISH, &PublishRequest { envelopes }).await;
    assert_eq!(head.status, 200);
    assert_eq!(head.headers.get("content-type"), Some(WEB));
    let first = request_id(&head.headers);
    assert_eq!(frames.len(), 2);
    let response: PublishResponse = frames[0].message();
    assert_eq!(response.envelope_metas.len(), 1);
    assert_status(&frames[1], Code::Ok);

    let queries = vec![from(&group_topic(1), 0)];
    let (head, frames) = web.call(QUERY, &QueryRequest { queries, limit: 0 }).await;
    let response: QueryResponse = frames[0].message();
    assert_eq!(response.envelopes[0].envelope, Some(message(1, "hello")));
    assert_ne!(request_id(&head.headers), first, "an id for each response");
}

#[tokio::test]
async fn a_call_may_be_text() {
    let peer = Peer::ephemeral().await;
    let mut web = connected(&peer).await;
    let text = "application/grpc-web-text";
    let headers = [
        ("content-type", text),
        ("accept", text),
        ("content-length", "8"),
    ];
    web.send_head(&format!("POST {CONFIGURATION}"), &headers)
        .await;
    web.send(b"AAAAAAA=").await;
    let head = web.head().await;
    assert_eq!(head.status, 200);
    assert!(head.headers.get("content-type").unwrap().starts_with(text));
    let body = web.rest().await;
    let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=".contains(byte);
    assert!(!body.is_empty() && body.iter().all(is_base64));
}

/// covers: STR-055
#[tokio::test]
async fn the_first_frame_of_a_silent_stream_arrives_while_it_stays_open() {
    let peer = Peer::ephemeral().await;
    let mut web = connected(&peer).await;
    let head = web.open(SUBSCRIBE).await;
    assert_eq!(head.status, 200);
    request_id(&head.headers);
    let started = next_frame(&mut web).await;
    assert!(matches!(started, Frame::Started(_)), "{started:?}");

    let update = Update {
        id: 1,
        adds: vec![from(&group_topic(1), 0)],
        removes: Vec::new(),
    };
    web.send_chunk(&said(Said::Update(update))).await;
    let applied = next_frame(&mut web).await;
    assert!(matches!(applied, Frame::Applied(_)), "{applied:?}");
    peer.publish_one(message(1, "live")).await;
    let live = next_frame(&mut web).await;
    assert!(matches!(live, Frame::Messages(_)), "{live:?}");

    web.send_chunk(&[]).await;
    assert_status(&web.frame().await.expect("trailers"), Code::Ok);
    assert_eq!(web.frame().await, None);
}

/// covers: STR-055
#[tokio::test]
async fn a_failure_of_a_stream_stands_in_its_trailers() {
    let peer = Peer::ephemeral().await;
    let mut web = connected(&peer).await;
    web.open(SUBSCRIBE).await;
    next_frame(&mut web).await;
    web.send_chunk(&said(Said::Update(Update::default()))).await;
    let trailers = web.frame().await.expect("trailers");
    assert_status(&trailers, Code::InvalidArgument);
    assert_eq!(web.frame().await, None);
}

/// covers: STR-055
#[tokio::test]
async fn a_browser_gets_a_stream_of_fixed_topics_frame_by_frame() {
    let peer = Peer::ephemeral().await;
    let mut web = connected(&peer).await;
    let topics = vec![from(&group_topic(1), 0)];
    let request = framed(&SubscribeStaticRequest { topics });
    let head = web.post(SUBSCRIBE_STATIC, &[], &request).await;
    assert_eq!(head.status, 200);
    let next = async |web: &mut Web| {
        let frame: SubscribeStaticResponse = web.frame().await.expect("no end").message();
        frame.response.expect("a frame of some kind")
    };
    // Nothing else is sent until this frame has arrived.
    let started = next(&mut web).await;
    assert!(matches!(started, StaticFrame::Started(_)), "{started:?}");
    peer.publish_one(message(1, "live")).await;
    let live = next(&mut web).await;
    assert!(matches!(live, StaticFrame::Messages(_)), "{live:?}");
    let stopping = tokio::spawn(peer.running.stop());
    assert_status(&web.frame().await.expect("trailers"), Code::Unavailable);
    assert_eq!(web.frame().await, None);
    stopping.await.expect("no panic");
}

/// covers: STR-055
#[tokio::test]
async fn a_stop_ends_streams_of_the_web_too() {
    let peer = Peer::ephemeral().await;
    let (mut web, mut idle) = (connected(&peer).await, connected(&peer).await);
    web.open(SUBSCRIBE).await;
    next_frame(&mut web).await;
    idle.call(CONFIGURATION, &GetConfigurationRequest {}).await;
    let stopping = tokio::spawn(peer.running.stop());
    assert_status(&web.frame().await.expect("trailers"), Code::Unavailable);
    assert_eq!(web.frame().await, None);
    let stopped = tokio::time::timeout(PATIENCE, stopping).await;
    stopped
        .expect("nothing is open any more")
        .expect("no panic");
}

fn names(value: Option<&str>) -> Vec<String> {
    let names = value.expect("a list").split(',');
    let mut names: Vec<String> = names.map(|name| name.trim().to_lowercase()).collect();
    names.sort();
    names
}

const PREFLIGHT: [(&str, &str); 3] = [
    ("origin", "https://app.example"),
    ("access-control-request-method", "POST"),
    ("access-control-request-headers", "authorization,x-other"),
];

fn assert_preflight(headers: &Headers) {
    request_id(headers);
    assert_eq!(names(headers.get("access-control-allow-methods")), ["post"]);
    let allowed = [
        "authorization",
        "content-type",
        "grpc-timeout",
        "traceparent",
        "tracestate",
        "x-app-version",
        "x-grpc-web",
        "x-libxmtp-version",
        "x-user-agent",
    ];
    assert_eq!(names(headers.get("access-control-allow-headers")), allowed);
    assert_eq!(headers.get("grpc-status"), None);
}

/// covers: STR-055
#[tokio::test]
async fn a_preflight_is_answered_on_every_path() {
    let peer = Peer::ephemeral().await;
    let mut web = connected(&peer).await;
    for path in PATHS {
        web.send_head(&format!("OPTIONS {path}"), &PREFLIGHT).await;
        let head = web.head().await;
        assert_eq!(head.status, 200, "{path}");
        assert_preflight(&head.headers);

        let response = http2(&peer, Method::OPTIONS, path, &PREFLIGHT, Vec::new()).await;
        assert_eq!(response.status(), 200, "{path}");
        assert_preflight(&plain(response.headers()));
    }
}

/// covers: STR-055
#[tokio::test]
async fn a_script_may_read_the_status_and_the_id() {
    let peer = Peer::ephemeral().await;
    let mut web = connected(&peer).await;
    let request = framed(&GetConfigurationRequest {});
    let origin = [("origin", "https://app.example"), ("x-request-id", "mine")];
    let head = web.post(CONFIGURATION, &origin, &request).await;
    assert_ne!(request_id(&head.headers), "mine");
    let exposed = [
        "grpc-message",
        "grpc-status",
        "grpc-status-details-bin",
        "x-request-id",
    ];
    let shown = head.headers.get("access-control-expose-headers");
    assert_eq!(names(shown), exposed);
}

fn assert_failed(head: &Head, code: Code) {
    assert_eq!(head.status, 200);
    request_id(&head.headers);
    let status = (code as i32).to_string();
    assert_eq!(head.headers.get("grpc-status"), Some(status.as_str()));
}

#[tokio::test]
async fn unknown_paths_are_not_implemented() {
    let peer = Peer::ephemeral().await;
    for path in &PATHS[4..] {
        // A connection each: an answer that needs no body may close it.
        let mut web = connected(&peer).await;
        assert_failed(&web.post(path, &[], &[]).await, Code::Unimplemented);

        let native = [("content-type", "application/grpc"), ("te", "trailers")];
        let response = http2(&peer, Method::POST, path, &native, Vec::new()).await;
        let headers = plain(response.headers());
        assert_eq!(headers.get("grpc-status"), Some("12"), "{path}");
        request_id(&headers);
    }
    let mut web = connected(&peer).await;
    web.send_head("GET /", &[]).await;
    let head = web.head().await;
    assert_eq!(head.status, 400, "HTTP/1.1 is for gRPC-Web alone");
    request_id(&head.headers);
}

#[tokio::test]
async fn a_failed_call_carries_its_status_and_an_id() {
    let peer = Peer::ephemeral().await;
    let mut web = connected(&peer).await;
    let queries = vec![from(&group_topic(1), u64::MAX)];
    let request = framed(&QueryRequest { queries, limit: 0 });
    let head = web.post(QUERY, &[], &request).await;
    assert_failed(&head, Code::InvalidArgument);
    assert_eq!(web.frame().await, None);
}

#[tokio::test]
async fn compressed_requests_are_not_implemented() {
    let peer = Peer::ephemeral().await;
    let request = framed(&GetConfigurationRequest {});
    for encoding in ["grpc-encoding", "content-encoding"] {
        let mut web = connected(&peer).await;
        let head = web
            .post(CONFIGURATION, &[(encoding, "gzip")], &request)
            .await;
        assert_failed(&head, Code::Unimplemented);
        assert_eq!(head.headers.get("content-type"), Some(WEB));
        let mut web = connected(&peer).await;
        let head = web
            .post(CONFIGURATION, &[(encoding, "identity")], &request)
            .await;
        assert_eq!(head.headers.get("grpc-status"), None);

        let native = [("content-type", "application/grpc"), (encoding, "gzip")];
        let response = http2(&peer, Method::POST, CONFIGURATION, &native, request.clone()).await;
        let headers = plain(response.headers());
        assert_eq!(headers.get("grpc-status"), Some("12"));
        assert_eq!(headers.get("content-type"), Some("application/grpc"));
        request_id(&headers);
    }
}

fn boxed(request: Request<GrpcWebCall<Body>>) -> Request<Body> {
    request.map(Body::new)
}

/// covers: STR-055
#[tokio::test]
async fn grpc_web_runs_over_http_2_too() {
    let peer = Peer::ephemeral().await;
    peer.publish_one(message(1, "hello")).await;
    let web = ServiceBuilder::new()
        .layer(GrpcWebClientLayer::new())
        .map_request(boxed)
        .service(peer.channel.clone());
    let mut configuration = ConfigurationServiceClient::new(web.clone());
    let found: GetConfigurationResponse = configuration
        .get_configuration(GetConfigurationRequest {})
        .await
        .expect("an answer")
        .into_inner();
    assert_eq!(found.identifier, IDENTIFIER);

    let mut query = QueryServiceClient::new(web.clone());
    let queries = vec![from(&group_topic(1), u64::MAX)];
    let refused = query.query(QueryRequest { queries, limit: 0 }).await;
    assert_eq!(
        refused.expect_err("a refusal").code(),
        Code::InvalidArgument
    );

    let mut streams = SubscriptionServiceClient::new(web);
    let frames = streams.subscribe(tokio_stream::pending()).await;
    let mut frames = frames.expect("it opens").into_inner();
    let first = tokio::time::timeout(PATIENCE, frames.message()).await;
    let first = first
        .expect("in time")
        .expect("no failure")
        .expect("no end");
    assert!(matches!(first.response, Some(Frame::Started(_))));
    peer.running.stop().await;
    let end = tokio::time::timeout(PATIENCE, frames.message()).await;
    let end = end.expect("in time").expect_err("a failure");
    assert_eq!(end.code(), Code::Unavailable);
}

#[tokio::test]
async fn a_granted_time_ends_a_call() {
    let peer = Peer::ephemeral().await;
    let mut web = connected(&peer).await;
    // The request is never sent, so only the deadline can end the call.
    let headers = [
        ("content-type", WEB),
        ("content-length", "5"),
        ("grpc-timeout", "1m"),
    ];
    web.send_head(&format!("POST {QUERY}"), &headers).await;
    let head = web.head().await;
    assert_failed(&head, Code::DeadlineExceeded);
    let details = head
        .headers
        .get("grpc-status-details-bin")
        .expect("details");
    let details = BASE64_STANDARD_NO_PAD.decode(details).expect("base64");
    let reason = Details::decode(&details).reason;
    assert_eq!(reason.as_deref(), Some("CALLER_TIMED_OUT"));
}
