//! What a socket adds: failing to connect, connecting again, sizes, and time.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use xmtp_backend::hooks::{Call, Hooks, Point, Verdict};
use xmtp_core::testing::mock::MockRuntime;
use xmtp_core::transport::layer::Retry;
use xmtp_core::transport::{Transport, TransportError};
use xmtp_proto::backend::v1::{PublishRequest, QueryNewestRequest, QueryRequest, TopicQuery};
use xmtp_proto::limits::TRANSPORT_CEILING_BYTES;
use xmtp_testkit::{TestBackend, mls_bytes};
use xmtp_transport_grpc::GrpcTransport;

/// A request timeout that is over before any network answers.
const SHORT: Duration = Duration::from_millis(50);

async fn failure(transport: &GrpcTransport) -> String {
    match transport
        .configuration()
        .await
        .expect_err("nothing answers")
    {
        TransportError::Unavailable { detail, .. } => detail,
        other => panic!("not unavailable but {other:?}"),
    }
}

fn to(url: &str) -> GrpcTransport {
    GrpcTransport::connect_lazy(url).expect("a URL")
}

/// A listener that no other test is given while it is held.
async fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    (listener, address)
}

#[tokio::test]
async fn a_name_that_is_not_found_is_told_as_dns() {
    let detail = failure(&to("http://nowhere.invalid:5050")).await;
    assert!(
        detail.starts_with("nowhere.invalid:5050: DNS: "),
        "{detail}"
    );
}

#[tokio::test]
async fn a_refused_connection_is_told_as_tcp() {
    // Port 1 is privileged, and nothing of a test can listen on it.
    let detail = failure(&to("http://127.0.0.1:1")).await;
    assert!(detail.starts_with("127.0.0.1:1: TCP: "), "{detail}");
    assert!(detail.to_lowercase().contains("refused"), "{detail}");
}

#[tokio::test]
async fn a_peer_without_tls_is_told_as_tls() {
    let (listener, address) = listener().await;
    let peer = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.expect("a client");
        let mut first = [0];
        let _ = socket.read_exact(&mut first).await;
    });
    let detail = failure(&to(&format!("https://{address}"))).await;
    assert!(detail.starts_with(&format!("{address}: TLS: ")), "{detail}");
    peer.await.expect("the peer ends");
}

#[tokio::test]
async fn a_peer_without_http_2_is_told_as_http_2() {
    let (listener, address) = listener().await;
    let peer = tokio::spawn(async move {
        let (socket, _) = listener.accept().await.expect("a client");
        drop(socket);
    });
    let detail = failure(&to(&format!("http://{address}"))).await;
    assert!(
        detail.starts_with(&format!("{address}: HTTP/2: ")),
        "{detail}"
    );
    peer.await.expect("the peer ends");
}

#[tokio::test]
async fn a_call_and_a_stream_that_nobody_answers_run_out_of_time() {
    let (_listener, address) = listener().await;
    let builder = GrpcTransport::builder(format!("http://{address}"));
    let transport = builder
        .request_timeout(SHORT)
        .connect_lazy()
        .expect("a URL");
    let call = transport.configuration().await;
    assert_eq!(call.err(), Some(TransportError::DeadlineExceeded));
    let stream = transport.subscribe().await;
    assert_eq!(stream.err(), Some(TransportError::DeadlineExceeded));
}

/// covers: CFG-071
#[tokio::test]
async fn a_request_over_the_ceiling_is_out_of_range_and_the_connection_goes_on() {
    let backend = TestBackend::start().await;
    let transport = to(&backend.endpoint());
    let bytes = TRANSPORT_CEILING_BYTES as usize;
    let envelopes = vec![mls_bytes::group_message_of([1; 16], bytes)];
    let error = transport.publish(PublishRequest { envelopes }).await;
    assert_eq!(error.err(), Some(TransportError::OutOfRange));
    transport
        .configuration()
        .await
        .expect("the connection goes on");
}

/// Calls read messages far beyond the default limit of the library underneath.
#[tokio::test]
async fn a_page_of_nearly_the_ceiling_is_read() {
    let backend = TestBackend::start().await;
    let transport = to(&backend.endpoint());
    let size = 1024 * 1024;
    let count = TRANSPORT_CEILING_BYTES as usize / size - 1;
    for topic in 0..count {
        let group = [u8::try_from(topic).expect("few topics"); 16];
        let envelopes = vec![mls_bytes::group_message_of(group, size)];
        transport
            .publish(PublishRequest { envelopes })
            .await
            .expect("stored");
    }
    let topics = (0..count).map(|topic| mls_bytes::group_topic([topic as u8; 16]).to_proto());
    let topics: Vec<_> = topics.collect();
    let queries = topics.iter().cloned().map(|topic| TopicQuery {
        topic: Some(topic),
        cursor: None,
    });
    let request = QueryRequest {
        queries: queries.collect(),
        limit: 1_000,
    };
    let page = transport.query(request).await.expect("a page");
    assert_eq!(page.envelopes.len(), count);
    let request = QueryNewestRequest {
        topics,
        include_full_envelope: true,
    };
    let newest = transport.query_newest(request).await.expect("the newest");
    assert_eq!(newest.results.len(), count);
}

/// Fails the first queries.
#[derive(Debug)]
struct Away(AtomicU32);

#[async_trait]
impl Hooks for Away {
    async fn reach(&self, point: Point) -> Verdict {
        let is_left = |left: u32| left.checked_sub(1);
        let is_query = point == Point::Call(Call::Query);
        match is_query && self.0.fetch_update(Relaxed, Relaxed, is_left).is_ok() {
            true => Verdict::Unavailable,
            false => Verdict::Go,
        }
    }
}

/// covers: STR-036
#[tokio::test]
async fn a_read_is_repeated_no_sooner_than_the_backend_asks_for() {
    let backend = TestBackend::start_with(|config| config.hooks = Arc::new(Away(2.into()))).await;
    let pauses = Arc::new(Mutex::new(Vec::new()));
    let mut runtime = MockRuntime::new();
    runtime.expect_monotonic().return_const(Duration::ZERO);
    let slept = pauses.clone();
    runtime.expect_sleep_until().returning(move |until| {
        slept.lock().expect("no panic").push(until);
        Box::pin(async {})
    });
    let retrying = Retry::new(Box::new(to(&backend.endpoint())), Arc::new(runtime));
    let read = retrying.query(QueryRequest::default()).await;
    assert!(!matches!(read, Err(TransportError::Unavailable { .. })));
    let pauses = pauses.lock().expect("no panic");
    let bounds = Duration::from_secs(1)..Duration::from_secs(5);
    assert_eq!(pauses.len(), 2);
    assert!(
        pauses.iter().all(|pause| bounds.contains(pause)),
        "{pauses:?}"
    );
}

#[test]
fn a_transport_is_made_without_a_runtime() {
    let transport = to("http://127.0.0.1:5050/");
    assert_eq!(transport.endpoint(), "http://127.0.0.1:5050/");
    let capability = transport.capability();
    assert_eq!((capability.name, capability.bidirectional), ("grpc", true));
    assert!(!format!("{transport:?}").is_empty());
}
