//! Subscription streams over a real socket.

mod common;

use std::sync::Arc;

use common::*;
use tokio::sync::mpsc;
use tonic::Code;
use xmtp_backend::hooks::{Hooks, Point, Verdict};
use xmtp_proto::backend::v1::subscribe_request::{Request, Update};
use xmtp_proto::backend::v1::subscribe_response::{Applied, Response};
use xmtp_proto::backend::v1::{CatchupTarget, Pong, SubscribeRequest, Topic, TopicQuery};

fn target(topic: &Topic, through_sequence_id: u64) -> CatchupTarget {
    CatchupTarget {
        topic: Some(topic.clone()),
        through_sequence_id,
    }
}

/// covers: STR-001, CFG-091
#[tokio::test]
async fn a_stream_starts_before_anything_is_asked_and_stays_open() {
    let mut config = config();
    config.streams.keepalive_interval_ms = 12_345;
    let peer = Peer::start(config).await;
    let mut stream = peer.subscribe().await;
    assert_eq!(stream.started().await, 12_345);
    publish_texts(&peer, 1, &["a"]).await;
    stream.ping(7).await;
    assert_eq!(
        stream.frame().await,
        Response::Pong(Pong { nonce: 7 }),
        "nothing is registered"
    );
}

/// covers: STR-002, STR-003
#[tokio::test]
async fn bad_updates_fail_the_stream() {
    let peer = Peer::ephemeral().await;
    let (a, b) = (group_topic(1), group_topic(2));
    let cases = [
        (1, vec![from(&a, 0), from(&a, 1)], vec![]),
        (1, vec![], vec![a.clone(), a.clone()]),
        (1, vec![from(&a, 0)], vec![b.clone(), a.clone()]),
        (0, vec![], vec![]),
        (1, vec![TopicQuery::default()], vec![]),
        (
            1,
            vec![from(
                &Topic {
                    topic: vec![9].into(),
                },
                0,
            )],
            vec![],
        ),
        (1, vec![from(&a, 1 << 63)], vec![]),
    ];
    for (id, adds, removes) in cases {
        let mut stream = opened(&peer).await;
        stream.update(id, adds, removes).await;
        assert_eq!(stream.failure().await.code(), Code::InvalidArgument);
    }
    for repeated in [5, 4] {
        let mut stream = opened(&peer).await;
        stream.update(5, vec![from(&a, 0)], vec![]).await;
        stream.update(repeated, vec![], vec![]).await;
        assert_eq!(
            stream.applied().await.id,
            5,
            "what was accepted is acknowledged"
        );
        assert_eq!(stream.failure().await.code(), Code::InvalidArgument);
    }
    let mut stream = opened(&peer).await;
    stream.update(1, vec![], vec![]).await;
    assert_eq!(
        stream.applied().await.id,
        1,
        "a new connection may begin again"
    );
}

/// covers: STR-004, STR-006, STR-012
#[tokio::test]
async fn acknowledgements_carry_fixed_targets_in_order() {
    let peer = Peer::ephemeral().await;
    let ids = publish_texts(&peer, 1, &["a", "b"]).await;
    let (full, empty) = (group_topic(1), welcome_topic(9));
    let mut stream = opened(&peer).await;
    stream
        .update(3, vec![from(&empty, 0), from(&full, ids[0])], vec![])
        .await;
    stream.update(8, vec![], vec![]).await;
    let added_targets = vec![target(&empty, 0), target(&full, ids[1])];
    let Response::Applied(first) = stream.frame().await else {
        panic!("messages came first")
    };
    assert_eq!(
        first,
        Applied {
            id: 3,
            added_targets
        }
    );
    assert_eq!(
        stream.applied().await,
        Applied {
            id: 8,
            added_targets: vec![]
        }
    );
    assert_eq!(stream.ids(1).await, [ids[1]], "the cursor is exclusive");
    let later = publish_texts(&peer, 1, &["c"]).await;
    assert_eq!(
        stream.ids(1).await,
        later,
        "the target does not end the registration"
    );
}

/// covers: STR-012
#[tokio::test]
async fn a_cursor_past_the_head_filters_what_comes_later() {
    let peer = Peer::ephemeral().await;
    let ids = publish_texts(&peer, 1, &["a", "b"]).await;
    let mut stream = opened(&peer).await;
    stream
        .update(1, vec![from(&group_topic(1), ids[1] + 1)], vec![])
        .await;
    assert_eq!(
        stream.applied().await.added_targets,
        [target(&group_topic(1), ids[1])]
    );
    let later = publish_texts(&peer, 1, &["c", "d"]).await;
    assert_eq!(later[0], ids[1] + 1, "this one is at the cursor");
    assert_eq!(stream.ids(1).await, later[1..]);
}

/// covers: STR-005
#[tokio::test]
async fn adding_an_active_topic_changes_nothing() {
    let peer = Peer::ephemeral().await;
    let ids = publish_texts(&peer, 1, &["a", "b"]).await;
    let mut stream = opened(&peer).await;
    stream
        .update(1, vec![from(&group_topic(1), 0)], vec![])
        .await;
    stream.applied().await;
    assert_eq!(stream.ids(2).await, ids);
    for (id, cursor) in [(2, 0), (3, 1000)] {
        stream
            .update(id, vec![from(&group_topic(1), cursor)], vec![])
            .await;
        assert_eq!(
            stream.applied().await,
            Applied {
                id,
                added_targets: vec![]
            }
        );
    }
    let later = publish_texts(&peer, 1, &["c"]).await;
    assert_eq!(stream.ids(1).await, later);
}

/// covers: STR-007, STR-008
#[tokio::test]
async fn a_removed_topic_is_silent_until_it_is_added_again() {
    let peer = Peer::ephemeral().await;
    let topic = group_topic(1);
    let ids = publish_texts(&peer, 1, &["a"]).await;
    let mut stream = opened(&peer).await;
    stream
        .update(1, vec![from(&topic, 0), from(&group_topic(2), 0)], vec![])
        .await;
    stream.applied().await;
    assert_eq!(stream.ids(1).await, ids);
    stream
        .update(2, vec![], vec![topic.clone(), group_topic(3)])
        .await;
    assert_eq!(
        stream.applied().await,
        Applied {
            id: 2,
            added_targets: vec![]
        }
    );
    let missed = publish_texts(&peer, 1, &["b"]).await;
    let heard = publish_texts(&peer, 2, &["c"]).await;
    assert_eq!(stream.ids(1).await, heard);
    stream.update(3, vec![from(&topic, 0)], vec![]).await;
    assert_eq!(
        stream.applied().await.added_targets,
        [target(&topic, missed[0])]
    );
    assert_eq!(stream.ids(2).await, [ids[0], missed[0]]);
}

/// covers: STR-009
#[tokio::test]
async fn structure_and_limits_fail_the_stream() {
    let mut config = config();
    config.limits.max_update_adds = 2;
    config.limits.max_update_removes = 2;
    config.limits.max_stream_topics = 3;
    let peer = Peer::start(config).await;
    let add =
        |range: std::ops::Range<u8>| range.map(|group| from(&group_topic(group), 0)).collect();
    let remove = |range: std::ops::Range<u8>| range.map(group_topic).collect();

    let mut stream = opened(&peer).await;
    stream.send_raw(SubscribeRequest { request: None }).await;
    assert_eq!(stream.failure().await.code(), Code::InvalidArgument);
    for (adds, removes) in [(add(0..3), vec![]), (vec![], remove(0..3))] {
        let mut stream = opened(&peer).await;
        stream.update(1, adds, removes).await;
        assert_eq!(stream.failure().await.code(), Code::InvalidArgument);
    }
    let mut stream = opened(&peer).await;
    stream.update(1, add(0..2), vec![]).await;
    stream.update(2, add(2..4), remove(0..1)).await;
    stream.update(3, add(2..4), vec![]).await;
    for id in 1..=3 {
        assert_eq!(stream.applied().await.id, id);
    }
    stream.update(4, add(4..5), vec![]).await;
    assert_eq!(stream.failure().await.code(), Code::InvalidArgument);
}

/// covers: STR-010, STR-011
#[tokio::test]
async fn history_and_news_come_in_one_order() {
    let peer = Peer::ephemeral().await;
    let mut expected = Vec::new();
    for round in 0..200 {
        expected.extend(publish_texts(&peer, 1, &[&format!("old {round}")]).await);
    }
    let mut stream = opened(&peer).await;
    stream
        .update(
            1,
            vec![from(&group_topic(1), 0), from(&group_topic(2), 0)],
            vec![],
        )
        .await;
    let news = async {
        let mut ids = Vec::new();
        for round in 0..200 {
            ids.extend(publish_texts(&peer, 1, &[&format!("new {round}")]).await);
        }
        ids
    };
    let (news, received) = tokio::join!(news, async {
        stream.applied().await;
        stream.ids(400).await
    });
    expected.extend(news);
    assert_eq!(received, expected);
}

/// covers: STR-032
#[tokio::test]
async fn bursts_beyond_the_buckets_end_the_stream() {
    let mut config = config();
    config.limits.max_update_burst = 3;
    config.limits.max_update_frames_per_second = 1;
    config.limits.max_ping_burst = 3;
    config.limits.max_ping_frames_per_second = 1;
    let peer = Peer::start(config).await;
    let mut stream = opened(&peer).await;
    for nonce in 0..50 {
        stream.pong(nonce).await;
    }
    for id in 1..=8 {
        stream.update(id, vec![], vec![]).await;
    }
    assert_eq!(stream.failure().await.code(), Code::ResourceExhausted);
    let mut stream = opened(&peer).await;
    for nonce in 0..8 {
        stream.ping(nonce).await;
    }
    assert_eq!(stream.failure().await.code(), Code::ResourceExhausted);
}

/// covers: STR-033, STR-034
#[tokio::test]
async fn a_silent_client_is_pinged_and_an_answering_one_kept() {
    let mut config = config();
    config.streams.keepalive_interval_ms = 20;
    config.streams.max_pong_wait_ms = 1500;
    let peer = Peer::start(config).await;
    let mut stream = opened(&peer).await;
    let mut nonces = std::collections::HashSet::new();
    while nonces.len() < 5 {
        let Response::Ping(ping) = stream.frame().await else {
            panic!("not a ping")
        };
        assert!(nonces.insert(ping.nonce));
        stream.pong(ping.nonce).await;
    }
    let Response::Ping(ping) = stream.frame().await else {
        panic!("not a ping")
    };
    stream.pong(ping.nonce.wrapping_add(1)).await;
    assert_eq!(
        stream.failure().await.code(),
        Code::DeadlineExceeded,
        "another nonce is no answer"
    );
}

/// covers: STR-035
#[tokio::test]
async fn half_close_ends_a_stream_cleanly_and_at_once() {
    let peer = Peer::ephemeral().await;
    let mut stream = opened(&peer).await;
    stream.half_close();
    assert_eq!(stream.next().await.unwrap(), None);
}

/// covers: STR-035
#[tokio::test]
async fn a_shutdown_ends_streams_and_later_calls_as_unavailable() {
    let peer = Peer::ephemeral().await;
    let mut stream = opened(&peer).await;
    stream
        .update(1, vec![from(&group_topic(1), 0)], vec![])
        .await;
    stream.applied().await;
    let services = peer.running.services();
    let (failure, ()) = tokio::join!(stream.failure(), peer.running.stop());
    assert_eq!(failure.code(), Code::Unavailable);
    let late = services
        .subscribe(futures_util::stream::pending())
        .await
        .unwrap_err();
    assert_eq!(late.code(), Code::Unavailable);
    let late = services.query(Default::default()).await.unwrap_err();
    assert_eq!(late.code(), Code::Unavailable);
}

/// Fails every read of heads.
#[derive(Debug)]
struct NoHeads;

#[tonic::async_trait]
impl Hooks for NoHeads {
    async fn reach(&self, point: Point) -> Verdict {
        match point {
            Point::Registered => Verdict::Unavailable,
            _ => Verdict::Go,
        }
    }
}

/// covers: STR-035
#[tokio::test]
async fn a_database_failure_ends_the_stream_as_unavailable() {
    let mut config = config();
    config.hooks = Arc::new(NoHeads);
    let peer = Peer::start(config).await;
    let mut stream = opened(&peer).await;
    stream
        .update(1, vec![from(&group_topic(1), 0)], vec![])
        .await;
    assert_eq!(stream.failure().await.code(), Code::Unavailable);
    peer.publish_one(message(1, "a")).await;
}

/// covers: STR-030, STR-031
#[tokio::test]
async fn the_largest_envelopes_reach_a_client_that_reads_late() {
    let peer = Peer::ephemeral().await;
    // Together far more than what waits for one client.
    let text = "x".repeat((1 << 20) - 100);
    let mut ids = Vec::new();
    for number in 0..40 {
        let envelope = message(1, &format!("{number:02}{text}"));
        ids.push(sequence_id(&peer.publish_one(envelope).await));
    }
    let mut slow = opened(&peer).await;
    slow.update(1, vec![from(&group_topic(1), 0)], vec![]).await;
    slow.applied().await;
    let mut quick = opened(&peer).await;
    quick
        .update(1, vec![from(&group_topic(2), 0)], vec![])
        .await;
    quick.applied().await;
    for number in 0..20 {
        let envelope = message(1, &format!("{number:02}{text}y"));
        ids.push(sequence_id(&peer.publish_one(envelope).await));
    }
    let small = publish_texts(&peer, 2, &["a"]).await;
    assert_eq!(
        quick.ids(1).await,
        small,
        "the slow stream holds nobody back"
    );
    assert_eq!(slow.ids(ids.len()).await, ids);
}

#[tokio::test]
async fn streams_run_without_a_socket() {
    use futures_util::StreamExt;
    let services = xmtp_backend::Backend::services(&config()).await.unwrap();
    let (send, receive) = mpsc::channel(4);
    let requests = tokio_stream::wrappers::ReceiverStream::new(receive);
    let mut frames = services.subscribe(requests).await.unwrap();
    let started = frames.next().await.unwrap().unwrap();
    assert!(matches!(started.response, Some(Response::Started(_))));
    let update = Update {
        id: 1,
        adds: vec![from(&group_topic(1), 0)],
        removes: vec![],
    };
    send.send(Ok(SubscribeRequest {
        request: Some(Request::Update(update)),
    }))
    .await
    .unwrap();
    let applied = frames.next().await.unwrap().unwrap();
    assert!(matches!(applied.response, Some(Response::Applied(_))));
    let request = xmtp_proto::backend::v1::PublishRequest {
        envelopes: vec![message(1, "a")],
    };
    services.publish(request).await.unwrap();
    let messages = frames.next().await.unwrap().unwrap();
    assert!(matches!(messages.response, Some(Response::Messages(_))));
    drop(send);
    assert!(frames.next().await.is_none());
    services.close().await;
}
