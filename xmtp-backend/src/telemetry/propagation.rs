//! The trace that a caller continues.

use http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

const TRACEPARENT: &str = "traceparent";

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}

/// Makes a span part of the trace that the headers name, if they name one.
pub(crate) fn continue_trace(span: &Span, headers: &HeaderMap) {
    if headers.contains_key(TRACEPARENT) {
        let parent = TraceContextPropagator::new().extract(&Headers(headers));
        // Without a collector there is no trace to be part of.
        let _ = span.set_parent(parent);
    }
}
