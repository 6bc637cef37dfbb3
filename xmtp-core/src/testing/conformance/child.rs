//! The second process of a case: the test binary again, with a task in its environment.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::Engine;
use super::fixture::{Batch, PATIENCE, SMALL, increment, number, open};
use super::processes::{LAST, ROWS_EACH, torn_free_batch};
use super::writers::loop_without_pause;
use crate::storage::{Durability, OpenError, Storage};

const ENGINE: &str = "XMTP_CONFORMANCE_ENGINE";
const TASK: &str = "XMTP_CONFORMANCE_TASK";
const DIR: &str = "XMTP_CONFORMANCE_DIR";

/// What a child does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// Adds one to the counter for each line of input, and says the new value.
    Increment,
    /// Commits back to back and counts its commits.
    Loop,
    /// Commits numbered batches, and says each number after its commit.
    Flushed,
    /// The same with ordered commits.
    Ordered,
    /// Takes the writer, says so, and keeps it.
    Hold,
    /// Opens the database once, at the first line of input, and says how it went.
    Open,
}

const TASKS: [Task; 6] = [
    Task::Increment,
    Task::Loop,
    Task::Flushed,
    Task::Ordered,
    Task::Hold,
    Task::Open,
];

/// A running child; killed when dropped.
pub(super) struct Helper {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// What a child's line begins with, so that a harness may print around it.
const MARK: &str = "@conformance ";

impl Helper {
    pub(super) fn start(engine: &dyn Engine, dir: &Path, task: Task) -> Self {
        let mut command = engine.child().expect("the engine has children");
        command
            .env(ENGINE, engine.name())
            .env(TASK, format!("{task:?}"))
            .env(DIR, dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("start the child");
        let input = child.stdin.take().expect("its input");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Self {
            child,
            input,
            output,
        }
    }

    /// Sends a line.
    pub(super) fn tell(&mut self) {
        self.input.write_all(b"\n").expect("tell the child");
        self.input.flush().expect("tell the child");
    }

    /// Reads the next line; `None` when the child has ended.
    pub(super) fn try_hear(&mut self) -> Option<String> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.output.read_line(&mut line).unwrap_or(0) == 0 {
                return None;
            }
            // A line that a kill cut short was not said.
            if let (Some(said), true) = (line.split(MARK).nth(1), line.ends_with('\n')) {
                return Some(said.trim_end().to_owned());
            }
        }
    }

    /// Reads the next line.
    pub(super) fn hear(&mut self) -> String {
        self.try_hear().expect("the child said something")
    }

    /// Reads the next line as a number.
    pub(super) fn hear_number(&mut self) -> u64 {
        self.hear().parse().expect("a number")
    }

    /// Ends the child as a crash would (SIGKILL on Unix), and waits until it is gone.
    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().expect("the child is gone");
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Does the work of a child process, when this process is one for `engine`; the harness then
/// ends at once.
pub fn child_main(engine: &dyn Engine) -> bool {
    let (Ok(name), Ok(task), Some(dir)) = (env::var(ENGINE), env::var(TASK), env::var_os(DIR))
    else {
        return false;
    };
    let task = TASKS.into_iter().find(|known| format!("{known:?}") == task);
    let (Some(task), true) = (task, name == engine.name()) else {
        return false;
    };
    let dir = PathBuf::from(dir);
    match task {
        Task::Open => open_once(engine, &dir),
        Task::Increment => count(&*open(engine, &dir)),
        Task::Loop => loop_for_ever(&*open(engine, &dir)),
        Task::Flushed => number_batches(&*open(engine, &dir), Durability::Flushed),
        Task::Ordered => number_batches(&*open(engine, &dir), Durability::Ordered),
        Task::Hold => hold(&*open(engine, &dir)),
    }
    true
}

/// Says a line; false when the parent is gone.
fn say(words: &str) -> bool {
    let mut out = io::stdout().lock();
    writeln!(out, "{MARK}{words}")
        .and_then(|()| out.flush())
        .is_ok()
}

/// Waits for a line of the parent; false when the parent is gone.
fn told() -> bool {
    io::stdin()
        .lock()
        .read_line(&mut String::new())
        .unwrap_or(0)
        > 0
}

fn open_once(engine: &dyn Engine, dir: &Path) {
    if !say("ready") || !told() {
        return;
    }
    let said = match engine.open(dir) {
        Ok(storage) => {
            let tables = storage.open_tables(super::fixture::TABLES);
            tables.expect("open the tables");
            increment(&*storage, b"counter").expect("increment");
            storage.close().expect("close");
            "opened".to_owned()
        }
        Err(OpenError::InUse) => "in use".to_owned(),
        Err(error) => format!("refused: {error}"),
    };
    say(&said);
}

fn count(storage: &dyn Storage) {
    say("ready");
    while told() {
        let value = increment(storage, b"counter").expect("increment");
        say(&value.to_string());
    }
}

fn loop_for_ever(storage: &dyn Storage) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while told() {}
            stop.store(true, Ordering::Release);
        });
        say("ready");
        loop_without_pause(storage, &stop);
    });
}

fn number_batches(storage: &dyn Storage, durability: Durability) {
    let snapshot = storage.snapshot().expect("snapshot");
    let mut next = number(&*snapshot, SMALL, LAST) + 1;
    drop(snapshot);
    loop {
        let writer = storage.writer(PATIENCE, durability).expect("writer");
        let batch: Batch = torn_free_batch(next, ROWS_EACH);
        writer.commit(&batch.0).expect("commit");
        if !say(&next.to_string()) {
            return;
        }
        next += 1;
    }
}

fn hold(storage: &dyn Storage) {
    let writer = storage
        .writer(PATIENCE, Durability::Ordered)
        .expect("writer");
    say("held");
    while told() {}
    drop(writer);
}
