//! The suite that every store passes: one case for each promise of the traits.
//!
//! The list of cases stands once, in [`CASES`]; each case gets a fresh store.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use sha2::{Digest, Sha256};
use xmtp_identity::IdentifierKind;
use xmtp_identity::projection::{Association, IdentifierChange};
use xmtp_proto::id::{GroupId, InboxId, SequenceId, Topic};

use super::*;
use crate::hooks::Clock;

type Case = for<'s> fn(&'s dyn Store) -> BoxFuture<'s, ()>;

/// Lists functions as cases.
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        const CASES: &[Case] = &[$(|store| Box::pin($name(store))),*];
    };
}

cases![
    ids_grow_in_request_order_and_the_clock_is_read_once,
    an_envelope_is_stored_once,
    a_stored_envelope_outweighs_a_refusal,
    a_refused_request_stores_nothing,
    the_lowest_refusal_counts,
    a_moved_head_outweighs_a_refusal,
    a_full_identity_log_takes_no_new_update,
    a_history_is_whole_and_in_order,
    expiry_is_counted_from_the_clock,
    a_page_is_a_prefix_of_each_topic,
    a_page_says_exactly_whether_there_is_more,
    a_page_begins_where_it_is_told,
    a_page_that_does_not_fit_fails,
    a_cursor_past_the_head_gives_nothing,
    newest_leaves_out_empty_topics,
    the_latest_live_association_wins,
    heads_are_zero_for_empty_topics,
    a_turn_is_bounded_and_fair,
    a_turn_always_brings_something,
    a_turn_ends_its_ranges,
    a_tail_gives_out_each_envelope_once,
    a_tail_that_falls_behind_misses_nothing,
    concurrent_publishes_keep_topics_in_order,
    a_closed_store_refuses,
];

/// A clock that stands still.
#[derive(Debug)]
pub(super) struct Stopped;

pub(super) const NOW_NS: u64 = 1_700_000_000_000_000_000;

impl Clock for Stopped {
    fn now_ns(&self) -> u64 {
        NOW_NS
    }
}

async fn run(make: impl Fn() -> Arc<dyn Store>) {
    for case in CASES {
        let store = make();
        case(store.as_ref()).await;
        store.close().await;
    }
}

#[tokio::test]
async fn memory_conforms() {
    run(|| Arc::new(MemoryStore::new(Arc::new(Stopped)))).await;
}

#[tokio::test]
async fn sqlite_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let count = std::sync::atomic::AtomicUsize::new(0);
    run(|| {
        let number = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = folder.path().join(format!("{number}.db3"));
        Arc::new(SqliteStore::open(&path, "org.example.test", Arc::new(Stopped)).unwrap())
    })
    .await;
}

fn group(number: u8) -> Topic {
    Topic::group(&GroupId::from_bytes([number; 16]))
}

fn inbox_topic(number: u8) -> Topic {
    Topic::identity(&InboxId::from_bytes([number; 32]))
}

pub(super) fn envelope(topic: Topic, payload: impl Into<Vec<u8>>) -> PreparedEnvelope {
    let payload = payload.into();
    PreparedEnvelope {
        key: EnvelopeKey {
            topic,
            hash: Hash(Sha256::digest(&payload).into()),
        },
        payload: Bytes::from(payload),
        is_commit_or_proposal: false,
        retention_ns: Some(1000),
        identity: None,
        refused: None,
    }
}

fn refused(mut envelope: PreparedEnvelope, message: &'static str) -> PreparedEnvelope {
    envelope.refused = Some(Refusal {
        reason: Reason::InvalidKeyPackage,
        message,
    });
    envelope
}

fn update(inbox: u8, payload: &str, expected_head: SequenceId, max: u32) -> PreparedEnvelope {
    let identity = IdentityWrite {
        expected_head,
        max_entries: max,
        changes: Vec::new(),
    };
    let envelope = envelope(inbox_topic(inbox), payload);
    PreparedEnvelope {
        identity: Some(identity),
        retention_ns: None,
        ..envelope
    }
}

fn changed(
    mut update: PreparedEnvelope,
    inbox: u8,
    text: &str,
    change: Association,
) -> PreparedEnvelope {
    let inbox_id = InboxId::from_bytes([inbox; 32]);
    let kind = IdentifierKind::Ethereum;
    let change = IdentifierChange {
        kind,
        text: text.to_owned(),
        inbox_id,
        change,
    };
    update.identity.as_mut().unwrap().changes.push(change);
    update
}

async fn store_one(store: &dyn Store, envelope: PreparedEnvelope) -> Meta {
    store.publish(vec![envelope]).await.unwrap()[0]
}

async fn fill(store: &dyn Store, topic: Topic, payloads: &[&str]) -> Vec<SequenceId> {
    let envelopes = payloads
        .iter()
        .map(|payload| envelope(topic, *payload))
        .collect();
    let metas = store.publish(envelopes).await.unwrap();
    metas.iter().map(|meta| meta.sequence_id).collect()
}

fn query(topics: &[(Topic, u32)], limit: usize) -> Query {
    let topics = topics
        .iter()
        .map(|(topic, after)| (*topic, (*after).into()))
        .collect();
    Query {
        topics,
        limit,
        first: 0,
        max_bytes: 1 << 20,
    }
}

fn payloads(rows: &[Envelope]) -> Vec<&[u8]> {
    rows.iter().map(|row| row.payload.as_ref()).collect()
}

async fn ids_grow_in_request_order_and_the_clock_is_read_once(store: &dyn Store) {
    let envelopes = vec![
        envelope(group(2), "a"),
        envelope(group(1), "b"),
        envelope(group(2), "c"),
    ];
    let metas = store.publish(envelopes).await.unwrap();
    let ids: Vec<u64> = metas.iter().map(|meta| meta.sequence_id.get()).collect();
    assert_eq!(ids, [1, 2, 3]);
    assert!(metas.iter().all(|meta| meta.server_ns == NOW_NS));
    assert!(
        store_one(store, envelope(group(1), "d"))
            .await
            .sequence_id
            .get()
            > 3
    );
}

/// covers: EXT-001
async fn an_envelope_is_stored_once(store: &dyn Store) {
    let first = store_one(store, envelope(group(1), "a")).await;
    assert_eq!(store_one(store, envelope(group(1), "a")).await, first);
    let other = store_one(store, envelope(group(2), "a")).await;
    assert!(
        other.sequence_id > first.sequence_id,
        "another topic is another envelope"
    );
    let keys = vec![first.key, envelope(group(1), "b").key, other.key];
    assert_eq!(
        store.existing(keys).await.unwrap(),
        [Some(first), None, Some(other)]
    );
    let page = store.query(query(&[(group(1), 0)], 10)).await.unwrap();
    assert_eq!(payloads(&page.envelopes), [b"a"]);
}

/// covers: EXT-001
async fn a_stored_envelope_outweighs_a_refusal(store: &dyn Store) {
    let first = store_one(store, envelope(group(1), "a")).await;
    assert_eq!(
        store_one(store, refused(envelope(group(1), "a"), "late")).await,
        first
    );
    let stored = store_one(store, update(1, "u", SequenceId::ZERO, 1)).await;
    let again = store_one(store, update(1, "u", SequenceId::ZERO, 0)).await;
    assert_eq!(again, stored, "neither the head nor the limit counts");
}

async fn a_refused_request_stores_nothing(store: &dyn Store) {
    let envelopes = vec![
        envelope(group(1), "a"),
        refused(envelope(group(2), "b"), "bad"),
    ];
    let refusal = store.publish(envelopes).await.unwrap_err();
    assert!(matches!(refusal, PublishError::Refused { position: 1, .. }));
    let heads = store.heads(vec![group(1), group(2)]).await.unwrap();
    assert_eq!(heads, [SequenceId::ZERO; 2]);
    let head = store_one(store, envelope(group(1), "c")).await.sequence_id;
    assert_eq!(store.heads(vec![group(1)]).await.unwrap(), [head]);
}

async fn the_lowest_refusal_counts(store: &dyn Store) {
    let envelopes = vec![
        envelope(group(1), "a"),
        refused(envelope(group(2), "b"), "first"),
        refused(envelope(group(3), "c"), "second"),
    ];
    let refusal = Refusal {
        reason: Reason::InvalidKeyPackage,
        message: "first",
    };
    let expected = PublishError::Refused {
        position: 1,
        refusal,
    };
    assert_eq!(store.publish(envelopes).await, Err(expected));
}

async fn a_moved_head_outweighs_a_refusal(store: &dyn Store) {
    let head = store_one(store, update(1, "first", SequenceId::ZERO, 9))
        .await
        .sequence_id;
    let late = update(1, "late", SequenceId::ZERO, 9);
    assert_eq!(
        store.publish(vec![late.clone()]).await,
        Err(PublishError::HeadMoved)
    );
    let both = vec![
        refused(envelope(group(1), "a"), "bad"),
        refused(late, "bad"),
    ];
    assert_eq!(store.publish(both).await, Err(PublishError::HeadMoved));
    store_one(store, update(1, "next", head, 9)).await;
}

async fn a_full_identity_log_takes_no_new_update(store: &dyn Store) {
    let first = store_one(store, update(1, "a", SequenceId::ZERO, 2))
        .await
        .sequence_id;
    let second = store_one(store, update(1, "b", first, 2)).await.sequence_id;
    let error = store
        .publish(vec![update(1, "c", second, 2)])
        .await
        .unwrap_err();
    let PublishError::Refused {
        position: 0,
        refusal,
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!(refusal.reason, Reason::InvalidIdentityUpdate);
    store_one(store, update(2, "a", SequenceId::ZERO, 2)).await;
}

async fn a_history_is_whole_and_in_order(store: &dyn Store) {
    let empty = store.identity_history(inbox_topic(1)).await.unwrap();
    assert_eq!((empty.entries.len(), empty.head), (0, SequenceId::ZERO));
    let first = store_one(store, update(1, "a", SequenceId::ZERO, 9))
        .await
        .sequence_id;
    let second = store_one(store, update(1, "b", first, 9)).await.sequence_id;
    store_one(store, update(2, "c", SequenceId::ZERO, 9)).await;
    let history = store.identity_history(inbox_topic(1)).await.unwrap();
    assert_eq!(
        (history.entries, history.head),
        (vec!["a".into(), "b".into()], second)
    );
}

async fn expiry_is_counted_from_the_clock(store: &dyn Store) {
    assert_eq!(
        store_one(store, envelope(group(1), "a")).await.expiry_ns,
        Some(NOW_NS + 1000)
    );
    let forever = PreparedEnvelope {
        retention_ns: None,
        ..envelope(group(1), "b")
    };
    assert_eq!(store_one(store, forever).await.expiry_ns, None);
    let beyond = PreparedEnvelope {
        retention_ns: Some(u64::MAX - 1),
        ..envelope(group(1), "c")
    };
    let error = store.publish(vec![beyond]).await.unwrap_err();
    assert!(matches!(error, PublishError::Broken(_)));
    let page = store.query(query(&[(group(1), 0)], 9)).await.unwrap();
    assert_eq!(page.envelopes.len(), 2);
}

async fn a_page_is_a_prefix_of_each_topic(store: &dyn Store) {
    let a = fill(store, group(1), &["a1", "a2", "a3"]).await;
    fill(store, group(2), &["b1", "b2"]).await;
    let after = u32::try_from(a[0].get()).unwrap();
    let page = store
        .query(query(&[(group(1), after), (group(2), 0)], 3))
        .await
        .unwrap();
    assert_eq!(payloads(&page.envelopes), [b"a2", b"a3", b"b1"]);
    assert!(page.has_more);
}

async fn a_page_says_exactly_whether_there_is_more(store: &dyn Store) {
    fill(store, group(1), &["a", "b"]).await;
    for (limit, more) in [(1, true), (2, false), (3, false)] {
        let page = store
            .query(query(&[(group(1), 0), (group(2), 0)], limit))
            .await
            .unwrap();
        assert_eq!((page.envelopes.len(), page.has_more), (limit.min(2), more));
    }
    fill(store, group(2), &["c"]).await;
    let page = store
        .query(query(&[(group(1), 0), (group(2), 0)], 2))
        .await
        .unwrap();
    assert!(page.has_more, "the rest is in another topic");
}

async fn a_page_begins_where_it_is_told(store: &dyn Store) {
    fill(store, group(1), &["a1", "a2"]).await;
    fill(store, group(2), &["b1"]).await;
    let topics = query(&[(group(1), 0), (group(2), 0)], 1);
    let page = store
        .query(Query {
            first: 1,
            ..topics.clone()
        })
        .await
        .unwrap();
    assert_eq!(payloads(&page.envelopes), [b"b1"]);
    let page = store
        .query(Query {
            first: 1,
            limit: 2,
            ..topics
        })
        .await
        .unwrap();
    assert_eq!(payloads(&page.envelopes), [b"b1", b"a1"]);
}

async fn a_page_that_does_not_fit_fails(store: &dyn Store) {
    fill(store, group(1), &["a", "b"]).await;
    let small = Query {
        max_bytes: 300,
        ..query(&[(group(1), 0)], 2)
    };
    assert_eq!(
        store.query(small.clone()).await.unwrap_err(),
        ReadError::TooLarge
    );
    assert_eq!(
        store
            .query(Query { limit: 1, ..small })
            .await
            .unwrap()
            .envelopes
            .len(),
        1
    );
    let newest = store.newest(vec![group(1)], true, 10).await;
    assert_eq!(newest.unwrap_err(), ReadError::TooLarge);
}

async fn a_cursor_past_the_head_gives_nothing(store: &dyn Store) {
    fill(store, group(1), &["a"]).await;
    let past = Query {
        topics: vec![(group(1), SequenceId::MAX)],
        ..query(&[], 9)
    };
    let page = store.query(past).await.unwrap();
    assert_eq!((page.envelopes.len(), page.has_more), (0, false));
}

async fn newest_leaves_out_empty_topics(store: &dyn Store) {
    fill(store, group(1), &["a", "b"]).await;
    fill(store, group(3), &["c"]).await;
    let topics = vec![group(3), group(2), group(1)];
    let full = store.newest(topics.clone(), true, 1 << 20).await.unwrap();
    assert_eq!(payloads(&full), [b"c", b"b"]);
    let metas = store.newest(topics, false, 0).await.unwrap();
    let of = |rows: &[Envelope]| rows.iter().map(|row| row.meta).collect::<Vec<_>>();
    assert_eq!(of(&metas), of(&full));
    assert!(metas.iter().all(|row| row.payload.is_empty()));
}

async fn the_latest_live_association_wins(store: &dyn Store) {
    use Association::{Associated, Revoked};
    let key = |text: &str| IdentifierKey {
        kind: IdentifierKind::Ethereum.to_proto(),
        text: text.to_owned(),
    };
    let lookup = async || store.inbox_ids(vec![key("0x1"), key("0x2")]).await.unwrap();
    let inbox = |number| Some(InboxId::from_bytes([number; 32]));
    assert_eq!(lookup().await, [None, None]);
    let zero = SequenceId::ZERO;
    let first = store_one(
        store,
        changed(update(1, "a", zero, 9), 1, "0x1", Associated),
    )
    .await;
    let second = store_one(
        store,
        changed(update(2, "b", zero, 9), 2, "0x1", Associated),
    )
    .await;
    assert_eq!(lookup().await, [inbox(2), None]);
    let revoke = changed(update(2, "c", second.sequence_id, 9), 2, "0x1", Revoked);
    let third = store_one(store, revoke).await;
    assert_eq!(
        lookup().await,
        [inbox(1), None],
        "the older association shows again"
    );
    let back = changed(update(2, "d", third.sequence_id, 9), 2, "0x1", Associated);
    store_one(store, back).await;
    assert_eq!(lookup().await, [inbox(2), None]);
    let both = changed(update(1, "e", first.sequence_id, 9), 1, "0x1", Revoked);
    store_one(store, changed(both, 1, "0x2", Associated)).await;
    assert_eq!(lookup().await, [inbox(2), inbox(1)]);
}

async fn heads_are_zero_for_empty_topics(store: &dyn Store) {
    let ids = fill(store, group(1), &["a", "b"]).await;
    let heads = store
        .heads(vec![group(2), group(1), group(2)])
        .await
        .unwrap();
    assert_eq!(heads, [SequenceId::ZERO, ids[1], SequenceId::ZERO]);
}

fn want(topic: Topic, after: SequenceId, through: SequenceId) -> Want {
    Want {
        topic,
        after,
        through,
    }
}

fn whole(number: u8) -> Want {
    want(group(number), SequenceId::ZERO, SequenceId::MAX)
}

/// covers: STR-016, STR-030
async fn a_turn_is_bounded_and_fair(store: &dyn Store) {
    fill(store, group(1), &["a1", "a2", "a3"]).await;
    fill(store, group(2), &["b1", "b2", "b3"]).await;
    let two_rows = TurnBudget {
        topic_rows: 2,
        topic_bytes: 1 << 20,
        bytes: 1 << 20,
    };
    let turn = store
        .fetch_turn(vec![whole(2), whole(1)], two_rows)
        .await
        .unwrap();
    let served: Vec<_> = turn
        .served
        .iter()
        .map(|one| (payloads(&one.rows), one.complete))
        .collect();
    assert_eq!(
        served,
        [
            (vec![&b"b1"[..], b"b2"], false),
            (vec![&b"a1"[..], b"a2"], false)
        ]
    );

    // Each row counts 258 bytes.
    let one_topic = TurnBudget {
        topic_rows: 9,
        topic_bytes: 600,
        bytes: 600,
    };
    let turn = store
        .fetch_turn(vec![whole(1), whole(2)], one_topic)
        .await
        .unwrap();
    assert_eq!(
        turn.served.len(),
        1,
        "the second topic has no room in this turn"
    );
    assert_eq!(payloads(&turn.served[0].rows), [b"a1", b"a2"]);
    assert!(!turn.served[0].complete);

    let share = TurnBudget {
        topic_rows: 9,
        topic_bytes: 300,
        bytes: 600,
    };
    let turn = store
        .fetch_turn(vec![whole(1), whole(2)], share)
        .await
        .unwrap();
    let rows: Vec<_> = turn
        .served
        .iter()
        .flat_map(|one| payloads(&one.rows))
        .collect();
    assert_eq!(rows, [b"a1", b"b1"]);
}

async fn a_turn_always_brings_something(store: &dyn Store) {
    let large = "x".repeat(5000);
    fill(store, group(1), &[&large, "small"]).await;
    fill(store, group(2), &[&large]).await;
    let tiny = TurnBudget {
        topic_rows: 9,
        topic_bytes: 100,
        bytes: 1000,
    };
    let turn = store
        .fetch_turn(vec![whole(1), whole(2)], tiny)
        .await
        .unwrap();
    assert_eq!((turn.served.len(), turn.served[0].rows.len()), (1, 1));
    assert!(!turn.served[0].complete);
    let roomy = TurnBudget {
        topic_rows: 9,
        topic_bytes: 100,
        bytes: 11_000,
    };
    let turn = store
        .fetch_turn(vec![whole(1), whole(2)], roomy)
        .await
        .unwrap();
    let rows: Vec<_> = turn.served.iter().map(|one| one.rows.len()).collect();
    assert_eq!(rows, [1, 1], "a first row may exceed its topic's share");
}

async fn a_turn_ends_its_ranges(store: &dyn Store) {
    let ids = fill(store, group(1), &["a", "b", "c"]).await;
    let budget = TurnBudget {
        topic_rows: 2,
        topic_bytes: 1 << 20,
        bytes: 1 << 20,
    };
    let wants = vec![
        want(group(1), ids[0], ids[1]),
        want(group(1), ids[2], SequenceId::MAX),
        want(group(2), SequenceId::ZERO, SequenceId::MAX),
        want(group(1), ids[0], ids[2]),
    ];
    let turn = store.fetch_turn(wants, budget).await.unwrap();
    let served: Vec<_> = turn
        .served
        .iter()
        .map(|one| (payloads(&one.rows), one.complete))
        .collect();
    let (b, c): (&[u8], &[u8]) = (b"b", b"c");
    assert_eq!(
        served,
        [
            (vec![b], true),
            (vec![], true),
            (vec![], true),
            (vec![b, c], true)
        ]
    );
}

async fn a_tail_gives_out_each_envelope_once(store: &dyn Store) {
    fill(store, group(1), &["before"]).await;
    let mut tail = store.tail();
    fill(store, group(1), &["a", "b"]).await;
    fill(store, group(1), &["a"]).await;
    fill(store, group(2), &["c"]).await;
    let mut rows = Vec::new();
    while rows.len() < 3 {
        rows.extend(tail.next().await.unwrap());
    }
    assert_eq!(payloads(&rows), [b"a", b"b", b"c"]);
}

async fn a_tail_that_falls_behind_misses_nothing(store: &dyn Store) {
    const ROWS: usize = 80;
    let mut tail = store.tail();
    // Together larger than what a tail keeps.
    let large = vec![0; 1 << 20];
    for number in 0..ROWS {
        let mut payload = large.clone();
        payload[0] = u8::try_from(number).unwrap();
        store_one(store, envelope(group(1), payload)).await;
    }
    let mut next = 0;
    while next < ROWS {
        for row in tail.next().await.unwrap() {
            assert_eq!(usize::from(row.payload[0]), next);
            next += 1;
        }
    }
    fill(store, group(1), &["after"]).await;
    assert_eq!(payloads(&tail.next().await.unwrap()), [b"after"]);
}

/// covers: STR-010
async fn concurrent_publishes_keep_topics_in_order(store: &dyn Store) {
    let publisher = async |number: u8| {
        for round in 0..20 {
            let payload = format!("{number} {round}");
            store_one(store, envelope(group(1), payload)).await;
        }
    };
    let mut tail = store.tail();
    let publishers = futures_util::future::join_all((0..8).map(publisher));
    publishers.await;
    let mut told = Vec::new();
    while told.len() < 160 {
        told.extend(tail.next().await.unwrap());
    }
    let page = store.query(query(&[(group(1), 0)], 1000)).await.unwrap();
    assert_eq!(told, page.envelopes);
    assert!(told.is_sorted_by(|a, b| a.meta.sequence_id < b.meta.sequence_id));
}

async fn a_closed_store_refuses(store: &dyn Store) {
    let mut tail = store.tail();
    fill(store, group(1), &["a"]).await;
    store.close().await;
    let late = store.publish(vec![envelope(group(1), "b")]).await;
    assert_eq!(late, Err(PublishError::Unavailable));
    assert_eq!(
        store.heads(vec![group(1)]).await,
        Err(ReadError::Unavailable)
    );
    assert_eq!(
        payloads(&tail.next().await.unwrap()),
        [b"a"],
        "what was told is given out"
    );
    assert_eq!(tail.next().await.unwrap_err(), ReadError::Unavailable);
}
