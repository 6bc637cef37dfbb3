//! What the program tells of itself: numbers over HTTP, its log, and spans at a collector.

#[path = "telemetry/collector.rs"]
mod collector;
mod common;
#[path = "telemetry/process.rs"]
mod process;

use collector::{Collector, authority};
use common::web::{WEB, Web, framed};
use common::*;
use process::Process;
use xmtp_proto::backend::v1::subscribe_request::{Request, Update};
use xmtp_proto::backend::v1::{
    GetConfigurationRequest, PublishRequest, QueryRequest, SubscribeRequest, Topic,
};

const PUBLISH: &str = "/xmtp.backend.v1.PublishService/Publish";
const QUERY: &str = "/xmtp.backend.v1.QueryService/Query";
const SUBSCRIBE: &str = "/xmtp.backend.v1.SubscriptionService/Subscribe";
const CONFIGURATION: &str = "/xmtp.backend.v1.ConfigurationService/GetConfiguration";

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn number(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with(series))?;
    line.rsplit(' ').next()?.parse().ok()
}

fn call(family: &str, kind: &str, service: &str, method: &str) -> String {
    format!(
        "{family}{{grpc_type=\"{kind}\",grpc_service=\"xmtp.backend.v1.{service}\",grpc_method=\"{method}\""
    )
}

fn publish(text: &str) -> PublishRequest {
    let envelopes = vec![message(1, text)];
    PublishRequest { envelopes }
}

fn refused_query() -> QueryRequest {
    let queries = vec![from(&group_topic(1), u64::MAX)];
    QueryRequest { queries, limit: 0 }
}

/// covers: CFG-022
#[tokio::test]
async fn calls_are_counted_by_name_and_code() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path(), "", "");
    let mut web = Web::connect(process.address).await;
    web.call(PUBLISH, &publish("a")).await;
    web.call(QUERY, &refused_query()).await;
    web.call(CONFIGURATION, &GetConfigurationRequest {}).await;
    web.send_head(&format!("OPTIONS {QUERY}"), &[]).await;
    web.head().await;
    web.post("/secret.Service/Call", &[], &[]).await;
    let mut health = Web::connect(process.address).await;
    let head = health
        .post("/grpc.health.v1.Health/Check", &[], &framed(&()))
        .await;
    assert_eq!(head.headers.get("grpc-status"), None);
    let mut stream = Web::connect(process.address).await;
    stream.open(SUBSCRIBE).await;
    stream.frame().await.expect("the first frame");

    let queries = call(
        "grpc_server_handled_total",
        "unary",
        "QueryService",
        "Query",
    );
    let text = process
        .scrape(|text| number(text, &queries).is_some() && text.contains("\"unknown\""))
        .await;
    let is = |series: &str, value: f64| assert_eq!(number(&text, series), Some(value), "{series}");
    let started = |service, method| call("grpc_server_started_total", "unary", service, method);
    is(&started("PublishService", "Publish"), 1.0);
    is(&started("QueryService", "Query"), 1.0);
    is(&started("ConfigurationService", "GetConfiguration"), 1.0);
    is(&format!("{queries},grpc_code=\"INVALID_ARGUMENT\"}}"), 1.0);
    let sent = call(
        "grpc_server_request_bytes_total",
        "unary",
        "PublishService",
        "Publish",
    );
    is(&sent, framed(&publish("a")).len() as f64);
    is(
        "grpc_server_started_total{grpc_type=\"unknown\",grpc_service=\"unknown\"",
        1.0,
    );
    let open = call(
        "grpc_server_in_flight",
        "bidi_stream",
        "SubscriptionService",
        "Subscribe",
    );
    is(&open, 1.0);
    is("xmtp_backend_ready", 1.0);
    let sessions = "xmtp_stream_sessions{kind=\"subscribe\"";
    is(sessions, 1.0);
    is("xmtp_stream_frames_sent_total{kind=\"started\"", 1.0);
    assert!(text.contains("grpc_server_handling_seconds_bucket"));
    for never in ["ealth", "secret", "OPTIONS"] {
        assert!(!text.contains(never), "{never}");
    }
    stream.send_chunk(&[]).await;
    process
        .scrape(|text| number(text, &open) == Some(0.0) && number(text, sessions) == Some(0.0))
        .await;
}

/// A browser that is led to the port asks for a page.
#[tokio::test]
async fn what_is_no_call_is_counted_as_one_that_does_not_exist() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path(), "", "");
    for (line, headers) in [
        ("GET /", &[][..]),
        ("GET /favicon.ico", &[("accept", "text/html")]),
        (
            concat!("POST ", "/xmtp.backend.v1.QueryService/Query"),
            &[("content-type", "text/plain")],
        ),
    ] {
        let mut web = Web::connect(process.address).await;
        web.send_head(line, headers).await;
        let head = web.head().await;
        assert!((400..500).contains(&head.status), "{line}: {}", head.status);
    }
    let handled = |text: &str| {
        let lines = text.lines();
        let lines = lines.filter(|line| line.starts_with("grpc_server_handled_total{"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let text = process.scrape(|text| handled(text).len() == 2).await;
    for line in handled(&text) {
        assert!(line.contains("grpc_code=\"UNIMPLEMENTED\""), "{line}");
    }
}

#[tokio::test]
async fn streams_are_counted_and_their_updates_are_told_by_counts() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path(), "log_format = \"json\"", "");
    let mut web = Web::connect(process.address).await;
    web.call(PUBLISH, &publish("a")).await;
    let mut stream = Web::connect(process.address).await;
    let head = stream.open(SUBSCRIBE).await;
    stream.send_chunk(&framed(&update(&group_topic(1)))).await;
    for _ in 0..3 {
        stream
            .frame()
            .await
            .expect("a start, an acknowledgement and an envelope");
    }
    let topics = "xmtp_stream_topics_registered";
    let text = process
        .scrape(|text| number(text, topics) == Some(1.0))
        .await;
    for (series, value) in [
        ("xmtp_stream_sessions{kind=\"subscribe\"}", 1.0),
        ("xmtp_stream_frames_sent_total{kind=\"started\"}", 1.0),
        ("xmtp_stream_frames_sent_total{kind=\"applied\"}", 1.0),
        ("xmtp_stream_frames_received_total{kind=\"update\"}", 1.0),
        ("xmtp_stream_envelopes_sent_total", 1.0),
        ("xmtp_stream_updates_total", 1.0),
        ("xmtp_publish_envelopes_total{outcome=\"stored\"}", 1.0),
        ("xmtp_tailer_ready", 1.0),
    ] {
        assert_eq!(number(&text, series), Some(value), "{series}");
    }
    let line = process.line(|line| line.contains("a stream accepts an update"));
    let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(line["fields"]["adds"], 1);
    assert_eq!(line["fields"]["removes"], 0);
    let id = head.headers.get("x-request-id").unwrap();
    assert_eq!(line["span"]["request_id"], id);

    stream.send_chunk(&[]).await;
    let ended = "xmtp_stream_ended_total{kind=\"subscribe\",code=\"OK\"}";
    let text = process
        .scrape(|text| number(text, ended).is_some() && number(text, topics) == Some(0.0))
        .await;
    assert_eq!(
        number(&text, "xmtp_stream_sessions{kind=\"subscribe\"}"),
        Some(0.0)
    );
}

/// Makes the update that adds a topic.
fn update(topic: &Topic) -> SubscribeRequest {
    let update = Update {
        id: 1,
        adds: vec![from(topic, 0)],
        removes: Vec::new(),
    };
    SubscribeRequest {
        request: Some(Request::Update(update)),
    }
}

#[tokio::test]
async fn the_metrics_port_serves_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path(), "", "");
    for line in ["GET /", "POST /metrics", "GET /metrics/x"] {
        let mut web = Web::connect(process.metrics).await;
        web.send_head(line, &[]).await;
        assert_eq!(web.head().await.status, 404, "{line}");
    }
}

/// covers: CFG-012
#[tokio::test]
async fn each_finished_request_is_logged_with_its_id_and_the_identifier() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path(), "log_format = \"json\"", "");
    let mut web = Web::connect(process.address).await;
    let (head, _) = web.call(PUBLISH, &publish("a")).await;
    let id = head.headers.get("x-request-id").unwrap();
    let line = process.line(|line| line.contains("a request is complete"));
    let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    let fields = &line["fields"];
    assert_eq!(fields["request_id"], id);
    assert_eq!(fields["identifier"], IDENTIFIER);
    assert_eq!(fields["service"], "xmtp.backend.v1.PublishService");
    assert_eq!(fields["method"], "Publish");
    assert_eq!(fields["code"], "OK");
    assert_eq!(fields["request_bytes"], framed(&publish("a")).len());
    assert!(fields["response_bytes"].as_u64().unwrap() > 0);
    assert!(fields["duration_ms"].is_u64());
}

#[tokio::test]
async fn requests_are_not_logged_when_nobody_asks() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = Process::start(folder.path(), "request_logger = false", "");
    let mut web = Web::connect(process.address).await;
    web.call(PUBLISH, &publish("a")).await;
    assert!(process.terminate().success());
    process.line(|line| line.contains("the server has stopped"));
    assert!(!process.log().contains("a request is complete"));
}

/// covers: CFG-011
#[tokio::test]
async fn spans_reach_the_collector_before_the_program_ends() {
    let (collector, endpoint) = Collector::start().await;
    let folder = tempfile::tempdir().unwrap();
    let telemetry = format!(
        "otlp_endpoint = \"{endpoint}\"\notlp_logs = true\nservice_name = \"edge\"\n\
         resource_attributes = {{ zone = \"b\" }}"
    );
    let mut process = Process::start(folder.path(), "", &telemetry);
    let mut web = Web::connect(process.address).await;
    let traceparent = format!("00-{TRACE}-{PARENT}-01");
    let headers = [("traceparent", traceparent.as_str())];
    web.post(PUBLISH, &headers, &framed(&publish("a"))).await;
    web.rest().await;
    let stopped = tokio::task::spawn_blocking(move || (process.terminate(), process));
    let (status, _process) = stopped.await.unwrap();
    assert!(status.success());

    let span = collector.span("xmtp.backend.v1.PublishService/Publish");
    assert_eq!(span.trace_id, hex::decode(TRACE).unwrap());
    assert_eq!(span.parent_span_id, hex::decode(PARENT).unwrap());
    for inner in ["publish.parse_publish", "publish.validate_publish"] {
        assert_eq!(
            collector.span(inner).parent_span_id,
            span.span_id,
            "{inner}"
        );
    }
    let attribute = |name| collector.resource_attribute(name);
    assert_eq!(
        attribute("xmtp.backend.identifier").as_deref(),
        Some(IDENTIFIER)
    );
    assert_eq!(attribute("service.name").as_deref(), Some("edge"));
    assert_eq!(attribute("zone").as_deref(), Some("b"));
    assert!(collector.records() > 0);
}

/// Whom a collector is trusted by is what the machine says, and one that is not trusted gets nothing.
#[tokio::test]
async fn spans_reach_a_collector_over_tls_that_is_trusted() {
    for is_trusted in [true, false] {
        let (collector, endpoint) = Collector::start_with_tls().await;
        let folder = tempfile::tempdir().unwrap();
        let telemetry = format!("otlp_endpoint = \"{endpoint}\"");
        let none = folder.path().join("none.pem");
        std::fs::write(&none, "").unwrap();
        let roots = if is_trusted { authority() } else { none };
        let variables = [("SSL_CERT_FILE", roots.as_path())];
        let mut process = Process::start_with(folder.path(), "", &telemetry, &variables);
        let mut web = Web::connect(process.address).await;
        web.call(PUBLISH, &publish("a")).await;
        let stopped = tokio::task::spawn_blocking(move || (process.terminate(), process));
        let (status, _process) = stopped.await.unwrap();
        assert!(status.success());
        assert_eq!(!collector.spans().is_empty(), is_trusted);
    }
}

#[tokio::test]
async fn a_collector_that_is_away_holds_nothing_up() {
    let folder = tempfile::tempdir().unwrap();
    let telemetry = "otlp_endpoint = \"http://127.0.0.1:1\"";
    let mut process = Process::start(folder.path(), "", telemetry);
    let mut web = Web::connect(process.address).await;
    web.call(PUBLISH, &publish("a")).await;
    let failed = "xmtp_telemetry_export_failures_total{signal=\"traces\"}";
    process.scrape(|text| number(text, failed).is_some()).await;
    assert!(process.terminate().success());
}

/// Bytes that nothing but the named part of a request holds.
const PAYLOAD: &str = "a-payload-that-nothing-may-tell";
const TOKEN: &str = "a-token-that-nothing-may-tell";
const HEADER: &str = "a-header-that-nothing-may-tell";
const PATH: &str = "a-path-that-nothing-may-tell";
const GROUP: u8 = 0xa7;

/// covers: EXT-007
#[tokio::test]
async fn nothing_of_a_request_is_told() {
    let (collector, endpoint) = Collector::start().await;
    let folder = tempfile::tempdir().unwrap();
    let telemetry = format!("otlp_endpoint = \"{endpoint}\"\notlp_logs = true");
    let mut process = Process::start(folder.path(), "log_level = \"trace\"", &telemetry);
    let bearer = format!("Bearer {TOKEN}");
    let headers = [
        ("authorization", bearer.as_str()),
        ("x-app-version", HEADER),
        ("x-libxmtp-version", HEADER),
        ("user-agent", HEADER),
        ("x-request-id", HEADER),
    ];
    let mut web = Web::connect(process.address).await;
    let envelopes = vec![message(GROUP, PAYLOAD)];
    web.post(PUBLISH, &headers, &framed(&PublishRequest { envelopes }))
        .await;
    web.rest().await;
    let queries = vec![from(&group_topic(GROUP), 0)];
    web.post(
        QUERY,
        &headers,
        &framed(&QueryRequest { queries, limit: 0 }),
    )
    .await;
    web.rest().await;
    web.post(QUERY, &headers, PAYLOAD.as_bytes()).await;
    web.rest().await;
    let mut web = Web::connect(process.address).await;
    web.post(&format!("/{PATH}/{PATH}?{PATH}"), &headers, &[])
        .await;
    let mut stream = Web::connect(process.address).await;
    let open = [
        ("content-type", WEB),
        ("transfer-encoding", "chunked"),
        headers[0],
    ];
    stream.send_head(&format!("POST {SUBSCRIBE}"), &open).await;
    stream.head().await;
    stream.frame().await.expect("the first frame");
    stream
        .send_chunk(&framed(&update(&group_topic(GROUP))))
        .await;
    for _ in 0..2 {
        stream
            .frame()
            .await
            .expect("an acknowledgement and the envelope");
    }
    stream.send_chunk(&[]).await;
    stream.rest().await;
    let numbers = process.scrape(|text| text.contains("\"unknown\"")).await;
    let stopped = tokio::task::spawn_blocking(move || (process.terminate(), process));
    let (status, process) = stopped.await.unwrap();
    assert!(status.success());
    process.line(|line| line.contains("the server has stopped"));

    let told = [
        ("the log", process.log()),
        ("the numbers", numbers),
        ("the collector", collector.all()),
    ];
    let group = [GROUP; 16];
    let debug = format!("{group:?}");
    let secrets = [
        PAYLOAD.to_owned(),
        hex::encode(PAYLOAD),
        format!("{:?}", PAYLOAD.as_bytes()),
        TOKEN.to_owned(),
        HEADER.to_owned(),
        PATH.to_owned(),
        hex::encode(group),
        debug[1..debug.len() - 1].to_owned(),
    ];
    for (place, text) in &told {
        assert!(!text.is_empty(), "{place} is empty");
        for secret in &secrets {
            assert!(!text.contains(secret), "{place} tells {secret}");
        }
    }
    assert!(!collector.spans().is_empty() && collector.records() > 0);
}
