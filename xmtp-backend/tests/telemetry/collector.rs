//! A collector that keeps what it is sent over OTLP.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::logs::v1::logs_service_server::{
    LogsService, LogsServiceServer,
};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

fn tls(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/telemetry/tls");
    folder.join(name)
}

/// Returns where the certificate is by which the collector is trusted.
pub(crate) fn authority() -> PathBuf {
    tls("ca.pem")
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Collector {
    traces: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
    logs: Arc<Mutex<Vec<ExportLogsServiceRequest>>>,
}

impl Collector {
    /// Listens on a free port and returns its address.
    pub(crate) async fn start() -> (Self, String) {
        let (collector, address) = Self::serve(Server::builder());
        (collector, format!("http://{address}"))
    }

    /// The same over TLS, with a certificate of the authority at [`authority`].
    pub(crate) async fn start_with_tls() -> (Self, String) {
        let read = |name| std::fs::read(tls(name)).expect("a file");
        let identity = Identity::from_pem(read("collector.pem"), read("collector.key"));
        // The server's side does not choose where several are built in; a second time changes nothing.
        let _ = aws_lc_rs::default_provider().install_default();
        let config = ServerTlsConfig::new().identity(identity);
        let server = Server::builder().tls_config(config).expect("an identity");
        let (collector, address) = Self::serve(server);
        (collector, format!("https://localhost:{}", address.port()))
    }

    fn serve(mut server: Server) -> (Self, SocketAddr) {
        let collector = Self::default();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let incoming = TcpIncoming::bind(any).expect("a port");
        let address = incoming.local_addr().expect("an address");
        let server = server
            .add_service(TraceServiceServer::new(collector.clone()))
            .add_service(LogsServiceServer::new(collector.clone()))
            .serve_with_incoming(incoming);
        tokio::spawn(server);
        (collector, address)
    }

    pub(crate) fn spans(&self) -> Vec<Span> {
        let traces = self.traces.lock().expect("traces");
        let resources = traces.iter().flat_map(|request| &request.resource_spans);
        let scopes = resources.flat_map(|resource| &resource.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }

    pub(crate) fn span(&self, name: &str) -> Span {
        let spans = self.spans();
        let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
        let found = spans.iter().find(|span| span.name == name);
        found
            .unwrap_or_else(|| panic!("no {name} in {names:?}"))
            .clone()
    }

    /// Returns an attribute of every resource that sent something; they must agree.
    pub(crate) fn resource_attribute(&self, name: &str) -> Option<String> {
        let traces = self.traces.lock().expect("traces");
        let logs = self.logs.lock().expect("logs");
        let traces = traces.iter().flat_map(|request| &request.resource_spans);
        let logs = logs.iter().flat_map(|request| &request.resource_logs);
        let resources = traces
            .map(|of| &of.resource)
            .chain(logs.map(|of| &of.resource));
        let mut values = resources.map(|resource| attribute(resource.as_ref(), name));
        let first = values.next().expect("a resource");
        assert!(values.all(|value| value == first));
        first
    }

    /// Counts the records of the log.
    pub(crate) fn records(&self) -> usize {
        let logs = self.logs.lock().expect("logs");
        let resources = logs.iter().flat_map(|request| &request.resource_logs);
        let scopes = resources.flat_map(|resource| &resource.scope_logs);
        scopes.map(|scope| scope.log_records.len()).sum()
    }

    /// Shows everything that was sent.
    pub(crate) fn all(&self) -> String {
        format!("{self:?}")
    }
}

fn attribute(resource: Option<&Resource>, name: &str) -> Option<String> {
    let attributes = resource?.attributes.iter();
    let mut found = attributes.filter(|attribute| attribute.key == name);
    match found.next()?.value.clone()?.value? {
        Value::StringValue(text) => Some(text),
        other => panic!("not a text: {other:?}"),
    }
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut traces = self.traces.lock().expect("traces");
        traces.push(request.into_inner());
        Ok(Response::new(Default::default()))
    }
}

#[tonic::async_trait]
impl LogsService for Collector {
    async fn export(
        &self,
        request: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        self.logs.lock().expect("logs").push(request.into_inner());
        Ok(Response::new(Default::default()))
    }
}
