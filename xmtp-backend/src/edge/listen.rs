//! Accepts connections and serves requests on them, until told to stop.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;

use http::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tonic::body::Body;
use tower::{Service, ServiceExt};

use crate::limits::{
    ACCEPT_PAUSE, HTTP1_BUFFER_BYTES, HTTP2_PING_INTERVAL, HTTP2_PING_WAIT, HTTP2_SEND_BUFFER_BYTES,
};

/// A bound address that nothing is accepted on yet.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: TcpListener,
    address: SocketAddr,
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
    pub(crate) fn serve<S>(
        self,
        service: S,
        max_http2_streams: u32,
        stop: watch::Receiver<bool>,
    ) -> Serving
    where
        S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
        S: Clone + Send + 'static,
        S::Future: Send + 'static,
    {
        let protocols = protocols(max_http2_streams);
        tokio::spawn(accept(self.socket, protocols, service, stop))
    }
}

/// Takes HTTP/1.1 and HTTP/2, told apart by how a connection begins.
fn protocols(max_http2_streams: u32) -> auto::Builder<TokioExecutor> {
    let mut protocols = auto::Builder::new(TokioExecutor::new());
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
    protocols: auto::Builder<TokioExecutor>,
    service: S,
    mut stop: watch::Receiver<bool>,
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
            accepted = socket.accept() => accepted,
        };
        match accepted {
            Ok((socket, _)) => {
                let serve = connection(socket, protocols.clone(), service.clone(), stop.clone());
                connections.spawn(serve);
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

async fn connection<S>(
    socket: TcpStream,
    protocols: auto::Builder<TokioExecutor>,
    service: S,
    mut stop: watch::Receiver<bool>,
) where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send + 'static,
{
    // Small frames must not wait for a full packet; without this they only come later.
    let _ = socket.set_nodelay(true);
    let service = service.map_request(|request: Request<_>| request.map(Body::new));
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
