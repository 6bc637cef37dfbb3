//! How near each part comes to what limits it.
//!
//! A figure is a ratio: the rate of ours over the rate of the bare thing underneath, measured in
//! turn in one process, slice by slice, so that a busy machine slows both alike. One JSON line per
//! figure goes to the standard output. The limit does strictly less than ours does, so a ratio above
//! one is a fault of the bench, and the run fails.
//!
//! ```sh
//! cargo bench --bench limits            # everything
//! cargo bench --bench limits receive    # measures whose name begins so
//! ```
//!
//! `XMTP_ROUNDS` is how many slices each run has.

// The bench is a program: what it finds goes to the standard output, complaints to the other.
#![allow(clippy::print_stdout, clippy::print_stderr)]

#[path = "limits/bare.rs"]
mod bare;
#[path = "limits/commit.rs"]
mod commit;
#[path = "limits/counted.rs"]
mod counted;
#[path = "limits/engine.rs"]
mod engine;
#[path = "limits/group.rs"]
mod group;
#[path = "limits/idle.rs"]
mod idle;
#[path = "limits/nothing.rs"]
mod nothing;
#[path = "limits/receive.rs"]
mod receive;
#[path = "limits/report.rs"]
mod report;
#[path = "limits/send.rs"]
mod send;
#[path = "limits/sqlite.rs"]
mod sqlite;

use std::process::ExitCode;

use report::{Failure, Report};

/// Members of the groups whose messages are received.
const MEMBERS: [usize; 3] = [2, 50, 250];
/// Members of the groups whose commits are received.
const COMMIT_MEMBERS: [usize; 3] = [3, 50, 250];

fn main() -> Result<ExitCode, Failure> {
    let names: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let wanted = |name: &str| names.is_empty() || names.iter().any(|part| name.starts_with(part));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let _inside = runtime.enter();
    let mut report = Report::new()?;
    if wanted("receive") {
        for members in MEMBERS {
            receive::measure(&mut report, members)?;
        }
    }
    if wanted("commit") {
        for members in COMMIT_MEMBERS {
            commit::measure(&mut report, members)?;
        }
    }
    if wanted("idle_groups") {
        idle::measure(&mut report)?;
    }
    if wanted("send") {
        send::measure(&mut report, &runtime)?;
    }
    if wanted("engine") {
        engine::measure(&mut report)?;
    }
    Ok(report.verdict())
}
