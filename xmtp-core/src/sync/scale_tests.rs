//! Sync beside live receipt, on lagging replicas, and over many groups.

use std::collections::BTreeSet;

use super::tests::{SECOND, group, request, store, topic, with_client};
use super::{Reason, SyncError, sync};
use crate::testing::scripted::{Call, Fault, group_envelope};

/// A replica that lags shows older heads, even below F: the run is complete for what it shows,
/// and nothing goes back (report B78). A wiped backend with the same identifier looks the same;
/// that is what the identifier is for.
/// covers: STR-044, STR-040
#[test]
fn a_lagging_replica_is_no_error() {
    with_client(2, |client, backend| async move {
        let ids = store(&backend, 1, &["one", "two"]);
        sync(&client.context, request([1], 60 * SECOND))
            .await
            .expect("complete");
        backend.lag_at(Some(ids[0]));
        store(&backend, 2, &["not visible"]);
        let report = sync(&client.context, request([1, 2], 60 * SECOND)).await;
        assert_eq!(report.expect("complete").messages, 0);
        assert_eq!(client.received(&topic(1)), ids[1], "F never goes back");
        backend.lag_at(None);
        let report = sync(&client.context, request([1, 2], 60 * SECOND)).await;
        assert_eq!(report.expect("complete").messages, 1);
    });
}

/// A stream and syncs over the same messages process each once (report B08).
/// covers: STR-042, STR-036
#[test]
fn stream_and_sync_share_one_receipt() {
    with_client(1, |client, backend| async move {
        let interest = client.context.interests.owner();
        interest.add([topic(1)]);
        for number in 0..500 {
            store(&backend, 1, &[&number.to_string()]);
            if number % 5 == 0 {
                sync(&client.context, request([1], 60 * SECOND))
                    .await
                    .expect("complete");
            }
        }
        sync(&client.context, request([1], 60 * SECOND))
            .await
            .expect("complete");
        let expected: Vec<String> = (0..500).map(|number| number.to_string()).collect();
        assert_eq!(client.messages(&group(1)), expected);
        let applied = client.processor.applied();
        let once: BTreeSet<_> = applied.iter().collect();
        assert_eq!(applied.len(), once.len(), "applied twice");
    });
}

/// A thousand groups with a small budget a run: each run ends typed and keeps its work, a hot
/// group keeps no other waiting, and idle groups cost no round trip of their own (report B74).
/// covers: STR-016, STR-043, STR-042
#[test]
fn many_groups_in_small_runs() {
    with_client(1_000, |client, backend| async move {
        let hot: Vec<String> = (0..3_000).map(|number| number.to_string()).collect();
        backend.store(hot.iter().map(|text| group_envelope(&group(1), text)));
        for number in 2..=500 {
            store(
                &backend,
                number,
                &["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"],
            );
        }
        backend.fail(Call::Subscribe, (0..1_000).map(|_| Fault::Hang));
        let mut completed = 0;
        let mut runs = 0;
        loop {
            runs += 1;
            assert!(runs < 100, "it never ends");
            backend.fail(Call::Query, (0..9).map(|_| Fault::Delay(SECOND / 3)));
            match sync(&client.context, request(1..=1_000, 3 * SECOND)).await {
                Ok(report) => {
                    assert_eq!(report.topics, 1_000);
                    break;
                }
                Err(SyncError::Incomplete(left)) => {
                    assert_eq!(left.reason, Reason::Deadline);
                    assert!(left.completed > completed, "a run keeps its work");
                    completed = left.completed;
                    if runs == 1 {
                        assert!(completed > 600, "the hot group keeps {completed} waiting");
                    }
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(client.messages(&group(1)), hot);
        let queries = backend.calls(Call::Query);
        assert!(queries < 80, "{queries} pages for 7,990 envelopes");
        assert_eq!(
            backend.calls(Call::QueryNewest),
            runs,
            "one request for all heads"
        );
    });
}
