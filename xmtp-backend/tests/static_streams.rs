//! Streams of fixed topics over a real socket.

mod common;

use common::*;
use tokio::time::timeout;
use tonic::{Code, Status, Streaming};
use xmtp_backend::Config;
use xmtp_proto::backend::v1::subscribe_static_response::{Response, Started};
use xmtp_proto::backend::v1::subscription_service_client::SubscriptionServiceClient;
use xmtp_proto::backend::v1::{
    CatchupTarget, ServerEnvelope, SubscribeStaticRequest, SubscribeStaticResponse, Topic,
    TopicQuery,
};

async fn open(
    peer: &Peer,
    topics: Vec<TopicQuery>,
) -> Result<Streaming<SubscribeStaticResponse>, Status> {
    let client = SubscriptionServiceClient::new(peer.channel.clone());
    let mut client = client.max_decoding_message_size(64 << 20);
    let opened = client.subscribe_static(SubscribeStaticRequest { topics });
    opened.await.map(tonic::Response::into_inner)
}

async fn next(frames: &mut Streaming<SubscribeStaticResponse>) -> Result<Response, Status> {
    let frame = timeout(PATIENCE, frames.message()).await;
    let frame = frame.expect("a frame in time")?.expect("no clean end");
    Ok(frame.response.expect("a frame of some kind"))
}

async fn started(frames: &mut Streaming<SubscribeStaticResponse>) -> Started {
    match next(frames).await.expect("no failure") {
        Response::Started(started) => started,
        other => panic!("not the start: {other:?}"),
    }
}

/// Reads envelopes, over any number of frames.
async fn read(
    frames: &mut Streaming<SubscribeStaticResponse>,
    count: usize,
) -> Vec<ServerEnvelope> {
    let mut envelopes = Vec::new();
    while envelopes.len() < count {
        match next(frames).await.expect("no failure") {
            Response::Messages(messages) => envelopes.extend(messages.envelopes),
            Response::Keepalive(_) => {}
            other => panic!("not messages: {other:?}"),
        }
    }
    envelopes
}

fn numbered(number: u16) -> Topic {
    let mut topic = vec![1; 33];
    topic[1..3].copy_from_slice(&number.to_be_bytes());
    Topic {
        topic: topic.into(),
    }
}

/// covers: STR-050
#[tokio::test]
async fn a_request_names_one_to_ten_thousand_topics_each_once() {
    let peer = Peer::ephemeral().await;
    let topics = |count: u16| {
        (0..count)
            .map(|number| from(&numbered(number), 0))
            .collect()
    };
    let twice = vec![from(&group_topic(1), 0), from(&group_topic(1), 5)];
    let unknown = Topic {
        topic: vec![9].into(),
    };
    let cases: [Vec<TopicQuery>; 6] = [
        vec![],
        topics(10_001),
        twice,
        vec![TopicQuery::default()],
        vec![from(&unknown, 0)],
        vec![from(&group_topic(1), 1 << 63)],
    ];
    for topics in cases {
        let refused = open(&peer, topics).await.expect_err("it is refused");
        assert_eq!(refused.code(), Code::InvalidArgument);
    }
    for count in [1, 10_000] {
        let mut frames = open(&peer, topics(count)).await.expect("it opens");
        assert_eq!(started(&mut frames).await.targets.len(), usize::from(count));
    }
}

/// covers: STR-051, STR-052
#[tokio::test]
async fn the_start_has_every_target_in_order_and_messages_go_on_after_it() {
    let mut config = Config::ephemeral(IDENTIFIER);
    config.streams.keepalive_interval_ms = 12_345;
    let peer = Peer::start(config).await;
    let ids = publish_texts(&peer, 1, &["a", "b", "c"]).await;
    let (full, empty) = (group_topic(1), welcome_topic(9));
    let topics = vec![
        from(&empty, 0),
        from(&full, ids[0]),
        from(&group_topic(2), 99),
    ];
    let mut frames = open(&peer, topics).await.expect("it opens");
    let target = |topic: &Topic, through_sequence_id| CatchupTarget {
        topic: Some(topic.clone()),
        through_sequence_id,
    };
    let start = Started {
        keepalive_interval_ms: 12_345,
        targets: vec![
            target(&empty, 0),
            target(&full, ids[2]),
            target(&group_topic(2), 0),
        ],
    };
    assert_eq!(started(&mut frames).await, start);
    let read_ids: Vec<u64> = read(&mut frames, 2).await.iter().map(id_of).collect();
    assert_eq!(read_ids, ids[1..], "the cursor is exclusive");
    let filtered = publish_texts(&peer, 2, &["below the cursor"]).await;
    assert!(filtered[0] < 99);
    let later = publish_texts(&peer, 1, &["d", "e"]).await;
    let envelopes = read(&mut frames, 2).await;
    let stored = peer.read(&full).await;
    assert_eq!(envelopes, stored[3..], "whole, as a query reads them");
    assert_eq!(envelopes.iter().map(id_of).collect::<Vec<_>>(), later);
}

/// covers: STR-051, STR-052
#[tokio::test]
async fn a_silent_stream_is_kept_alive_without_answers() {
    let mut config = Config::ephemeral(IDENTIFIER);
    config.streams.keepalive_interval_ms = 20;
    config.streams.max_pong_wait_ms = 10_000;
    let peer = Peer::start(config).await;
    let mut frames = open(&peer, vec![from(&group_topic(1), 0)])
        .await
        .expect("it opens");
    started(&mut frames).await;
    for _ in 0..10 {
        let frame = next(&mut frames).await.expect("no failure");
        assert!(matches!(frame, Response::Keepalive(_)), "{frame:?}");
    }
    let ids = publish_texts(&peer, 1, &["a"]).await;
    assert_eq!(id_of(&read(&mut frames, 1).await[0]), ids[0]);
}

/// covers: STR-052
#[tokio::test]
async fn a_shutdown_ends_fixed_streams_as_unavailable() {
    let peer = Peer::ephemeral().await;
    let mut frames = open(&peer, vec![from(&group_topic(1), 0)])
        .await
        .expect("it opens");
    started(&mut frames).await;
    let services = peer.running.services();
    let (failure, ()) = tokio::join!(next(&mut frames), peer.running.stop());
    assert_eq!(failure.expect_err("a failure").code(), Code::Unavailable);
    let request = SubscribeStaticRequest {
        topics: vec![from(&group_topic(1), 0)],
    };
    let late = services.subscribe_static(request).await;
    assert_eq!(late.expect_err("a failure").code(), Code::Unavailable);
}
