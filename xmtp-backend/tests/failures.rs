//! What a caller is told of each failure, and each bound of a call at its value and beyond it.

mod common;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use common::web::{http2, plain};
use common::*;
use http::Method;
use http::uri::PathAndQuery;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::{Code, Request, Status, async_trait};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_prost::ProstCodec;
use xmtp_backend::Config;
use xmtp_backend::hooks::{Call, Hooks, Point, Verdict};
use xmtp_proto::backend::v1::get_inbox_ids_request::Request as Lookup;
use xmtp_proto::backend::v1::identity_service_client::IdentityServiceClient;
use xmtp_proto::backend::v1::publish_error::Reason;
use xmtp_proto::backend::v1::query_service_client::QueryServiceClient;
use xmtp_proto::backend::v1::{
    GetInboxIdsRequest, PublishRequest, QueryNewestRequest, QueryRequest,
};
use xmtp_proto::prost::Message;
use xmtp_proto::status::Details;

const PUBLISH: &str = "/xmtp.backend.v1.PublishService/Publish";
const SUBSCRIBE: &str = "/xmtp.backend.v1.SubscriptionService/Subscribe";
const CONFIGURATION: &str = "/xmtp.backend.v1.ConfigurationService/GetConfiguration";
const HEALTH: &str = "/grpc.health.v1.Health/Check";
const NATIVE: [(&str, &str); 2] = [("content-type", "application/grpc"), ("te", "trailers")];

fn details(status: &Status) -> Details {
    Details::decode(status.details())
}

fn assert_failed(status: &Status, code: Code, reason: &str) {
    assert_eq!(status.code(), code, "{status:?}");
    assert_eq!(details(status).reason.as_deref(), Some(reason));
    let asks = details(status).retry_after.is_some();
    assert_eq!(asks, code == Code::Unavailable);
}

/// Sends bytes as the message of a unary call.
async fn send(peer: &Peer, path: &str, message: &[u8]) -> Result<(), Status> {
    let length = u32::try_from(message.len()).unwrap();
    let body = [&[0], length.to_be_bytes().as_slice(), message].concat();
    let response = http2(peer, Method::POST, path, &NATIVE, body).await;
    let status = match Status::from_header_map(response.headers()) {
        Some(status) => status,
        None => {
            let body = http_body_util::BodyExt::collect(response.into_body()).await;
            let body = body.unwrap();
            Status::from_header_map(body.trailers().unwrap()).unwrap()
        }
    };
    match status.code() {
        Code::Ok => Ok(()),
        _ => Err(status),
    }
}

/// Pads a message with an unknown field to a length.
fn padded(message: &[u8], length: usize) -> Vec<u8> {
    let tag = 15 << 3 | 2;
    let mut padding = length - message.len() - 2;
    loop {
        let mut bytes = [message, &[tag]].concat();
        xmtp_proto::prost::encoding::encode_varint(padding as u64, &mut bytes);
        if bytes.len() + padding <= length {
            bytes.resize(bytes.len() + padding, 0);
            assert_eq!(bytes.len(), length);
            return bytes;
        }
        padding -= 1;
    }
}

#[tokio::test]
async fn a_request_may_be_as_large_as_the_transport_takes_and_no_larger() {
    let peer = Peer::ephemeral().await;
    let limit = 26_214_400;
    send(&peer, PUBLISH, &padded(&[], limit))
        .await
        .expect("it is accepted");
    let refused = send(&peer, PUBLISH, &padded(&[], limit + 1)).await;
    assert_failed(&refused.unwrap_err(), Code::OutOfRange, "REQUEST_TOO_LARGE");
}

#[tokio::test]
async fn what_is_open_to_everybody_takes_only_small_requests() {
    let peer = Peer::ephemeral().await;
    for path in [CONFIGURATION, HEALTH] {
        send(&peer, path, &padded(&[], 4096)).await.unwrap();
        for length in [4097, 8192] {
            let refused = send(&peer, path, &padded(&[], length)).await;
            assert_failed(&refused.unwrap_err(), Code::OutOfRange, "REQUEST_TOO_LARGE");
        }
    }
}

#[tokio::test]
async fn a_response_may_be_as_large_as_the_limit_and_no_larger() {
    let envelopes: Vec<_> = ('a'..'k')
        .map(|text| message(1, &text.to_string()))
        .collect();
    let ask = || QueryRequest {
        queries: vec![from(&group_topic(1), 0)],
        limit: 0,
    };
    let peer = Peer::ephemeral().await;
    peer.publish(envelopes.clone()).await.unwrap();
    // The times of servers differ, and their lengths do not.
    let length = peer.query(ask()).await.unwrap().encoded_len() as u64;
    for (limit, fits) in [(length, true), (length - 1, false)] {
        let mut config = Config::ephemeral(IDENTIFIER);
        config.limits.max_response_bytes = limit;
        config.limits.max_envelope_bytes = 200;
        let peer = Peer::start(config).await;
        peer.publish(envelopes.clone()).await.unwrap();
        match peer.query(ask()).await {
            Ok(_) => assert!(fits, "{limit}"),
            Err(refused) => {
                assert!(!fits, "{limit}");
                assert_failed(&refused, Code::OutOfRange, "RESPONSE_TOO_LARGE");
            }
        }
    }
}

/// An unknown algorithm takes five bytes where ten would be right, so that what is stored is longer
/// than what was sent.
fn short_algorithm() -> Vec<u8> {
    let mut welcome = Vec::new();
    let field = |number: u8, bytes: &[u8]| {
        let length = u8::try_from(bytes.len()).unwrap();
        [&[number << 3 | 2, length], bytes].concat()
    };
    welcome.extend(field(1, &[7; 32]));
    welcome.extend(field(2, &[1; 40]));
    welcome.extend([4 << 3, 0xff, 0xff, 0xff, 0xff, 0x0f]);
    let envelope = field(2, &field(1, &welcome));
    field(1, &envelope)
}

#[tokio::test]
async fn what_grows_when_it_is_stored_is_measured_as_it_is_stored() {
    let wire = short_algorithm();
    let request = PublishRequest::decode(wire.as_slice()).unwrap();
    assert_eq!(request.encoded_len(), wire.len() + 5);
    for (limit, fits) in [
        (wire.len() + 5, true),
        (wire.len() + 4, false),
        (wire.len(), false),
    ] {
        let mut config = Config::ephemeral(IDENTIFIER);
        config.limits.max_request_bytes = limit as u64;
        config.limits.max_envelope_bytes = wire.len() as u64 - 40;
        let peer = Peer::start(config).await;
        let answer = send(&peer, PUBLISH, &wire).await;
        match fits {
            // The request fits, and its one envelope is over the limit of its own.
            true => assert_refused(&answer.unwrap_err(), Reason::TooLarge, Some(0)),
            false => assert_refused(&answer.unwrap_err(), Reason::TooLarge, None),
        }
    }
    let mut config = Config::ephemeral(IDENTIFIER);
    config.limits.max_request_bytes = wire.len() as u64 - 1;
    config.limits.max_envelope_bytes = wire.len() as u64 - 40;
    let peer = Peer::start(config).await;
    let refused = send(&peer, PUBLISH, &wire).await.unwrap_err();
    assert_failed(&refused, Code::OutOfRange, "REQUEST_TOO_LARGE");
}

#[tokio::test]
async fn bytes_that_are_no_message_are_the_callers_fault() {
    let peer = Peer::ephemeral().await;
    let refused = send(&peer, PUBLISH, b"\xff\xff\xff").await.unwrap_err();
    assert_failed(&refused, Code::InvalidArgument, "MALFORMED_REQUEST");
    let refused = send(&peer, SUBSCRIBE, b"\xff\xff\xff").await.unwrap_err();
    assert_failed(&refused, Code::InvalidArgument, "MALFORMED_REQUEST");
}

#[tokio::test]
async fn every_refusal_of_a_call_has_its_reason() {
    let peer = Peer::ephemeral().await;
    let mut query = QueryServiceClient::new(peer.channel.clone());
    let bad = vec![from(&group_topic(1), u64::MAX)];
    let refused = query
        .query(QueryRequest {
            queries: bad,
            limit: 0,
        })
        .await;
    assert_failed(
        &refused.unwrap_err(),
        Code::InvalidArgument,
        "MALFORMED_REQUEST",
    );
    let many = vec![from(&group_topic(1), 0); 1001];
    let refused = query
        .query(QueryRequest {
            queries: many,
            limit: 0,
        })
        .await;
    assert_failed(
        &refused.unwrap_err(),
        Code::InvalidArgument,
        "TOO_MANY_ITEMS",
    );
    let refused = peer.publish(vec![Default::default()]).await.unwrap_err();
    assert_failed(&refused, Code::InvalidArgument, "PUBLISH_REFUSED");
    assert_refused(&refused, Reason::MalformedPayload, Some(0));
    let refused = send(&peer, "/xmtp.backend.v1.QueryService/Get", &[]).await;
    assert_failed(&refused.unwrap_err(), Code::Unimplemented, "UNKNOWN_METHOD");
    let refused = send(&peer, HEALTH, b"\x0a\x01x").await;
    assert_failed(&refused.unwrap_err(), Code::NotFound, "NOT_FOUND");
    let response = http2(
        &peer,
        Method::POST,
        PUBLISH,
        &[NATIVE[0], NATIVE[1], ("grpc-encoding", "gzip")],
        Vec::new(),
    )
    .await;
    let refused = Status::from_header_map(response.headers()).unwrap();
    assert_failed(&refused, Code::Unimplemented, "COMPRESSED_REQUEST");
    assert!(plain(response.headers()).get("x-request-id").is_some());
}

#[tokio::test]
async fn every_end_of_a_stream_has_its_reason() {
    let mut config = Config::ephemeral(IDENTIFIER);
    config.limits.max_update_burst = 1;
    config.limits.max_update_frames_per_second = 1;
    let peer = Peer::start(config).await;
    let mut stream = opened(&peer).await;
    stream.update(0, Vec::new(), Vec::new()).await;
    let refused = stream.failure().await;
    assert_failed(&refused, Code::InvalidArgument, "MALFORMED_REQUEST");
    let mut stream = opened(&peer).await;
    for id in 1..=3 {
        stream.update(id, Vec::new(), Vec::new()).await;
    }
    let refused = stream.failure().await;
    assert_failed(&refused, Code::ResourceExhausted, "RATE_EXCEEDED");
    let mut stream = opened(&peer).await;
    peer.running.stop().await;
    let refused = stream.failure().await;
    assert_failed(&refused, Code::Unavailable, "SERVER_UNAVAILABLE");
}

#[tokio::test]
async fn a_watch_of_the_health_does_not_hold_a_shutdown_up() {
    let mut config = Config::ephemeral(IDENTIFIER);
    config.server.max_drain_duration = Duration::from_secs(3600);
    let peer = Peer::start(config).await;
    let mut watches = Vec::new();
    for service in ["", "xmtp.backend.v1.QueryService"] {
        let service = service.to_owned();
        let request = HealthCheckRequest { service };
        let watch = HealthClient::new(peer.channel.clone()).watch(request).await;
        let mut watch = watch.unwrap().into_inner();
        let first = watch.message().await.unwrap().unwrap();
        assert_eq!(first.status(), ServingStatus::Serving);
        watches.push(watch);
    }
    let stopped = timeout(PATIENCE, peer.running.stop()).await;
    stopped.expect("it does not wait for those who watch");
    for mut watch in watches {
        let last = watch.message().await.unwrap().unwrap();
        assert_eq!(last.status(), ServingStatus::NotServing);
        assert!(watch.message().await.unwrap().is_none());
    }
}

/// Its request comes to an end when the server has long begun to stop.
#[tokio::test]
async fn a_check_of_the_health_during_a_shutdown_says_not_serving() {
    let mut config = Config::ephemeral(IDENTIFIER);
    config.server.max_drain_duration = Duration::from_secs(3600);
    let peer = Peer::start(config).await;
    let (asks, asked) = mpsc::channel(1);
    let mut grpc = Grpc::new(peer.channel.clone());
    grpc.ready().await.unwrap();
    let codec = ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    let request = Request::new(ReceiverStream::new(asked));
    let check = grpc.client_streaming(request, PathAndQuery::from_static(HEALTH), codec);
    let mut check = pin!(check);
    assert!(futures_util::poll!(check.as_mut()).is_pending());
    // What comes later on the same connection tells that the server knows of the check.
    let mut watch = HealthClient::new(peer.channel.clone());
    let watch = watch.watch(HealthCheckRequest::default()).await.unwrap();
    let mut watch = watch.into_inner();
    watch.message().await.unwrap().unwrap();
    let stopped = tokio::spawn(peer.running.stop());
    while watch.message().await.unwrap().is_some() {}
    asks.send(HealthCheckRequest::default()).await.unwrap();
    drop(asks);
    let answer = timeout(PATIENCE, check).await.expect("an answer");
    let status = answer.unwrap().into_inner().status();
    assert_eq!(status, ServingStatus::NotServing);
    timeout(PATIENCE, stopped).await.expect("it stops").unwrap();
}

/// Fails every publish.
#[derive(Debug)]
struct Away;

#[async_trait]
impl Hooks for Away {
    async fn reach(&self, point: Point) -> Verdict {
        match point {
            Point::Call(Call::Publish) => Verdict::Unavailable,
            _ => Verdict::Go,
        }
    }
}

#[tokio::test]
async fn whoever_may_come_back_is_told_when() {
    let mut config = Config::ephemeral(IDENTIFIER);
    config.hooks = Arc::new(Away);
    let peer = Peer::start(config).await;
    let mut pauses = Vec::new();
    for _ in 0..20 {
        let refused = peer.publish(vec![message(1, "a")]).await.unwrap_err();
        assert_failed(&refused, Code::Unavailable, "SERVER_UNAVAILABLE");
        pauses.push(details(&refused).retry_after.unwrap());
    }
    let bounds = Duration::from_secs(1)..Duration::from_secs(5);
    assert!(
        pauses.iter().all(|pause| bounds.contains(pause)),
        "{pauses:?}"
    );
    pauses.sort();
    pauses.dedup();
    assert!(pauses.len() > 1, "callers come back at different times");
}

#[tokio::test]
async fn reads_may_name_as_much_as_their_limits_and_no_more() {
    let peer = Peer::ephemeral().await;
    let mut query = QueryServiceClient::new(peer.channel.clone());
    for (include_full_envelope, limit) in [(true, 100), (false, 1000)] {
        for (count, fits) in [(limit, true), (limit + 1, false)] {
            let topics = vec![group_topic(1); count];
            let request = QueryNewestRequest {
                topics,
                include_full_envelope,
            };
            assert_eq!(query.query_newest(request).await.is_ok(), fits, "{count}");
        }
    }
    let mut identity = IdentityServiceClient::new(peer.channel.clone());
    for (count, fits) in [(250, true), (251, false)] {
        let requests = vec![Lookup::default(); count];
        let found = identity
            .get_inbox_ids(GetInboxIdsRequest { requests })
            .await;
        assert_eq!(found.is_ok(), fits, "{count}");
    }
}

#[tokio::test]
async fn a_page_is_clamped_to_its_limit() {
    let peer = Peer::ephemeral().await;
    let texts = |range: std::ops::Range<u32>| range.map(|number| message(1, &number.to_string()));
    peer.publish(texts(0..1001).collect()).await.unwrap();
    for (limit, count) in [(0, 100), (999, 999), (1000, 1000), (1001, 1000)] {
        let queries = vec![from(&group_topic(1), 0)];
        let page = peer.query(QueryRequest { queries, limit }).await.unwrap();
        assert_eq!(page.envelopes.len(), count);
        assert!(page.continuation.unwrap().has_more);
    }
}

/// What a server says of itself when a connection begins: the value of one of its settings.
async fn setting(peer: &Peer, wanted: u16) -> Option<u32> {
    let mut socket = TcpStream::connect(peer.running.address()).await.unwrap();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    socket.write_all(preface).await.unwrap();
    let mut header = [0; 9];
    socket.read_exact(&mut header).await.unwrap();
    assert_eq!(header[3], 4, "settings come first");
    let length = usize::from(header[1]) << 8 | usize::from(header[2]);
    let mut settings = vec![0; length];
    socket.read_exact(&mut settings).await.unwrap();
    let mut settings = settings.chunks(6);
    let found = settings.find(|entry| entry[..2] == wanted.to_be_bytes())?;
    Some(u32::from_be_bytes(found[2..].try_into().unwrap()))
}

#[tokio::test]
async fn a_connection_is_told_how_many_streams_it_may_have() {
    const MAX_CONCURRENT_STREAMS: u16 = 3;
    let peer = Peer::ephemeral().await;
    assert_eq!(setting(&peer, MAX_CONCURRENT_STREAMS).await, Some(100));
    let mut config = Config::ephemeral(IDENTIFIER);
    config.max_http2_streams = 7;
    let peer = Peer::start(config).await;
    assert_eq!(setting(&peer, MAX_CONCURRENT_STREAMS).await, Some(7));
}
