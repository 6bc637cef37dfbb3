//! A part of a test in a process of its own, to be killed or stopped at any moment.
//!
//! The child is the same test executable, told to run one test and given a role. The test looks at
//! the role first: without one it is the parent and starts children, with one it plays it.
//!
//! ```no_run
//! use std::time::Duration;
//! use xmtp_testkit::process::{Child, role, say};
//!
//! #[test]
//! fn survives_a_kill() {
//!     if let Some(role) = role() {
//!         assert_eq!(role, "writer");
//!         say("ready");
//!         loop { /* write */ }
//!     }
//!     let mut child = Child::spawn("survives_a_kill", "writer", &[("DIR", "/tmp/x")]);
//!     child.wait_for("ready", Duration::from_secs(30));
//!     child.kill();
//! }
//! ```
//!
//! A driver signals only the processes that it started, and kills them when it is dropped.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// The variable that gives a child its role.
const ROLE: &str = "XMTP_TESTKIT_ROLE";

/// Stands before each line of [`say`]; the test harness writes lines of its own.
const MARK: &str = "xmtp-testkit: ";

/// Answers the role of this process; `None` for a parent.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Says a line to the parent.
pub fn say(line: &str) {
    let mut out = io::stdout().lock();
    // The line of the test harness may be open still.
    let said = write!(out, "\n{MARK}{line}\n").and_then(|()| out.flush());
    said.expect("the parent listens");
}

/// A child process; killed when dropped.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    pid: Pid,
    lines: Receiver<String>,
}

impl Child {
    /// Starts this test executable on the test `name` with a role and further variables.
    pub fn spawn(name: &str, role: &str, variables: &[(&str, &str)]) -> Self {
        let executable = std::env::current_exe().expect("a test knows its executable");
        let mut command = Command::new(executable);
        command.args([name, "--exact", "--nocapture", "--include-ignored"]);
        command.envs(variables.iter().copied()).env(ROLE, role);
        Self::start(command)
    }

    /// Starts a command, such as another executable that calls [`say`].
    pub fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("the child starts");
        let pid = Pid::from_child(&process);
        let out = process.stdout.take().expect("its output is piped");
        let (said, lines) = channel();
        thread::spawn(move || {
            let read = BufReader::new(out).lines().map_while(Result::ok);
            for line in read.filter_map(|line| line.strip_prefix(MARK).map(str::to_owned)) {
                if said.send(line).is_err() {
                    break;
                }
            }
        });
        Self {
            process,
            pid,
            lines,
        }
    }

    /// Answers the id of the process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits for the next line that the child says.
    ///
    /// - Panics after `deadline`, and when the child ends without a word.
    pub fn next_line(&mut self, deadline: Duration) -> String {
        match self.lines.recv_timeout(deadline) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("the child said nothing for {deadline:?}"),
            Err(RecvTimeoutError::Disconnected) => panic!("the child ended without a word"),
        }
    }

    /// Waits until the child says a line that begins with `start`; answers the line.
    ///
    /// - Panics as [`next_line`](Self::next_line) does; the deadline is for all lines together.
    pub fn wait_for(&mut self, start: &str, deadline: Duration) -> String {
        let until = Instant::now() + deadline;
        loop {
            let line = self.next_line(until.saturating_duration_since(Instant::now()));
            if line.starts_with(start) {
                return line;
            }
        }
    }

    /// Answers the lines that were said and not taken yet, without waiting.
    pub fn said(&mut self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    /// Kills the child (SIGKILL) and waits until it is gone; does nothing when it is.
    pub fn kill(&mut self) {
        let killed = self.process.kill();
        killed
            .and_then(|()| self.process.wait())
            .expect("a child can be killed");
    }

    /// Lets the child run for a moment, kills it, and answers every line that it said until then.
    pub fn kill_after(&mut self, moment: Duration) -> Vec<String> {
        let until = Instant::now() + moment;
        let mut said = Vec::new();
        let left = || until.saturating_duration_since(Instant::now());
        while let Ok(line) = self.lines.recv_timeout(left()) {
            said.push(line);
        }
        self.kill();
        said.extend(self.lines.iter());
        said
    }

    /// Stops the child (SIGSTOP); when this returns, it stays and does nothing.
    pub fn stop(&mut self) {
        self.signal(Signal::STOP);
        // Leaves the end of the child, if that is what comes, to be waited for again.
        let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(self.pid), options).expect("a child can be waited for");
        let stopped = status.is_some_and(|status| status.stopped());
        assert!(stopped, "the child ended before it stopped");
    }

    /// Lets a stopped child go on (SIGCONT).
    pub fn cont(&mut self) {
        self.signal(Signal::CONT);
    }

    /// - A child that has ended keeps its id until it is waited for, so that no other process can
    ///   be hit.
    fn signal(&mut self, signal: Signal) {
        let ended = self.process.try_wait().expect("a child can be looked at");
        assert!(ended.is_none(), "the child has ended");
        kill_process(self.pid, signal).expect("a child can be signalled");
    }

    /// Waits until the child ends by itself.
    pub fn wait(&mut self) -> ExitStatus {
        self.process.wait().expect("a child can be waited for")
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
