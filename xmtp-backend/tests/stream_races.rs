//! Publishers, registrations and fetches that cross each other on a stream.

mod common;

use std::sync::Arc;

use common::*;
use tokio::sync::{Semaphore, mpsc};
use xmtp_backend::hooks::{Hooks, Point, Verdict};
use xmtp_proto::backend::v1::subscribe_response::Response;

/// Holds streams at one point until the test lets them go.
#[derive(Debug)]
struct HoldAt {
    point: Point,
    reached: mpsc::UnboundedSender<()>,
    go: Semaphore,
}

impl HoldAt {
    fn new(point: Point) -> (Arc<Self>, mpsc::UnboundedReceiver<()>) {
        let (reached, arrivals) = mpsc::unbounded_channel();
        (
            Arc::new(Self {
                point,
                reached,
                go: Semaphore::new(0),
            }),
            arrivals,
        )
    }
}

#[tonic::async_trait]
impl Hooks for HoldAt {
    async fn reach(&self, point: Point) -> Verdict {
        if point == self.point {
            let _ = self.reached.send(());
            self.go.acquire().await.expect("it stays open").forget();
        }
        Verdict::Go
    }
}

/// covers: STR-004, STR-010
#[tokio::test]
async fn a_publish_that_races_a_registration_is_delivered_once() {
    for point in [Point::Registered, Point::HeadsRead, Point::Fetched] {
        let (hooks, mut arrivals) = HoldAt::new(point);
        let mut config = config();
        config.hooks = hooks.clone();
        let peer = Peer::start(config).await;
        let mut expected = publish_texts(&peer, 1, &["before"]).await;
        let mut stream = opened(&peer).await;
        stream
            .update(1, vec![from(&group_topic(1), 0)], vec![])
            .await;
        arrivals.recv().await.unwrap();
        expected.extend(publish_texts(&peer, 1, &["within"]).await);
        hooks.go.add_permits(100);
        let Response::Applied(applied) = stream.frame().await else {
            panic!("a message came before the acknowledgement");
        };
        let head = applied.added_targets[0].through_sequence_id;
        let seen = if point == Point::Registered {
            expected[1]
        } else {
            expected[0]
        };
        assert_eq!(head, seen, "{point:?}");
        expected.extend(publish_texts(&peer, 1, &["after"]).await);
        assert_eq!(stream.ids(3).await, expected, "{point:?}");
    }
}

/// covers: STR-007, STR-008
#[tokio::test]
async fn a_fetch_for_a_removed_registration_is_dropped() {
    let (hooks, mut arrivals) = HoldAt::new(Point::Fetched);
    let mut config = config();
    config.hooks = hooks.clone();
    let peer = Peer::start(config).await;
    let ids = publish_texts(&peer, 1, &["a", "b"]).await;
    let mut stream = opened(&peer).await;
    stream
        .update(1, vec![from(&group_topic(1), 0)], vec![])
        .await;
    arrivals.recv().await.unwrap();
    stream.update(2, vec![], vec![group_topic(1)]).await;
    stream
        .update(3, vec![from(&group_topic(1), ids[0])], vec![])
        .await;
    for id in 1..=3 {
        let Response::Applied(applied) = stream.frame().await else {
            panic!("a stale message")
        };
        assert_eq!(applied.id, id);
    }
    hooks.go.add_permits(100);
    assert_eq!(
        stream.ids(1).await,
        ids[1..],
        "only the new registration's rows come"
    );
}

/// covers: STR-010, STR-016
#[tokio::test]
async fn many_topics_under_concurrent_publishers_lose_nothing() {
    const TOPICS: u8 = 8;
    const ROUNDS: usize = 25;
    let peer = Arc::new(Peer::ephemeral().await);
    let publishers = (0..4).map(|publisher| {
        let peer = peer.clone();
        tokio::spawn(async move {
            for round in 0..ROUNDS {
                let text = format!("{publisher} {round}");
                let envelopes = (0..TOPICS).map(|group| message(group, &text)).collect();
                peer.publish(envelopes).await.unwrap();
            }
        })
    });
    let publishers: Vec<_> = publishers.collect();
    let mut stream = opened(&peer).await;
    for group in 0..TOPICS {
        stream
            .update(
                u64::from(group) + 1,
                vec![from(&group_topic(group), 0)],
                vec![],
            )
            .await;
    }
    let per_topic = ROUNDS * 4;
    let mut received = vec![Vec::new(); TOPICS.into()];
    let (mut applied, mut count) = (0, 0);
    while count < per_topic * usize::from(TOPICS) {
        match stream.frame().await {
            Response::Applied(_) => applied += 1,
            Response::Messages(messages) => {
                for envelope in messages.envelopes {
                    let topic = topic_of(envelope.meta.as_ref().unwrap());
                    received[usize::from(topic.topic[1])].push(id_of(&envelope));
                    count += 1;
                }
            }
            other => panic!("unexpected: {other:?}"),
        }
    }
    assert_eq!(applied, TOPICS);
    for publisher in publishers {
        publisher.await.unwrap();
    }
    for (group, received) in (0..TOPICS).zip(received) {
        let stored: Vec<u64> = peer
            .read(&group_topic(group))
            .await
            .iter()
            .map(id_of)
            .collect();
        assert_eq!(received, stored);
    }
}
