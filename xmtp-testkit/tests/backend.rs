//! The test backend, and the envelopes made for it.

use std::time::{SystemTime, UNIX_EPOCH};

use xmtp_core::transport::Transport;
use xmtp_proto::backend::v1::get_inbox_ids_request::Request;
use xmtp_proto::backend::v1::publish_error::Reason;
use xmtp_proto::backend::v1::{
    ClientEnvelope, GetInboxIdsRequest, PublishRequest, PublishResponse, QueryRequest, TopicQuery,
};
use xmtp_proto::identity::IdentifierKind;
use xmtp_testkit::mls_bytes::{self, Person};
use xmtp_testkit::{IDENTIFIER, TestBackend};
use xmtp_transport_grpc::GrpcTransport;

use xmtp_core::transport::TransportError;

const GROUP: [u8; 16] = [1; 16];

async fn publish(
    transport: &dyn Transport,
    envelope: ClientEnvelope,
) -> Result<PublishResponse, TransportError> {
    let envelopes = vec![envelope];
    transport.publish(PublishRequest { envelopes }).await
}

fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(now.expect("after 1970").as_nanos()).expect("before 2554")
}

#[tokio::test]
async fn a_restarted_backend_keeps_address_and_envelopes() {
    let mut backend = TestBackend::start().await;
    let endpoint = backend.endpoint();
    let transport = GrpcTransport::connect_lazy(&endpoint).expect("a URL");
    let stored = publish(&transport, mls_bytes::group_message(GROUP, b"1")).await;
    let stored = stored.expect("stored");

    backend.restart().await;
    assert_eq!(backend.endpoint(), endpoint);
    let again = publish(&transport, mls_bytes::group_message(GROUP, b"1")).await;
    assert_eq!(again.expect("the same transport connects again"), stored);
    let configuration = transport.configuration().await.expect("a configuration");
    assert_eq!(configuration.identifier, IDENTIFIER);
    backend.stop().await;
}

#[tokio::test]
async fn both_wires_of_one_backend_show_one_store() {
    let backend = TestBackend::start().await;
    let socket = GrpcTransport::connect_lazy(backend.endpoint()).expect("a URL");
    let direct = backend.in_process();
    let stored = publish(&socket, mls_bytes::group_message(GROUP, b"1")).await;
    let topic = Some(mls_bytes::group_topic(GROUP).to_proto());
    let queries = vec![TopicQuery {
        topic,
        cursor: None,
    }];
    let page = direct
        .query(QueryRequest { queries, limit: 0 })
        .await
        .expect("a page");
    let found = page
        .envelopes
        .into_iter()
        .map(|envelope| envelope.meta.expect("a record"));
    assert_eq!(
        found.collect::<Vec<_>>(),
        stored.expect("stored").envelope_metas
    );
}

#[tokio::test]
async fn persons_have_inboxes_and_key_packages_that_are_admitted() {
    let backend = TestBackend::start().await;
    let transport = backend.in_process();
    let alice = Person::new(1);
    publish(&transport, alice.create_inbox(now_ns()))
        .await
        .expect("an inbox");
    for _ in 0..2 {
        publish(&transport, alice.key_package())
            .await
            .expect("a key package");
    }

    let identifier_kind = IdentifierKind::Ethereum.into();
    let requests = vec![Request {
        identifier: alice.address(),
        identifier_kind,
    }];
    let found = transport
        .inbox_ids(GetInboxIdsRequest { requests })
        .await
        .expect("a lookup");
    assert_eq!(found.responses[0].inbox_id, Some(alice.inbox_id().to_hex()));

    let again = publish(&transport, Person::new(1).create_inbox(now_ns() + 1)).await;
    match again.expect_err("an inbox is created once") {
        TransportError::InvalidArgument { index, reason, .. } => {
            assert_eq!(
                (index, reason),
                (Some(0), Some(Reason::InvalidIdentityUpdate))
            );
        }
        other => panic!("not refused but {other:?}"),
    }
}

#[tokio::test]
async fn frames_say_whether_they_change_the_group() {
    let backend = TestBackend::start().await;
    let transport = backend.in_process();
    let message = publish(&transport, mls_bytes::group_message(GROUP, b"1")).await;
    let commit = publish(&transport, mls_bytes::commit(GROUP, 1, b"1")).await;
    let is_commit = |stored: Result<PublishResponse, TransportError>| {
        stored.expect("stored").envelope_metas[0].is_commit_or_proposal
    };
    assert!(!is_commit(message));
    assert!(is_commit(commit));
}
