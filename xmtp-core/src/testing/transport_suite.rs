//! The transport suite: what every wire has to show before it may stand behind [`Transport`].
//!
//! A case is a function over a [`TransportFixture`]: a transport that leads to a fresh backend, and
//! the means to make envelopes which that backend admits. [`TRANSPORT_CASES`] is the only list. A
//! case waits for what must come and never for time to pass; whoever runs it sets a deadline, and a
//! case that passes the deadline has failed.
//!
//! A call that a backend need not offer yet (`subscribe_static`, `verify_wallet_signatures`) may
//! answer [`TransportError::Unimplemented`] and nothing else.

mod calls;
mod script;
mod streams;

use std::fmt;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use xmtp_proto::backend::v1;

use crate::transport::Transport;
#[cfg(doc)]
use crate::transport::TransportError;

/// What the test of a transport supplies, once per case.
#[async_trait]
pub trait TransportFixture: Send + Sync {
    /// Answers the transport; its backend holds nothing before the case begins.
    fn transport(&self) -> &dyn Transport;

    /// Answers the group topic of a seed.
    fn topic(&self, topic_seed: u8) -> v1::Topic;

    /// Makes the `n`-th envelope of [`Self::topic`]; the same arguments make the same bytes.
    fn envelope(&self, topic_seed: u8, n: u32) -> v1::ClientEnvelope;

    /// Makes an envelope of [`Self::topic`] that encodes to exactly so many bytes.
    fn envelope_of(&self, topic_seed: u8, encoded_bytes: usize) -> v1::ClientEnvelope;

    /// Stops the backend as an operator does; returns when it no longer serves.
    async fn stop_backend(&self);
}

/// One promise of the trait, checked against one transport.
#[derive(Clone, Copy)]
pub struct TransportCase {
    /// The promise.
    pub name: &'static str,
    /// Ids of the requirements that it covers.
    pub covers: &'static [&'static str],
    /// The check; it panics when the promise is broken.
    pub run: Run,
}

/// The check of a case.
pub type Run = for<'a> fn(&'a dyn TransportFixture) -> BoxFuture<'a, ()>;

impl fmt::Debug for TransportCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

const fn case(name: &'static str, covers: &'static [&'static str], run: Run) -> TransportCase {
    TransportCase { name, covers, run }
}

/// Every case.
#[rustfmt::skip] // one case a line
pub const TRANSPORT_CASES: &[TransportCase] = &[
    // Calls.
    case("what_is_published_is_queried_in_order_with_the_records_of_the_publish", &[], |f| Box::pin(calls::round_trip(f))),
    case("an_empty_publish_succeeds", &[], |f| Box::pin(calls::empty_publish(f))),
    case("the_same_bytes_published_again_answer_the_stored_record", &["EXT-001"], |f| Box::pin(calls::duplicate_publish(f))),
    case("a_refused_publish_names_envelope_and_reason_and_stores_nothing", &[], |f| Box::pin(calls::refused_publish(f))),
    case("pages_meet_every_envelope_once_and_has_more_is_exact", &[], |f| Box::pin(calls::pages(f))),
    case("a_refused_query_is_an_invalid_argument_without_an_index", &[], |f| Box::pin(calls::refused_query(f))),
    case("newest_answers_the_last_record_of_each_topic_that_has_one", &[], |f| Box::pin(calls::newest(f))),
    case("inbox_ids_are_answered_in_order_with_the_identifiers_as_given", &[], |f| Box::pin(calls::inbox_ids(f))),
    case("the_configuration_is_read", &[], |f| Box::pin(calls::configuration(f))),
    case("wallet_signatures_are_answered_or_the_call_is_unimplemented", &[], |f| Box::pin(calls::wallet_signatures(f))),
    case("an_envelope_of_the_largest_size_comes_back_through_every_read", &["STR-031"], |f| Box::pin(calls::largest_envelope(f))),
    case("dropping_a_call_cancels_it_and_leaves_the_transport_usable", &[], |f| Box::pin(calls::cancelled_call(f))),
    case("a_stopped_backend_is_told_as_unavailable", &[], |f| Box::pin(calls::stopped_backend(f))),
    // Streams.
    case("the_first_frame_is_started_before_any_request", &["STR-001"], |f| Box::pin(streams::started_first(f))),
    case("applied_names_update_and_target_before_any_message", &["STR-004", "STR-006", "STR-012"], |f| Box::pin(streams::applied_before_messages(f))),
    case("what_is_published_later_is_delivered", &["STR-011"], |f| Box::pin(streams::live_delivery(f))),
    case("a_topic_is_delivered_whole_and_in_order_under_concurrent_publishers", &["STR-010"], |f| Box::pin(streams::whole_and_in_order(f))),
    case("a_removed_topic_is_no_longer_delivered", &["STR-007"], |f| Box::pin(streams::removed_topic(f))),
    case("a_ping_is_answered_with_its_nonce", &["STR-033"], |f| Box::pin(streams::ping(f))),
    case("an_update_id_that_does_not_grow_fails_the_stream", &["STR-003"], |f| Box::pin(streams::update_id_repeats(f))),
    case("an_unset_request_fails_the_stream", &["STR-009"], |f| Box::pin(streams::unset_request(f))),
    case("dropping_the_requests_ends_the_stream_cleanly", &["STR-035"], |f| Box::pin(streams::half_close(f))),
    case("dropping_a_subscription_leaves_others_alone", &[], |f| Box::pin(streams::dropped_subscription(f))),
    case("requests_after_the_end_of_a_stream_fail", &[], |f| Box::pin(streams::requests_after_the_end(f))),
    case("a_stream_of_a_stopping_backend_ends_with_an_error", &["STR-035"], |f| Box::pin(streams::stopping_backend(f))),
    case("a_fixed_stream_starts_with_its_targets_or_the_call_is_unimplemented", &[], |f| Box::pin(streams::fixed_stream(f))),
];

/// Names every case.
pub fn transport_case_names() -> Vec<&'static str> {
    TRANSPORT_CASES.iter().map(|case| case.name).collect()
}
