//! What a case is, and how its outcome is told.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Engine;
use super::fixture::Fixture;
use crate::storage::Processes;

/// One promise of the trait, checked against one engine.
#[derive(Clone, Copy)]
pub struct Case {
    /// The promise, in the words of the trait.
    pub name: &'static str,
    /// Ids of the requirements that it covers.
    pub covers: &'static [&'static str],
    /// What the engine needs for the case to make sense.
    pub needs: Needs,
    /// The check; it panics when the promise is broken.
    pub run: fn(&dyn Engine),
}

/// What an engine needs for a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing beyond the trait.
    Nothing,
    /// Data that outlives its process.
    Child,
    /// [`Processes::Many`]: several handles on one database, as several processes have.
    Handles,
    /// [`Processes::Many`], and data that outlives its process.
    Shared,
    /// [`Processes::One`], and data that outlives its process.
    Exclusive,
}

/// How a case ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The promise holds.
    Passed,
    /// The engine lacks what the case needs.
    Skipped(Needs),
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Case {
    /// Runs the case; the error is what the failed assertion said.
    pub fn check(&self, engine: &dyn Engine) -> Result<Outcome, String> {
        let checked = catch_unwind(AssertUnwindSafe(|| {
            if !self.fits(engine) {
                return Outcome::Skipped(self.needs);
            }
            (self.run)(engine);
            Outcome::Passed
        }));
        checked.map_err(|panic| words(&*panic))
    }

    fn fits(&self, engine: &dyn Engine) -> bool {
        if self.needs == Needs::Nothing {
            return true;
        }
        let fixture = Fixture::new(engine);
        let processes = fixture.storage().capability().processes;
        match self.needs {
            Needs::Nothing => true,
            Needs::Child => engine.child().is_some(),
            Needs::Handles => processes == Processes::Many,
            Needs::Shared => processes == Processes::Many && engine.child().is_some(),
            Needs::Exclusive => processes == Processes::One && engine.child().is_some(),
        }
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "the case panicked without words".to_owned()
    }
}

/// What a whole run found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Cases that hold.
    pub passed: Vec<&'static str>,
    /// Cases the engine lacks the means for.
    pub skipped: Vec<&'static str>,
    /// Cases that failed, with what the assertion said.
    pub failed: Vec<(&'static str, String)>,
}

impl Report {
    pub(super) fn add(&mut self, name: &'static str, outcome: Result<Outcome, String>) {
        match outcome {
            Ok(Outcome::Passed) => self.passed.push(name),
            Ok(Outcome::Skipped(_)) => self.skipped.push(name),
            Err(words) => self.failed.push((name, words)),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (passed, skipped, failed) = (self.passed.len(), self.skipped.len(), self.failed.len());
        write!(f, "{passed} passed, {skipped} skipped, {failed} failed")?;
        for (name, words) in &self.failed {
            write!(f, "\n{name}: {words}")?;
        }
        Ok(())
    }
}
