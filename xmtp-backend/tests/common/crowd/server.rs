//! A server process and where it is reached.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};

use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use super::{Link, PATIENCE};

/// Makes the command that starts the server.
pub(crate) type Starter = Box<dyn Fn() -> Command + Send>;

/// One life of the server, for its clients.
#[derive(Clone, Debug, Default)]
pub(super) struct Life {
    /// Grows with each start.
    pub(super) number: u64,
    pub(super) endpoint: String,
}

/// A server process; killed when it is dropped.
pub(crate) struct Server {
    starter: Starter,
    child: Child,
    lives: watch::Sender<Life>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended already needs no end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    pub(crate) async fn start(starter: Starter) -> Self {
        let (starter, child, endpoint) = spawn(starter).await;
        let life = Life {
            number: 1,
            endpoint,
        };
        Self {
            starter,
            child,
            lives: watch::Sender::new(life),
        }
    }

    /// Answers the id of the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Answers where the process is reached now.
    pub(crate) fn endpoint(&self) -> String {
        self.lives.borrow().endpoint.clone()
    }

    /// Makes a client's way to this server and to those after it.
    pub(crate) fn link(&self) -> Link {
        Link::new(self.lives.subscribe())
    }

    /// Ends the process with SIGKILL and starts the next one.
    pub(crate) async fn kill_and_start(mut self) -> Self {
        self.child.kill().expect("it runs");
        self.wait().await.again().await
    }

    /// Asks the process to stop and starts the next one.
    pub(crate) async fn stop_and_start(self) -> Self {
        self.terminate().wait().await.again().await
    }

    /// Asks the process to stop, and waits for it.
    pub(crate) async fn stop(self) {
        self.terminate().wait().await;
    }

    /// Ends the process with SIGKILL.
    pub(crate) async fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.wait().await;
    }

    /// Waits until the process ends by itself.
    pub(crate) async fn ended(self) -> ExitStatus {
        let id = self.child.id();
        let (said, status) = oneshot::channel();
        std::thread::spawn(move || {
            let mut server = self;
            let _ = said.send(server.child.wait());
        });
        let Ok(status) = timeout(PATIENCE, status).await else {
            let _ = Command::new("sh")
                .args(["-c", &format!("kill -KILL {id}")])
                .status();
            panic!("the server does not end");
        };
        status.expect("a thread").expect("a status")
    }

    fn terminate(self) -> Self {
        let signal = format!("kill -TERM {}", self.child.id());
        let sent = Command::new("sh").args(["-c", &signal]).status();
        assert!(sent.expect("a shell").success(), "the signal is sent");
        self
    }

    async fn wait(self) -> Self {
        let waited = move || {
            let mut server = self;
            server.child.wait().expect("it ends");
            server
        };
        tokio::task::spawn_blocking(waited).await.expect("a thread")
    }

    async fn again(mut self) -> Self {
        let starter = std::mem::replace(&mut self.starter, Box::new(|| Command::new("false")));
        let (starter, child, endpoint) = spawn(starter).await;
        (self.starter, self.child) = (starter, child);
        self.lives.send_modify(|life| {
            life.number += 1;
            life.endpoint = endpoint;
        });
        self
    }
}

async fn spawn(starter: Starter) -> (Starter, Child, String) {
    let start = move || {
        let mut child = starter().stdout(Stdio::piped()).spawn().expect("it starts");
        let out = child.stdout.take().expect("its output is piped");
        let mut lines = BufReader::new(out).lines().map_while(Result::ok);
        let endpoint = lines.by_ref().find_map(|line| endpoint(&line));
        let endpoint = endpoint.expect("the server says where it listens");
        // A pipe that nobody reads would hold the server.
        std::thread::spawn(move || lines.for_each(drop));
        (starter, child, endpoint)
    };
    tokio::task::spawn_blocking(start).await.expect("a thread")
}

fn endpoint(line: &str) -> Option<String> {
    let (_, rest) = line.split_once("127.0.0.1:")?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    Some(format!("http://127.0.0.1:{}", &rest[..digits]))
}
