//! A way to a database server that can fall silent, be cut, and lead elsewhere.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::Postgres;

/// Bytes that pass at a time.
const CHUNK: usize = 16 * 1024;

/// How a server says that it is ready for a statement.
const READY: &[u8] = b"Z\0\0\0\x05I";

/// What passes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// Everything.
    Never,
    /// Nothing; connections stay open.
    Now,
    /// Nothing after a new connection is ready for its first statement.
    AfterStart,
}

/// What its connections share.
#[derive(Debug)]
struct State {
    target: Mutex<PathBuf>,
    silence: watch::Sender<Silence>,
    /// Counts cuts.
    cut: watch::Sender<u64>,
}

/// Listens on a free port of the loopback and leads to the socket of a server.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Leads to a server.
    pub async fn to(server: &Postgres) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a free port");
        let state = Arc::new(State {
            target: Mutex::new(server.socket()),
            silence: watch::Sender::new(Silence::Never),
            cut: watch::Sender::new(0),
        });
        let address = listener.local_addr().expect("an address");
        let accepting = tokio::spawn(accept(listener, state.clone()));
        Self {
            address,
            state,
            accepting,
        }
    }

    /// Returns the address of a database behind it.
    pub fn address(&self, database: &str) -> String {
        format!("postgresql://xmtp@{}/{database}", self.address)
    }

    /// Lets everything pass, or nothing.
    pub fn silence(&self, silence: Silence) {
        self.state.silence.send_replace(silence);
    }

    /// Leads to another server from now on, and cuts what led to the one before.
    pub fn lead_to(&self, server: &Postgres) {
        *self.state.target.lock() = server.socket();
        self.state.cut.send_modify(|cut| *cut += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.state.cut.send_modify(|cut| *cut += 1);
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    while let Ok((client, _)) = listener.accept().await {
        let state = state.clone();
        tokio::spawn(async move {
            let (silence, mut cut) = (state.silence.subscribe(), state.cut.subscribe());
            let target = state.target.lock().clone();
            let Ok(server) = UnixStream::connect(target).await else {
                return;
            };
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            let (send, receive) = watch::channel(false);
            tokio::select! {
                () = pass(&mut from_client, &mut to_server, silence.clone(), receive.clone(), None) => {}
                () = pass(&mut from_server, &mut to_client, silence, receive, Some(send)) => {}
                _ = cut.changed() => {}
            }
        });
    }
}

/// Passes bytes on until one end is closed. Whoever is told of the first readiness marks it.
async fn pass(
    from: &mut (impl AsyncReadExt + Unpin),
    to: &mut (impl AsyncWriteExt + Unpin),
    mut silence: watch::Receiver<Silence>,
    mut started: watch::Receiver<bool>,
    start: Option<watch::Sender<bool>>,
) {
    let mut chunk = vec![0; CHUNK];
    loop {
        let Ok(count @ 1..) = from.read(&mut chunk).await else {
            return;
        };
        loop {
            let now = *silence.borrow_and_update();
            let is_started = *started.borrow_and_update();
            match now {
                Silence::Never => break,
                Silence::AfterStart if !is_started => break,
                _ => {
                    if silence.changed().await.is_err() {
                        return;
                    }
                }
            }
        }
        if to.write_all(&chunk[..count]).await.is_err() {
            return;
        }
        if let Some(start) = &start
            && chunk[..count]
                .windows(READY.len())
                .any(|window| window == READY)
        {
            start.send_replace(true);
        }
    }
}
