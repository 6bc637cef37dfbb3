//! Receipt at its bounds: what pauses, what goes on, and that nothing is lost.

use xmtp_proto::{Topic, TopicKind};

use super::tests::{SECOND, group, groups, store, topics, with_client};
use crate::limits::{MAX_PENDING_ROWS_PER_TOPIC, max_pending_rows};
use crate::receipt::CapacityScope;
use crate::testing::scripted::{ScriptedClient, group_envelope};

/// A topic whose pending data is at its bound pauses alone, loses nothing, and goes on when
/// processing made room.
/// covers: STR-063
#[test]
fn a_full_topic_pauses_alone() {
    with_client(2, |client, backend| async move {
        let (full, other) = (group(1), group(2));
        let (topic, other_topic) = (Topic::group(&full), Topic::group(&other));
        let count = MAX_PENDING_ROWS_PER_TOPIC as usize + 500;
        store(&backend, &full, &["block"]);
        let texts: Vec<String> = (0..count).map(|number| number.to_string()).collect();
        backend.store(texts.iter().map(|text| group_envelope(&full, text)));
        let interest = client.context.interests.owner();
        interest.add([topic, other_topic]);
        let paused = |client: &ScriptedClient| client.engine.subscriptions().paused(&topic);
        client
            .until("a pause", |client| paused(client).is_some())
            .await;
        assert_eq!(
            paused(&client).map(|bound| bound.scope),
            Some(CapacityScope::Topic)
        );
        store(&backend, &other, &["not delayed"]);
        client
            .until("the other", |client| client.messages(&other).len() == 1)
            .await;
        assert!(!backend.registered().contains_key(&topic));
        client.processor.heal();
        unblock(&client, &topic).await;
        client
            .until("all", |client| client.messages(&full).len() == count + 1)
            .await;
        assert_eq!(client.messages(&full)[1..], texts);
        client
            .until("no pause", |client| paused(client).is_none())
            .await;
    });
}

/// When a kind's budget is exhausted by stuck topics, room that one of them makes goes to an empty
/// topic first, and everything arrives once the rest is released.
/// covers: STR-063
#[test]
fn an_exhausted_kind_makes_room_for_the_empty_first() {
    with_client(20, |client, backend| async move {
        for stuck in groups(18) {
            let texts = (0..600).map(|number| number.to_string());
            store(&backend, &stuck, &["block"]);
            backend.store(texts.map(|text| group_envelope(&stuck, &text)));
        }
        let interest = client.context.interests.owner();
        interest.add(topics(&groups(18)));
        let budget = |client: &ScriptedClient| -> u64 {
            let waits = |topic: &Topic| client.pending_rows(topic);
            topics(&groups(20)).iter().map(waits).sum()
        };
        let full = max_pending_rows(TopicKind::Group);
        client.until("full", |client| budget(client) == full).await;
        let (empty, topic) = (group(20), Topic::group(&group(20)));
        interest.add([topic]);
        store(&backend, &empty, &["hello"]);
        client.wait(5 * SECOND).await;
        assert_eq!(
            budget(&client),
            full,
            "an empty topic does not pass the bound"
        );
        assert!(client.messages(&empty).is_empty());
        client.processor.heal();
        unblock(&client, &Topic::group(&group(1))).await;
        client
            .until("the empty one", |client| client.messages(&empty).len() == 1)
            .await;
        for round in 0..10 {
            for stuck in topics(&groups(18)) {
                unblock(&client, &stuck).await;
            }
            client.wait(SECOND * (round + 1)).await;
        }
        for stuck in groups(18) {
            let all = |client: &ScriptedClient| client.messages(&stuck).len() == 601;
            client.until("all", all).await;
        }
        assert_eq!(backend.opened().len(), 1, "no stream was lost over it");
    });
}

/// Tries a blocked head again, as a new coordinator does.
async fn unblock(client: &ScriptedClient, topic: &Topic) {
    let processors = client.context.processors.clone();
    let topic = *topic;
    let turn = client.context.database.write_queued(
        crate::storage::Priority::Background,
        crate::storage::Durability::Ordered,
        move |txn| crate::processing::turn(txn, &topic, &processors, true),
    );
    turn.await.expect("a turn");
}
