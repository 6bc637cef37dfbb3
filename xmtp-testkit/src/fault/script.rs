//! Which faults happen, and how a reader is told.

use std::fmt;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// The latest call or frame that a random script breaks.
const MAX_RANDOM_COUNT: u32 = 12;

/// One fault. Calls and frames are counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The n-th publish never reaches the backend.
    LosePublish(u32),
    /// The n-th publish happens and its reply is lost.
    DropReply(u32),
    /// The n-th query fails.
    FailQuery(u32),
    /// The n-th newest read answers what the one before saw, as a lagging replica does.
    LagNewest(u32),
    /// The stream that carries the n-th frame ends in its place.
    CutBeforeFrame(u32),
    /// The n-th frame comes twice.
    DuplicateFrame(u32),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LosePublish(n) => write!(f, "lose publish {n}"),
            Self::DropReply(n) => write!(f, "drop the reply of publish {n}"),
            Self::FailQuery(n) => write!(f, "fail query {n}"),
            Self::LagNewest(n) => write!(f, "lag newest read {n}"),
            Self::CutBeforeFrame(n) => write!(f, "cut the stream before frame {n}"),
            Self::DuplicateFrame(n) => write!(f, "duplicate frame {n}"),
        }
    }
}

/// Faults, each of which happens once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    seed: Option<u64>,
    faults: Vec<Fault>,
}

impl Script {
    /// Makes a script of given faults.
    pub fn of(faults: impl IntoIterator<Item = Fault>) -> Self {
        Self {
            seed: None,
            faults: faults.into_iter().collect(),
        }
    }

    /// Makes a script of `count` faults; the same seed makes the same one.
    pub fn random(seed: u64, count: usize) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut faults = Vec::with_capacity(count);
        for _ in 0..count {
            let n = 1 + random.next_u32() % MAX_RANDOM_COUNT;
            faults.push(match random.next_u32() % 6 {
                0 => Fault::LosePublish(n),
                1 => Fault::DropReply(n),
                2 => Fault::FailQuery(n),
                3 => Fault::LagNewest(n),
                4 => Fault::CutBeforeFrame(n),
                _ => Fault::DuplicateFrame(n),
            });
        }
        Self {
            seed: Some(seed),
            faults,
        }
    }

    /// Answers the faults.
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }

    /// Takes a fault out of the script; tells whether it was there.
    pub(super) fn take(&mut self, fault: Fault) -> bool {
        let place = self.faults.iter().position(|planned| *planned == fault);
        place.map(|place| self.faults.remove(place)).is_some()
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(seed) = self.seed {
            write!(f, "seed {seed}: ")?;
        }
        if self.faults.is_empty() {
            return f.write_str("no faults");
        }
        for (place, fault) in self.faults.iter().enumerate() {
            let separator = if place == 0 { "" } else { "; " };
            write!(f, "{separator}{fault}")?;
        }
        Ok(())
    }
}
