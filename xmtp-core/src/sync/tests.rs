//! Runs of sync through a whole engine on a scripted backend.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use xmtp_proto::{GroupId, InboxId, SequenceId, Topic};

use super::{Cause, Incomplete, Reason, SyncControls, SyncError, SyncProgress, SyncRequest};
use super::{sync, sync_with};
use crate::error::Coded;
use crate::runtime::{RuntimeExt, SimulatedRuntime};
use crate::subscription::progress::Position;
use crate::testing::scripted::{
    Call, Fault, INSTALLATION, ScriptedBackend, ScriptedClient, group_envelope, identity_envelope,
    welcome_envelope,
};
use crate::transport::TransportError;

pub(super) const SECOND: Duration = Duration::from_secs(1);

pub(super) fn group(number: u16) -> GroupId {
    let mut id = [0; 16];
    id[..2].copy_from_slice(&number.to_be_bytes());
    GroupId::from_bytes(id)
}

pub(super) fn topic(number: u16) -> Topic {
    Topic::group(&group(number))
}

pub(super) fn store(backend: &ScriptedBackend, number: u16, texts: &[&str]) -> Vec<u64> {
    backend.store(
        texts
            .iter()
            .map(|text| group_envelope(&group(number), text)),
    )
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
    (1..=count).for_each(|number| client.join(&group(number)));
    runtime.run(test(client.clone(), backend));
    client.verify();
}

pub(super) fn request(numbers: impl IntoIterator<Item = u16>, timeout: Duration) -> SyncRequest {
    SyncRequest {
        timeout,
        ..SyncRequest::new(numbers.into_iter().map(topic))
    }
}

fn everything(client: &ScriptedClient, timeout: Duration) -> SyncRequest {
    SyncRequest {
        topics: vec![client.context.welcome_topic],
        include_discovered: true,
        timeout,
    }
}

fn incomplete(result: Result<super::SyncReport, SyncError>) -> Incomplete {
    match result {
        Err(SyncError::Incomplete(incomplete)) => {
            assert!(!incomplete.obligations.is_empty(), "report B77");
            *incomplete
        }
        other => panic!("not incomplete: {other:?}"),
    }
}

fn join(backend: &ScriptedBackend, number: u16, before: &str) -> u64 {
    let anchor = store(backend, number, &["add"])[0];
    let text = format!("{before}join:{}:1:{anchor}", group(number).to_hex());
    backend.store([welcome_envelope(&INSTALLATION, &text)])[0]
}

/// A run queries at once, with no live receiver, and ends when everything through the heads of
/// its beginning is processed. Heads are captured without envelopes; no topic owes nothing.
/// covers: STR-040, STR-042
#[test]
fn a_run_queries_at_once() {
    with_client(2, |client, backend| async move {
        let ids = store(&backend, 1, &["one", "reject", "commit", "two"]);
        backend.fail(Call::Subscribe, (0..1_000).map(|_| Fault::Hang));
        let before = client.context.runtime.monotonic();
        let report = sync(&client.context, request([1, 2, 2], 20 * SECOND)).await;
        let report = report.expect("complete");
        assert_eq!((report.topics, report.messages), (2, 2));
        assert_eq!(
            client.context.runtime.monotonic(),
            before,
            "nothing to wait for"
        );
        assert_eq!(client.processed(&topic(1)), ids[3]);
        assert_eq!(
            backend.queries().len(),
            1,
            "the empty topic is not asked for"
        );
        assert!(!backend.queries()[0].contains_key(&topic(2)));
    });
}

/// A second run downloads nothing: what is received is only waited for.
/// covers: STR-042
#[test]
fn what_is_received_is_not_fetched_again() {
    with_client(1, |client, backend| async move {
        store(&backend, 1, &["one", "retry:3", "three"]);
        let short = sync(&client.context, request([1], Duration::from_millis(50))).await;
        let left = incomplete(short);
        assert_eq!(
            left.obligations[0].received,
            left.obligations[0].target.unwrap()
        );
        let queries = backend.calls(Call::Query);
        sync(&client.context, request([1], 20 * SECOND))
            .await
            .expect("resumed");
        assert_eq!(backend.calls(Call::Query), queries);
        assert_eq!(client.messages(&group(1)).len(), 3);
    });
}

/// Welcomes that the stream received are not downloaded again by a sync (report B48).
/// covers: STR-042, STR-036
#[test]
fn streamed_welcomes_are_not_downloaded_again() {
    with_client(0, |client, backend| async move {
        for number in 1..=500 {
            join(&backend, number, "");
        }
        let interest = client.context.interests.owner();
        interest.add([client.context.welcome_topic]);
        client
            .until("joined", |client| {
                client.processed(&client.context.welcome_topic) > 0
            })
            .await;
        let handed_out = backend.handed_out();
        let report = sync(&client.context, everything(&client, 60 * SECOND)).await;
        assert_eq!(report.expect("complete").topics, 501);
        assert_eq!(
            backend.handed_out(),
            handed_out,
            "anchors are F: nothing is new"
        );
    });
}

/// The Welcome target is fixed first, groups that Welcomes at or below it lead to are enrolled
/// under the same deadline, and later ones are not.
/// covers: STR-041, STR-044
#[test]
fn discovered_groups_are_enrolled_with_their_own_targets() {
    with_client(0, |client, backend| async move {
        join(&backend, 1, "retry:2 ");
        join(&backend, 2, "");
        store(&backend, 1, &["in one"]);
        store(&backend, 2, &["in two"]);
        let (sender, mut progress) = watch::channel(Arc::new(SyncProgress::default()));
        let controls = SyncControls {
            progress: Some(sender),
            cancel: None,
        };
        let running = client.clone();
        let (done, result) = tokio::sync::oneshot::channel();
        let runtime = client.context.runtime.clone();
        drop(runtime.spawn("run", async move {
            let request = everything(&running, 60 * SECOND);
            let _ = done.send(sync_with(&running.context, request, controls).await);
        }));
        let has_target = |told: &Arc<SyncProgress>| {
            let mut topics = told.topics.iter();
            topics.any(|one| one.topic == topic(2) && one.target.is_some())
        };
        progress.wait_for(has_target).await.expect("progress");
        // After their targets: none of this belongs to the run.
        join(&backend, 3, "block ");
        store(&backend, 2, &["block"]);
        let report = result.await.expect("ended").expect("complete");
        assert_eq!(report.topics, 3, "the Welcome topic and two groups");
        let last = progress.borrow().clone();
        assert!(last.topics.iter().all(|topic| topic.is_complete));
        assert!(!last.topics.iter().any(|one| one.topic == topic(3)));
        assert_eq!(client.messages(&group(1)), ["in one"]);
        assert_eq!(client.messages(&group(2)), ["in two"]);
    });
}

/// Progress is told against targets that never move, and never goes back.
/// covers: STR-044
#[test]
fn progress_has_fixed_targets() {
    with_client(1, |client, backend| async move {
        let texts: Vec<String> = (0..700).map(|number| number.to_string()).collect();
        let ids = backend.store(texts.iter().map(|text| group_envelope(&group(1), text)));
        let (sender, progress) = watch::channel(Arc::new(SyncProgress::default()));
        let (seen, mut collected) = tokio::sync::mpsc::unbounded_channel();
        let mut following = progress.clone();
        let live = backend.clone();
        drop(client.context.runtime.spawn("bars", async move {
            while following.changed().await.is_ok() {
                store(&live, 1, &["live traffic"]);
                let _ = seen.send(following.borrow().topics.clone());
            }
        }));
        backend.fail(Call::Subscribe, (0..1_000).map(|_| Fault::Hang));
        backend.fail(Call::Query, (0..3).map(|_| Fault::Delay(SECOND)));
        let controls = SyncControls {
            progress: Some(sender),
            cancel: None,
        };
        let run = sync_with(&client.context, request([1], 60 * SECOND), controls).await;
        run.expect("complete");
        client.wait(SECOND).await;
        let mut received = 0;
        let mut told = 0;
        while let Ok(topics) = collected.try_recv() {
            let Some(one) = topics.first() else { continue };
            assert_eq!(one.target, Some(SequenceId::saturating(ids[699])));
            assert!(one.received.get() >= received);
            received = one.received.get();
            told += 1;
        }
        assert!(told >= 3, "told {told} times");
    });
}

/// What is left is named with its target, F, P or Welcomes, and cause; one blocked group or
/// Welcome does not keep the others from completing.
/// covers: STR-043, STR-013
#[test]
fn what_is_left_is_named() {
    with_client(3, |client, backend| async move {
        let blocked = store(&backend, 1, &["fine", "block", "after"]);
        let slow = store(&backend, 2, &["retry:7", "done"]);
        store(&backend, 3, &["done"]);
        let welcome = join(&backend, 9, "block ");
        let wanted = SyncRequest {
            topics: vec![topic(1), topic(2), topic(3), client.context.welcome_topic],
            include_discovered: true,
            timeout: 60 * SECOND,
        };
        let before = client.context.runtime.monotonic();
        let left = incomplete(sync(&client.context, wanted).await);
        assert!(client.context.runtime.monotonic() - before < 59 * SECOND);
        assert_eq!((left.reason, left.completed), (Reason::Blocked, 2));
        assert_eq!(
            client.processed(&topic(2)),
            slow[1],
            "independent work is done"
        );
        let unsupported = Cause::Blocked {
            code: "unsupported".to_owned(),
        };
        assert_eq!(left.obligations.len(), 2);
        for obligation in &left.obligations {
            assert_eq!(obligation.cause, unsupported);
        }
        let of = |topic: Topic| {
            let found = left.obligations.iter().find(|one| one.topic == topic);
            found.expect("it is named").clone()
        };
        let group = of(topic(1));
        assert_eq!(group.target, Some(SequenceId::saturating(blocked[2])));
        assert_eq!(group.received.get(), blocked[2]);
        let processed = SequenceId::saturating(blocked[0]);
        assert_eq!(
            group.progress,
            Position::Processed {
                processed,
                is_left: false
            }
        );
        let unresolved = vec![SequenceId::saturating(welcome)];
        let welcomes = of(client.context.welcome_topic);
        assert_eq!(welcomes.progress, Position::Welcomes { unresolved });
        let error = SyncError::Incomplete(Box::new(left));
        assert_eq!(error.code(), "sync.incomplete");
        assert!(error.to_string().contains("call again to resume"));
        assert!(error.to_string().contains("unsupported (2)"));
    });
}

/// A group that waits for an identity whose history is invalid is blocked, not merely late.
/// covers: STR-043
#[test]
fn a_blocked_dependency_blocks() {
    with_client(1, |client, backend| async move {
        let inbox = InboxId::from_bytes([3; 32]);
        let ids = backend.store([
            identity_envelope(&inbox, 1),
            identity_envelope(&inbox, u64::MAX),
        ]);
        let wait = format!("wait:{}:{}", inbox.to_hex(), ids[1]);
        store(&backend, 1, &[&wait]);
        let left = incomplete(sync(&client.context, request([1], 600 * SECOND)).await);
        assert_eq!(left.reason, Reason::Blocked);
        let cause = &left.obligations[0].cause;
        assert_eq!(cause.code(), "identity_invalid");
    });
}

/// A dependency that is there is resolved within the run.
/// covers: STR-041
#[test]
fn required_dependencies_are_part_of_the_run() {
    with_client(1, |client, backend| async move {
        let inbox = InboxId::from_bytes([3; 32]);
        let ids = backend.store([identity_envelope(&inbox, 1)]);
        let wait = format!("wait:{}:{}", inbox.to_hex(), ids[0]);
        store(&backend, 1, &[&wait, "after"]);
        sync(&client.context, request([1], 60 * SECOND))
            .await
            .expect("complete");
        assert_eq!(client.messages(&group(1)).len(), 2);
    });
}

/// The end of a run ends its interests alone, cancelled or not, and keeps what is committed.
/// covers: STR-041, STR-043, STR-015
#[test]
fn cancelling_ends_its_own_interests_alone() {
    with_client(2, |client, backend| async move {
        let ids = store(&backend, 1, &["block", "kept"]);
        let other = client.context.interests.owner();
        other.add([topic(2)]);
        let cancel = client.context.runtime.sleep(2 * SECOND);
        let controls = SyncControls {
            progress: None,
            cancel: Some(cancel),
        };
        backend.fail(Call::QueryNewest, [Fault::Hang]);
        let run = sync_with(&client.context, request([1, 2], 60 * SECOND), controls).await;
        let left = incomplete(run);
        assert_eq!(
            (left.reason, left.obligations.len()),
            (Reason::Cancelled, 2)
        );
        assert_eq!(
            left.obligations[0].target, None,
            "a failed capture stays absent"
        );
        assert_eq!(left.obligations[0].cause, Cause::Cancelled);
        assert_eq!(client.context.interests.wanted(), [topic(2)].into());
        assert_eq!(
            client.received(&topic(1)),
            ids[1],
            "the live receiver was faster"
        );
        backend.fail(Call::QueryNewest, [Fault::Hang]);
        let dropped = sync(&client.context, request([1], 60 * SECOND));
        tokio::select! {
            biased;
            _ = dropped => panic!("it waits for the backend"),
            () = std::future::ready(()) => {}
        }
        assert_eq!(client.context.interests.wanted(), [topic(2)].into());
    });
}

/// A backend that refuses is named with its code; one that fails for a while is waited for.
/// covers: STR-043
#[test]
fn connection_failures_are_typed() {
    with_client(2, |client, backend| async move {
        store(&backend, 1, &["one"]);
        let unavailable = || {
            Fault::Refuse(TransportError::Unavailable {
                detail: "scripted".to_owned(),
                retry_after: None,
            })
        };
        backend.fail(Call::Subscribe, (0..1_000).map(|_| Fault::Hang));
        backend.fail(Call::QueryNewest, (0..3).map(|_| unavailable()));
        backend.fail(Call::Query, (0..3).map(|_| unavailable()));
        sync(&client.context, request([1], 60 * SECOND))
            .await
            .expect("complete");
        backend.fail(Call::QueryNewest, (0..1_000).map(|_| unavailable()));
        let left = incomplete(sync(&client.context, request([1], 5 * SECOND)).await);
        assert_eq!(left.reason, Reason::Deadline);
        let retryable = Cause::Connection {
            code: "transport.unavailable",
            is_retryable: true,
        };
        assert_eq!(left.obligations[0].cause, retryable);
        assert!(backend.calls(Call::QueryNewest) < 20, "it backs off");
    });
    with_client(1, |client, backend| async move {
        backend.fail(
            Call::QueryNewest,
            [Fault::Refuse(TransportError::PermissionDenied)],
        );
        let left = incomplete(sync(&client.context, request([1], 60 * SECOND)).await);
        assert_eq!(left.reason, Reason::Connection);
        let refused = Cause::Connection {
            code: "transport.permission_denied",
            is_retryable: false,
        };
        assert_eq!(left.obligations[0].cause, refused);
    });
}

/// One topic that cannot be synced does not keep the others from it.
#[test]
fn an_invalid_topic_is_named_alone() {
    with_client(2, |client, backend| async move {
        store(&backend, 1, &["one"]);
        let mut wanted = request([1, 2], 60 * SECOND);
        wanted.topics.push(Topic::key_package(&INSTALLATION));
        let refused = TransportError::InvalidArgument {
            index: None,
            reason: None,
            message: "scripted".to_owned(),
        };
        backend.fail(Call::QueryNewest, [Fault::Refuse(refused)]);
        let left = incomplete(sync(&client.context, wanted).await);
        assert_eq!((left.completed, left.obligations.len()), (2, 1));
        assert_eq!(left.obligations[0].cause, Cause::InvalidTopic);
    });
}

/// A connection that is blocked ends a run at once with its own code, and is told as one that no
/// repeat changes.
/// covers: STR-043, EXT-008
#[test]
fn a_blocked_connection_ends_the_run() {
    with_client(1, |client, backend| async move {
        store(&backend, 1, &["a"]);
        let blocked = TransportError::Blocked {
            code: "another_backend",
        };
        backend.fail(Call::QueryNewest, [Fault::Refuse(blocked)]);
        let started = client.context.runtime.monotonic();
        let told = incomplete(sync(&client.context, request([1], 30 * SECOND)).await);
        assert!(client.context.runtime.monotonic() < started + SECOND);
        assert_eq!(told.reason, Reason::Connection);
        let cause = Cause::Connection {
            code: "transport.blocked",
            is_retryable: false,
        };
        assert_eq!(told.obligations[0].cause, cause);
    });
}
