//! Clients that publish and read.

use std::sync::Arc;

use tonic::Code;
use xmtp_identity::UpdateBuilder;
use xmtp_proto::backend::v1::publish_service_client::PublishServiceClient;
use xmtp_proto::backend::v1::query_service_client::QueryServiceClient;
use xmtp_proto::backend::v1::{
    ClientEnvelope, PublishRequest, PublishResponse, QueryNewestRequest, QueryRequest,
    QueryResponse, Topic,
};

use super::{Crowd, Link, Random, group_id};
use crate::common::{
    APPLICATION, Account, COMMIT, from, group_message, id_of, identity, identity_topic,
    private_message,
};

/// The greatest answer that a client takes, in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// One of so many requests is sent again after its answer.
const RETRIES: usize = 8;

/// Topics of one query, and pages that are read of it.
const QUERY_TOPICS: usize = 20;
const QUERY_PAGES: usize = 4;

/// An envelope and the topic that it belongs to.
pub(crate) type Addressed = (Topic, ClientEnvelope);

/// Stores one round's requests of one publisher.
pub(super) async fn publish(
    crowd: Arc<Crowd>,
    seed: u64,
    round: usize,
    publisher: usize,
    mut link: Link,
) {
    let mut random = Random::new(seed);
    for number in 0..crowd.plan.requests {
        let envelope = |place: usize| {
            let group = random.below(crowd.topics.len());
            let kind = if random.below(16) == 0 {
                COMMIT
            } else {
                APPLICATION
            };
            let text = format!("{round} {publisher} {number} {place}");
            let bytes = private_message(&group_id(group), kind, text.as_bytes());
            (crowd.topics[group].clone(), group_message(bytes))
        };
        let request: Vec<Addressed> = (0..crowd.plan.envelopes).map(envelope).collect();
        store(&crowd, &mut link, &request)
            .await
            .expect("it is admitted");
        if random.below(RETRIES) == 0 {
            store(&crowd, &mut link, &request)
                .await
                .expect("a retry succeeds");
        }
        crowd.stored.send_modify(|stored| *stored += 1);
    }
}

/// Sends a request until its outcome is known: the response, or a refusal.
async fn store(
    crowd: &Crowd,
    link: &mut Link,
    request: &[Addressed],
) -> Result<PublishResponse, tonic::Status> {
    let sent: Vec<_> = request
        .iter()
        .map(|(topic, envelope)| crowd.recorder.sent(topic, envelope))
        .collect();
    loop {
        let mut client = PublishServiceClient::new(link.channel().await);
        let envelopes = request.iter().map(|(_, envelope)| envelope.clone());
        let envelopes = envelopes.collect();
        let attempt = crowd.recorder.begin();
        let result = client.publish(PublishRequest { envelopes }).await;
        let result = result.map(tonic::Response::into_inner);
        crowd.recorder.end(&attempt, &sent, &result);
        match result {
            Err(status) if !matches!(status.code(), Code::InvalidArgument | Code::Aborted) => {
                link.lost();
            }
            known => return known,
        }
    }
}

/// Reads the newest of some topics, and pages over them.
pub(super) async fn read(crowd: Arc<Crowd>, seed: u64, mut link: Link) {
    let mut random = Random::new(crowd.plan.seed ^ (seed << 32));
    for _ in 0..crowd.plan.requests {
        let first = random.below(crowd.topics.len());
        let topics = crowd.topics.iter().cycle().skip(first);
        let topics = topics.take(QUERY_TOPICS.min(crowd.topics.len()));
        let topics: Vec<_> = topics.cloned().collect();
        newest(&crowd, &mut link, &topics).await;
        let mut queries: Vec<_> = topics.iter().map(|topic| from(topic, 0)).collect();
        for _ in 0..QUERY_PAGES {
            let limit = 1 + random.below(100) as u32;
            let request = QueryRequest {
                queries: queries.clone(),
                limit,
            };
            let page = query(&crowd, &mut link, request).await;
            for row in &page.envelopes {
                let topic = row.meta.as_ref().and_then(|meta| meta.topic.as_ref());
                let query = queries
                    .iter_mut()
                    .find(|query| query.topic.as_ref() == topic);
                let cursor = query.and_then(|query| query.cursor.as_mut());
                cursor.expect("a topic that was asked for").sequence_id = id_of(row);
            }
            if page.continuation.is_none_or(|more| !more.has_more) {
                break;
            }
        }
    }
}

/// Reads one page, in whichever life of the server.
pub(super) async fn query(crowd: &Crowd, link: &mut Link, request: QueryRequest) -> QueryResponse {
    loop {
        let client = QueryServiceClient::new(link.channel().await);
        let mut client = client.max_decoding_message_size(MAX_ANSWER_BYTES);
        let sent = crowd.recorder.query();
        match client.query(request.clone()).await {
            Ok(page) => {
                let page = page.into_inner();
                crowd.recorder.page(sent, &request, &page);
                return page;
            }
            Err(_) => link.lost(),
        }
    }
}

/// Reads the newest envelopes of some topics, in whichever life of the server.
async fn newest(crowd: &Crowd, link: &mut Link, topics: &[Topic]) {
    loop {
        let client = QueryServiceClient::new(link.channel().await);
        let mut client = client.max_decoding_message_size(MAX_ANSWER_BYTES);
        let request = QueryNewestRequest {
            topics: topics.to_vec(),
            include_full_envelope: true,
        };
        let sent = crowd.recorder.query();
        match client.query_newest(request).await {
            Ok(found) => {
                let found = found.into_inner();
                return crowd.recorder.newest(sent, topics, &found);
            }
            Err(_) => link.lost(),
        }
    }
}

/// Creates an inbox and has two clients change it at once, of which one may be refused.
pub(super) async fn update_identity(
    crowd: Arc<Crowd>,
    nonce: u64,
    mut link: Link,
    mut other: Link,
) -> Topic {
    let account = Account::new(1);
    let (inbox, create) = account.create(nonce);
    let topic = identity_topic(inbox);
    let create = [(topic.clone(), identity(create))];
    let created = store(&crowd, &mut link, &create).await;
    created.expect("an inbox is created");
    let change = || UpdateBuilder::update_inbox(inbox, account.wallet.identifier().clone());
    let revoke = change().revoke(account.installation.identifier());
    let recover = change().change_recovery(Account::new(2).wallet.identifier().clone());
    let request = |change| [(topic.clone(), identity(account.sign(change)))];
    let (revoke, recover) = (request(revoke), request(recover));
    let (revoked, recovered) = tokio::join!(
        store(&crowd, &mut link, &revoke),
        store(&crowd, &mut other, &recover),
    );
    assert!(revoked.is_ok() || recovered.is_ok(), "one is stored");
    topic
}
