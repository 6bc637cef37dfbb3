//! Prints one line per figure.

use std::time::Duration;

/// Runs of each figure; its value is their median.
pub(crate) const RUNS: usize = 3;

/// How much work each run has.
pub(crate) struct Report {
    pub(crate) rounds: usize,
}

impl Report {
    pub(crate) fn new() -> Self {
        let rounds = std::env::var("XMTP_ROUNDS").ok();
        let rounds = rounds.map(|text| text.parse().expect("XMTP_ROUNDS is a number"));
        Self {
            rounds: rounds.unwrap_or(1_usize).max(1),
        }
    }

    /// Prints a figure; `labels` are further fields as JSON.
    pub(crate) fn print(
        &self,
        measure: &str,
        store: &str,
        labels: &str,
        ours: f64,
        limit: f64,
        unit: &str,
    ) {
        let ratio = ours / limit;
        println!(
            r#"{{"bench":"backend","measure":"{measure}","store":"{store}",{labels}"ours":{ours:.2},"limit":{limit:.2},"ratio":{ratio:.3},"unit":"{unit}"}}"#
        );
    }
}

/// Answers a rate.
pub(crate) fn rate(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Answers the value that so many of a hundred are not above, in milliseconds.
pub(crate) fn percentile(times: &mut [Duration], percent: usize) -> f64 {
    times.sort_unstable();
    let place = (times.len() * percent / 100).min(times.len() - 1);
    times[place].as_secs_f64() * 1e3
}
