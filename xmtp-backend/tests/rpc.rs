//! Each call of the wire over a real socket.

mod common;

use common::*;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use xmtp_proto::backend::v1::configuration_service_client::ConfigurationServiceClient;
use xmtp_proto::backend::v1::get_inbox_ids_request::Request as Lookup;
use xmtp_proto::backend::v1::identity_service_client::IdentityServiceClient;
use xmtp_proto::backend::v1::query_service_client::QueryServiceClient;
use xmtp_proto::backend::v1::{
    GetConfigurationRequest, GetInboxIdsRequest, QueryNewestRequest, QueryRequest, Topic,
    TopicQuery,
};
use xmtp_proto::identity::IdentifierKind;

#[tokio::test]
async fn a_published_envelope_is_read_back() {
    let peer = Peer::ephemeral().await;
    let sent = message(1, "hello");
    let meta = peer.publish_one(sent.clone()).await;
    assert_eq!(topic_of(&meta), group_topic(1));
    let read = peer.read(&group_topic(1)).await;
    assert_eq!(read.len(), 1);
    assert_eq!(
        (read[0].meta.as_ref(), read[0].envelope.as_ref()),
        (Some(&meta), Some(&sent))
    );
}

#[tokio::test]
async fn a_query_pages_over_several_topics() {
    let peer = Peer::ephemeral().await;
    for number in 0..3 {
        let text = number.to_string();
        peer.publish(vec![message(1, &text), message(2, &text)])
            .await
            .unwrap();
    }
    let mut cursors = [0, 0];
    let mut found = [Vec::new(), Vec::new()];
    loop {
        let queries = vec![
            from(&group_topic(1), cursors[0]),
            from(&group_topic(2), cursors[1]),
        ];
        let page = peer
            .query(QueryRequest { queries, limit: 2 })
            .await
            .unwrap();
        for envelope in &page.envelopes {
            let place = usize::from(topic_of(envelope.meta.as_ref().unwrap()) == group_topic(2));
            cursors[place] = id_of(envelope);
            found[place].push(id_of(envelope));
        }
        if !page.continuation.unwrap().has_more {
            break;
        }
        assert_eq!(page.envelopes.len(), 2);
    }
    assert_eq!(found, [[1, 3, 5], [2, 4, 6]]);
}

#[tokio::test]
async fn a_query_reads_its_request_strictly() {
    let peer = Peer::ephemeral().await;
    peer.publish(vec![message(1, "a"), message(1, "b")])
        .await
        .unwrap();
    let query = async |queries| peer.query(QueryRequest { queries, limit: 0 }).await;
    let code = async |queries| query(queries).await.unwrap_err().code();
    let topic = |bytes: Vec<u8>| TopicQuery {
        topic: Some(Topic {
            topic: bytes.into(),
        }),
        cursor: None,
    };

    let key_packages = [vec![3], vec![0; 32]].concat();
    for bytes in [
        vec![],
        vec![0; 16],
        [vec![9], vec![0; 16]].concat(),
        key_packages,
    ] {
        assert_eq!(code(vec![topic(bytes)]).await, Code::InvalidArgument);
    }
    assert_eq!(
        code(vec![TopicQuery::default()]).await,
        Code::InvalidArgument
    );
    assert_eq!(
        code(vec![from(&group_topic(1), 1 << 63)]).await,
        Code::InvalidArgument
    );
    let at_most = vec![from(&group_topic(1), 0); 1000];
    assert_eq!(query(at_most).await.unwrap().envelopes.len(), 2);
    assert_eq!(
        code(vec![from(&group_topic(1), 0); 1001]).await,
        Code::InvalidArgument
    );
    let repeated = vec![from(&group_topic(1), 9), from(&group_topic(1), 1)];
    assert_eq!(
        query(repeated).await.unwrap().envelopes.len(),
        1,
        "the lowest cursor counts"
    );
    let empty = query(Vec::new()).await.unwrap();
    assert!(empty.envelopes.is_empty() && !empty.continuation.unwrap().has_more);
}

#[tokio::test]
async fn newest_has_one_result_per_topic_that_has_one() {
    let peer = Peer::ephemeral().await;
    peer.publish(vec![message(1, "a"), message(1, "b"), message(2, "c")])
        .await
        .unwrap();
    let mut client = QueryServiceClient::new(peer.channel.clone());
    let topics = vec![
        group_topic(2),
        group_topic(1),
        group_topic(3),
        group_topic(1),
    ];
    for include_full_envelope in [false, true] {
        let request = QueryNewestRequest {
            topics: topics.clone(),
            include_full_envelope,
        };
        let mut results = client
            .query_newest(request)
            .await
            .unwrap()
            .into_inner()
            .results;
        results.sort_by_key(|result| sequence_id(result.meta.as_ref().unwrap()));
        let ids: Vec<u64> = results
            .iter()
            .map(|result| sequence_id(result.meta.as_ref().unwrap()))
            .collect();
        assert_eq!(ids, [2, 3]);
        assert_eq!(results[0].topic, Some(group_topic(1)));
        let full = include_full_envelope.then(|| message(1, "b"));
        assert_eq!(results[0].envelope, full);
    }
    for (full, count) in [(true, 101), (false, 1001)] {
        let topics = vec![group_topic(1); count];
        let request = QueryNewestRequest {
            topics,
            include_full_envelope: full,
        };
        assert_eq!(
            client.query_newest(request).await.unwrap_err().code(),
            Code::InvalidArgument
        );
    }
}

#[tokio::test]
async fn identifiers_lead_to_inboxes() {
    let peer = Peer::ephemeral().await;
    let (first, second) = (Account::new(1), Account::new(2));
    let (inbox, create) = first.create(0);
    peer.publish_one(identity(create)).await;
    let mut client = IdentityServiceClient::new(peer.channel.clone());
    let lookup = |identifier: String| Lookup {
        identifier,
        identifier_kind: IdentifierKind::Unspecified.into(),
    };
    let upper = first.address().to_uppercase().replace("0X", "0x");
    let requests = [
        first.address(),
        second.address(),
        upper.clone(),
        "no address".to_owned(),
    ];
    let requests = requests.into_iter().map(lookup).collect();
    let response = client
        .get_inbox_ids(GetInboxIdsRequest { requests })
        .await
        .unwrap();
    let found: Vec<_> = response.into_inner().responses;
    let inboxes: Vec<_> = found.iter().map(|found| found.inbox_id.clone()).collect();
    assert_eq!(
        inboxes,
        [Some(inbox.to_hex()), None, Some(inbox.to_hex()), None]
    );
    assert_eq!(found[2].identifier, upper, "inputs come back unchanged");

    let requests = vec![lookup(first.address()); 251];
    let error = client
        .get_inbox_ids(GetInboxIdsRequest { requests })
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn health_tells_of_every_service() {
    let peer = Peer::ephemeral().await;
    let mut client = HealthClient::new(peer.channel.clone());
    let package = "xmtp.backend.v1";
    let services = [
        "Publish",
        "Query",
        "Subscription",
        "Identity",
        "Configuration",
    ];
    let services = services.map(|service| format!("{package}.{service}Service"));
    for service in services.into_iter().chain([String::new()]) {
        let response = client
            .check(HealthCheckRequest { service })
            .await
            .unwrap()
            .into_inner();
        assert_eq!(response.status(), ServingStatus::Serving);
    }
    let unknown = HealthCheckRequest {
        service: "other".to_owned(),
    };
    assert_eq!(
        client.check(unknown).await.unwrap_err().code(),
        Code::NotFound
    );
}

/// covers: CFG-020, CFG-021
#[tokio::test]
async fn the_configuration_is_served_without_a_credential_and_never_changes() {
    let peer = Peer::ephemeral().await;
    let mut client = ConfigurationServiceClient::new(peer.channel.clone());
    let first = client
        .get_configuration(GetConfigurationRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(first.identifier, IDENTIFIER);
    peer.publish_one(message(1, "a")).await;
    let again = client
        .get_configuration(GetConfigurationRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(again, first);
}

#[tokio::test]
async fn a_stopped_server_lets_go_of_its_port() {
    let peer = Peer::ephemeral().await;
    let address = peer.running.address();
    peer.running.stop().await;
    let listener = tokio::net::TcpListener::bind(address).await;
    assert!(listener.is_ok(), "the port is free again");
}
