//! Every scenario again, with a crash before and after the commits of everybody.
//!
//! A scenario plays once without a crash, which tells how often each person commits and what is
//! left at the end. Then it plays again for each planned crash, and has to leave the same. What
//! people do runs beside their workers, so the commits of two runs are not quite the same; a crash
//! planned after the last commit does not happen.
//!
//! `XMTP_ROUNDS` is for how many times [`PER_ROUND`] crashes each test has room, evenly spread over
//! all commits of everybody in every scenario and both sides; with 100 or more, all of them happen.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::sync::OnceCell;
use xmtp_core::testing::faulty::Side;
use xmtp_testkit::scenario::{CrashAt, Engine, Outcome, PowerLoss, Scenario, parse, play};

const DEFAULT_ROUNDS: u64 = 2;
/// Crashes of one test in one round.
const PER_ROUND: u64 = 12;
/// Tests that share the crashes among them.
const TESTS: u64 = 5;
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

/// Spreads places over all of `count`; tests with different shifts meet different ones.
fn places(count: u64, rounds: u64, shift: u64) -> Vec<u64> {
    let room = rounds * PER_ROUND;
    if rounds >= ALL_ROUNDS || room >= count {
        return (0..count).collect();
    }
    let step = count / room;
    (0..room)
        .map(|place| place * count / room + shift * step / TESTS)
        .collect()
}

/// What every scenario leaves when nothing happens, on whatever engine.
static CALM: OnceCell<Vec<Arc<Calm>>> = OnceCell::const_new();

async fn calm() -> Vec<Arc<Calm>> {
    let playing = scenarios().into_iter().map(|(name, scenario)| async move {
        let outcome = play(&scenario, Engine::Memory, None).await;
        let outcome = outcome.unwrap_or_else(|fault| panic!("{name} without a crash: {fault}"));
        Arc::new(Calm {
            name,
            scenario,
            outcome,
        })
    });
    stream::iter(playing).buffered(AT_ONCE).collect().await
}

/// Plans the crashes of one of the tests; `losses` are taken in turn.
async fn plan(losses: &[Option<PowerLoss>], shift: u64) -> Vec<Plan> {
    let mut all = Vec::new();
    for calm in CALM.get_or_init(calm).await {
        for (who, commits) in &calm.outcome.commits {
            for commit in 1..=*commits {
                all.extend(SIDES.map(|side| (calm, who, commit, side)));
            }
        }
    }
    let places = places(all.len() as u64, rounds(), shift);
    let chosen = places.into_iter().map(|place| all[place as usize]);
    let planned = chosen
        .enumerate()
        .map(|(index, (calm, who, commit, side))| Plan {
            calm: calm.clone(),
            crash: CrashAt {
                who: who.clone(),
                commit,
                side,
                power_loss: losses[index % losses.len()],
            },
        });
    planned.collect()
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

async fn survive_all(engine: Engine, losses: &[Option<PowerLoss>], shift: u64) {
    let plans = plan(losses, shift).await;
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
    survive_all(Engine::Memory, &[None], 0).await;
}

/// covers: EXT-006, STR-110
#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_survives_a_power_loss_in_memory() {
    let losses = [Some(PowerLoss::All), Some(PowerLoss::Half)];
    survive_all(Engine::Memory, &losses, 1).await;
}

/// covers: EXT-006, STR-084
#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_survives_a_crash_on_encrypted_sqlite() {
    survive_all(Engine::Sqlite, &[None], 2).await;
}

/// covers: EXT-006, STR-110
#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_survives_a_power_loss_on_encrypted_sqlite() {
    let losses = [Some(PowerLoss::All), Some(PowerLoss::Half)];
    survive_all(Engine::Sqlite, &losses, 3).await;
}

/// covers: EXT-006, STR-077
#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_survives_a_crash_on_sealed_sled() {
    survive_all(Engine::Sled, &[None], 4).await;
}

#[test]
fn crashes_are_spread_over_all_commits_and_tests() {
    assert_eq!(places(5, 1, 3), [0, 1, 2, 3, 4]);
    assert_eq!(places(3, ALL_ROUNDS, 4), [0, 1, 2]);
    let all = 120;
    assert_eq!(places(all, 1, 0)[..3], [0, 10, 20]);
    let last = places(all, 1, TESTS - 1);
    assert_eq!(last[..2], [8, 18]);
    assert_eq!(last.len() as u64, PER_ROUND);
    assert!(last.iter().all(|place| *place < all));
}
