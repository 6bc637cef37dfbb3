//! What an application decides about a transport, checked before anything connects.

use std::time::Duration;

use http::Uri;
use thiserror::Error;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use xmtp_core::error::{Class, Coded};

use crate::dial::Target;
use crate::headers::Headers;
use crate::transport::GrpcTransport;

/// How long looking up and connecting may take together, unless the builder says otherwise.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a call may take, and how long a stream may take to open, unless the builder says
/// otherwise. It is longer than any time that the backend allows itself.
pub const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Reports why a transport can not be made. It shows no part of the URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The text is not a URL with a host.
    #[error("the backend's URL can not be read; write it as http://host:port or https://host")]
    InvalidUrl,
    /// The URL has a scheme that gRPC does not use.
    #[error("the backend's URL has to begin with http:// or https://")]
    UnknownScheme,
    /// The URL has a path, a query or a user.
    #[error("the backend's URL has to end after the host and the port")]
    NotAnOrigin,
    /// The version of the application can not stand in a header.
    #[error("the version of the application has to be visible ASCII")]
    InvalidAppVersion,
    /// The certificate, or another part of TLS, can not be used.
    #[error("TLS can not be set up; check the certificate authority")]
    InvalidTls,
}

impl Coded for ConnectError {
    fn code(&self) -> &'static str {
        match self {
            Self::InvalidUrl => "connect.invalid_url",
            Self::UnknownScheme => "connect.unknown_scheme",
            Self::NotAnOrigin => "connect.not_an_origin",
            Self::InvalidAppVersion => "connect.invalid_app_version",
            Self::InvalidTls => "connect.invalid_tls",
        }
    }

    fn class(&self) -> Class {
        Class::UserAction
    }
}

/// Makes a [`GrpcTransport`].
#[derive(Clone, Debug)]
pub struct Builder {
    url: String,
    app_version: Option<String>,
    request_timeout: Duration,
    connect_timeout: Duration,
    ca_certificate: Option<Certificate>,
}

impl Builder {
    pub(crate) fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            app_version: None,
            request_timeout: DEFAULT_REQUEST_TIMEOUT,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            ca_certificate: None,
        }
    }

    /// Tells the backend the name and version of the application.
    pub fn app_version(mut self, app_version: impl Into<String>) -> Self {
        self.app_version = Some(app_version.into());
        self
    }

    /// Sets how long a call may take, and how long a stream may take to open.
    pub fn request_timeout(mut self, request_timeout: Duration) -> Self {
        self.request_timeout = request_timeout;
        self
    }

    /// Sets how long looking up and connecting may take together.
    pub fn connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.connect_timeout = connect_timeout;
        self
    }

    /// Trusts a certificate authority, as PEM, besides those that browsers trust.
    pub fn ca_certificate(mut self, pem: impl AsRef<[u8]>) -> Self {
        self.ca_certificate = Some(Certificate::from_pem(pem));
        self
    }

    /// Makes the transport; connects when it is first used.
    pub fn connect_lazy(self) -> Result<GrpcTransport, ConnectError> {
        let uri = parse(&self.url)?;
        let target = Target::new(&uri).ok_or(ConnectError::InvalidUrl)?;
        let headers = Headers::new(self.checked_app_version()?);
        let endpoint = self.endpoint(uri)?;
        Ok(GrpcTransport::new(
            self.url,
            target,
            endpoint,
            headers,
            self.request_timeout,
            self.connect_timeout,
        ))
    }

    fn checked_app_version(&self) -> Result<Option<AsciiMetadataValue>, ConnectError> {
        let version = self.app_version.as_deref();
        let version = version.map(AsciiMetadataValue::try_from).transpose();
        version.map_err(|_| ConnectError::InvalidAppVersion)
    }

    /// - HTTP/2 pings stay off: the streams of the contract have their own, and a server may take
    ///   a second kind for an attack.
    fn endpoint(&self, uri: Uri) -> Result<Endpoint, ConnectError> {
        let is_tls = uri.scheme() == Some(&http::uri::Scheme::HTTPS);
        let endpoint = Endpoint::from(uri);
        if !is_tls {
            return Ok(endpoint);
        }
        let tls = ClientTlsConfig::new()
            .with_webpki_roots()
            .timeout(self.connect_timeout);
        let tls = match &self.ca_certificate {
            Some(certificate) => tls.ca_certificate(certificate.clone()),
            None => tls,
        };
        endpoint
            .tls_config(tls)
            .map_err(|_| ConnectError::InvalidTls)
    }
}

/// Reads a URL that names an origin and nothing below it.
fn parse(url: &str) -> Result<Uri, ConnectError> {
    let uri: Uri = url.parse().map_err(|_| ConnectError::InvalidUrl)?;
    let authority = uri.authority().ok_or(ConnectError::InvalidUrl)?;
    match uri.scheme_str() {
        Some("http" | "https") => {}
        _ => return Err(ConnectError::UnknownScheme),
    }
    let is_origin = matches!(uri.path(), "" | "/") && uri.query().is_none();
    if !is_origin || authority.as_str().contains('@') {
        return Err(ConnectError::NotAnOrigin);
    }
    Ok(uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(url: &str) -> Option<ConnectError> {
        GrpcTransport::connect_lazy(url).err()
    }

    #[test]
    fn a_url_is_an_origin_of_http_or_https() {
        for url in [
            "http://127.0.0.1:5050",
            "https://a.example/",
            "http://[::1]:80",
        ] {
            assert_eq!(refusal(url), None, "{url}");
        }
        assert_eq!(refusal("not a url"), Some(ConnectError::InvalidUrl));
        assert_eq!(refusal("/path"), Some(ConnectError::InvalidUrl));
        assert_eq!(
            refusal("ftp://a.example"),
            Some(ConnectError::UnknownScheme)
        );
        assert_eq!(refusal("a.example:80"), Some(ConnectError::UnknownScheme));
        assert_eq!(
            refusal("http://a.example/v1"),
            Some(ConnectError::NotAnOrigin)
        );
        assert_eq!(
            refusal("http://a.example/?v=1"),
            Some(ConnectError::NotAnOrigin)
        );
        assert_eq!(
            refusal("http://me@a.example"),
            Some(ConnectError::NotAnOrigin)
        );
    }

    #[test]
    fn what_can_not_stand_in_a_header_or_in_tls_is_refused() {
        let builder = GrpcTransport::builder("http://a.example");
        let refused = builder.app_version("new\nline").connect_lazy().err();
        assert_eq!(refused, Some(ConnectError::InvalidAppVersion));

        let builder = GrpcTransport::builder("https://a.example");
        let refused = builder
            .ca_certificate("-----BEGIN CERTIFICATE-----\n!")
            .connect_lazy();
        assert_eq!(refused.err(), Some(ConnectError::InvalidTls));
    }
}
