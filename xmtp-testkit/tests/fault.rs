//! Faults by script, over a real backend.

use futures_util::StreamExt;
use xmtp_core::transport::{Transport, TransportError};
use xmtp_proto::backend::v1::subscribe_request::{Request, Update};
use xmtp_proto::backend::v1::{
    PublishRequest, QueryNewestRequest, QueryRequest, SubscribeRequest, SubscribeResponse,
    TopicQuery,
};
use xmtp_testkit::{Fault, FaultTransport, Script, TestBackend, mls_bytes};

const GROUP: [u8; 16] = [1; 16];

fn message(n: u8) -> PublishRequest {
    PublishRequest {
        envelopes: vec![mls_bytes::group_message(GROUP, &[n])],
    }
}

fn topic_query() -> TopicQuery {
    TopicQuery {
        topic: Some(mls_bytes::group_topic(GROUP).to_proto()),
        cursor: None,
    }
}

fn query() -> QueryRequest {
    QueryRequest {
        queries: vec![topic_query()],
        limit: 0,
    }
}

fn faulty(backend: &TestBackend, faults: &[Fault]) -> FaultTransport {
    let script = Script::of(faults.iter().copied());
    FaultTransport::new(script, Box::new(backend.in_process()))
}

async fn count(transport: &dyn Transport) -> usize {
    transport
        .query(query())
        .await
        .expect("a page")
        .envelopes
        .len()
}

/// covers: EXT-001
#[tokio::test]
async fn a_dropped_reply_hides_a_publish_that_happened() {
    let backend = TestBackend::start().await;
    let transport = faulty(&backend, &[Fault::DropReply(2), Fault::LosePublish(3)]);
    transport
        .publish(message(1))
        .await
        .expect("the first passes");
    let hidden = transport
        .publish(message(2))
        .await
        .expect_err("its reply is lost");
    assert!(hidden.is_ambiguous() && hidden.is_retryable());
    assert_eq!(count(&transport).await, 2);
    transport.publish(message(3)).await.expect_err("it is lost");
    assert_eq!(count(&transport).await, 2);
    transport
        .publish(message(2))
        .await
        .expect("the same bytes again");
    assert_eq!(count(&transport).await, 2);
    assert_eq!(transport.remaining().to_string(), "no faults");
}

#[tokio::test]
async fn the_named_query_fails_and_no_other() {
    let backend = TestBackend::start().await;
    let transport = faulty(&backend, &[Fault::FailQuery(2)]);
    assert_eq!(count(&transport).await, 0);
    let error = transport
        .query(query())
        .await
        .expect_err("the second fails");
    assert!(matches!(error, TransportError::Unavailable { .. }));
    assert_eq!(count(&transport).await, 0);
}

#[tokio::test]
async fn a_lagging_read_answers_what_the_one_before_saw() {
    let backend = TestBackend::start().await;
    let transport = faulty(&backend, &[Fault::LagNewest(1), Fault::LagNewest(3)]);
    let newest = async || {
        let topics = vec![mls_bytes::group_topic(GROUP).to_proto()];
        let request = QueryNewestRequest {
            topics,
            include_full_envelope: true,
        };
        transport
            .query_newest(request)
            .await
            .expect("the newest")
            .results
    };
    transport.publish(message(1)).await.expect("stored");
    assert!(newest().await.is_empty());
    let first = newest().await;
    assert_eq!(first.len(), 1);
    transport.publish(message(2)).await.expect("stored");
    assert_eq!(newest().await, first);
    assert_ne!(newest().await, first);
}

async fn frames(transport: &dyn Transport) -> Vec<Result<SubscribeResponse, TransportError>> {
    let mut subscription = transport.subscribe().await.expect("a stream");
    let update = Update {
        id: 1,
        adds: vec![topic_query()],
        removes: vec![],
    };
    let request = SubscribeRequest {
        request: Some(Request::Update(update)),
    };
    subscription
        .requests
        .send(request)
        .await
        .expect("an open stream");
    // Started, Applied, and the messages that were there.
    subscription.frames.take(3).collect().await
}

#[tokio::test]
async fn a_stream_is_cut_and_a_frame_is_doubled_where_the_script_says() {
    let backend = TestBackend::start().await;
    let transport = faulty(
        &backend,
        &[Fault::CutBeforeFrame(2), Fault::DuplicateFrame(5)],
    );
    transport.publish(message(1)).await.expect("stored");

    let cut = frames(&transport).await;
    assert!(cut[0].is_ok());
    assert!(matches!(cut[1], Err(TransportError::Unavailable { .. })));
    assert_eq!(cut.len(), 2, "an error is the end");
    // Frame 2 was cut, so frames 3 to 5 are those of the second stream; 5 comes twice.
    let whole = frames(&transport).await;
    assert!(whole.iter().all(Result::is_ok));
    assert_eq!(transport.remaining().to_string(), "no faults");
}

#[test]
fn a_script_says_its_seed_and_its_faults() {
    let script = Script::of([Fault::DropReply(2), Fault::CutBeforeFrame(3)]);
    let words = "drop the reply of publish 2; cut the stream before frame 3";
    assert_eq!(script.to_string(), words);
    let random = Script::random(7, 5);
    assert_eq!(random, Script::random(7, 5));
    assert_ne!(random.faults(), Script::random(8, 5).faults());
    assert!(random.to_string().starts_with("seed 7: "));
}
