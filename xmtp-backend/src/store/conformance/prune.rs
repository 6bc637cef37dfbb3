//! What has expired goes, and what must stay stays.

use super::*;

/// After everything that the cases store with a retention has expired.
const LATER_NS: u64 = i64::MAX.unsigned_abs();

/// Prunes in steps of `rows` to the end; returns how many rows each step deleted.
async fn prune(store: &dyn Store, now_ns: u64, rows: usize) -> Vec<usize> {
    let (mut steps, mut after) = (Vec::new(), None);
    loop {
        let step = store.prune(now_ns, PruneBudget { rows, after });
        let pruned = step.await.unwrap();
        steps.push(pruned.deleted);
        if pruned.next.is_none() {
            return steps;
        }
        assert!(pruned.next > after, "a step goes on");
        after = pruned.next;
    }
}

async fn read(store: &dyn Store, topic: Topic) -> Vec<SequenceId> {
    let page = store.query(query(&[(topic, 0)], 100)).await.unwrap();
    let rows = page.envelopes.iter();
    rows.map(|row| row.meta.sequence_id).collect()
}

pub(super) async fn only_what_has_expired_is_pruned(store: &dyn Store) {
    let first = store_one(store, envelope(group(1), "a")).await;
    let second = store_one(store, envelope(group(1), "b")).await;
    let expiry_ns = first.expiry_ns.unwrap();
    assert_eq!(prune(store, expiry_ns, 9).await, [0]);
    let ids = [first.sequence_id, second.sequence_id];
    assert_eq!(read(store, group(1)).await, ids);
    assert_eq!(prune(store, expiry_ns + 1, 9).await, [1]);
    assert_eq!(read(store, group(1)).await, ids[1..]);
}

pub(super) async fn the_newest_of_a_topic_is_never_pruned(store: &dyn Store) {
    let ids = fill(store, group(1), &["a", "b", "c"]).await;
    let other = fill(store, group(2), &["d"]).await;
    assert_eq!(prune(store, LATER_NS, 9).await.iter().sum::<usize>(), 2);
    assert_eq!(read(store, group(1)).await, [ids[2]]);
    let heads = store.heads(vec![group(1), group(2)]).await.unwrap();
    assert_eq!(heads, [ids[2], other[0]]);
    let newest = store.newest(vec![group(1), group(2)], true, 1 << 20).await;
    assert_eq!(payloads(&newest.unwrap()), [b"c", b"d"]);
    // A newer one makes it an old one.
    let mut newer = envelope(group(1), "e");
    newer.retention_ns = Some(1_000_000);
    let newer = store_one(store, newer).await.sequence_id;
    assert_eq!(prune(store, LATER_NS, 9).await.iter().sum::<usize>(), 1);
    assert_eq!(read(store, group(1)).await, [newer]);
}

pub(super) async fn what_never_expires_is_never_pruned(store: &dyn Store) {
    let mut commit = envelope(group(1), "commit");
    (commit.is_commit_or_proposal, commit.retention_ns) = (true, None);
    let commit = store_one(store, commit).await.sequence_id;
    let ids = fill(store, group(1), &["a", "b"]).await;
    let first = store_one(store, update(1, "x", SequenceId::ZERO, 9)).await;
    store_one(store, update(1, "y", first.sequence_id, 9)).await;
    assert_eq!(prune(store, LATER_NS, 9).await.iter().sum::<usize>(), 1);
    assert_eq!(read(store, group(1)).await, [commit, ids[1]]);
    let history = store.identity_history(inbox_topic(1)).await.unwrap();
    assert_eq!(history.entries.len(), 2);
}

pub(super) async fn pruning_goes_on_where_it_stopped(store: &dyn Store) {
    for number in 0..5 {
        fill(store, group(number), &["a", "b"]).await;
    }
    let steps = prune(store, LATER_NS, 3).await;
    assert!(
        steps.len() >= 4,
        "three rows at most are looked at: {steps:?}"
    );
    assert!(steps.iter().all(|deleted| *deleted <= 3), "{steps:?}");
    assert_eq!(steps.iter().sum::<usize>(), 5);
    // What stays is looked at again and stays again.
    assert_eq!(prune(store, LATER_NS, 3).await.iter().sum::<usize>(), 0);
    let after = Some(PrunePosition {
        expiry_ns: LATER_NS - 1,
        sequence_id: SequenceId::MAX,
    });
    let pruned = store.prune(LATER_NS, PruneBudget { rows: 3, after });
    assert_eq!(pruned.await.unwrap(), Pruned::default());
}

pub(super) async fn a_pruned_envelope_is_forgotten_and_its_id_is_not_given_again(
    store: &dyn Store,
) {
    let ids = fill(store, group(1), &["a", "b"]).await;
    prune(store, LATER_NS, 9).await;
    let keys = vec![envelope(group(1), "a").key, envelope(group(1), "b").key];
    let stored = store.existing(keys).await.unwrap();
    assert_eq!(
        (stored[0], stored[1].map(|meta| meta.sequence_id)),
        (None, Some(ids[1]))
    );
    let again = store_one(store, envelope(group(1), "a")).await.sequence_id;
    assert!(again > ids[1]);
    assert_eq!(read(store, group(1)).await, [ids[1], again]);
}

pub(super) async fn a_turn_over_a_pruned_range_ends(store: &dyn Store) {
    let ids = fill(store, group(1), &["a", "b", "c"]).await;
    prune(store, LATER_NS, 9).await;
    let want = |through| Want {
        topic: group(1),
        after: SequenceId::ZERO,
        through,
    };
    let budget = TurnBudget {
        topic_rows: 9,
        topic_bytes: 1 << 20,
        bytes: 1 << 20,
    };
    let wants = vec![want(ids[1]), want(ids[2])];
    let turn = store.fetch_turn(wants, budget).await.unwrap();
    assert!(turn.served[0].rows.is_empty() && turn.served[0].complete);
    assert_eq!(payloads(&turn.served[1].rows), [b"c"]);
    assert!(turn.served[1].complete);
}
