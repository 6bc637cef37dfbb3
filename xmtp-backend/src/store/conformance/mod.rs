//! The suite that every store passes: one case for each promise of the traits.
//!
//! The list of cases stands once, in [`CASES`]; each case gets a fresh store.

mod following;
mod prune;
mod publish;
mod reads;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use sha2::{Digest, Sha256};
use tokio::time::timeout;
use xmtp_identity::IdentifierKind;
use xmtp_identity::projection::{Association, IdentifierChange};
use xmtp_proto::id::{GroupId, InboxId, SequenceId, Topic};

use super::*;
use crate::hooks::Clock;

type Case = for<'s> fn(&'s dyn Store) -> BoxFuture<'s, ()>;

/// Lists functions as cases.
macro_rules! cases {
    ($($name:path),* $(,)?) => {
        const CASES: &[Case] = &[$(|store| Box::pin($name(store))),*];
    };
}

cases![
    publish::ids_grow_in_request_order_and_the_clock_is_read_once,
    publish::an_envelope_is_stored_once,
    publish::a_stored_envelope_outweighs_a_refusal,
    publish::a_refused_request_stores_nothing,
    publish::the_lowest_refusal_counts,
    publish::a_moved_head_outweighs_a_refusal,
    publish::a_full_identity_log_takes_no_new_update,
    reads::a_history_is_whole_and_in_order,
    publish::expiry_is_counted_from_the_clock,
    reads::a_page_is_a_prefix_of_each_topic,
    reads::a_page_says_exactly_whether_there_is_more,
    reads::a_page_begins_where_it_is_told,
    reads::a_page_that_does_not_fit_fails,
    reads::a_cursor_past_the_head_gives_nothing,
    reads::newest_leaves_out_empty_topics,
    reads::the_latest_live_association_wins,
    following::heads_are_zero_for_empty_topics,
    following::a_turn_is_bounded_and_fair,
    following::a_turn_always_brings_something,
    following::a_turn_ends_its_ranges,
    following::a_tail_gives_out_each_envelope_once,
    following::a_tail_that_falls_behind_misses_nothing,
    following::concurrent_publishes_keep_topics_in_order,
    prune::only_what_has_expired_is_pruned,
    prune::the_newest_of_a_topic_is_never_pruned,
    prune::what_never_expires_is_never_pruned,
    prune::pruning_goes_on_where_it_stopped,
    prune::a_pruned_envelope_is_forgotten_and_its_id_is_not_given_again,
    prune::a_turn_over_a_pruned_range_ends,
    publish::a_closed_store_refuses,
];

/// How long one case may take; it can only fail the case.
const PATIENCE: Duration = Duration::from_secs(60);

/// A clock that stands still.
#[derive(Debug)]
pub(super) struct Stopped;

const NOW_NS: u64 = 1_700_000_000_000_000_000;

impl Clock for Stopped {
    fn now_ns(&self) -> u64 {
        NOW_NS
    }
}

pub(super) async fn run<S: Store>(make: impl AsyncFn() -> S) {
    for case in CASES {
        let store = make().await;
        timeout(PATIENCE, case(&store))
            .await
            .expect("a case in time");
        store.close().await;
    }
}

#[tokio::test]
async fn memory_conforms() {
    run(async || MemoryStore::new(Arc::new(Stopped))).await;
}

#[tokio::test]
async fn sqlite_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let count = std::sync::atomic::AtomicUsize::new(0);
    run(async || {
        let number = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = folder.path().join(format!("{number}.db3"));
        let settings = SqliteSettings::default();
        SqliteStore::open(&path, "org.example.test", Arc::new(Stopped), settings).unwrap()
    })
    .await;
}

/// An engine without a clock of its own takes the server's.
#[tokio::test]
async fn rows_are_dated_by_the_clock_of_the_server() {
    let memory = MemoryStore::new(Arc::new(Stopped));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db3");
    let settings = SqliteSettings::default();
    let sqlite = SqliteStore::open(&path, "org.example.test", Arc::new(Stopped), settings).unwrap();
    for store in [&memory as &dyn Store, &sqlite] {
        let meta = store_one(store, envelope(group(1), "a")).await;
        assert_eq!(meta.server_ns, NOW_NS);
    }
}

pub(super) fn group(number: u8) -> Topic {
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

pub(super) fn update(
    inbox: u8,
    payload: &str,
    expected_head: SequenceId,
    max: u32,
) -> PreparedEnvelope {
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

pub(super) async fn store_one(store: &dyn Store, envelope: PreparedEnvelope) -> Meta {
    store.publish(vec![envelope]).await.unwrap()[0]
}

pub(super) async fn fill(store: &dyn Store, topic: Topic, payloads: &[&str]) -> Vec<SequenceId> {
    let envelopes = payloads
        .iter()
        .map(|payload| envelope(topic, *payload))
        .collect();
    let metas = store.publish(envelopes).await.unwrap();
    metas.iter().map(|meta| meta.sequence_id).collect()
}

pub(super) fn query(topics: &[(Topic, u32)], limit: usize) -> Query {
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

pub(super) fn payloads(rows: &[Envelope]) -> Vec<&[u8]> {
    rows.iter().map(|row| row.payload.as_ref()).collect()
}
