//! The hand of a test: what is held, what fails, and how far the replica lags.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::super::{PublishError, ReadError};

/// A point in a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// The topics are locked; nothing is looked up.
    Locked,
    /// The ids are taken; nothing is inserted.
    Allocated,
    /// The rows are inserted; nobody sees them.
    Inserted,
    /// The commit is sent.
    Committing,
}

/// What goes wrong once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection is lost at a phase of the next publish that reaches it.
    ConnectionLost(Phase),
    /// The next publish waits too long for a lock.
    LockTimeout,
    /// The next read takes too long.
    StatementTimeout,
    /// The next attempt to move the boundary waits too long for the barrier.
    BoundaryTimeout,
}

/// Holds and fails a simulated store.
#[derive(Debug, Default)]
pub(crate) struct Control {
    faults: Mutex<Vec<Fault>>,
    /// How many publishes wait at a phase.
    gates: Mutex<HashMap<Phase, watch::Sender<Gate>>>,
    replica_held: Mutex<bool>,
    lost_commit_kept: Mutex<bool>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Gate {
    waiting: usize,
}

/// Publishes that are held; dropping it lets them go.
#[derive(Debug)]
pub(crate) struct Kept {
    _gate: Option<watch::Sender<Gate>>,
}

impl Control {
    /// Has something go wrong once.
    pub(crate) fn fail(&self, fault: Fault) {
        self.faults.lock().push(fault);
    }

    /// Says whether a commit whose connection is lost was made.
    pub(crate) fn keep_lost_commits(&self, kept: bool) {
        *self.lost_commit_kept.lock() = kept;
    }

    /// Lets the replica stand where it is, or follow.
    pub(crate) fn hold_replica(&self, held: bool) {
        *self.replica_held.lock() = held;
    }

    /// Holds every publish that comes to a phase, until [`Control::keep`] and
    /// its end.
    pub(crate) fn hold(&self, phase: Phase) {
        self.gates.lock().insert(phase, watch::Sender::default());
    }

    /// Waits until so many publishes are held at a phase.
    pub(crate) async fn held(&self, phase: Phase, count: usize) {
        let gate = self.gates.lock().get(&phase).map(watch::Sender::subscribe);
        let mut gate = gate.expect("the phase is held");
        let waited = gate.wait_for(|gate| gate.waiting >= count).await;
        waited.expect("the gate is kept");
    }

    /// Holds no more of what comes to a phase. What waits there goes on when the answer is dropped.
    pub(crate) fn keep(&self, phase: Phase) -> Kept {
        Kept {
            _gate: self.gates.lock().remove(&phase),
        }
    }

    fn takes(&self, fault: Fault) -> bool {
        let mut faults = self.faults.lock();
        let place = faults.iter().position(|other| *other == fault);
        place.map(|place| faults.swap_remove(place)).is_some()
    }

    /// Passes a phase, when the test lets it.
    pub(super) async fn reach(&self, phase: Phase) -> Result<(), PublishError> {
        let gate = self.gates.lock().get(&phase).map(|gate| {
            let receiver = gate.subscribe();
            gate.send_modify(|gate| gate.waiting += 1);
            receiver
        });
        if let Some(mut gate) = gate {
            // It ends when the gate is dropped.
            while gate.changed().await.is_ok() {}
        }
        if phase == Phase::Locked && self.takes(Fault::LockTimeout) {
            return Err(PublishError::Unavailable);
        }
        match self.takes(Fault::ConnectionLost(phase)) {
            true if phase == Phase::Committing => Err(PublishError::UnknownOutcome),
            true => Err(PublishError::Unavailable),
            false => Ok(()),
        }
    }

    pub(super) fn read(&self, closed: bool) -> Result<(), ReadError> {
        if closed {
            return Err(ReadError::Unavailable);
        }
        match self.takes(Fault::StatementTimeout) {
            true => Err(ReadError::TimedOut),
            false => Ok(()),
        }
    }

    pub(super) fn boundary(&self) -> Result<(), ReadError> {
        match self.takes(Fault::BoundaryTimeout) {
            true => Err(ReadError::TimedOut),
            false => Ok(()),
        }
    }

    pub(super) fn is_replica_held(&self) -> bool {
        *self.replica_held.lock()
    }

    pub(super) fn is_lost_commit_kept(&self) -> bool {
        *self.lost_commit_kept.lock()
    }
}
