//! The program: it starts from a file, tells why it does not, survives a kill, and stops on a signal.

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use common::*;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tonic::transport::Endpoint;
use xmtp_proto::backend::v1::PublishRequest;
use xmtp_proto::backend::v1::publish_service_client::PublishServiceClient;

fn program(config: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xmtp-backend"));
    command.arg("--config").arg(config);
    command
}

fn write_config(folder: &Path, more: &str) -> PathBuf {
    let path = folder.join("backend.toml");
    let text = format!(
        "[server]\nidentifier = \"org.example.test\"\nlisten = \"127.0.0.1:0\"\n\
         max_drain_duration_ms = 300\n\
         [telemetry]\nmetrics_listen = \"\"\n\
         [database]\nurl = \"{}\"\n{more}",
        database_url(folder)
    );
    std::fs::write(&path, text).unwrap();
    path
}

/// A running program and its log; killed when it is dropped.
struct Process {
    child: Child,
    log: Receiver<String>,
    endpoint: String,
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended already needs no end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn start(config: &Path) -> Self {
        let mut child = program(config).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (told, log) = channel();
        // It ends with the program, whose log it reads.
        std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .try_for_each(|line| told.send(line))
        });
        let mut process = Self {
            child,
            log,
            endpoint: String::new(),
        };
        while process.endpoint.is_empty() {
            let line = process
                .log
                .recv_timeout(PATIENCE)
                .expect("it listens in time");
            if let Some((_, rest)) = line.split_once("127.0.0.1:") {
                let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
                process.endpoint = format!("http://127.0.0.1:{}", &rest[..digits]);
            }
        }
        process
    }

    async fn publish(&self, text: &str) -> u64 {
        let endpoint = Endpoint::from_shared(self.endpoint.clone()).unwrap();
        let mut client = PublishServiceClient::new(endpoint.connect().await.unwrap());
        let request = PublishRequest {
            envelopes: vec![message(1, text)],
        };
        let response = client.publish(request).await.unwrap().into_inner();
        sequence_id(&response.envelope_metas[0])
    }
}

fn failed(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[tokio::test]
async fn an_acknowledged_publish_survives_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let config = write_config(folder.path(), "");
    for round in 0..3 {
        let mut process = Process::start(&config);
        for number in 0..=round {
            let expected = number + 1;
            assert_eq!(process.publish(&number.to_string()).await, expected);
        }
        process.child.kill().unwrap();
        process.child.wait().unwrap();
    }
}

fn terminate(id: u32) {
    let signal = format!("kill -TERM {id}");
    let sent = Command::new("sh").args(["-c", &signal]).status().unwrap();
    assert!(sent.success());
}

#[tokio::test]
async fn a_signal_ends_a_program_that_still_waits_for_its_database() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("backend.toml");
    let text = format!(
        "[server]\nidentifier = \"org.example.test\"\nlisten = \"127.0.0.1:0\"\n\
         [telemetry]\nmetrics_listen = \"\"\n\
         [database]\nurl = \"postgres://user@{address}/name\"\n"
    );
    std::fs::write(&path, text).unwrap();
    let mut command = tokio::process::Command::from(program(&path));
    let mut child = command
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let asked = timeout(PATIENCE, silent.accept()).await;
    let _asked = asked.expect("it asks its database").unwrap();
    terminate(child.id().unwrap());
    let ended = timeout(PATIENCE, child.wait()).await;
    assert!(ended.expect("it ends in time").unwrap().success());
}

#[tokio::test]
async fn a_signal_stops_the_program_cleanly() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = Process::start(&write_config(folder.path(), ""));
    process.publish("a").await;
    terminate(process.child.id());
    let mut rest = Vec::new();
    let end = loop {
        match process.log.recv_timeout(PATIENCE) {
            Ok(line) => rest.push(line),
            Err(end) => break end,
        }
    };
    assert_eq!(end, RecvTimeoutError::Disconnected, "it ends in time");
    assert!(process.child.wait().unwrap().success(), "{rest:?}");
    let last = rest.last().expect("a last line");
    assert!(last.contains("the server has stopped"), "{rest:?}");
}

/// covers: CFG-001, CFG-003
#[test]
fn a_refused_file_is_told_by_its_field() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_config(folder.path(), "[auth]\n");
    assert!(failed(&program(&path).output().unwrap()).contains("auth.enabled"));
    std::fs::write(&path, "[database]\nurl = \"memory:\"\n").unwrap();
    assert!(failed(&program(&path).output().unwrap()).contains("server.identifier"));
    let missing = folder.path().join("missing.toml");
    for arguments in [&["--config"][..], &["check"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xmtp-backend"));
        let problem = failed(&command.args(arguments).arg(&missing).output().unwrap());
        assert!(
            problem.contains("missing.toml: the file can not be read"),
            "{problem}"
        );
        assert!(!problem.contains("--config"), "{problem}");
    }
    let bare = Command::new(env!("CARGO_BIN_EXE_xmtp-backend"))
        .output()
        .unwrap();
    assert!(failed(&bare).contains("usage"));
    assert!(
        !folder.path().join("backend.db3").exists(),
        "nothing was opened"
    );
}

fn command(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xmtp-backend"));
    command.args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn what_is_asked_for_by_a_flag_is_no_failure() {
    let version = said(&command(&["--version"]));
    assert_eq!(
        version,
        concat!("xmtp-backend ", env!("CARGO_PKG_VERSION"), "\n")
    );
    assert!(said(&command(&["--help"])).starts_with("usage:"));
}

/// As by `xmtp-backend schema | head`.
#[test]
fn a_reader_that_has_enough_is_no_failure() {
    for arguments in [&["schema"][..], &["--help"], &["--version"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_xmtp-backend"));
        let output = command.args(arguments).stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(
            output.stderr.is_empty(),
            "{:?}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// covers: CFG-001, CFG-002
#[test]
fn a_file_is_checked_without_opening_anything() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_config(folder.path(), "");
    let path = path.to_str().unwrap();
    assert_eq!(said(&command(&["check", path])), "ok\n");
    let text = "[server]\nidentifier = \"a secret\"\n\
                [database]\nurl = \"postgres://u:secret@192.0.2.1/n\"\n";
    std::fs::write(path, text).unwrap();
    let problem = failed(&command(&["check", path]));
    assert!(problem.contains("server.identifier") && !problem.contains("secret"));
    std::fs::write(path, text.replace("a secret", "a")).unwrap();
    assert_eq!(
        said(&command(&["check", path])),
        "ok\n",
        "nobody answers there"
    );
    let files = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(files, 1, "only the file itself");
}

/// covers: CFG-009
#[test]
fn the_published_schema_is_the_one_of_the_types() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config.schema.json");
    let parse = |text: &str| -> serde_json::Value { serde_json::from_str(text).unwrap() };
    let published = parse(&std::fs::read_to_string(&path).unwrap());
    let printed = parse(&said(&command(&["schema"])));
    assert!(
        printed == published,
        "write the output of `xmtp-backend schema` to {}",
        path.display()
    );
    let server = &printed["$defs"]["server"];
    assert_eq!(server["required"], serde_json::json!(["identifier"]));
    for (section, field) in [
        ("server", "identifier"),
        ("server", "min_libxmtp_version"),
        ("auth", "enabled"),
        ("mls", "max_group_members"),
        ("mls", "max_installations_per_inbox"),
        ("mls", "commit_log_enabled"),
    ] {
        let field = &printed["$defs"][section]["properties"][field];
        assert!(field["description"].is_string(), "{section}: {field}");
    }
}

#[tokio::test]
async fn a_stopped_database_is_fenced_and_pruned_by_command() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_config(folder.path(), "");
    let text = path.to_str().unwrap();
    let mut process = Process::start(&path);
    process.publish("a").await;
    // A file belongs to one process; PostgreSQL takes both commands beside a server.
    if std::fs::read_to_string(&path).unwrap().contains("sqlite:") {
        for name in ["fence", "prune"] {
            let problem = failed(&command(&[name, "--config", text]));
            assert!(
                problem.contains("another process has the database open"),
                "{problem}"
            );
        }
    }
    process.child.kill().unwrap();
    process.child.wait().unwrap();
    assert!(said(&command(&["prune", "--config", text])).contains("pruned: 0"));
    assert!(
        said(&command(&["fence", "--config", text])).contains("the next id is above 8589934592")
    );
    let mut process = Process::start(&path);
    assert_eq!(process.publish("b").await, (2 << 32) + 1);
    process.child.kill().unwrap();
    process.child.wait().unwrap();
}
