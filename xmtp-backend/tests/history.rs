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

use std::process::Command;

use crowd::{Plan, run};
use xmtp_backend::testing::Postgres;

fn plan() -> Plan {
    let plan = Plan::default();
    let rounds = std::env::var("XMTP_ROUNDS").ok();
    let rounds = rounds.map(|rounds| rounds.parse().expect("XMTP_ROUNDS is a number"));
    Plan {
        rounds: rounds.unwrap_or(plan.rounds),
        ..plan
    }
}

/// Runs the plan on a database and holds what was seen against every rule.
async fn keeps_every_rule(database: &str) {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("backend.toml");
    std::fs::write(&config, crowd::config_text(database)).unwrap();
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
    assert!(summary.newest >= plan.rounds * plan.requests, "{summary:?}");
    assert!(summary.registrations > plan.streams * plan.topics_per_stream);
}

/// covers: STR-004, STR-006, STR-010, EXT-001
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_loses_repeats_and_reorders_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history.db3");
    keeps_every_rule(&format!("sqlite:{}", path.display())).await;
}

/// covers: STR-004, STR-006, STR-010, EXT-001
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_loses_repeats_and_reorders_nothing() {
    // Where it is not installed, and must be, that fails here.
    if let Some(server) = Postgres::shared() {
        keeps_every_rule(&server.database()).await;
    }
}
