//! Live receipt through a whole engine, on a backend that fails as the script says.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use xmtp_proto::backend::v1::subscribe_request::{Request, Update};
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{GroupId, SequenceId, Topic};

use super::ConnectionState;
use crate::engine::fetch::fetch_page;
use crate::engine::receive::receive;
use crate::limits::RECONNECT_FIRST_PAUSE;
use crate::receipt::{AdmissionError, Batch, Received};
use crate::runtime::SimulatedRuntime;
use crate::testing::memory::MemoryStorage;
use crate::testing::scripted::{
    Call, Fault, FrameFault, ScriptedBackend, ScriptedClient, group_envelope,
};
use crate::transport::TransportError;

pub(super) const SECOND: Duration = Duration::from_secs(1);

pub(super) fn group(number: u16) -> GroupId {
    let mut id = [0; 16];
    id[..2].copy_from_slice(&number.to_be_bytes());
    GroupId::from_bytes(id)
}

pub(super) fn groups(count: u16) -> Vec<GroupId> {
    (1..=count).map(group).collect()
}

pub(super) fn topics(groups: &[GroupId]) -> Vec<Topic> {
    groups.iter().map(Topic::group).collect()
}

pub(super) fn unavailable() -> TransportError {
    TransportError::Unavailable {
        detail: "scripted".to_owned(),
        retry_after: None,
    }
}

pub(super) fn store(backend: &ScriptedBackend, group: &GroupId, texts: &[&str]) -> Vec<u64> {
    backend.store(texts.iter().map(|text| group_envelope(group, text)))
}

/// Runs a test on a client that is a member of `count` groups, and checks the database after it.
pub(super) fn with_client<F>(
    count: u16,
    test: impl FnOnce(Arc<ScriptedClient>, ScriptedBackend) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let runtime = SimulatedRuntime::new(u64::from(count));
    let backend = ScriptedBackend::new(Arc::new(runtime.clone()));
    let client = Arc::new(ScriptedClient::start(&runtime, &backend));
    groups(count).iter().for_each(|group| client.join(group));
    runtime.run(test(client.clone(), backend));
    client.verify();
}

fn updates(backend: &ScriptedBackend) -> Vec<(u64, Update)> {
    let requests = backend.requests().into_iter();
    requests
        .filter_map(|(stream, request)| match request.request {
            Some(Request::Update(update)) => Some((stream, update)),
            _ => None,
        })
        .collect()
}

fn state(client: &ScriptedClient) -> ConnectionState {
    *client.engine.subscriptions().connection().borrow()
}

/// Without a wanted topic no stream is opened; with the first, one is.
#[test]
fn no_stream_without_a_wanted_topic() {
    with_client(1, |client, backend| async move {
        client.wait(60 * SECOND).await;
        assert_eq!(backend.calls(Call::Subscribe), 0);
        let interest = client.context.interests.owner();
        interest.add([Topic::group(&group(1))]);
        client
            .until("a stream", |_| backend.registered().len() == 1)
            .await;
        interest.remove([Topic::group(&group(1))]);
        client
            .until("none", |_| backend.registered().is_empty())
            .await;
        assert_eq!(state(&client), ConnectionState::Connected, "it stays open");
    });
}

/// A stream that opens with anything but Started fails explicitly; a topic that the backend has
/// never seen is registered among others with the target zero (report B30).
/// covers: STR-001, STR-006
#[test]
fn a_backend_of_another_vintage_is_told_apart() {
    with_client(100, |client, backend| async move {
        for known in groups(99) {
            store(&backend, &known, &["old"]);
        }
        backend.skip_started(true);
        let interest = client.context.interests.owner();
        interest.add(topics(&groups(100)));
        let failed = ConnectionState::Failed {
            code: "transport.protocol",
        };
        client
            .until("a failure", |client| state(client) == failed)
            .await;
        backend.skip_started(false);
        client
            .until("every topic", |client| {
                client.processed(&Topic::group(&group(99))) > 0
            })
            .await;
        let targets = client.engine.subscriptions().targets();
        assert_eq!(targets.len(), 100);
        assert_eq!(targets[&Topic::group(&group(100))], SequenceId::ZERO);
        let covered = |number| {
            client
                .engine
                .subscriptions()
                .covers(&Topic::group(&group(number)))
        };
        assert!(covered(1) && covered(100) && !covered(101));
    });
}

/// Every wanted topic is registered again after each of five restarts, from its own durable F,
/// and no message is lost or repeated (report B23).
/// covers: STR-036, STR-008, STR-015
#[test]
fn a_reconnect_starts_from_durable_f() {
    with_client(10, |client, backend| async move {
        let interest = client.context.interests.owner();
        interest.add(topics(&groups(10)));
        for round in 0..50 {
            let text = format!("message {round}");
            for group in groups(10) {
                store(&backend, &group, &[&text]);
            }
            if round % 10 == 5 {
                backend.cut((round % 20 == 5).then(unavailable));
            }
            client.wait(SECOND).await;
        }
        for group in groups(10) {
            let all = |client: &ScriptedClient| client.messages(&group).len() == 50;
            client.until("every message", all).await;
            let expected: Vec<String> = (0..50).map(|round| format!("message {round}")).collect();
            assert_eq!(client.messages(&group), expected);
        }
        let streams = backend.opened().len();
        assert!((6..=12).contains(&streams), "{streams} streams");
        for (stream, update) in updates(&backend)
            .into_iter()
            .filter(|(stream, _)| *stream > 1)
        {
            let cursors = update
                .adds
                .iter()
                .map(|add| add.cursor.unwrap_or_default().sequence_id);
            let cursors: BTreeSet<u64> = cursors.collect();
            assert!(!cursors.contains(&0), "stream {stream} begins at its start");
            assert_eq!(cursors.len(), update.adds.len(), "each topic has its own F");
        }
        let overlap = backend.handed_out() - 500;
        assert!(overlap <= 100, "{overlap} envelopes were downloaded again");
    });
}

/// Silence for three intervals is found, and what was published meanwhile arrives once from F
/// (report B17).
/// covers: STR-036, STR-025
#[test]
fn a_silent_connection_is_replaced() {
    with_client(1, |client, backend| async move {
        let (group, topic) = (group(1), Topic::group(&group(1)));
        backend.keepalive(10_000);
        let interest = client.context.interests.owner();
        interest.add([topic]);
        store(&backend, &group, &["before"]);
        client
            .until("before", |client| client.messages(&group).len() == 1)
            .await;
        client.wait(300 * SECOND).await;
        assert_eq!(backend.opened().len(), 1, "keepalive frames are enough");
        backend.blackhole(true);
        store(&backend, &group, &["during"]);
        let silent = client.context.runtime.monotonic();
        let reconnecting = |client: &ScriptedClient| state(client) == ConnectionState::Reconnecting;
        client.until("reconnecting", reconnecting).await;
        let noticed = client.context.runtime.monotonic() - silent;
        assert!(noticed <= 31 * SECOND, "noticed after {noticed:?}");
        assert!(!client.engine.subscriptions().covers(&topic));
        client.wait(300 * SECOND).await;
        backend.blackhole(false);
        store(&backend, &group, &["after"]);
        client
            .until("after", |client| client.messages(&group).len() == 3)
            .await;
        assert_eq!(client.messages(&group), ["before", "during", "after"]);
    });
}

/// A backend that opens streams and ends them at once is not hammered (report B21).
/// covers: STR-036
#[test]
fn a_flapping_backend_is_not_hammered() {
    with_client(1, |client, backend| async move {
        let interest = client.context.interests.owner();
        interest.add([Topic::group(&group(1))]);
        let end = client.context.runtime.monotonic() + 60 * SECOND;
        while client.context.runtime.monotonic() < end {
            client.wait(RECONNECT_FIRST_PAUSE / 10).await;
            backend.cut(None);
        }
        let opened = backend.opened();
        assert!(opened.len() <= 12, "{} streams in a minute", opened.len());
        let pause = |index: usize| opened[index + 1] - opened[index];
        assert!(pause(5) > pause(0) * 4, "pauses do not grow");
    });
}

/// After any number of quick changes of interest, what is registered is what is wanted
/// (report B21).
#[test]
fn the_last_change_of_interest_wins() {
    with_client(20, |client, backend| async move {
        let interest = client.context.interests.owner();
        for round in 0..1_000_u16 {
            let other = client.context.interests.owner();
            let topic = Topic::group(&group(round % 20 + 1));
            other.add([topic]);
            if round % 3 == 0 {
                interest.add([topic]);
            } else {
                interest.remove([topic]);
            }
            if round % 7 == 0 {
                client.wait(Duration::from_millis(3)).await;
            }
        }
        client.wait(10 * SECOND).await;
        let registered: BTreeSet<Topic> = backend.registered().into_keys().collect();
        assert_eq!(registered, client.context.interests.wanted());
        let count = updates(&backend).len();
        assert!(count < 200, "{count} updates would exhaust the bucket");
        assert_eq!(backend.opened().len(), 1);
    });
}

/// Frames that break the order end the stream and nothing else: the topic is read again from F,
/// in order, once (report B34).
/// covers: STR-036
#[test]
fn distorted_frames_are_read_again_from_f() {
    for fault in [
        FrameFault::Duplicate,
        FrameFault::Reverse,
        FrameFault::Foreign,
        FrameFault::StrayApplied,
    ] {
        with_client(1, move |client, backend| async move {
            let (group, topic) = (group(1), Topic::group(&group(1)));
            backend.distort([Some(fault)]);
            let interest = client.context.interests.owner();
            interest.add([topic]);
            store(&backend, &group, &["one", "two", "three"]);
            client
                .until("all", |client| client.messages(&group).len() == 3)
                .await;
            assert_eq!(client.messages(&group), ["one", "two", "three"]);
            client.wait(20 * SECOND).await;
            assert_eq!(backend.opened().len(), 2, "{fault:?}");
        });
    }
}

/// A source that starts above F is refused, and the missing prefix is fetched before anything is
/// applied (report B32).
#[test]
fn a_source_above_f_is_refused() {
    with_client(1, |client, backend| async move {
        let (group, topic) = (group(1), Topic::group(&group(1)));
        let ids = store(&backend, &group, &["commit", "message"]);
        let envelope = stored::PendingEnvelope::default();
        let batch = Batch {
            topic,
            after: SequenceId::saturating(ids[0]),
            envelopes: vec![Received {
                sequence_id: SequenceId::saturating(ids[1]),
                envelope,
            }],
        };
        let outcomes = receive(&client.context, vec![batch])
            .await
            .expect("no fault");
        assert!(matches!(
            outcomes[0],
            Err(AdmissionError::StartsBeyond { .. })
        ));
        assert_eq!(client.received(&topic), 0);
        fetch_page(&client.context, &[topic])
            .await
            .expect("the prefix");
        client
            .until("both", |client| client.processed(&topic) == ids[1])
            .await;
        let applied: Vec<u64> = client
            .processor
            .applied()
            .iter()
            .map(|(_, id)| id.get())
            .collect();
        assert_eq!(applied, ids, "in order");
    });
}

/// A refused answer is Failed with slow tries, a lost connection is Reconnecting; neither says
/// anything about processing, which goes on from pending data.
/// covers: STR-015, STR-025, STR-036
#[test]
fn the_connection_says_nothing_about_processing() {
    with_client(1, |client, backend| async move {
        let (group, topic) = (group(1), Topic::group(&group(1)));
        store(&backend, &group, &["retry:6", "later"]);
        let interest = client.context.interests.owner();
        interest.add([topic]);
        client
            .until("received", |client| client.received(&topic) > 0)
            .await;
        let handed_out = backend.handed_out();
        let refusals = (0..3).map(|_| Fault::Refuse(TransportError::PermissionDenied));
        backend.fail(Call::Subscribe, refusals);
        backend.cut(Some(unavailable()));
        let failed = ConnectionState::Failed {
            code: "transport.permission_denied",
        };
        client
            .until("failed", |client| state(client) == failed)
            .await;
        client
            .until("processed", |client| client.messages(&group).len() == 2)
            .await;
        assert_eq!(
            backend.handed_out(),
            handed_out,
            "nothing is downloaded again"
        );
        client
            .until("slow tries", |client| {
                state(client) == ConnectionState::Connected
            })
            .await;
        let opened = backend.opened();
        assert!(opened[1] - opened[0] >= 15 * SECOND);
    });
}

/// After a restart the stream starts from the F of the database, and pending data is processed
/// without another download.
/// covers: STR-036
#[test]
fn a_restart_downloads_nothing_again() {
    let runtime = SimulatedRuntime::new(5);
    let backend = ScriptedBackend::new(Arc::new(runtime.clone()));
    let storage = MemoryStorage::new();
    let disk = storage.disk();
    let (group, topic) = (group(1), Topic::group(&group(1)));
    let first = ScriptedClient::open(&runtime, &backend, storage);
    first.join(&group);
    let stored = backend.clone();
    runtime.run(async move {
        store(&stored, &group, &["retry:3", "two"]);
        let interest = first.context.interests.owner();
        interest.add([topic]);
        first
            .until("received", |client| client.received(&topic) > 0)
            .await;
        first.engine.close().await.expect("closed");
        let subscriptions = first.engine.subscriptions();
        assert_eq!(
            *subscriptions.connection().borrow(),
            ConnectionState::Closed
        );
    });
    let handed_out = backend.handed_out();
    let second = ScriptedClient::open(&runtime, &backend, disk.open());
    let again = backend.clone();
    runtime.run(async move {
        let interest = second.context.interests.owner();
        interest.add([topic]);
        second
            .until("processed", |client| client.messages(&group).len() == 2)
            .await;
        second.wait(SECOND).await;
        assert_eq!(again.handed_out(), handed_out);
        second.verify();
    });
}
