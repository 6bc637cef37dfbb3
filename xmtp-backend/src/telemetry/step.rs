//! The steps inside the server that have a span and a duration of their own.

use std::future::Future;

use tokio::time::Instant;
use tracing::{Instrument, Span};

use super::metrics;

/// Runs a step within its span and counts how long it took: `step!("stream.fetch", future).await`.
macro_rules! step {
    ($name:literal, $work:expr) => {
        $crate::telemetry::timed($name, tracing::info_span!($name), $work)
    };
}

pub(crate) use step;

/// Does what [`step`] says.
pub(crate) async fn timed<T>(name: &'static str, span: Span, work: impl Future<Output = T>) -> T {
    let began = Instant::now();
    let done = work.instrument(span).await;
    metrics::operation(name, began.elapsed());
    done
}
