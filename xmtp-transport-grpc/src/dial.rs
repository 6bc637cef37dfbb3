//! Reaching the backend's host, with an error that says how far it got.
//!
//! A dial that fails with "transport error" tells its reader nothing; inside a container the
//! answer is nearly always in the phase. Looking up and connecting are done here so that each
//! failure carries host, phase and cause; TLS and HTTP/2 are above and told apart in `status`.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};

/// Where a transport leads.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    host: Arc<str>,
    port: u16,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl Target {
    pub(crate) fn new(uri: &Uri) -> Option<Self> {
        let host = uri.host().filter(|host| !host.is_empty())?;
        let host = host.trim_start_matches('[').trim_end_matches(']').into();
        let is_tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        Some(Self { host, port })
    }
}

/// A step on the way to the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Dns,
    Tcp,
    Tls,
    Http2,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dns => "DNS",
            Self::Tcp => "TCP",
            Self::Tls => "TLS",
            Self::Http2 => "HTTP/2",
        })
    }
}

/// Reports that the host was not reached.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{place}: {phase}: {cause}")]
pub(crate) struct DialError {
    pub(crate) place: String,
    pub(crate) phase: Phase,
    pub(crate) cause: String,
}

/// Opens a TCP connection, trying each address of the host in turn.
///
/// - An address that does not answer leaves time for those after it.
pub(crate) async fn dial(
    target: Target,
    connect_timeout: Duration,
) -> Result<TokioIo<TcpStream>, DialError> {
    let failed = |phase, cause| DialError {
        place: target.to_string(),
        phase,
        cause,
    };
    let deadline = Instant::now() + connect_timeout;
    let found = timeout_at(deadline, lookup_host((&*target.host, target.port))).await;
    let found = found.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let addresses: Vec<SocketAddr> = found
        .map_err(|error| failed(Phase::Dns, error.to_string()))?
        .collect();

    let mut cause = "the host has no address".to_owned();
    for (tried, address) in addresses.iter().enumerate() {
        let left = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
        let now = Instant::now();
        let share = deadline.saturating_duration_since(now) / left;
        let opened = timeout_at(now + share, connect(*address)).await;
        match opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(socket) => return Ok(TokioIo::new(socket)),
            Err(error) => cause = error.to_string(),
        }
    }
    Err(failed(Phase::Tcp, cause))
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(address).await?;
    // Small frames must not wait for a full packet.
    socket.set_nodelay(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_shows_host_and_port() {
        for (url, shown) in [
            ("http://a.example", "a.example:80"),
            ("https://a.example", "a.example:443"),
            ("http://[::1]:5050", "[::1]:5050"),
        ] {
            let target = Target::new(&Uri::from_static(url)).expect("a target");
            assert_eq!(target.to_string(), shown);
        }
    }
}
