//! Measures two sides in turn and prints one line per figure.

use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::counted::Counts;

/// Anything that ends the bench.
pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// Runs of each side; a figure is made of their medians.
const RUNS: usize = 5;
/// Runs before those that count.
const WARM_UP_RUNS: usize = 1;
/// Slices of one run, unless `XMTP_ROUNDS` says otherwise.
const DEFAULT_ROUNDS: usize = 8;
/// How far noise may lift a single ratio before it is a fault.
const MAX_RATIO: f64 = 1.05;

/// What is printed, and whether any of it cannot be true.
pub(crate) struct Report {
    rounds: usize,
    is_impossible: bool,
}

/// What a figure is called.
pub(crate) struct Name<'a> {
    pub(crate) measure: &'a str,
    /// What tells it from others of the same measure.
    pub(crate) label: Option<(&'a str, Value)>,
    pub(crate) unit: &'a str,
}

/// The time that both sides of one run took.
#[derive(Default)]
pub(crate) struct Run {
    ours: Duration,
    limit: Duration,
    counts: BTreeMap<&'static str, u64>,
}

impl Run {
    /// Runs a slice of ours.
    pub(crate) fn ours<T>(&mut self, work: impl FnOnce() -> T) -> T {
        timed(&mut self.ours, work)
    }

    /// Counts what ours needed; the figure says how many of it each unit took.
    fn count(&mut self, what: &'static str, times: u64) {
        *self.counts.entry(what).or_default() += times;
    }

    /// Counts what ours asked of its storage.
    pub(crate) fn stored(&mut self, counts: Counts) {
        self.count("reads", counts.reads);
        self.count("scans", counts.scans);
        self.count("writes", counts.writes);
    }

    /// Runs the equal slice of the limit.
    pub(crate) fn limit<T>(&mut self, work: impl FnOnce() -> T) -> T {
        timed(&mut self.limit, work)
    }
}

fn timed<T>(total: &mut Duration, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let done = work();
    *total += started.elapsed();
    done
}

impl Report {
    /// Makes an empty report.
    pub(crate) fn new() -> Result<Self, Failure> {
        let asked = std::env::var("XMTP_ROUNDS").ok();
        let asked = asked.map(|text| text.parse()).transpose()?;
        Ok(Self {
            rounds: asked.unwrap_or(DEFAULT_ROUNDS).max(1),
            is_impossible: false,
        })
    }

    /// Answers how many slices a run has.
    pub(crate) fn rounds(&self) -> usize {
        self.rounds
    }

    /// Measures a figure and prints it. `run` does both sides in turn and answers how many units
    /// each of them did.
    pub(crate) fn figure(
        &mut self,
        name: &Name<'_>,
        run: impl FnMut(&mut Run) -> Result<usize, Failure>,
    ) -> Result<(), Failure> {
        let ratio = self.comparison(name, run)?;
        if ratio > MAX_RATIO {
            let measure = name.measure;
            eprintln!("{measure}: ours beats its limit, so the limit is measured wrongly");
            self.is_impossible = true;
        }
        Ok(())
    }

    /// Measures two sides that do the same work, either of which may be the faster by chance;
    /// answers their ratio.
    pub(crate) fn comparison(
        &mut self,
        name: &Name<'_>,
        mut run: impl FnMut(&mut Run) -> Result<usize, Failure>,
    ) -> Result<f64, Failure> {
        let (mut ours, mut limit) = (Vec::new(), Vec::new());
        let mut counts = BTreeMap::new();
        for index in 0..WARM_UP_RUNS + RUNS {
            let mut times = Run::default();
            let units = run(&mut times)? as f64;
            if index >= WARM_UP_RUNS {
                ours.push(units / times.ours.as_secs_f64());
                limit.push(units / times.limit.as_secs_f64());
                for (what, times) in times.counts {
                    *counts.entry(what).or_default() += times as f64 / units / RUNS as f64;
                }
            }
        }
        let (ours, limit) = (median(ours), median(limit));
        print(name, ours, limit, &counts);
        Ok(ours / limit)
    }

    /// Answers how the program ends.
    pub(crate) fn verdict(&self) -> ExitCode {
        match self.is_impossible {
            true => ExitCode::FAILURE,
            false => ExitCode::SUCCESS,
        }
    }
}

fn print(name: &Name<'_>, ours: f64, limit: f64, counts: &BTreeMap<&'static str, f64>) {
    let Name {
        measure,
        label,
        unit,
    } = name;
    let label = match label {
        Some((key, value)) => format!(r#""{key}":{value},"#),
        None => String::new(),
    };
    let counts = counts
        .iter()
        .map(|(what, times)| format!(r#","{what}":{times:.2}"#));
    let counts: String = counts.collect();
    let ratio = ours / limit;
    println!(
        r#"{{"bench":"limits","measure":"{measure}",{label}"ours":{ours:.1},"limit":{limit:.1},"ratio":{ratio:.2},"unit":"{unit}"{counts}}}"#
    );
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
