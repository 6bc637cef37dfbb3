use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::Frame;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use super::*;

/// How long anything may take; it can only fail a test.
const PATIENCE: Duration = Duration::from_secs(20);

const BOUNDS: Bounds = Bounds {
    connections: 10,
    first_bytes: PATIENCE,
    answer: PATIENCE,
};

/// More than any socket holds.
const LARGE: usize = 64 << 20;

/// A part of an answer that fits into the buffer of a connection.
const SMALL: usize = 32 << 10;

/// The parts of an answer that is too large for every buffer, and who hears that it is gone.
struct Large {
    parts: Vec<Bytes>,
    gone: mpsc::UnboundedSender<()>,
}

impl Drop for Large {
    fn drop(&mut self) {
        let _ = self.gone.send(());
    }
}

impl http_body::Body for Large {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(self.parts.pop().map(Frame::data).map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.parts.is_empty()
    }
}

/// A listener whose answers are small, or on the path `/large` in so many parts.
struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    serving: Serving,
    /// Told when a large answer is gone.
    gone: mpsc::UnboundedReceiver<()>,
}

async fn serve(bounds: Bounds, parts: usize) -> Server {
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = Listener::bind(listen).await.unwrap();
    let address = listener.address();
    let (going, gone) = mpsc::unbounded_channel();
    let answer = move |request: Request<Body>| {
        let is_large = request.uri().path() == "/large";
        let body = if is_large {
            Body::new(Large {
                parts: vec![Bytes::from(vec![0; LARGE / parts]); parts],
                gone: going.clone(),
            })
        } else {
            Body::new(http_body_util::Full::new(Bytes::from_static(&[0; SMALL])))
        };
        async move { Ok::<_, Infallible>(Response::new(body)) }
    };
    let stop = watch::Sender::new(false);
    let (protocols, stopped) = (protocols(2, bounds.answer), stop.subscribe());
    let accept = accept(
        listener.socket,
        protocols,
        service_fn(answer),
        stopped,
        bounds,
    );
    Server {
        address,
        stop,
        serving: tokio::spawn(accept),
        gone,
    }
}

impl Server {
    /// Stops it and waits for its connections to end.
    async fn ends(self) {
        self.stop.send_replace(true);
        let ended = timeout(PATIENCE, self.serving).await;
        ended.expect("it ends").unwrap();
    }
}

async fn ask(address: SocketAddr, path: &str) -> TcpStream {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: backend.example\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    socket
}

/// Reads something; nothing is the end.
async fn read(socket: &mut TcpStream) -> usize {
    let mut bytes = [0; 512];
    let read = timeout(PATIENCE, socket.read(&mut bytes)).await;
    read.expect("an answer or an end in time").unwrap()
}

/// Waits until the answer has begun, and reads nothing of it.
async fn begun(socket: &TcpStream) {
    let mut first = [0];
    let seen = timeout(PATIENCE, socket.peek(&mut first)).await;
    assert_eq!(seen.expect("an answer in time").unwrap(), 1);
}

async fn call(channel: &mut Channel, path: &str) -> Response<Body> {
    let channel = ServiceExt::<Request<Body>>::ready(channel).await.unwrap();
    let request = Request::get(format!("http://backend.example{path}"));
    let answered = channel.call(request.body(Body::empty()).unwrap());
    timeout(PATIENCE, answered)
        .await
        .expect("an answer")
        .unwrap()
}

#[tokio::test]
async fn a_connection_that_does_not_begin_is_dropped() {
    let bounds = Bounds {
        first_bytes: Duration::from_millis(1),
        ..BOUNDS
    };
    let server = serve(bounds, 1).await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(read(&mut silent).await, 0);
    let mut half = TcpStream::connect(server.address).await.unwrap();
    half.write_all(&HTTP2_PREFACE[..HTTP2_PREFACE.len() - 1])
        .await
        .unwrap();
    assert_eq!(read(&mut half).await, 0, "half a beginning is none");
}

#[tokio::test]
async fn a_connection_may_begin_byte_by_byte() {
    let server = serve(BOUNDS, 1).await;
    let settings = b"\0\0\0\x04\0\0\0\0\0";
    for request in [
        &b"PUT /small HTTP/1.1\r\nhost: backend.example\r\n\r\n"[..],
        &[HTTP2_PREFACE, settings].concat(),
    ] {
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        socket.set_nodelay(true).unwrap();
        for byte in request {
            socket.write_all(&[*byte]).await.unwrap();
        }
        assert!(read(&mut socket).await > 0);
    }
    server.ends().await;
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_connection_that_has_not_begun() {
    let server = serve(BOUNDS, 1).await;
    let mut half = TcpStream::connect(server.address).await.unwrap();
    half.write_all(&HTTP2_PREFACE[..10]).await.unwrap();
    server.ends().await;
}

#[tokio::test]
async fn an_answer_over_http_1_that_nobody_reads_is_cut() {
    let bounds = Bounds {
        answer: Duration::from_millis(100),
        ..BOUNDS
    };
    // One part is with the transport as a whole, and of several the next ones are not asked for.
    for parts in [1, 64] {
        let server = serve(bounds, parts).await;
        let silent = ask(server.address, "/large").await;
        begun(&silent).await;
        server.ends().await;
        drop(silent);
    }
}

#[tokio::test]
async fn answers_that_end_and_that_nobody_reads_are_cut() {
    let bounds = Bounds {
        answer: Duration::from_millis(100),
        ..BOUNDS
    };
    let server = serve(bounds, 1).await;
    let mut silent = ask(server.address, "/small").await;
    let request = b"GET /small HTTP/1.1\r\nhost: backend.example\r\n\r\n";
    // A connection that is cut takes no more of them.
    let _ = silent.write_all(&request.repeat(LARGE / SMALL)).await;
    begun(&silent).await;
    server.ends().await;
}

#[tokio::test]
async fn an_answer_over_http_2_that_nobody_reads_is_cut_and_no_other() {
    let bounds = Bounds {
        answer: Duration::from_millis(100),
        ..BOUNDS
    };
    for parts in [1, 64] {
        let mut server = serve(bounds, parts).await;
        let endpoint = Endpoint::from_shared(format!("http://{}", server.address)).unwrap();
        let mut channel = endpoint.connect().await.unwrap();
        let unread = call(&mut channel, "/large").await;
        let gone = timeout(PATIENCE, server.gone.recv()).await;
        gone.expect("it is cut").expect("a server");
        let other = call(&mut channel, "/small").await.into_body();
        let other = http_body_util::BodyExt::collect(other).await.unwrap();
        assert_eq!(other.to_bytes().len(), SMALL);
        let unread = http_body_util::BodyExt::collect(unread.into_body()).await;
        let read = unread.map_or(0, |read| read.to_bytes().len());
        assert!(read < LARGE / 2, "{read} bytes were kept");
    }
}

#[tokio::test]
async fn a_connection_beyond_the_bound_waits_for_another_to_end() {
    let bounds = Bounds {
        connections: 1,
        ..BOUNDS
    };
    let server = serve(bounds, 1).await;
    let mut first = ask(server.address, "/small").await;
    assert!(read(&mut first).await > 0);
    let mut second = ask(server.address, "/small").await;
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
    server.ends().await;
}
