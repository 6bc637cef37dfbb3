//! What the server tells of itself: numbers to scrape, a log, and spans for a collector.
//!
//! - [`metrics`] names every number once; [`scrape`] serves them;
//! - [`Telemetry`] is the log of the program and what goes to the collector, set up once per
//!   process by whoever owns it, and flushed before the process ends.
//!
//! Nothing told here comes from a topic, an id, a payload, a token or a header, save the trace that
//! a caller continues and the id of a request, which the server makes itself. What the libraries
//! underneath say below the level of a warning is never told, because they show what they handle.

mod export;
mod logs;
pub(crate) mod metrics;
mod propagation;
mod scrape;
mod step;

use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::logs::SdkLoggerProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use crate::config::{Config, LogFormat};
use crate::limits::TELEMETRY_FLUSH;

pub(crate) use propagation::continue_trace;
pub(crate) use scrape::Scrape;
pub(crate) use step::{step, timed};

/// The crates whose words are told at the configured level; others only warn.
const OWN: &str = "xmtp";

/// The log of the process and what is sent to its collector.
///
/// - Dropping it without [`Telemetry::flush`] may lose the last spans.
#[derive(Debug)]
pub struct Telemetry {
    tracer: Option<SdkTracerProvider>,
    logger: Option<SdkLoggerProvider>,
}

/// Reports why telemetry could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The exporter to the collector could not be made.
    #[error("telemetry.otlp_endpoint: the collector can not be used, check the address")]
    Exporter,
    /// The process has a log already.
    #[error("the process has a log already, set telemetry up once and first")]
    Installed,
}

impl From<TryInitError> for TelemetryError {
    fn from(_: TryInitError) -> Self {
        Self::Installed
    }
}

impl Telemetry {
    /// Sets up the log on standard output and, if the configuration names a collector, the sending.
    ///
    /// - Once per process, on the tokio runtime that the server runs on.
    pub fn install(config: &Config) -> Result<Self, TelemetryError> {
        let level = LevelFilter::from_level(config.server.log_level);
        let sent = export::open(config)?;
        let spans = sent.tracer.as_ref().map(|provider| {
            tracing_opentelemetry::layer()
                .with_tracer(provider.tracer(OWN))
                .with_location(false)
                .with_threads(false)
                .with_filter(own(LevelFilter::INFO))
        });
        let logs = sent.logger.as_ref().map(logs::LogLayer::new);
        let log = match config.server.log_format {
            LogFormat::Text => fmt::layer().with_ansi(false).boxed(),
            LogFormat::Json => fmt::layer().json().boxed(),
        };
        Registry::default()
            .with(spans)
            .with(logs.map(|layer| layer.with_filter(own(level))))
            .with(log.with_filter(own(level)))
            .try_init()?;
        Ok(sent)
    }

    /// Sends what is left, for a bounded time.
    pub async fn flush(self) {
        let flush = move || {
            let (tracer, logger) = (self.tracer, self.logger);
            // What could not be sent is counted where it failed; there is no other remedy.
            let half = TELEMETRY_FLUSH / 2;
            let _ = tracer.map(|provider| provider.shutdown_with_timeout(half));
            let _ = logger.map(|provider| provider.shutdown_with_timeout(half));
        };
        // The providers wait on threads of their own; this one only watches the clock.
        let flushed = tokio::task::spawn_blocking(flush);
        let _ = tokio::time::timeout(TELEMETRY_FLUSH, flushed).await;
    }
}

/// Tells our own crates at `level` and the rest at warnings.
fn own(level: LevelFilter) -> Targets {
    Targets::new()
        .with_target(OWN, level)
        .with_default(level.min(LevelFilter::WARN))
}
