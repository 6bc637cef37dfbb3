//! The section `[telemetry]`.
//!
//! ```toml
//! [telemetry]
//! metrics_listen = "0.0.0.0:9464"             # "" switches it off
//! otlp_endpoint = "http://collector:4317"     # or the variable OTEL_EXPORTER_OTLP_ENDPOINT
//! otlp_logs = false
//! service_name = "xmtp-backend"
//! sample_ratio = 1.0
//! resource_attributes = { "deployment.environment" = "production" }
//! ```

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::file::{has_host, resolve};
use super::{ConfigError, Secret, refuse};

/// The port of the metrics unless the file says otherwise.
pub const DEFAULT_METRICS_PORT: u16 = 9464;

/// The variable that names the collector when the file does not.
const OTLP_ENDPOINT_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

const DEFAULT_SERVICE_NAME: &str = "xmtp-backend";

/// Resource attributes that the server sets itself, each with the field that decides it.
const RESERVED_ATTRIBUTES: [(&str, &str); 2] = [
    ("service.name", "telemetry.service_name"),
    ("xmtp.backend.identifier", "server.identifier"),
];

/// The section `[telemetry]`.
#[derive(Clone, Debug)]
pub struct Telemetry {
    /// Where metrics are served; `None` serves none.
    pub metrics_listen: Option<SocketAddr>,
    /// The collector that spans are sent to; `None` sends none.
    pub otlp_endpoint: Option<Secret>,
    /// Whether the log is sent to the collector too.
    pub otlp_logs: bool,
    /// The resource attribute `service.name`.
    pub service_name: String,
    /// The share of new traces that are kept, 0 to 1.
    pub sample_ratio: f64,
    /// Further attributes of the resource; never `service.name` or `xmtp.backend.identifier`.
    pub resource_attributes: BTreeMap<String, String>,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self {
            metrics_listen: Some(SocketAddr::from((
                Ipv4Addr::UNSPECIFIED,
                DEFAULT_METRICS_PORT,
            ))),
            otlp_endpoint: None,
            otlp_logs: false,
            service_name: DEFAULT_SERVICE_NAME.to_owned(),
            sample_ratio: 1.0,
            resource_attributes: BTreeMap::new(),
        }
    }
}

/// What the server tells of itself.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "telemetry")]
pub(super) struct TelemetryFile {
    /// The address and port that metrics are scraped from, kept away from clients. Empty: none.
    metrics_listen: String,
    /// The collector that spans are sent to over OTLP, or `env:NAME`. Absent: the environment
    /// variable `OTEL_EXPORTER_OTLP_ENDPOINT`, and without it none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    otlp_endpoint: Option<String>,
    /// Whether the log is sent to the collector too.
    otlp_logs: bool,
    /// The resource attribute `service.name`.
    service_name: String,
    /// The share of new traces that are kept, 0 to 1.
    #[schemars(range(min = 0.0, max = 1.0))]
    sample_ratio: f64,
    /// Further attributes of the resource. `service.name` and `xmtp.backend.identifier` are
    /// refused: the server sets them.
    resource_attributes: BTreeMap<String, String>,
}

impl Default for TelemetryFile {
    fn default() -> Self {
        let settings = Telemetry::default();
        let listen = settings.metrics_listen;
        Self {
            metrics_listen: listen.map_or_else(String::new, |listen| listen.to_string()),
            otlp_endpoint: None,
            otlp_logs: settings.otlp_logs,
            service_name: settings.service_name,
            sample_ratio: settings.sample_ratio,
            resource_attributes: settings.resource_attributes,
        }
    }
}

impl TelemetryFile {
    pub(super) fn read(self) -> Result<Telemetry, ConfigError> {
        let metrics_listen = match self.metrics_listen.as_str() {
            "" => None,
            listen => Some(listen.parse().map_err(|_| {
                let problem = "must be an address and a port, such as 0.0.0.0:9464, or empty";
                ConfigError::new("telemetry.metrics_listen", problem)
            })?),
        };
        let endpoint = match self.otlp_endpoint {
            Some(endpoint) => Some(resolve("telemetry.otlp_endpoint", endpoint)?),
            None => std::env::var(OTLP_ENDPOINT_VARIABLE).ok(),
        };
        Ok(Telemetry {
            metrics_listen,
            otlp_endpoint: endpoint.filter(|url| !url.is_empty()).map(Secret::new),
            otlp_logs: self.otlp_logs,
            service_name: self.service_name,
            sample_ratio: self.sample_ratio,
            resource_attributes: self.resource_attributes,
        })
    }
}

pub(super) fn check(telemetry: &Telemetry) -> Result<(), ConfigError> {
    if let Some(endpoint) = &telemetry.otlp_endpoint
        && !has_host(endpoint.expose(), &["http", "https"])
    {
        let problem = "must be an http or https address";
        return refuse("telemetry.otlp_endpoint", problem);
    }
    if telemetry.service_name.is_empty() {
        return refuse("telemetry.service_name", "must not be empty");
    }
    if !(0.0..=1.0).contains(&telemetry.sample_ratio) {
        return refuse("telemetry.sample_ratio", "must be 0 to 1");
    }
    for (attribute, source) in RESERVED_ATTRIBUTES {
        if telemetry.resource_attributes.contains_key(attribute) {
            let field = format!("telemetry.resource_attributes.{attribute}");
            return refuse(field, format!("is set by the server, from {source}"));
        }
    }
    Ok(())
}
