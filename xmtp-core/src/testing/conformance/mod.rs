//! The storage suite: what every engine has to show before it may stand behind [`Storage`].
//!
//! A case is a plain function over an [`Engine`], and its name repeats the words of the promise
//! it checks in the `# Behavior` bullets of the trait. [`CASES`] is the only list. An engine's
//! own test hands an [`Engine`] to [`trials`] (for `libtest-mimic`) or to [`run`], once per mode:
//!
//! ```ignore
//! fn main() {
//!     let engine = Arc::new(MyEngine);
//!     if conformance::child_main(&*engine) {
//!         return; // this process was started by a case
//!     }
//!     let trials = conformance::trials(engine).into_iter().map(|(name, trial)| {
//!         Trial::test(name, move || trial().map(drop).map_err(Failed::from))
//!     });
//!     libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
//! }
//! ```
//!
//! Cases that need a second process are skipped, and counted as skipped, for an engine that has
//! none ([`Outcome::Skipped`]). Rounds of the long cases are sized by `XMTP_ROUNDS`.

mod case;
mod child;
mod commits;
mod databases;
mod fixture;
mod keys;
mod lifecycle;
mod lists;
mod model;
mod overlay;
mod pages;
mod processes;
mod shared;
mod snapshots;
mod writers;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

pub use case::{Case, Needs, Outcome, Report};
pub use child::child_main;
pub use lists::CASES;

use crate::storage::{OpenError, Storage};

/// What an engine's test supplies: one engine in one mode, such as SQLite with a key.
pub trait Engine: Send + Sync {
    /// Names the engine and its mode; unique within a test binary.
    fn name(&self) -> &'static str;

    /// Opens the database that belongs to `dir`, and creates it when there is none.
    ///
    /// # Behavior
    /// - The directory exists; the engine may use all of it.
    /// - What was committed for a directory is there when the directory is opened again.
    fn open(&self, dir: &Path) -> Result<Arc<dyn Storage>, OpenError>;

    /// Answers the command that runs this test binary up to [`child_main`]; `None` for an engine
    /// whose data does not outlive its process.
    fn child(&self) -> Option<Command> {
        None
    }
}

/// Names every case.
pub fn names() -> Vec<&'static str> {
    CASES.iter().map(|case| case.name).collect()
}

/// One case bound to one engine, for a harness to run.
pub type Trial = Box<dyn FnOnce() -> Result<Outcome, String> + Send>;

/// Binds every case to an engine.
pub fn trials(engine: Arc<dyn Engine>) -> Vec<(String, Trial)> {
    CASES
        .iter()
        .map(|case| {
            let engine = engine.clone();
            let name = format!("{}::{}", engine.name(), case.name);
            let trial: Trial = Box::new(move || case.check(&*engine));
            (name, trial)
        })
        .collect()
}

/// Runs every case against an engine, one after the other.
pub fn run(engine: &dyn Engine) -> Report {
    let mut report = Report::default();
    for case in CASES {
        report.add(case.name, case.check(engine));
    }
    report
}
