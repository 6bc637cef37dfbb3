//! A small HTTP server on loopback that answers as a test tells it.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::common::PATIENCE;
use crate::signer::Signer;

/// What the next requests are answered with.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// This body.
    Body(String),
    /// Another status, with this address to go to.
    Redirect(String),
    /// A status without a body.
    Status(u16),
    /// This many bytes, without telling how many they will be.
    Endless(usize),
    /// Nothing, for as long as the caller waits.
    Silence,
    /// The beginning of an answer, and then nothing.
    Half,
}

/// Makes a key set out of signers.
pub(crate) fn key_set(signers: &[&Signer]) -> Answer {
    entries(signers.iter().map(|signer| signer.jwk()).collect())
}

pub(crate) fn entries(entries: Vec<Value>) -> Answer {
    Answer::Body(json!({ "keys": entries }).to_string())
}

pub(crate) struct KeyServer {
    pub(crate) url: String,
    answer: Arc<Mutex<Answer>>,
    requests: watch::Sender<usize>,
    _serving: JoinSet<()>,
}

impl KeyServer {
    pub(crate) async fn start(answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let answer = Arc::new(Mutex::new(answer));
        let requests = watch::Sender::new(0);
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, answer.clone(), requests.clone()));
        Self {
            url: format!("http://{address}/keys"),
            answer,
            requests,
            _serving: serving,
        }
    }

    pub(crate) fn answer(&self, answer: Answer) {
        *self.answer.lock() = answer;
    }

    /// Counts the requests so far.
    pub(crate) fn requests(&self) -> usize {
        *self.requests.borrow()
    }

    /// Comes back when so many requests have come.
    pub(crate) async fn asked(&self, count: usize) {
        let mut requests = self.requests.subscribe();
        let asked = timeout(PATIENCE, requests.wait_for(|requests| *requests >= count)).await;
        asked
            .expect("it is asked in time")
            .expect("the server is there");
    }
}

async fn serve(listener: TcpListener, answer: Arc<Mutex<Answer>>, requests: watch::Sender<usize>) {
    let mut open = JoinSet::new();
    while let Ok((mut socket, _)) = listener.accept().await {
        let (answer, requests) = (answer.clone(), requests.clone());
        open.spawn(async move {
            read_head(&mut socket).await;
            let answer = answer.lock().clone();
            requests.send_modify(|requests| *requests += 1);
            // The caller may have enough before the end.
            let _ = respond(&mut socket, answer).await;
        });
    }
}

/// Reads a request up to the empty line at the end of its head.
async fn read_head(socket: &mut TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match socket.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
}

async fn respond(socket: &mut TcpStream, answer: Answer) -> std::io::Result<()> {
    let plain = |body: &str| {
        let length = body.len();
        format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}")
    };
    match answer {
        Answer::Body(body) => socket.write_all(plain(&body).as_bytes()).await?,
        Answer::Redirect(address) => {
            let head =
                format!("HTTP/1.1 302 Found\r\nlocation: {address}\r\ncontent-length: 0\r\n\r\n");
            socket.write_all(head.as_bytes()).await?;
        }
        Answer::Status(status) => {
            let head = format!("HTTP/1.1 {status} Status\r\ncontent-length: 0\r\n\r\n");
            socket.write_all(head.as_bytes()).await?;
        }
        Answer::Endless(bytes) => {
            socket
                .write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
                .await?;
            socket.write_all(&vec![b' '; bytes]).await?;
        }
        Answer::Silence => std::future::pending().await,
        Answer::Half => {
            socket
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"keys\"")
                .await?;
            std::future::pending().await
        }
    }
    socket.shutdown().await
}
