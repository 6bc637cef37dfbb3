//! Every scenario again, with a crash before and after the commits of everybody.
//!
//! A scenario plays once without a crash, which tells how often each person commits and what is
//! left at the end. Then it plays again for each planned crash, and has to leave the same. What
//! people do runs beside their workers, so the commits of two runs are not quite the same; a crash
//! planned after the last commit does not happen.
//!
//! `XMTP_ROUNDS` is how many commits of each person meet a crash on each side, evenly spread; with
//! 100 or more, all of them do.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use xmtp_core::testing::faulty::Side;
use xmtp_testkit::scenario::{CrashAt, Engine, Outcome, PowerLoss, Scenario, parse, play};

const DEFAULT_ROUNDS: u64 = 2;
/// From this many rounds on, every commit meets a crash.
const ALL_ROUNDS: u64 = 100;
/// Scenarios under way at once.
const AT_ONCE: usize = 4;
/// How long a scenario may take; one that waits for nothing any more never ends.
const PATIENCE: Duration = Duration::from_secs(120);
/// Failed plays that are told.
const MAX_TOLD: usize = 12;

const SIDES: [Side; 2] = [Side::Before, Side::After];

/// A scenario with what it leaves when nothing happens.
struct Calm {
    name: String,
    scenario: Scenario,
    outcome: Outcome,
}

/// One crash in one scenario.
struct Plan {
    calm: Arc<Calm>,
    crash: CrashAt,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CrashAt {
            who,
            commit,
            side,
            power_loss,
        } = &self.crash;
        write!(f, "{}: {who} dies {side:?} commit {commit}", self.calm.name)?;
        match power_loss {
            Some(loss) => write!(f, " with a power loss ({loss:?})"),
            None => Ok(()),
        }
    }
}

fn rounds() -> u64 {
    let asked = std::env::var("XMTP_ROUNDS").ok();
    let asked = asked.map(|text| text.parse().expect("XMTP_ROUNDS is a number"));
    asked.unwrap_or(DEFAULT_ROUNDS)
}

/// Reads every scenario, in the order of its name.
fn scenarios() -> Vec<(String, Scenario)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut found: Vec<PathBuf> = fs::read_dir(folder)
        .expect("the folder of scenarios")
        .map(|entry| entry.expect("a scenario").path())
        .collect();
    found.sort();
    let read = |path: PathBuf| {
        let name = path
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let text = fs::read_to_string(&path).expect("a scenario's text");
        let scenario = parse(&text).unwrap_or_else(|fault| panic!("{name}: {fault}"));
        (name, scenario)
    };
    found.into_iter().map(read).collect()
}

/// Spreads `rounds` commits over all of them; the two sides meet different ones.
fn points(commits: u64, rounds: u64, side: Side) -> Vec<u64> {
    if rounds >= ALL_ROUNDS || rounds >= commits {
        return (1..=commits).collect();
    }
    let shift = u64::from(side == Side::After);
    (0..rounds)
        .map(|round| 1 + commits * (2 * round + shift) / (2 * rounds))
        .collect()
}

/// Plans the crashes of every scenario; `losses` are taken in turn.
async fn plan(engine: Engine, losses: &[Option<PowerLoss>]) -> Vec<Plan> {
    let mut plans = Vec::new();
    for (name, scenario) in scenarios() {
        let outcome = play(&scenario, engine, None).await;
        let outcome = outcome.unwrap_or_else(|fault| panic!("{name} without a crash: {fault}"));
        let calm = Arc::new(Calm {
            name,
            scenario,
            outcome,
        });
        for (who, commits) in &calm.outcome.commits {
            for side in SIDES {
                for commit in points(*commits, rounds(), side) {
                    let power_loss = losses[plans.len() % losses.len()];
                    let crash = CrashAt {
                        who: who.clone(),
                        commit,
                        side,
                        power_loss,
                    };
                    let calm = calm.clone();
                    plans.push(Plan { calm, crash });
                }
            }
        }
    }
    plans
}

/// Plays a scenario over its crash; answers what went wrong.
async fn survive(plan: Plan, engine: Engine) -> Result<(), String> {
    let playing = play(&plan.calm.scenario, engine, Some(plan.crash.clone()));
    match tokio::time::timeout(PATIENCE, playing).await {
        Err(_) => Err(format!("{plan}: it never ended")),
        Ok(Err(fault)) => Err(format!("{plan}: {fault}")),
        Ok(Ok(found)) if found.people != plan.calm.outcome.people => Err(format!(
            "{plan}: told {:?}, found {:?}",
            plan.calm.outcome.people, found.people
        )),
        Ok(Ok(_)) => Ok(()),
    }
}

async fn survive_all(engine: Engine, losses: &[Option<PowerLoss>]) {
    let plans = plan(engine, losses).await;
    let count = plans.len();
    let playing = stream::iter(plans).map(|plan| survive(plan, engine));
    let results: Vec<Result<(), String>> = playing.buffer_unordered(AT_ONCE).collect().await;
    let faults: Vec<String> = results.into_iter().filter_map(Result::err).collect();
    let told = &faults[..faults.len().min(MAX_TOLD)];
    assert!(
        faults.is_empty(),
        "{} of {count} crashes on {engine:?} were not survived:\n{}",
        faults.len(),
        told.join("\n")
    );
}

/// covers: EXT-006, STR-020, STR-077
#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_survives_a_crash_in_memory() {
    survive_all(Engine::Memory, &[None]).await;
}

/// covers: EXT-006, STR-110
#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_survives_a_power_loss_in_memory() {
    let losses = [Some(PowerLoss::All), Some(PowerLoss::Half)];
    survive_all(Engine::Memory, &losses).await;
}

/// covers: EXT-006, STR-084
#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_survives_a_crash_on_encrypted_sqlite() {
    survive_all(Engine::Sqlite, &[None]).await;
}

/// covers: EXT-006, STR-110
#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_survives_a_power_loss_on_encrypted_sqlite() {
    let losses = [Some(PowerLoss::All), Some(PowerLoss::Half)];
    survive_all(Engine::Sqlite, &losses).await;
}

#[test]
fn points_are_spread_over_all_commits() {
    assert_eq!(points(60, 3, Side::Before), [1, 21, 41]);
    assert_eq!(points(60, 3, Side::After), [11, 31, 51]);
    assert_eq!(points(3, ALL_ROUNDS, Side::After), [1, 2, 3]);
    assert_eq!(points(2, 3, Side::Before), [1, 2]);
}
