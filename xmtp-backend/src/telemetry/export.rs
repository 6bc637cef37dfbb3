//! Spans and log records on their way to the operator's collector.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_otlp::{WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::logs::{
    BatchConfigBuilder as LogBatches, BatchLogProcessor, LogBatch, LogExporter, SdkLoggerProvider,
};
use opentelemetry_sdk::trace::{
    BatchConfigBuilder as SpanBatches, BatchSpanProcessor, Sampler, SdkTracerProvider, SpanData,
    SpanExporter,
};

use tonic::transport::ClientTlsConfig;

use super::{Telemetry, TelemetryError, metrics};
use crate::config::Config;
use crate::limits::{EXPORT_BATCH, EXPORT_QUEUE, EXPORT_TIME};

/// The attribute under which the collector finds whose spans they are.
const IDENTIFIER: &str = "xmtp.backend.identifier";

/// Opens what the configuration asks for; without a collector that is nothing.
pub(super) fn open(config: &Config) -> Result<Telemetry, TelemetryError> {
    let Some(endpoint) = &config.telemetry.otlp_endpoint else {
        return Ok(Telemetry {
            tracer: None,
            logger: None,
        });
    };
    let resource = resource(config);
    let tracer = tracer(endpoint.expose(), config.telemetry.sample_ratio, &resource)?;
    let logger = match config.telemetry.otlp_logs {
        true => Some(logger(endpoint.expose(), &resource)?),
        false => None,
    };
    Ok(Telemetry {
        tracer: Some(tracer),
        logger,
    })
}

/// Says who sends; the operator's attributes come first, so that ours stand.
fn resource(config: &Config) -> Resource {
    let attributes = config.telemetry.resource_attributes.iter();
    let attributes = attributes.map(|(name, value)| KeyValue::new(name.clone(), value.clone()));
    Resource::builder()
        .with_attributes(attributes)
        .with_attribute(KeyValue::new(IDENTIFIER, config.server.identifier.clone()))
        .with_service_name(config.telemetry.service_name.clone())
        .build()
}

/// Trusts whom the machine trusts; an http address has no use for it.
fn tls() -> ClientTlsConfig {
    ClientTlsConfig::new().with_native_roots()
}

fn tracer(
    endpoint: &str,
    sample_ratio: f64,
    resource: &Resource,
) -> Result<SdkTracerProvider, TelemetryError> {
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .with_tls_config(tls())
        .with_timeout(EXPORT_TIME)
        .build();
    let exporter = exporter.map_err(|_| TelemetryError::Exporter)?;
    let batches = SpanBatches::default()
        .with_max_queue_size(EXPORT_QUEUE)
        .with_max_export_batch_size(EXPORT_BATCH)
        .build();
    let processor = BatchSpanProcessor::builder(Counted(exporter))
        .with_batch_config(batches)
        .build();
    let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(sample_ratio)));
    Ok(SdkTracerProvider::builder()
        .with_span_processor(processor)
        .with_sampler(sampler)
        .with_resource(resource.clone())
        .build())
}

fn logger(endpoint: &str, resource: &Resource) -> Result<SdkLoggerProvider, TelemetryError> {
    let exporter = opentelemetry_otlp::LogExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .with_tls_config(tls())
        .with_timeout(EXPORT_TIME)
        .build();
    let exporter = exporter.map_err(|_| TelemetryError::Exporter)?;
    let batches = LogBatches::default()
        .with_max_queue_size(EXPORT_QUEUE)
        .with_max_export_batch_size(EXPORT_BATCH)
        .build();
    let processor = BatchLogProcessor::builder(Counted(exporter))
        .with_batch_config(batches)
        .build();
    Ok(SdkLoggerProvider::builder()
        .with_log_processor(processor)
        .with_resource(resource.clone())
        .build())
}

/// An exporter whose failures are counted.
struct Counted<E>(E);

impl<E> fmt::Debug for Counted<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counted")
    }
}

fn counted(signal: &'static str, exported: OTelSdkResult) -> OTelSdkResult {
    if exported.is_err() {
        metrics::export_failed(signal);
    }
    exported
}

impl<E: SpanExporter> SpanExporter for Counted<E> {
    fn export(&self, batch: Vec<SpanData>) -> impl Future<Output = OTelSdkResult> + Send {
        let exported = self.0.export(batch);
        async move { counted("traces", exported.await) }
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.0.set_resource(resource);
    }
}

impl<E: LogExporter> LogExporter for Counted<E> {
    fn export(&self, batch: LogBatch<'_>) -> impl Future<Output = OTelSdkResult> + Send {
        let exported = self.0.export(batch);
        async move { counted("logs", exported.await) }
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.0.set_resource(resource);
    }
}
