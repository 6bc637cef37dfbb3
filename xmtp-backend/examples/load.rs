//! Loads a server with many clients and faults, checks all that they saw, and prints one line.
//!
//! ```sh
//! cargo run --release -p xmtp-backend --example load
//! XMTP_ROUNDS=320 cargo run --release -p xmtp-backend --example load    # ten million deliveries
//! XMTP_LOAD_DATABASE=sqlite:load.db3 cargo run --release -p xmtp-backend --example load
//! ```
//!
//! The server is this program again, in a process of its own, so that it can be killed.

#![allow(clippy::print_stdout)]

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/common/crowd/mod.rs"]
mod crowd;
#[path = "../tests/common/history/mod.rs"]
mod history;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use tokio::signal::unix::{SignalKind, signal};
use xmtp_backend::{Backend, Config};

use crowd::{Plan, run};

/// Says that this process is the server.
const SERVE: &str = "serve";

/// Rounds, unless `XMTP_ROUNDS` asks for more.
const ROUNDS: usize = 3;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [role, config] if role == SERVE => serve(Path::new(config)).await,
        _ => load().await,
    }
}

async fn serve(config: &Path) {
    let config = Config::load(config).expect("a configuration");
    let mut terminate = signal(SignalKind::terminate()).expect("signals");
    let running = Backend::start(config).await.expect("it starts");
    println!("listening on {}", running.address());
    terminate.recv().await;
    running.stop().await;
}

async fn load() {
    let rounds = std::env::var("XMTP_ROUNDS").ok();
    let rounds = rounds.map(|rounds| rounds.parse().expect("XMTP_ROUNDS is a number"));
    let plan = Plan {
        rounds: rounds.unwrap_or(ROUNDS),
        ..Plan::default()
    };
    let folder = tempfile::tempdir().expect("a folder");
    let config = write_config(folder.path());
    let starter = move || {
        let mut command = Command::new(std::env::current_exe().expect("a program"));
        command.arg(SERVE).arg(&config);
        command
    };
    let began = Instant::now();
    let history = run(plan, Box::new(starter)).await;
    let seconds = began.elapsed().as_secs_f64();
    let summary = history::check(&history).expect("every rule holds");
    let rate = summary.deliveries as f64 / seconds;
    println!(
        r#"{{"bench":"load","rounds":{},"rows":{},"publishes":{},"registrations":{},"pages":{},"deliveries":{},"seconds":{seconds:.1},"ours":{rate:.0},"unit":"env/s"}}"#,
        plan.rounds,
        summary.rows,
        summary.publishes,
        summary.registrations,
        summary.pages,
        summary.deliveries,
    );
}

fn write_config(folder: &Path) -> PathBuf {
    let database = std::env::var("XMTP_LOAD_DATABASE");
    let database = database.unwrap_or_else(|_| {
        let path = folder.join("load.db3");
        format!("sqlite:{}", path.display())
    });
    let path = folder.join("backend.toml");
    std::fs::write(&path, crowd::config_text(&database)).expect("a file");
    path
}
