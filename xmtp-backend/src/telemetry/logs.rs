//! Log records for the collector, made of the events of the log.

use std::fmt;

use opentelemetry::logs::{AnyValue, LogRecord, Logger, LoggerProvider, Severity};
use opentelemetry_sdk::logs::{SdkLogger, SdkLoggerProvider};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use super::OWN;

/// Hands each event on as a record.
pub(super) struct LogLayer(SdkLogger);

impl LogLayer {
    pub(super) fn new(provider: &SdkLoggerProvider) -> Self {
        Self(provider.logger(OWN))
    }
}

impl<S: Subscriber> Layer<S> for LogLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut record = self.0.create_log_record();
        let metadata = event.metadata();
        record.set_target(metadata.target());
        record.set_severity_text(metadata.level().as_str());
        record.set_severity_number(severity(metadata.level()));
        event.record(&mut Fields(&mut record));
        self.0.emit(record);
    }
}

fn severity(level: &Level) -> Severity {
    match *level {
        Level::ERROR => Severity::Error,
        Level::WARN => Severity::Warn,
        Level::INFO => Severity::Info,
        Level::DEBUG => Severity::Debug,
        Level::TRACE => Severity::Trace,
    }
}

/// Writes the fields of an event into a record; the field `message` is its body.
struct Fields<'a, R>(&'a mut R);

impl<R: LogRecord> Fields<'_, R> {
    fn write(&mut self, field: &Field, value: AnyValue) {
        match field.name() {
            "message" => self.0.set_body(value),
            name => self.0.add_attribute(name, value),
        }
    }
}

impl<R: LogRecord> Visit for Fields<'_, R> {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.write(field, AnyValue::Int(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.write(
            field,
            AnyValue::Int(i64::try_from(value).unwrap_or(i64::MAX)),
        );
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.write(field, AnyValue::Double(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.write(field, AnyValue::Boolean(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.write(field, AnyValue::from(value.to_owned()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.write(field, AnyValue::from(format!("{value:?}")));
    }
}
