//! Cases of the streams.

use std::collections::BTreeSet;

use futures_util::StreamExt;
use futures_util::future::join_all;
use xmtp_proto::backend::v1;
use xmtp_proto::backend::v1::subscribe_request::{Request, Update};
use xmtp_proto::backend::v1::subscribe_response::Response;
use xmtp_proto::backend::v1::subscribe_static_response::Response as Fixed;

use super::TransportFixture;
use super::script::{Stream, after_cursor, meta, publish, sequence, sequences};
use crate::transport::TransportError;

/// Concurrent publishers of one topic.
const PUBLISHERS: u32 = 40;

type Fixture<'a> = &'a dyn TransportFixture;

pub(super) async fn started_first(fixture: Fixture<'_>) {
    publish(fixture, 1, [0]).await;
    let mut subscription = fixture
        .transport()
        .subscribe()
        .await
        .expect("a stream opens");
    let first = subscription
        .frames
        .next()
        .await
        .expect("a frame")
        .expect("a good frame");
    assert!(
        matches!(first.response, Some(Response::Started(_))),
        "{first:?}"
    );
}

pub(super) async fn applied_before_messages(fixture: Fixture<'_>) {
    let metas = publish(fixture, 1, 0..4).await;
    let sequence_ids: Vec<u64> = metas.iter().map(sequence).collect();
    let mut stream = Stream::open(fixture).await;
    let adds = vec![
        after_cursor(fixture, 1, sequence_ids[1]),
        after_cursor(fixture, 2, 0),
    ];
    stream
        .update(Update {
            id: 9,
            adds,
            removes: vec![],
        })
        .await;

    let applied = stream.applied().await;
    assert_eq!(applied.id, 9);
    let target = |seed, through_sequence_id| v1::CatchupTarget {
        topic: Some(fixture.topic(seed)),
        through_sequence_id,
    };
    assert_eq!(
        applied.added_targets,
        [target(1, sequence_ids[3]), target(2, 0)]
    );
    let envelopes = stream.messages(2).await;
    assert_eq!(sequences(&envelopes), sequence_ids[2..]);
    assert_eq!(envelopes[0].envelope, Some(fixture.envelope(1, 2)));
}

pub(super) async fn live_delivery(fixture: Fixture<'_>) {
    let mut stream = Stream::following(fixture, &[1, 2]).await;
    for (seed, n) in [(1, 0), (2, 0), (1, 1)] {
        let metas = publish(fixture, seed, [n]).await;
        let envelopes = stream.messages(1).await;
        assert_eq!(meta(&envelopes[0]), &metas[0]);
        assert_eq!(envelopes[0].envelope, Some(fixture.envelope(seed, n)));
    }
}

pub(super) async fn whole_and_in_order(fixture: Fixture<'_>) {
    let mut stream = Stream::following(fixture, &[1]).await;
    let publishers = join_all((0..PUBLISHERS).map(|n| publish(fixture, 1, [n])));
    let count = PUBLISHERS as usize;
    let (published, delivered) = futures_util::join!(publishers, stream.messages(count));
    let published: BTreeSet<u64> = published.iter().flatten().map(sequence).collect();
    assert_eq!(
        sequences(&delivered),
        published.into_iter().collect::<Vec<_>>()
    );
}

pub(super) async fn removed_topic(fixture: Fixture<'_>) {
    let mut stream = Stream::following(fixture, &[1, 2]).await;
    let removes = vec![fixture.topic(1), fixture.topic(3)];
    stream
        .update(Update {
            id: 2,
            adds: vec![],
            removes,
        })
        .await;
    assert_eq!(stream.applied().await.id, 2);
    publish(fixture, 1, [0]).await;
    let metas = publish(fixture, 2, [0]).await;
    assert_eq!(sequences(&stream.messages(1).await), [sequence(&metas[0])]);
}

pub(super) async fn ping(fixture: Fixture<'_>) {
    let mut stream = Stream::open(fixture).await;
    for nonce in [7, u64::MAX, 0] {
        let ping = Request::Ping(v1::Ping { nonce });
        stream
            .send(Some(ping))
            .await
            .expect("an open stream takes requests");
        match stream.frame().await {
            Response::Pong(pong) => assert_eq!(pong.nonce, nonce),
            other => panic!("not Pong but {other:?}"),
        }
    }
}

pub(super) async fn update_id_repeats(fixture: Fixture<'_>) {
    let mut stream = Stream::following(fixture, &[1]).await;
    let adds = vec![after_cursor(fixture, 2, 0)];
    stream
        .update(Update {
            id: 1,
            adds,
            removes: vec![],
        })
        .await;
    assert_refused(&stream.error().await);
    assert!(stream.next().await.is_none(), "an error is the end");
}

pub(super) async fn unset_request(fixture: Fixture<'_>) {
    let mut stream = Stream::open(fixture).await;
    stream
        .send(None)
        .await
        .expect("an open stream takes requests");
    assert_refused(&stream.error().await);
}

fn assert_refused(error: &TransportError) {
    assert!(
        matches!(error, TransportError::InvalidArgument { .. }),
        "{error:?}"
    );
}

pub(super) async fn half_close(fixture: Fixture<'_>) {
    let Stream { subscription } = Stream::following(fixture, &[1]).await;
    drop(subscription.requests);
    let rest: Vec<_> = subscription.frames.collect().await;
    assert!(rest.iter().all(Result::is_ok), "{rest:?}");
}

pub(super) async fn dropped_subscription(fixture: Fixture<'_>) {
    let mut kept = Stream::following(fixture, &[1]).await;
    for _ in 0..20 {
        drop(Stream::following(fixture, &[1]).await);
    }
    let metas = publish(fixture, 1, [0]).await;
    assert_eq!(sequences(&kept.messages(1).await), [sequence(&metas[0])]);
}

pub(super) async fn requests_after_the_end(fixture: Fixture<'_>) {
    let mut stream = Stream::open(fixture).await;
    stream
        .send(None)
        .await
        .expect("an open stream takes requests");
    stream.error().await;
    // The end travels on its own; requests sent before it arrives go nowhere.
    while stream
        .send(Some(Request::Ping(v1::Ping { nonce: 1 })))
        .await
        .is_ok()
    {}
}

pub(super) async fn stopping_backend(fixture: Fixture<'_>) {
    let mut stream = Stream::following(fixture, &[1]).await;
    let (error, ()) = futures_util::join!(stream.error(), fixture.stop_backend());
    assert!(
        matches!(error, TransportError::Unavailable { .. }),
        "{error:?}"
    );
    assert!(stream.next().await.is_none(), "an error is the end");
}

pub(super) async fn fixed_stream(fixture: Fixture<'_>) {
    let metas = publish(fixture, 1, 0..3).await;
    let topics = vec![after_cursor(fixture, 2, 0), after_cursor(fixture, 1, 0)];
    let opened = fixture
        .transport()
        .subscribe_static(v1::SubscribeStaticRequest { topics })
        .await;
    let mut frames = match opened {
        Ok(frames) => frames.map(|frame| frame.expect("the stream is well").response),
        Err(error) => return assert_eq!(error, TransportError::Unimplemented),
    };
    let Some(Some(Fixed::Started(started))) = frames.next().await else {
        panic!("the first frame is not Started");
    };
    let heads: Vec<u64> = started
        .targets
        .iter()
        .map(|it| it.through_sequence_id)
        .collect();
    assert_eq!(heads, [0, sequence(&metas[2])]);

    let mut delivered = Vec::new();
    while delivered.len() < metas.len() {
        match frames.next().await.expect("the stream goes on") {
            Some(Fixed::Messages(messages)) => delivered.extend(messages.envelopes),
            Some(Fixed::Keepalive(_)) => {}
            other => panic!("not Messages but {other:?}"),
        }
    }
    assert_eq!(
        sequences(&delivered),
        metas.iter().map(sequence).collect::<Vec<_>>()
    );
}
