//! What is stored, once and whole or not at all.

use super::*;

pub(super) async fn ids_grow_in_request_order_and_the_clock_is_read_once(store: &dyn Store) {
    let envelopes = vec![
        envelope(group(2), "a"),
        envelope(group(1), "b"),
        envelope(group(2), "c"),
    ];
    let metas = store.publish(envelopes).await.unwrap();
    let ids: Vec<u64> = metas.iter().map(|meta| meta.sequence_id.get()).collect();
    assert_eq!(ids, [1, 2, 3]);
    let same = |meta: &Meta| meta.server_ns == metas[0].server_ns;
    assert!(metas.iter().all(same));
    assert!(
        store_one(store, envelope(group(1), "d"))
            .await
            .sequence_id
            .get()
            > 3
    );
}

/// covers: EXT-001
pub(super) async fn an_envelope_is_stored_once(store: &dyn Store) {
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
pub(super) async fn a_stored_envelope_outweighs_a_refusal(store: &dyn Store) {
    let first = store_one(store, envelope(group(1), "a")).await;
    assert_eq!(
        store_one(store, refused(envelope(group(1), "a"), "late")).await,
        first
    );
    let stored = store_one(store, update(1, "u", SequenceId::ZERO, 1)).await;
    let again = store_one(store, update(1, "u", SequenceId::ZERO, 0)).await;
    assert_eq!(again, stored, "neither the head nor the limit counts");
}

pub(super) async fn a_refused_request_stores_nothing(store: &dyn Store) {
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

pub(super) async fn the_lowest_refusal_counts(store: &dyn Store) {
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

pub(super) async fn a_moved_head_outweighs_a_refusal(store: &dyn Store) {
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

pub(super) async fn a_full_identity_log_takes_no_new_update(store: &dyn Store) {
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

pub(super) async fn expiry_is_counted_from_the_clock(store: &dyn Store) {
    let meta = store_one(store, envelope(group(1), "a")).await;
    assert_eq!(meta.expiry_ns, Some(meta.server_ns + 1000));
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

pub(super) async fn a_closed_store_refuses(store: &dyn Store) {
    let mut tail = store.tail().await.unwrap();
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
    assert_eq!(tail.next().await.unwrap_err(), TailError::Final);
}
