//! Every scenario, played by real clients over a real backend, on each storage engine.

use std::fs;
use std::path::PathBuf;

use futures_util::{StreamExt, stream};
use xmtp_testkit::scenario::{Engine, Scenario, parse, play};

/// Scenarios under way at once.
const AT_ONCE: usize = 4;

/// Reads every scenario, in the order of its name.
fn scenarios() -> Vec<(String, Scenario)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut found: Vec<PathBuf> = fs::read_dir(folder)
        .expect("the folder of scenarios")
        .map(|entry| entry.expect("a scenario").path())
        .collect();
    found.sort();
    assert!(found.len() >= 25, "scenarios are missing");
    found
        .into_iter()
        .map(|path| {
            let name = path
                .file_stem()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            let text = fs::read_to_string(&path).expect("a scenario's text");
            let scenario = parse(&text).unwrap_or_else(|fault| panic!("{name}: {fault}"));
            (name, scenario)
        })
        .collect()
}

async fn play_all(engine: Engine) {
    let playing = scenarios().into_iter().map(|(name, scenario)| async move {
        let played = play(&scenario, engine, None).await;
        played.err().map(|fault| format!("{name}: {fault}"))
    });
    let playing = stream::iter(playing).buffer_unordered(AT_ONCE);
    let faults: Vec<String> = playing.filter_map(std::future::ready).collect().await;
    assert!(faults.is_empty(), "on {engine:?}:\n{}", faults.join("\n"));
}

/// covers: STR-074, RVC-001, RVC-002, RVC-004
#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_plays_in_memory() {
    play_all(Engine::Memory).await;
}

/// covers: STR-076, STR-082, STR-083, STR-086
#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_plays_on_encrypted_sqlite() {
    play_all(Engine::Sqlite).await;
}

/// covers: STR-073, STR-080, STR-081, STR-115
#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_plays_on_sealed_sled() {
    play_all(Engine::Sled).await;
}
