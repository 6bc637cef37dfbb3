//! A gRPC-Web client over HTTP/1.1 that shows what truly crosses the socket.

use std::collections::VecDeque;
use std::net::SocketAddr;

use http::{HeaderMap, Method, Request, Response};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::body::Body;
use tower::{Service, ServiceExt};
use xmtp_proto::prost::Message;

use super::{PATIENCE, Peer};

pub(crate) const WEB: &str = "application/grpc-web+proto";

/// One frame of gRPC-Web.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WebFrame {
    Message(Vec<u8>),
    Trailers(Headers),
}

impl WebFrame {
    pub(crate) fn message<M: Message + Default>(&self) -> M {
        match self {
            Self::Message(bytes) => M::decode(bytes.as_slice()).expect("a message"),
            Self::Trailers(trailers) => panic!("not a message: {trailers:?}"),
        }
    }

    pub(crate) fn trailers(&self) -> &Headers {
        match self {
            Self::Trailers(trailers) => trailers,
            Self::Message(_) => panic!("not trailers"),
        }
    }
}

/// Header fields as they came, names in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Headers(pub(crate) Vec<(String, String)>);

impl Headers {
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let mut found = self.0.iter().filter(|(key, _)| key == name);
        let value = found.next().map(|(_, value)| value.as_str());
        assert!(found.next().is_none(), "{name} stands twice");
        value
    }

    fn parse(line: &str) -> (String, String) {
        let (name, value) = line.split_once(':').expect("a header field");
        (name.to_lowercase(), value.trim().to_owned())
    }
}

/// The head of a response.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) headers: Headers,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Web {
    socket: BufReader<TcpStream>,
    is_chunked: bool,
    body: VecDeque<u8>,
}

/// Puts a message into a frame.
pub(crate) fn framed<M: Message>(message: &M) -> Vec<u8> {
    let message = message.encode_to_vec();
    let length = u32::try_from(message.len()).expect("a short message");
    [&[0], length.to_be_bytes().as_slice(), &message].concat()
}

impl Web {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).await.expect("a connection");
        Self {
            socket: BufReader::new(socket),
            is_chunked: false,
            body: VecDeque::new(),
        }
    }

    /// Sends the head of a request.
    pub(crate) async fn send_head(&mut self, line: &str, headers: &[(&str, &str)]) {
        let mut head = format!("{line} HTTP/1.1\r\nhost: backend.example\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        self.send(head.as_bytes()).await;
    }

    /// Sends bytes; a server that has answered already need not take them.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        let _ = self.socket.write_all(bytes).await;
    }

    /// Sends a part of a body whose length is not known yet; none ends it.
    pub(crate) async fn send_chunk(&mut self, bytes: &[u8]) {
        let chunk = [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
        self.send(&chunk).await;
    }

    /// Sends a whole call and reads the head of its answer.
    pub(crate) async fn post(&mut self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Head {
        let length = body.len().to_string();
        let own = [("content-type", WEB), ("content-length", &length)];
        let headers = [&own, headers].concat();
        self.send_head(&format!("POST {path}"), &headers).await;
        self.send(body).await;
        self.head().await
    }

    /// Sends a call and reads all of its answer.
    pub(crate) async fn call<M: Message>(
        &mut self,
        path: &str,
        message: &M,
    ) -> (Head, Vec<WebFrame>) {
        let head = self.post(path, &[], &framed(message)).await;
        let mut frames = Vec::new();
        while let Some(frame) = self.frame().await {
            frames.push(frame);
        }
        (head, frames)
    }

    /// Opens a stream whose request stays open.
    pub(crate) async fn open(&mut self, path: &str) -> Head {
        let headers = [("content-type", WEB), ("transfer-encoding", "chunked")];
        self.send_head(&format!("POST {path}"), &headers).await;
        self.head().await
    }

    /// Reads the head of a response.
    pub(crate) async fn head(&mut self) -> Head {
        let status = self.line().await;
        let status = status.split(' ').nth(1).expect("a status line");
        let status = status.parse().expect("a status");
        let mut headers = Headers::default();
        loop {
            let line = self.line().await;
            if line.is_empty() {
                break;
            }
            headers.0.push(Headers::parse(&line));
        }
        self.is_chunked = headers.get("transfer-encoding") == Some("chunked");
        if !self.is_chunked {
            let length = headers.get("content-length").unwrap_or("0");
            self.read_body(length.parse().expect("a length")).await;
        }
        Head { status, headers }
    }

    /// Reads all that is left of a body.
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        while self.chunk().await {}
        self.body.drain(..).collect()
    }

    /// Reads the next frame; none is the end of the response.
    pub(crate) async fn frame(&mut self) -> Option<WebFrame> {
        if !self.has(5).await {
            assert!(self.body.is_empty(), "the response ends within a frame");
            return None;
        }
        let header: Vec<u8> = self.body.drain(..5).collect();
        let length = u32::from_be_bytes(header[1..].try_into().expect("four bytes"));
        assert!(
            self.has(length as usize).await,
            "the response ends within a frame"
        );
        let content: Vec<u8> = self.body.drain(..length as usize).collect();
        Some(match header[0] {
            0 => WebFrame::Message(content),
            0x80 => {
                let text = String::from_utf8(content).expect("text");
                let lines = text.split("\r\n").filter(|line| !line.is_empty());
                WebFrame::Trailers(Headers(lines.map(Headers::parse).collect()))
            }
            flag => panic!("a frame of another kind: {flag}"),
        })
    }

    /// Reads until that many bytes of the body are there, or it ends.
    async fn has(&mut self, count: usize) -> bool {
        while self.body.len() < count {
            if !self.chunk().await {
                return false;
            }
        }
        true
    }

    /// Reads the next part of a body; false is its end.
    async fn chunk(&mut self) -> bool {
        if !self.is_chunked {
            return false;
        }
        let length = self.line().await;
        let length = usize::from_str_radix(&length, 16).expect("a length");
        self.read_body(length).await;
        self.line().await;
        self.is_chunked = length > 0;
        self.is_chunked
    }

    async fn read_body(&mut self, length: usize) {
        let mut bytes = vec![0; length];
        let read = timeout(PATIENCE, self.socket.read_exact(&mut bytes)).await;
        read.expect("a body in time").expect("a whole body");
        self.body.extend(bytes);
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        let read = timeout(PATIENCE, self.socket.read_line(&mut line)).await;
        let read = read.expect("a line in time").expect("a line");
        assert!(read > 0, "the connection is closed");
        line.trim_end().to_owned()
    }
}

/// Sends a request over HTTP/2 as it is.
pub(crate) async fn http2(
    peer: &Peer,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: Vec<u8>,
) -> Response<Body> {
    let uri = format!("{}{path}", peer.running.endpoint());
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = Body::new(http_body_util::Full::from(body));
    let request = request.body(body).expect("a request");
    let mut channel = peer.channel.clone();
    let channel = channel.ready().await.expect("a connection");
    channel.call(request).await.expect("a response")
}

/// Copies header fields into the plain form.
pub(crate) fn plain(headers: &HeaderMap) -> Headers {
    let text = |value: &http::HeaderValue| value.to_str().expect("text").to_owned();
    let fields = headers.iter();
    Headers(
        fields
            .map(|(name, value)| (name.to_string(), text(value)))
            .collect(),
    )
}
