//! TLS to a database server.
//!
//! What a certificate has to prove stands in the address ([`Proof`]). Even where it proves nothing,
//! the server must hold the key of the certificate that it shows.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Error;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::client::verify_server_cert_signed_by_trust_anchor;
use tokio_rustls::rustls::crypto::{
    WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    self, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

use super::SetupError;
use crate::config::{Authorities, Proof};

/// How the driver says that a server has no TLS where TLS is required.
const NOT_OFFERED: &str = "server does not support TLS";

/// The name of the database's protocol within TLS.
const PROTOCOL: &[u8] = b"postgresql";

/// Reports why TLS did not come about.
#[derive(Debug, thiserror::Error)]
enum TlsFailure {
    #[error("the host in the address is no name that a certificate can have")]
    Name,
    #[error("{0}; what the server has to prove is said by sslmode and sslrootcert of the address")]
    Handshake(io::Error),
}

/// Says why TLS did not come about, if that is what failed.
pub(super) fn failure(error: &Error) -> Option<String> {
    let source = std::error::Error::source(error)?;
    match source.downcast_ref::<TlsFailure>() {
        Some(failure) => Some(failure.to_string()),
        None => (source.to_string() == NOT_OFFERED).then(|| {
            "the server offers none; set `ssl = on` there, or sslmode=disable if the network is private"
                .to_owned()
        }),
    }
}

/// Makes connections secret.
#[derive(Clone)]
pub(super) struct Connector(Arc<ClientConfig>);

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

impl Connector {
    /// Reads the authorities once; a file that changes is read by the next start.
    pub(super) fn new(proof: &Proof) -> Result<Self, SetupError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let algorithms = provider.signature_verification_algorithms;
        let unnamed = |authorities| {
            Arc::new(Unnamed {
                authorities,
                algorithms,
            })
        };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has suites of these versions");
        let custom = |verifier: Arc<Unnamed>| {
            builder
                .clone()
                .dangerous()
                .with_custom_certificate_verifier(verifier)
        };
        let builder = match proof {
            Proof::Nothing => custom(unnamed(None)),
            Proof::Authority(path) => custom(unnamed(Some(of_file(path)?))),
            Proof::Name(Authorities::File(path)) => builder.with_root_certificates(of_file(path)?),
            Proof::Name(Authorities::System) => builder.with_root_certificates(of_system()?),
        };
        let mut config = builder.with_no_client_auth();
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Self(Arc::new(config)))
    }
}

fn of_file(path: &Path) -> Result<RootCertStore, SetupError> {
    let unusable = |_| SetupError::Authorities;
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(unusable)? {
        let added = store.add(certificate.map_err(unusable)?);
        added.map_err(|_| SetupError::Authorities)?;
    }
    match store.is_empty() {
        true => Err(SetupError::Authorities),
        false => Ok(store),
    }
}

/// One certificate of the machine that can not be read does not spoil the others.
fn of_system() -> Result<RootCertStore, SetupError> {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    match store.is_empty() {
        true => Err(SetupError::Authorities),
        false => Ok(store),
    }
}

/// Looks at who signed a certificate, if anybody must have, and not at the name in it.
#[derive(Debug)]
struct Unnamed {
    authorities: Option<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Unnamed {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(authorities) = &self.authorities {
            let certificate = ParsedCertificate::try_from(certificate)?;
            let all = self.algorithms.all;
            verify_server_cert_signed_by_trust_anchor(
                &certificate,
                authorities,
                between,
                now,
                all,
            )?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl<S> MakeTlsConnect<S> for Connector
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Encrypted<S>;
    type TlsConnect = Handshake;
    type Error = Infallible;

    fn make_tls_connect(&mut self, host: &str) -> Result<Handshake, Infallible> {
        // A server that is reached without TLS needs no name.
        let name = ServerName::try_from(host.to_owned()).ok();
        let connector = TlsConnector::from(self.0.clone());
        Ok(Handshake { connector, name })
    }
}

/// One handshake to come.
pub(super) struct Handshake {
    connector: TlsConnector,
    name: Option<ServerName<'static>>,
}

impl<S> TlsConnect<S> for Handshake
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Encrypted<S>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Stream, Self::Error>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let name = self.name.ok_or(TlsFailure::Name)?;
            let encrypted = self.connector.connect(name, stream).await;
            Ok(Encrypted(encrypted.map_err(TlsFailure::Handshake)?))
        })
    }
}

/// A connection within TLS.
pub(super) struct Encrypted<S>(tokio_rustls::client::TlsStream<S>);

impl<S> TlsStream for Encrypted<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S> AsyncRead for Encrypted<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S> AsyncWrite for Encrypted<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
