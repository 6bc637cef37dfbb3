//! Cases of the unary calls.

use futures_util::FutureExt;
use xmtp_proto::backend::v1;
use xmtp_proto::backend::v1::publish_error::Reason;
use xmtp_proto::identity::IdentifierKind;
use xmtp_proto::limits::BACKEND_DEFAULT_MAX_ENVELOPE_BYTES;

use super::TransportFixture;
use super::script::{
    Stream, after_cursor, has_more, meta, publish, publish_all, query, sequence, sequences,
};
use crate::transport::TransportError;

type Fixture<'a> = &'a dyn TransportFixture;

pub(super) async fn round_trip(fixture: Fixture<'_>) {
    let metas = publish(fixture, 1, 0..5).await;
    let page = query(fixture, 1, 0, 0).await;
    let stored: Vec<_> = page.envelopes.iter().map(meta).collect();
    assert_eq!(stored, metas.iter().collect::<Vec<_>>());
    assert!(metas.is_sorted_by_key(sequence));
    for (n, envelope) in (0..).zip(&page.envelopes) {
        assert_eq!(envelope.envelope, Some(fixture.envelope(1, n)));
        assert_eq!(meta(envelope).topic, Some(fixture.topic(1)));
    }
    assert!(!has_more(&page));
    assert!(query(fixture, 2, 0, 0).await.envelopes.is_empty());
}

pub(super) async fn empty_publish(fixture: Fixture<'_>) {
    assert!(publish_all(fixture, vec![]).await.is_empty());
}

pub(super) async fn duplicate_publish(fixture: Fixture<'_>) {
    let first = publish(fixture, 1, [7]).await;
    assert_eq!(publish(fixture, 1, [7]).await, first);
    let mixed = publish(fixture, 1, [7, 8, 7]).await;
    assert_eq!(mixed[0], first[0]);
    assert_eq!(mixed[2], first[0]);
    let stored = sequences(&query(fixture, 1, 0, 0).await.envelopes);
    assert_eq!(stored, [sequence(&first[0]), sequence(&mixed[1])]);
}

pub(super) async fn refused_publish(fixture: Fixture<'_>) {
    let no_payload = v1::ClientEnvelope { payload: None };
    let envelopes = vec![fixture.envelope(1, 0), fixture.envelope(1, 1), no_payload];
    let error = fixture
        .transport()
        .publish(v1::PublishRequest { envelopes })
        .await;
    match error.expect_err("an envelope without a payload is refused") {
        TransportError::InvalidArgument { index, reason, .. } => {
            assert_eq!((index, reason), (Some(2), Some(Reason::MalformedPayload)));
        }
        other => panic!("not refused but {other:?}"),
    }
    assert!(query(fixture, 1, 0, 0).await.envelopes.is_empty());
}

pub(super) async fn pages(fixture: Fixture<'_>) {
    let metas = publish(fixture, 1, 0..6).await;
    let expected: Vec<u64> = metas.iter().map(sequence).collect();
    for limit in [1, 2, 3, 5, 6, 7] {
        let mut seen = Vec::new();
        loop {
            let after = seen.last().copied().unwrap_or(0);
            let page = query(fixture, 1, after, limit).await;
            assert!(page.envelopes.len() <= limit as usize);
            seen.extend(sequences(&page.envelopes));
            assert_eq!(
                has_more(&page),
                seen.len() < expected.len(),
                "limit {limit}"
            );
            if !has_more(&page) {
                break;
            }
        }
        assert_eq!(seen, expected, "limit {limit}");
    }
}

pub(super) async fn refused_query(fixture: Fixture<'_>) {
    let topic = v1::Topic {
        topic: vec![0xff; 17].into(),
    };
    let queries = vec![v1::TopicQuery {
        topic: Some(topic),
        cursor: None,
    }];
    let error = fixture
        .transport()
        .query(v1::QueryRequest { queries, limit: 0 })
        .await;
    let error = error.expect_err("an unknown kind of topic is refused");
    let TransportError::InvalidArgument { index, reason, .. } = &error else {
        panic!("not refused but {error:?}");
    };
    assert_eq!((*index, *reason), (None, None));
    assert!(!error.is_retryable() && !error.is_ambiguous());
}

pub(super) async fn newest(fixture: Fixture<'_>) {
    let first = publish(fixture, 1, 0..3).await;
    let second = publish(fixture, 2, 0..1).await;
    for include_full_envelope in [false, true] {
        let topics = [1, 2, 3, 1].map(|seed| fixture.topic(seed)).to_vec();
        let request = v1::QueryNewestRequest {
            topics,
            include_full_envelope,
        };
        let newest = fixture
            .transport()
            .query_newest(request)
            .await
            .expect("the newest");
        assert_eq!(newest.results.len(), 2);
        for (seed, n, expected) in [(1, 2, &first[2]), (2, 0, &second[0])] {
            let topic = Some(fixture.topic(seed));
            let result = newest.results.iter().find(|result| result.topic == topic);
            let result = result.expect("a topic with an envelope has a result");
            assert_eq!(result.meta.as_ref(), Some(expected));
            let envelope = include_full_envelope.then(|| fixture.envelope(seed, n));
            assert_eq!(result.envelope, envelope);
        }
    }
}

pub(super) async fn inbox_ids(fixture: Fixture<'_>) {
    let kind = IdentifierKind::Ethereum.into();
    let request = |digit: &str| v1::get_inbox_ids_request::Request {
        identifier: format!("0x{}", digit.repeat(40)),
        identifier_kind: kind,
    };
    let requests = vec![request("A"), request("b"), request("A")];
    let asked = v1::GetInboxIdsRequest {
        requests: requests.clone(),
    };
    let answer = fixture
        .transport()
        .inbox_ids(asked)
        .await
        .expect("a lookup");
    assert_eq!(answer.responses.len(), requests.len());
    for (request, response) in requests.iter().zip(&answer.responses) {
        assert_eq!(response.identifier, request.identifier);
        assert_eq!(response.inbox_id, None);
    }
}

pub(super) async fn configuration(fixture: Fixture<'_>) {
    let configuration = fixture
        .transport()
        .configuration()
        .await
        .expect("a configuration");
    assert!(!configuration.identifier.is_empty());
    let limits = configuration.limits.expect("limits");
    assert!(limits.max_envelope_bytes <= limits.max_request_bytes);
}

pub(super) async fn wallet_signatures(fixture: Fixture<'_>) {
    let request = v1::VerifySmartContractWalletSignaturesRequest { signatures: vec![] };
    match fixture.transport().verify_wallet_signatures(request).await {
        Ok(answer) => assert!(answer.responses.is_empty()),
        Err(error) => assert_eq!(error, TransportError::Unimplemented),
    }
}

pub(super) async fn largest_envelope(fixture: Fixture<'_>) {
    let largest = BACKEND_DEFAULT_MAX_ENVELOPE_BYTES as usize;
    let envelope = fixture.envelope_of(1, largest);
    let metas = publish_all(fixture, vec![envelope.clone()]).await;
    let stored = v1::ServerEnvelope {
        meta: metas.first().cloned(),
        envelope: Some(envelope),
    };

    assert_eq!(
        query(fixture, 1, 0, 0).await.envelopes,
        std::slice::from_ref(&stored)
    );
    let topics = vec![fixture.topic(1)];
    let request = v1::QueryNewestRequest {
        topics,
        include_full_envelope: true,
    };
    let newest = fixture
        .transport()
        .query_newest(request)
        .await
        .expect("the newest");
    assert_eq!(newest.results[0].envelope, stored.envelope);
    let mut stream = Stream::following(fixture, &[1]).await;
    assert_eq!(stream.messages(1).await, [stored]);

    let larger = v1::PublishRequest {
        envelopes: vec![fixture.envelope_of(1, largest + 1)],
    };
    match fixture
        .transport()
        .publish(larger)
        .await
        .expect_err("one byte more is refused")
    {
        TransportError::InvalidArgument { index, reason, .. } => {
            assert_eq!((index, reason), (Some(0), Some(Reason::TooLarge)));
        }
        other => panic!("not refused but {other:?}"),
    }
}

pub(super) async fn cancelled_call(fixture: Fixture<'_>) {
    let queries = || vec![after_cursor(fixture, 1, 0)];
    for n in 0..20 {
        let envelopes = vec![fixture.envelope(1, n)];
        let call = fixture
            .transport()
            .publish(v1::PublishRequest { envelopes });
        drop(call.now_or_never());
        let call = fixture.transport().query(v1::QueryRequest {
            queries: queries(),
            limit: 0,
        });
        drop(call.now_or_never());
        drop(fixture.transport().subscribe().now_or_never());
    }
    // Whatever became of the cancelled ones, the same bytes are stored once.
    let metas = publish(fixture, 1, 0..20).await;
    let mut expected: Vec<u64> = metas.iter().map(sequence).collect();
    expected.sort_unstable();
    assert_eq!(
        sequences(&query(fixture, 1, 0, 0).await.envelopes),
        expected
    );
}

pub(super) async fn stopped_backend(fixture: Fixture<'_>) {
    publish(fixture, 1, [0]).await;
    fixture.stop_backend().await;
    let queries = vec![after_cursor(fixture, 1, 0)];
    let read = fixture
        .transport()
        .query(v1::QueryRequest { queries, limit: 0 })
        .await;
    let error = read.expect_err("nobody answers");
    assert!(
        matches!(error, TransportError::Unavailable { .. }),
        "{error:?}"
    );
    assert!(error.is_retryable() && error.is_ambiguous());
    assert!(fixture.transport().subscribe().await.is_err());
}
