//! Accepts connections and serves requests on them, until told to stop.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use http::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tonic::body::Body;
use tower::{Service, ServiceExt};

use crate::limits::{
    ACCEPT_PAUSE, CONNECTIONS, FIRST_BYTE_TIME, HTTP1_BUFFER_BYTES, HTTP2_PING_INTERVAL,
    HTTP2_PING_WAIT, HTTP2_SEND_BUFFER_BYTES,
};

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
    /// How long one may be open before its other end says something.
    first_byte: Duration,
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
        let bounds = Bounds {
            connections: CONNECTIONS,
            first_byte: FIRST_BYTE_TIME,
        };
        tokio::spawn(accept(self.socket, protocols, service, stop, bounds))
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
                let (mut stop, first_byte) = (stop.clone(), bounds.first_byte);
                connections.spawn(async move {
                    if begins(&socket, &mut stop, first_byte).await {
                        connection(socket, protocols, service, stop).await;
                    }
                });
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

/// Waits until the other end says something; false when it does not in time, or at a stop.
async fn begins(socket: &TcpStream, stop: &mut watch::Receiver<bool>, time: Duration) -> bool {
    // Being readable may be a false alarm; a byte that can be seen is none.
    let mut first = [0];
    tokio::select! {
        seen = timeout(time, socket.peek(&mut first)) => matches!(seen, Ok(Ok(1))),
        _ = stopped(stop) => false,
    }
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tower::service_fn;

    use super::*;

    /// How long anything may take; it can only fail a test.
    const PATIENCE: Duration = Duration::from_secs(20);

    async fn serve(bounds: Bounds) -> (SocketAddr, watch::Sender<bool>, Serving) {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = Listener::bind(listen).await.unwrap();
        let address = listener.address();
        let empty = |_| async { Ok::<_, Infallible>(Response::new(Body::empty())) };
        let stop = watch::Sender::new(false);
        let (protocols, stopped) = (protocols(1), stop.subscribe());
        let accept = accept(
            listener.socket,
            protocols,
            service_fn(empty),
            stopped,
            bounds,
        );
        (address, stop, tokio::spawn(accept))
    }

    async fn ask(address: SocketAddr) -> TcpStream {
        let mut socket = TcpStream::connect(address).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nhost: backend.example\r\n\r\n";
        socket.write_all(request).await.unwrap();
        socket
    }

    /// Reads something; nothing is the end.
    async fn read(socket: &mut TcpStream) -> usize {
        let mut bytes = [0; 512];
        let read = timeout(PATIENCE, socket.read(&mut bytes)).await;
        read.expect("an answer or an end in time").unwrap()
    }

    #[tokio::test]
    async fn a_connection_that_says_nothing_is_dropped() {
        let bounds = Bounds {
            connections: 1,
            first_byte: Duration::from_millis(1),
        };
        let (address, _stop, _serving) = serve(bounds).await;
        let mut silent = TcpStream::connect(address).await.unwrap();
        assert_eq!(read(&mut silent).await, 0);
    }

    #[tokio::test]
    async fn a_connection_beyond_the_bound_waits_for_another_to_end() {
        let bounds = Bounds {
            connections: 1,
            first_byte: PATIENCE,
        };
        let (address, stop, serving) = serve(bounds).await;
        let mut first = ask(address).await;
        assert!(read(&mut first).await > 0);
        let mut second = ask(address).await;
        // The first one is asked again, so that the listener has had its turns.
        for _ in 0..10 {
            first
                .write_all(b"GET / HTTP/1.1\r\nhost: backend.example\r\n\r\n")
                .await
                .unwrap();
            assert!(read(&mut first).await > 0);
        }
        let early = second.try_read(&mut [0; 1]);
        assert_eq!(early.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(first);
        assert!(read(&mut second).await > 0);
        drop(second);
        stop.send_replace(true);
        timeout(PATIENCE, serving).await.expect("it ends").unwrap();
    }
}
