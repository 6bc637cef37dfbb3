//! How the two processes talk about the story: one line a fact, on Bo's standard output.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::Failure;

/// How long a fact may take before the story has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bo, as Alice's process sees him.
pub(crate) struct BoProcess {
    child: Child,
    facts: Lines<BufReader<ChildStdout>>,
    orders: ChildStdin,
}

impl BoProcess {
    /// Starts this program again as Bo.
    pub(crate) fn start(arguments: &[&str]) -> Result<Self, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("bo")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let facts = child.stdout.take().ok_or("bo has no output")?;
        let orders = child.stdin.take().ok_or("bo has no input")?;
        Ok(Self {
            child,
            facts: BufReader::new(facts).lines(),
            orders,
        })
    }

    /// Waits for the next fact of a kind, printing what comes before it.
    pub(crate) async fn fact(&mut self, kind: &str) -> Result<String, Failure> {
        let waited = tokio::time::timeout(PATIENCE, async {
            while let Some(line) = self.facts.next_line().await? {
                match line.split_once(' ') {
                    Some((found, rest)) if found == kind => return Ok(rest.to_owned()),
                    Some(("show", rest)) => println!("bo        {rest}"),
                    _ => return Err(format!("expected {kind}, bo said {line:?}").into()),
                }
            }
            Err(Failure::from(format!("bo ended before {kind}")))
        });
        waited.await.map_err(|_| format!("bo never said {kind}"))?
    }

    /// Tells Bo to go on.
    pub(crate) async fn order(&mut self, order: &str) -> Result<(), Failure> {
        self.orders
            .write_all(format!("{order}\n").as_bytes())
            .await?;
        Ok(())
    }

    /// Kills Bo at once, without any chance to tidy up.
    pub(crate) async fn kill(mut self) -> Result<(), Failure> {
        self.child.start_kill()?;
        let status = self.child.wait().await?;
        if status.success() {
            return Err("bo ended by himself instead of being killed".into());
        }
        Ok(())
    }

    /// Waits until Bo has ended well.
    pub(crate) async fn end(mut self) -> Result<(), Failure> {
        drop(self.orders);
        let status = tokio::time::timeout(PATIENCE, self.child.wait()).await??;
        if !status.success() {
            return Err("bo did not end well".into());
        }
        Ok(())
    }
}

/// Fails the story unless a fact is as told.
pub(crate) fn expect(found: &str, told: &str) -> Result<(), Failure> {
    if found == told {
        return Ok(());
    }
    Err(format!("expected {told:?}, found {found:?}").into())
}
