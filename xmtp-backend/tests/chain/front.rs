//! What stands before a node, or instead of one: it counts what is asked and answers as it is told.

use std::sync::Arc;
use std::sync::Mutex;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::common::PATIENCE;
use crate::node::CHAIN;

/// What is done with one question.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// The node behind answers.
    Forward,
    /// Nobody answers, ever.
    Hang,
    /// The connection ends.
    Close,
    /// HTTP fails.
    Status(u16),
    /// The answer of HTTP is this text.
    Text(String),
    /// The answer never ends.
    Endless,
    /// The question waits until it is released; what the rule then says is the answer.
    Held,
}

impl Reply {
    /// A proper answer.
    pub(crate) fn result(result: Value) -> Self {
        Self::Text(json!({ "jsonrpc": "2.0", "id": 1, "result": result }).to_string())
    }
}

type Rule = dyn Fn(&str) -> Reply + Send + Sync;

struct Seen {
    methods: Mutex<Vec<String>>,
    /// How many questions are here now, and how many were at most.
    held: watch::Sender<(usize, usize)>,
    released: watch::Sender<bool>,
}

/// A listener on a free loopback port.
pub(crate) struct Front {
    pub(crate) url: String,
    seen: Arc<Seen>,
    rule: Arc<Mutex<Arc<Rule>>>,
    serving: JoinHandle<()>,
}

impl Front {
    /// Stands before a node and forwards everything.
    pub(crate) async fn before(node: &str) -> Self {
        Self::start(Some(node.to_owned()), |_| Reply::Forward).await
    }

    /// Stands alone: it says which chain it serves, and answers all else as `rule` says.
    pub(crate) async fn alone(rule: impl Fn(&str) -> Reply + Send + Sync + 'static) -> Self {
        Self::of_chain(CHAIN, rule).await
    }

    /// Stands alone for the chain of this number.
    pub(crate) async fn of_chain(
        chain: u64,
        rule: impl Fn(&str) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::start(None, move |method| match method {
            "eth_chainId" => Reply::result(json!(format!("0x{chain:x}"))),
            other => rule(other),
        })
        .await
    }

    async fn start(
        node: Option<String>,
        rule: impl Fn(&str) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let seen = Arc::new(Seen {
            methods: Mutex::default(),
            held: watch::Sender::new((0, 0)),
            released: watch::Sender::new(false),
        });
        let rule: Arc<Mutex<Arc<Rule>>> = Arc::new(Mutex::new(Arc::new(rule)));
        let (counted, asked) = (seen.clone(), rule.clone());
        let serving = tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let (node, seen, rule) = (node.clone(), counted.clone(), asked.clone());
                tokio::spawn(async move {
                    // A connection that breaks off is what some tests are about.
                    let _ = serve(connection, node, &seen, &rule).await;
                });
            }
        });
        Self {
            url,
            seen,
            rule,
            serving,
        }
    }

    /// Answers by another rule from now on.
    pub(crate) fn obey(&self, rule: impl Fn(&str) -> Reply + Send + Sync + 'static) {
        *self.rule.lock().expect("no panic") = Arc::new(rule);
    }

    /// Counts the questions of one kind so far.
    pub(crate) fn count(&self, method: &str) -> usize {
        let seen = self.seen.methods.lock().expect("no panic");
        seen.iter().filter(|seen| *seen == method).count()
    }

    /// Waits until so many questions are held.
    pub(crate) async fn holds(&self, count: usize) {
        let mut held = self.seen.held.subscribe();
        let held = timeout(PATIENCE, held.wait_for(|held| held.0 >= count));
        held.await
            .expect("so many in time")
            .expect("the sender lives");
    }

    /// Lets all held questions go, and those to come.
    pub(crate) fn release(&self) {
        self.seen.released.send_replace(true);
    }

    /// Returns how many questions were here at a time, at most.
    pub(crate) fn held_at_most(&self) -> usize {
        self.seen.held.borrow().1
    }

    /// Counts all questions so far.
    pub(crate) fn total(&self) -> usize {
        self.seen.methods.lock().expect("no panic").len()
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(
    mut connection: TcpStream,
    node: Option<String>,
    seen: &Seen,
    rule: &Mutex<Arc<Rule>>,
) -> std::io::Result<()> {
    let body = read_request(&mut connection).await?;
    let question: Value = serde_json::from_slice(&body)?;
    let method = question["method"].as_str().unwrap_or("").to_owned();
    seen.methods.lock().expect("no panic").push(method.clone());
    let reply = |rule: &Mutex<Arc<Rule>>| {
        let rule = rule.lock().expect("no panic").clone();
        rule(&method)
    };
    seen.held.send_modify(|(now, most)| {
        *now += 1;
        *most = (*now).max(*most);
    });
    let mut answer = reply(rule);
    if matches!(answer, Reply::Held) {
        let mut released = seen.released.subscribe();
        // The sender lives as long as the front.
        let _ = released.wait_for(|released| *released).await;
        answer = reply(rule);
    }
    seen.held.send_modify(|(now, _)| *now -= 1);
    let text = match answer {
        Reply::Forward => forward(&node.expect("a node behind"), body).await,
        Reply::Hang | Reply::Held => std::future::pending().await,
        Reply::Close => return Ok(()),
        Reply::Status(status) => return respond(&mut connection, status, "{}").await,
        Reply::Text(text) => text,
        Reply::Endless => return never_end(&mut connection).await,
    };
    respond(&mut connection, 200, &text).await
}

async fn forward(node: &str, body: Vec<u8>) -> String {
    let client = reqwest::Client::builder()
        .no_proxy()
        .build()
        .expect("a client");
    let request = client.post(node).header("content-type", "application/json");
    let answer = request.body(body).send().await.expect("the node answers");
    answer.text().await.expect("text")
}

/// Reads the head of a request and the body that it announces.
async fn read_request(connection: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(connection.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let length = length
        .and_then(|length| length.trim().parse().ok())
        .unwrap_or(0);
    let mut body = vec![0; length];
    connection.read_exact(&mut body).await?;
    Ok(body)
}

async fn respond(connection: &mut TcpStream, status: u16, body: &str) -> std::io::Result<()> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n"
    );
    connection.write_all(head.as_bytes()).await?;
    connection.write_all(body.as_bytes()).await?;
    connection.shutdown().await
}

async fn never_end(connection: &mut TcpStream) -> std::io::Result<()> {
    let head = b"HTTP/1.1 200 x\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n";
    connection.write_all(head).await?;
    loop {
        connection.write_all(&[b' '; 4096]).await?;
    }
}
