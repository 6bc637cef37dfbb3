//! Many clients against one server that is killed and stopped: nothing is lost, repeated or
//! reordered.
//!
//! `XMTP_ROUNDS` is how many rounds a run has; a round delivers about 32,000 envelopes and ends one
//! life of the server. 320 rounds check ten million deliveries.

mod common;
#[path = "common/crowd/mod.rs"]
mod crowd;
#[path = "common/history/mod.rs"]
mod history;
#[path = "common/history/rules.rs"]
mod rules;

use std::path::{Path, PathBuf};
use std::process::Command;

use crowd::{Plan, run};

/// Rounds of a run, unless `XMTP_ROUNDS` asks for more: each fault once.
const ROUNDS: usize = 3;

/// The first of the numbers that look random.
const SEED: u64 = 20_260_101;

fn plan() -> Plan {
    let rounds = std::env::var("XMTP_ROUNDS").ok();
    let rounds = rounds.map(|rounds| rounds.parse().expect("XMTP_ROUNDS is a number"));
    Plan {
        rounds: rounds.unwrap_or(ROUNDS),
        topics: 1000,
        streams: 100,
        topics_per_stream: 100,
        publishers: 8,
        requests: 20,
        envelopes: 20,
        churn: 100,
        seed: SEED,
    }
}

fn write_config(folder: &Path, database: &str) -> PathBuf {
    let path = folder.join("backend.toml");
    let text = format!(
        "[server]\nidentifier = \"{}\"\nlisten = \"127.0.0.1:0\"\nmax_drain_duration_ms = 1000\n\
         [database]\nurl = \"{database}\"\n\
         [limits]\nmax_update_frames_per_second = 1000\nmax_update_burst = 1000\n",
        common::IDENTIFIER
    );
    std::fs::write(&path, text).unwrap();
    path
}

/// Runs the plan on a database and holds what was seen against every rule.
async fn keeps_every_rule(database: &str) {
    let folder = tempfile::tempdir().unwrap();
    let config = write_config(folder.path(), database);
    let starter = move || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xmtp-backend"));
        command.arg("--config").arg(&config);
        command
    };
    let plan = plan();
    let history = run(plan, Box::new(starter)).await;
    let summary = history::check(&history).expect("every rule holds");
    let requests = plan.rounds * plan.publishers * plan.requests;
    let envelopes = requests * plan.envelopes;
    assert!(summary.rows >= envelopes, "{summary:?}");
    let fan_out = plan.streams * plan.topics_per_stream / plan.topics;
    assert!(summary.deliveries >= envelopes * fan_out, "{summary:?}");
    assert!(summary.publishes > envelopes, "some are sent twice");
    assert!(summary.registrations > plan.streams * plan.topics_per_stream);
}

/// covers: STR-004, STR-006, STR-010, EXT-001
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_loses_repeats_and_reorders_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history.db3");
    keeps_every_rule(&format!("sqlite:{}", path.display())).await;
}
