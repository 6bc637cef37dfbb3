//! Every number that the server counts, each named once.
//!
//! A label is a `&'static str`, so that nothing of a request can become one: the sets are those of
//! the code. Nothing is counted until a server that serves metrics has started; from then on the
//! numbers are those of the process.

use std::sync::OnceLock;
use std::time::Duration;

use metrics::{Key, KeyName, Label, Level, Metadata, Recorder, SharedString};
use metrics_exporter_prometheus::{
    BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};
use tonic::Code;

/// Upper bounds of the buckets of every duration, in seconds.
const DURATION_BUCKETS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0,
];

static PROMETHEUS: OnceLock<PrometheusRecorder> = OnceLock::new();

static METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, None);

/// What a family of numbers is.
#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Declares the families, with what each tells.
macro_rules! families {
    ($($name:ident = $text:literal: $kind:ident, $help:literal;)*) => {
        $(const $name: &str = $text;)*
        const FAMILIES: &[(&str, Kind, &str)] = &[$(($name, Kind::$kind, $help),)*];
    };
}

families! {
    CALLS_STARTED = "grpc_server_started_total": Counter, "Calls that arrived.";
    CALLS_HANDLED = "grpc_server_handled_total": Counter, "Calls that ended, by code.";
    CALL_SECONDS = "grpc_server_handling_seconds": Histogram, "How long calls took.";
    CALLS_IN_FLIGHT = "grpc_server_in_flight": Gauge, "Calls that are open.";
    REQUEST_BYTES = "grpc_server_request_bytes_total": Counter, "Bytes of request bodies.";
    RESPONSE_BYTES = "grpc_server_response_bytes_total": Counter, "Bytes of response bodies.";
    OPERATION_SECONDS = "xmtp_operation_duration_seconds": Histogram, "How long inner steps took.";
    EXPORT_FAILURES = "xmtp_telemetry_export_failures_total": Counter, "Batches the collector did not take.";
    RELEASED_OPEN = "xmtp_db_released_open_transactions_total": Counter, "Connections given up within a transaction.";
    DATABASE_ERRORS = "xmtp_db_errors_total": Counter, "Errors of the database.";
    DATABASE_LOG = "xmtp_db_log_bytes": Gauge, "The size of SQLite's log beside the database.";
    ENVELOPES = "xmtp_publish_envelopes_total": Counter, "Envelopes of successful publishes.";
    REJECTIONS = "xmtp_publish_rejections_total": Counter, "Publishes that were refused, by reason.";
    WALLETS = "xmtp_scw_verifications_total": Counter, "Contract wallet signatures that were checked.";
    SESSIONS = "xmtp_stream_sessions": Gauge, "Streams that are open.";
    TOPICS = "xmtp_stream_topics_registered": Gauge, "Topics of all streams.";
    FRAMES_SENT = "xmtp_stream_frames_sent_total": Counter, "Frames handed to the transport.";
    FRAMES_RECEIVED = "xmtp_stream_frames_received_total": Counter, "Frames of clients.";
    ENVELOPES_SENT = "xmtp_stream_envelopes_sent_total": Counter, "Envelopes handed to the transport.";
    UPDATES = "xmtp_stream_updates_total": Counter, "Updates that were accepted.";
    STREAMS_ENDED = "xmtp_stream_ended_total": Counter, "Streams that ended, by code.";
    OUTBOUND_SECONDS = "xmtp_stream_outbound_wait_seconds": Histogram, "How long frames waited for the transport.";
    FETCH_SECONDS = "xmtp_stream_fetch_wait_seconds": Histogram, "How long fetch turns waited for their permit.";
    POLLS = "xmtp_tailer_polls_total": Counter, "Looks at what became visible.";
    ROWS = "xmtp_tailer_rows_total": Counter, "Envelopes that became visible; on PostgreSQL those that a stream waits for.";
    GAPS = "xmtp_tailer_gap_ranges": Gauge, "Ranges of ids that are not settled.";
    RESTARTS = "xmtp_tailer_restarts_total": Counter, "Times that following the store began anew.";
    TAILER_READY = "xmtp_tailer_ready": Gauge, "1 while streams can run.";
    BOUNDARY = "xmtp_boundary_advances_total": Counter, "Attempts to close the allocation boundary.";
    READY = "xmtp_backend_ready": Gauge, "1 while the server serves.";
    INFO = "xmtp_backend_info": Gauge, "1, with the version of the server.";
    AUTH_REJECTIONS = "xmtp_auth_rejections_total": Counter, "Credentials that were refused, by reason.";
    AUTH_REFRESHES = "xmtp_auth_jwks_refresh_total": Counter, "Fetches of the key set.";
    AUTH_KEYS = "xmtp_auth_keys": Gauge, "Keys that are trusted.";
}

/// Begins to count; more than one server of a process counts together.
pub(crate) fn install() -> Result<(), BuildError> {
    let matcher = Matcher::Suffix("_seconds".to_owned());
    let builder = PrometheusBuilder::new().set_buckets_for_metric(matcher, &DURATION_BUCKETS)?;
    PROMETHEUS.get_or_init(|| described(builder.build_recorder()));
    Ok(())
}

fn described(recorder: PrometheusRecorder) -> PrometheusRecorder {
    for (name, kind, help) in FAMILIES {
        let name = KeyName::from_const_str(name);
        let help = SharedString::const_str(help);
        match kind {
            Kind::Counter => recorder.describe_counter(name, None, help),
            Kind::Gauge => recorder.describe_gauge(name, None, help),
            Kind::Histogram => recorder.describe_histogram(name, None, help),
        }
    }
    recorder
}

/// Returns what renders the numbers, once something counts.
pub(crate) fn handle() -> Option<PrometheusHandle> {
    PROMETHEUS.get().map(PrometheusRecorder::handle)
}

type Labels<'a> = &'a [(&'static str, &'static str)];

fn key(name: &'static str, labels: Labels<'_>) -> Key {
    let labels = labels.iter();
    let labels: Vec<Label> = labels
        .map(|(name, value)| Label::from_static_parts(name, value))
        .collect();
    Key::from_parts(name, labels)
}

fn count(name: &'static str, labels: Labels<'_>, number: u64) {
    if let Some(recorder) = PROMETHEUS.get() {
        let counter = recorder.register_counter(&key(name, labels), &METADATA);
        counter.increment(number);
    }
}

fn set(name: &'static str, labels: Labels<'_>, value: f64) {
    if let Some(recorder) = PROMETHEUS.get() {
        recorder
            .register_gauge(&key(name, labels), &METADATA)
            .set(value);
    }
}

fn move_by(name: &'static str, labels: Labels<'_>, change: f64) {
    if let Some(recorder) = PROMETHEUS.get() {
        recorder
            .register_gauge(&key(name, labels), &METADATA)
            .increment(change);
    }
}

fn time(name: &'static str, labels: Labels<'_>, elapsed: Duration) {
    if let Some(recorder) = PROMETHEUS.get() {
        let histogram = recorder.register_histogram(&key(name, labels), &METADATA);
        histogram.record(elapsed.as_secs_f64());
    }
}

/// Returns the name of a code in labels and logs.
pub(crate) fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// A call in labels: its kind, service and method.
pub(crate) type CallLabels = [(&'static str, &'static str); 3];

pub(crate) fn call_started(call: &CallLabels) {
    count(CALLS_STARTED, call, 1);
    move_by(CALLS_IN_FLIGHT, call, 1.0);
}

pub(crate) fn call_ended(call: &CallLabels, code: Code, elapsed: Duration, bytes: [u64; 2]) {
    let [kind, service, method] = *call;
    let code = ("grpc_code", code_name(code));
    count(CALLS_HANDLED, &[kind, service, method, code], 1);
    time(CALL_SECONDS, call, elapsed);
    move_by(CALLS_IN_FLIGHT, call, -1.0);
    count(REQUEST_BYTES, call, bytes[0]);
    count(RESPONSE_BYTES, call, bytes[1]);
}

/// A step inside the server took so long; the name is that of its span.
pub(crate) fn operation(operation: &'static str, elapsed: Duration) {
    time(OPERATION_SECONDS, &[("operation", operation)], elapsed);
}

/// The collector did not take a batch; `signal` is `traces` or `logs`.
pub(crate) fn export_failed(signal: &'static str) {
    count(EXPORT_FAILURES, &[("signal", signal)], 1);
}

/// A connection was given up while its transaction may have been open.
pub(crate) fn open_transaction_released() {
    count(RELEASED_OPEN, &[], 1);
}

/// The database failed; `kind` is one of a fixed set, such as `timeout` or `connection`.
pub(crate) fn database_failed(kind: &'static str) {
    count(DATABASE_ERRORS, &[("kind", kind)], 1);
}

/// SQLite's log is so large, in bytes.
pub(crate) fn database_log(bytes: u64) {
    set(DATABASE_LOG, &[], bytes as f64);
}

/// Envelopes of a publish are stored; `outcome` is `stored` or `duplicate`.
pub(crate) fn envelopes_published(outcome: &'static str, number: u64) {
    count(ENVELOPES, &[("outcome", outcome)], number);
}

/// A publish was refused; `reason` is the name of the contract's reason.
pub(crate) fn publish_rejected(reason: &'static str) {
    count(REJECTIONS, &[("reason", reason)], 1);
}

/// A contract wallet's signature was checked; `outcome` is `valid`, `invalid`, `cached` or `failed`.
pub(crate) fn wallet_verified(outcome: &'static str) {
    count(WALLETS, &[("outcome", outcome)], 1);
}

/// A stream opened; `kind` is `subscribe` or `static`.
pub(crate) fn stream_opened(kind: &'static str) {
    move_by(SESSIONS, &[("kind", kind)], 1.0);
}

/// A stream ended.
pub(crate) fn stream_ended(kind: &'static str, code: Code) {
    move_by(SESSIONS, &[("kind", kind)], -1.0);
    count(
        STREAMS_ENDED,
        &[("kind", kind), ("code", code_name(code))],
        1,
    );
}

/// The streams follow so many topics more, or fewer.
pub(crate) fn topics_registered(change: f64) {
    move_by(TOPICS, &[], change);
}

/// A frame went to the transport; `kind` is the name of the frame.
pub(crate) fn frame_sent(kind: &'static str) {
    count(FRAMES_SENT, &[("kind", kind)], 1);
}

/// A frame came from a client; `kind` is the name of the frame.
pub(crate) fn frame_received(kind: &'static str) {
    count(FRAMES_RECEIVED, &[("kind", kind)], 1);
}

/// Envelopes of a frame went to the transport.
pub(crate) fn envelopes_sent(number: u64) {
    count(ENVELOPES_SENT, &[], number);
}

/// A stream accepted an update.
pub(crate) fn update_accepted() {
    count(UPDATES, &[], 1);
}

/// A frame waited so long for the transport.
pub(crate) fn outbound_waited(elapsed: Duration) {
    time(OUTBOUND_SECONDS, &[], elapsed);
}

/// A fetch turn waited so long for its permit.
pub(crate) fn fetch_waited(elapsed: Duration) {
    time(FETCH_SECONDS, &[], elapsed);
}

/// The tailer looked at the store; `outcome` is `ok` or `failed`.
pub(crate) fn tailer_polled(outcome: &'static str, rows: u64) {
    count(POLLS, &[("outcome", outcome)], 1);
    count(ROWS, &[], rows);
}

/// So many ranges of ids are not settled.
pub(crate) fn gap_ranges(number: f64) {
    set(GAPS, &[], number);
}

/// The tailer begins anew.
pub(crate) fn tailer_restarted() {
    count(RESTARTS, &[], 1);
}

/// Streams can run, or can not.
pub(crate) fn tailer_ready(ready: bool) {
    set(TAILER_READY, &[], f64::from(u8::from(ready)));
}

/// The boundary was closed, or not; `outcome` is `advanced`, `shared`, `elsewhere` or `timeout`.
pub(crate) fn boundary_advanced(outcome: &'static str) {
    count(BOUNDARY, &[("outcome", outcome)], 1);
}

/// The server serves, or does not.
pub(crate) fn backend_ready(ready: bool) {
    set(READY, &[], f64::from(u8::from(ready)));
    set(INFO, &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
}

/// A credential was refused; `reason` is one of the contract's.
pub(crate) fn auth_rejected(reason: &'static str) {
    count(AUTH_REJECTIONS, &[("reason", reason)], 1);
}

/// The key set was fetched; `outcome` is `ok` or `failed`.
pub(crate) fn auth_refreshed(outcome: &'static str) {
    count(AUTH_REFRESHES, &[("outcome", outcome)], 1);
}

/// So many keys are trusted.
pub(crate) fn auth_keys(number: u32) {
    set(AUTH_KEYS, &[], number.into());
}
