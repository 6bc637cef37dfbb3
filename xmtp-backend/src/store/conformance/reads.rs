//! Pages, newest envelopes, histories and lookups.

use super::*;

pub(super) async fn a_history_is_whole_and_in_order(store: &dyn Store) {
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

pub(super) async fn a_page_is_a_prefix_of_each_topic(store: &dyn Store) {
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

pub(super) async fn a_page_says_exactly_whether_there_is_more(store: &dyn Store) {
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

pub(super) async fn a_page_begins_where_it_is_told(store: &dyn Store) {
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

pub(super) async fn a_page_that_does_not_fit_fails(store: &dyn Store) {
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

pub(super) async fn a_cursor_past_the_head_gives_nothing(store: &dyn Store) {
    fill(store, group(1), &["a"]).await;
    let past = Query {
        topics: vec![(group(1), SequenceId::MAX)],
        ..query(&[], 9)
    };
    let page = store.query(past).await.unwrap();
    assert_eq!((page.envelopes.len(), page.has_more), (0, false));
}

pub(super) async fn newest_leaves_out_empty_topics(store: &dyn Store) {
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

pub(super) async fn the_latest_live_association_wins(store: &dyn Store) {
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
