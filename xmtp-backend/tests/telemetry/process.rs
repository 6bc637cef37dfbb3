//! The program as a process of its own, its log, and its numbers.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use crate::common::web::Web;
use crate::common::{IDENTIFIER, PATIENCE};

/// A log that grows.
#[derive(Clone, Default)]
struct Log(Arc<(Mutex<String>, Condvar)>);

impl Log {
    fn follow(&self, mut lines: impl BufRead + Send + 'static) {
        let log = self.clone();
        std::thread::spawn(move || {
            let mut line = String::new();
            while lines.read_line(&mut line).is_ok_and(|read| read > 0) {
                log.0.0.lock().expect("the log").push_str(&line);
                log.0.1.notify_all();
                line.clear();
            }
        });
    }

    /// Waits until the log says something, and returns it.
    fn wait<T>(&self, find: impl Fn(&str) -> Option<T>) -> T {
        let (text, grown) = &*self.0;
        let text = text.lock().expect("the log");
        let waited = grown.wait_timeout_while(text, PATIENCE, |text| find(text).is_none());
        let (text, _) = waited.expect("the log");
        find(&text).unwrap_or_else(|| panic!("the log does not say it:\n{text}"))
    }
}

/// A running program.
pub(crate) struct Process {
    child: Child,
    log: Log,
    pub(crate) address: SocketAddr,
    pub(crate) metrics: SocketAddr,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    /// Starts with the sections of a configuration beside the addresses, which are free ports.
    pub(crate) fn start(folder: &Path, server: &str, telemetry: &str) -> Self {
        Self::start_with(folder, server, telemetry, &[])
    }

    /// The same, with variables of the environment.
    pub(crate) fn start_with(
        folder: &Path,
        server: &str,
        telemetry: &str,
        variables: &[(&str, &Path)],
    ) -> Self {
        let path = folder.join("backend.toml");
        let text = format!(
            "[server]\nidentifier = \"{}\"\nlisten = \"127.0.0.1:0\"\n{server}\n\
             [telemetry]\nmetrics_listen = \"127.0.0.1:0\"\n{telemetry}\n\
             [database]\nurl = \"memory:\"\n",
            IDENTIFIER
        );
        std::fs::write(&path, text).expect("a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_xmtp-backend"));
        command.arg("--config").arg(&path);
        command.env_remove("OTEL_EXPORTER_OTLP_ENDPOINT");
        command.envs(variables.iter().copied());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let log = Log::default();
        log.follow(BufReader::new(child.stdout.take().expect("a log")));
        let metrics = log.wait(|text| address_in(text, "metrics are served"));
        let address = log.wait(|text| address_in(text, "the server is listening"));
        Self {
            child,
            log,
            address,
            metrics,
        }
    }

    /// Waits until the log holds a line, and returns it.
    pub(crate) fn line(&self, is_it: impl Fn(&str) -> bool) -> String {
        self.log
            .wait(|text| text.lines().find(|line| is_it(line)).map(str::to_owned))
    }

    /// Returns all of the log so far.
    pub(crate) fn log(&self) -> String {
        self.log.0.0.lock().expect("the log").clone()
    }

    /// Scrapes the numbers until they are as expected.
    pub(crate) async fn scrape(&self, are_expected: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = self.scrape_once().await;
            if are_expected(&text) {
                return text;
            }
            assert!(Instant::now() < deadline, "the numbers stay:\n{text}");
        }
    }

    async fn scrape_once(&self) -> String {
        let mut web = Web::connect(self.metrics).await;
        web.send_head("GET /metrics", &[]).await;
        let head = web.head().await;
        assert_eq!(head.status, 200);
        String::from_utf8(web.rest().await).expect("text")
    }

    /// Asks the program to stop and waits for its end.
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status();
        assert!(sent.expect("a signal").success());
        self.child.wait().expect("an end")
    }
}

fn address_in(text: &str, said: &str) -> Option<SocketAddr> {
    let line = text.lines().find(|line| line.contains(said))?;
    let start = line.find("127.0.0.1:")?;
    let is_part = |c: char| c.is_ascii_digit() || c == '.' || c == ':';
    line[start..].split(|c| !is_part(c)).next()?.parse().ok()
}
