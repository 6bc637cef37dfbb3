//! Accepts connections and serves requests on them, until told to stop.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tonic::body::Body;
use tower::{Service, ServiceExt};

use super::patient::Patient;
use super::unread::{Tasks, overseen, watched};
use crate::limits::{
    ACCEPT_PAUSE, CONNECTIONS, FIRST_BYTES_TIME, HTTP1_BUFFER_BYTES, HTTP2_PING_INTERVAL,
    HTTP2_PING_WAIT, HTTP2_SEND_BUFFER_BYTES,
};

/// What an HTTP/2 connection begins with; everything else is HTTP/1.1.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A bound address that nothing is accepted on yet.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

/// What connections may take.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// How many there may be at a time.
    connections: usize,
    /// How long one may be open before its other end has said by which protocol.
    first_bytes: Duration,
    /// How long a part of an answer may wait to be read.
    answer: Duration,
}

/// The task that serves; it owns the tasks of its connections.
pub(crate) type Serving = JoinHandle<()>;

impl Listener {
    pub(crate) async fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpListener::bind(address).await?;
        let address = socket.local_addr()?;
        Ok(Self { socket, address })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is true or its sender is gone.
    ///
    /// - After a stop the port is free at once, and the task ends with its last connection.
    /// - Aborting the task cuts every connection.
    /// - An answer of which a part waits for `answer_time` to be read is cut.
    pub(crate) fn serve<S>(
        self,
        service: S,
        max_http2_streams: u32,
        answer_time: Duration,
        stop: watch::Receiver<bool>,
    ) -> Serving
    where
        S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
        S: Clone + Send + 'static,
        S::Future: Send + 'static,
    {
        let bounds = Bounds {
            connections: CONNECTIONS,
            first_bytes: FIRST_BYTES_TIME,
            answer: answer_time,
        };
        let protocols = protocols(max_http2_streams, bounds.answer);
        tokio::spawn(accept(self.socket, protocols, service, stop, bounds))
    }
}

type Protocols = auto::Builder<Tasks>;

/// Takes HTTP/1.1 and HTTP/2, told apart by how a connection begins.
fn protocols(max_http2_streams: u32, answer_time: Duration) -> Protocols {
    let mut protocols = auto::Builder::new(Tasks { time: answer_time });
    protocols
        .http1()
        .timer(TokioTimer::new())
        .max_buf_size(HTTP1_BUFFER_BYTES);
    protocols
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(max_http2_streams)
        .max_send_buf_size(HTTP2_SEND_BUFFER_BYTES)
        .keep_alive_interval(HTTP2_PING_INTERVAL)
        .keep_alive_timeout(HTTP2_PING_WAIT);
    protocols
}

async fn accept<S>(
    socket: TcpListener,
    protocols: Protocols,
    service: S,
    mut stop: watch::Receiver<bool>,
    bounds: Bounds,
) where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            _ = stopped(&mut stop) => break,
            Some(_) = connections.join_next() => continue,
            accepted = socket.accept(), if connections.len() < bounds.connections => accepted,
        };
        match accepted {
            Ok((socket, _)) => {
                let (protocols, service) = (protocols.clone(), service.clone());
                connections.spawn(open(socket, protocols, service, stop.clone(), bounds));
            }
            Err(error) => {
                // What is short, such as file handles, comes back only with time.
                tracing::warn!(kind = %error.kind(), "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(socket);
    while connections.join_next().await.is_some() {}
}

/// Serves one connection, if its other end begins in time.
async fn open<S>(
    mut socket: TcpStream,
    protocols: Protocols,
    service: S,
    mut stop: watch::Receiver<bool>,
    bounds: Bounds,
) where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send + 'static,
{
    let first = tokio::select! {
        first = timeout(bounds.first_bytes, first_bytes(&mut socket)) => first,
        _ = stopped(&mut stop) => return,
    };
    let Ok(Ok(first)) = first else { return };
    // Small frames must not wait for a full packet; without this they only come later.
    let _ = socket.set_nodelay(true);
    let socket = Patient::new(socket, first, bounds.answer);
    overseen(connection(socket, protocols, service, stop), bounds.answer).await;
}

/// Reads until it is clear by which protocol the other end speaks.
async fn first_bytes(socket: &mut TcpStream) -> io::Result<Bytes> {
    let mut first = BytesMut::with_capacity(HTTP2_PREFACE.len());
    loop {
        let wanted = HTTP2_PREFACE.len() - first.len();
        if socket.read_buf(&mut (&mut first).limit(wanted)).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if first.len() == HTTP2_PREFACE.len() || !HTTP2_PREFACE.starts_with(&first) {
            return Ok(first.freeze());
        }
    }
}

async fn connection<S>(
    socket: Patient,
    protocols: Protocols,
    service: S,
    mut stop: watch::Receiver<bool>,
) where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send + 'static,
{
    let service = service
        .map_request(|request: Request<_>| request.map(Body::new))
        .map_response(watched);
    let service = TowerToHyperService::new(service);
    let mut served = pin!(protocols.serve_connection(TokioIo::new(socket), service));
    tokio::select! {
        // How a connection ends is known to its calls; nobody else asks.
        _ = served.as_mut() => return,
        _ = stopped(&mut stop) => served.as_mut().graceful_shutdown(),
    }
    let _ = served.await;
}

/// Waits for a stop; a sender that is gone is one too.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

#[cfg(test)]
mod tests;
