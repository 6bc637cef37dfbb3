//! What catch-up status tells while a whole engine receives and processes.

use xmtp_proto::{SequenceId, Topic};

use super::tests::{SECOND, group, groups, store, topics, unavailable, with_client};
use super::{Processing, Registration, Scope, StatusWatch};
use crate::testing::scripted::{INSTALLATION, ScriptedClient, welcome_envelope};

struct Watched {
    status: StatusWatch,
    scope: tokio::sync::watch::Sender<Scope>,
}

fn watch(client: &ScriptedClient, topics: &[Topic], all_groups: bool) -> Watched {
    let scope = Scope {
        topics: topics.iter().copied().collect(),
        all_groups,
    };
    let (scope, receiver) = tokio::sync::watch::channel(scope);
    let subscriptions = client.engine.subscriptions().clone();
    Watched {
        status: StatusWatch::start(client.context.clone(), subscriptions, receiver),
        scope,
    }
}

/// Applied, or the last envelope, is not completion; P at H is. New traffic does not move H, and a
/// reconnect changes the connection alone.
/// covers: STR-013, STR-025, STR-015
#[test]
fn caught_up_means_processed_through_h() {
    with_client(2, |client, backend| async move {
        let (slow, topic) = (group(1), Topic::group(&group(1)));
        let ids = store(&backend, &slow, &["one", "retry:8", "three"]);
        let watched = watch(&client, &topics(&groups(2)), false);
        let pending = watched.status.current();
        assert_eq!(pending.topics[0].registration, Registration::Pending);
        assert_eq!(pending.topics[0].target, None);
        assert_eq!(pending.processed_fraction(), None);
        assert!(!pending.is_caught_up());
        let interest = client.context.interests.owner();
        interest.add(topics(&groups(2)));
        client
            .until("received", |client| client.received(&topic) == ids[2])
            .await;
        client.wait(SECOND).await;
        let received = watched.status.current();
        assert_eq!(
            received.topics[0].target,
            Some(SequenceId::saturating(ids[2]))
        );
        assert_eq!(received.topics[0].processing, Processing::Pending);
        assert_eq!(received.topics[1].processing, Processing::Complete);
        let fraction = received.processed_fraction().expect("targets are known");
        assert!((0.0..1.0).contains(&fraction) && !received.is_caught_up());
        store(&backend, &slow, &["block"]);
        backend.cut(Some(unavailable()));
        let mut status = watched.status.clone();
        status
            .caught_up(3_600 * SECOND)
            .await
            .expect("caught up through H");
        let caught_up = status.current();
        assert_eq!(caught_up.processed_fraction(), Some(1.0));
        assert_eq!(
            caught_up.topics[0].target, received.topics[0].target,
            "H is fixed"
        );
        assert_eq!(caught_up.generation, received.generation);
    });
}

/// A group that the installation was removed from is complete at its removal; a blocked one is
/// named.
/// covers: STR-013
#[test]
fn left_groups_are_complete_and_blocked_ones_named() {
    with_client(2, |client, backend| async move {
        store(&backend, &group(1), &["remove", "unreadable"]);
        store(&backend, &group(2), &["block"]);
        let watched = watch(&client, &topics(&groups(2)), false);
        let interest = client.context.interests.owner();
        interest.add(topics(&groups(2)));
        let blocked = Processing::Blocked {
            code: "unsupported".to_owned(),
        };
        let status = watched.status.clone();
        let settled = |_: &ScriptedClient| status.current().topics[1].processing == blocked;
        client.until("blocked", settled).await;
        client.wait(SECOND).await;
        let current = watched.status.current();
        assert_eq!(current.topics[0].processing, Processing::Complete);
        let fraction = current.processed_fraction().expect("targets are known");
        assert!(fraction < 1.0);
        let mut status = watched.status.clone();
        let late = status.caught_up(SECOND).await.expect_err("blocked");
        assert_eq!((late.open, late.topics), (1, 2));
    });
}

/// Removing a topic cancels its obligation under the old generation and deletes nothing; what is
/// complete does not start again when a topic is added.
/// covers: STR-015, STR-014, STR-025
#[test]
fn a_change_of_scope_cancels_and_keeps() {
    with_client(3, |client, backend| async move {
        let all = topics(&groups(3));
        store(&backend, &group(1), &["done"]);
        store(&backend, &group(2), &["block", "kept"]);
        let watched = watch(&client, &all[..2], false);
        let interest = client.context.interests.owner();
        interest.add(all.iter().copied());
        let status = watched.status.clone();
        let settled = |_: &ScriptedClient| {
            let current = status.current();
            current.topics[0].processing == Processing::Complete
                && matches!(current.topics[1].processing, Processing::Blocked { .. })
        };
        client.until("settled", settled).await;
        let before = watched.status.current();
        watched.scope.send_replace(Scope {
            topics: [all[0], all[2]].into(),
            all_groups: false,
        });
        let mut status = watched.status.clone();
        status
            .caught_up(60 * SECOND)
            .await
            .expect("the rest is complete");
        let after = status.current();
        assert_eq!(after.generation, before.generation + 1);
        assert_eq!(
            after.topics[0].target, before.topics[0].target,
            "not started again"
        );
        assert_eq!(after.cancelled.len(), 1);
        let cancelled = &after.cancelled[0];
        assert_eq!(cancelled.generation, before.generation);
        assert_eq!(cancelled.topic.topic, all[1]);
        assert_eq!(cancelled.topic.processing, Processing::Cancelled);
        assert_eq!(cancelled.topic.registration, Registration::Removed);
        assert!(
            client.received(&all[1]) > client.processed(&all[1]),
            "pending data is kept"
        );
    });
}

/// A Welcome leads to its group before it is complete: the scope is caught up only when the group
/// is enrolled and processed.
/// covers: STR-014
#[test]
fn discovery_is_part_of_catching_up() {
    with_client(0, |client, backend| async move {
        let joined = group(9);
        let ids = store(&backend, &joined, &["commit"]);
        let join = format!("join:{}:1:{}", joined.to_hex(), ids[0]);
        backend.store([welcome_envelope(&INSTALLATION, &join)]);
        store(&backend, &joined, &["hello"]);
        client.engine.go_live(Vec::new());
        let mut status = client.engine.catch_up();
        let mut was_pending = false;
        let mut told = (0, 0.0);
        while !status
            .current()
            .topics
            .iter()
            .any(|topic| topic.topic == Topic::group(&joined))
        {
            let current = status.current();
            was_pending |= current.discovery_pending;
            assert!(!current.is_caught_up() || current.topics.is_empty());
            status.changed().await.expect("open");
        }
        assert!(was_pending);
        while !status.current().is_caught_up() {
            let current = status.current();
            if let Some(fraction) = current.processed_fraction() {
                assert!(
                    current.generation > told.0 || fraction >= told.1,
                    "it went back"
                );
                assert!(fraction < 1.0);
                told = (current.generation, fraction);
            }
            status.changed().await.expect("open");
        }
        assert_eq!(status.current().processed_fraction(), Some(1.0));
        assert_eq!(client.messages(&joined), ["hello"]);
    });
}
