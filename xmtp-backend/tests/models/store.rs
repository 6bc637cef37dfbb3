//! The primary: publishes, the boundary task, pruning; and the replica that follows it.

use crate::scope::{Fault, Scope};
use crate::state::{Boundary, Commit, Id, Row, Snapshot, State, Step, Topic};

/// A step of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreStep {
    /// A publish does early what belongs under the topic lock.
    Early(usize),
    /// A publish takes its locks, looks for a duplicate, and takes an id.
    Allocate(usize),
    Commit(usize),
    Abort(usize),
    /// The boundary task goes on.
    Boundary,
    Prune(Id),
    Replicate,
    ReplicateOther,
}

pub(crate) fn steps(scope: &Scope, state: &State, steps: &mut Vec<StoreStep>) {
    for writer in 0..state.writers.len() {
        let Some((topic, _)) = planned(scope, state, writer) else {
            continue;
        };
        match state.writers[writer].step {
            Step::Idle if is_early(scope) => steps.push(StoreStep::Early(writer)),
            Step::Idle | Step::Early { .. } if may_lock(scope, state, topic) => {
                steps.push(StoreStep::Allocate(writer));
            }
            Step::Idle | Step::Early { .. } => {}
            Step::Allocated { .. } => {
                steps.push(StoreStep::Commit(writer));
                if scope.aborts {
                    steps.push(StoreStep::Abort(writer));
                }
            }
        }
    }
    if boundary_may_go_on(scope, state) {
        steps.push(StoreStep::Boundary);
    }
    if scope.prunes {
        let rows = state.primary().rows();
        let prunable = rows.iter().filter(|row| {
            let is_head = state.primary().head(row.topic) == row.id;
            !is_head || scope.fault == Some(Fault::PrunedHead)
        });
        steps.extend(prunable.map(|row| StoreStep::Prune(row.id)));
    }
    if state.replica < state.log.len() {
        steps.push(StoreStep::Replicate);
    }
    if scope.fault == Some(Fault::TwoReplicas) && state.other_replica < state.log.len() {
        steps.push(StoreStep::ReplicateOther);
    }
}

pub(crate) fn take(scope: &Scope, state: &mut State, step: StoreStep) {
    match step {
        StoreStep::Early(writer) => early(scope, state, writer),
        StoreStep::Allocate(writer) => allocate(scope, state, writer),
        StoreStep::Commit(writer) => {
            let (Step::Allocated { id, .. }, Some((topic, bytes))) =
                (state.writers[writer].step, planned(scope, state, writer))
            else {
                return;
            };
            state.log.push(Commit::Row(Row { id, topic, bytes }));
            finish(state, writer);
        }
        StoreStep::Abort(writer) => finish(state, writer),
        StoreStep::Boundary => boundary(scope, state),
        StoreStep::Prune(id) => state.log.push(Commit::Pruned(id)),
        StoreStep::Replicate => state.replica += 1,
        StoreStep::ReplicateOther => state.other_replica += 1,
    }
}

fn planned(scope: &Scope, state: &State, writer: usize) -> Option<(Topic, u8)> {
    let next = state.writers[writer].next;
    scope.plans[writer].get(next).copied()
}

fn is_early(scope: &Scope) -> bool {
    let early = [Fault::SnapshotBeforeTheLock, Fault::IdBeforeTheLock];
    scope.fault.is_some_and(|fault| early.contains(&fault))
}

/// A publish waits for the holder of its topic, and for the boundary task.
fn may_lock(scope: &Scope, state: &State, topic: Topic) -> bool {
    let has_shared_lock = scope.fault != Some(Fault::NoSharedLock);
    let is_barred = has_shared_lock && matches!(state.boundary, Boundary::Held(_));
    let is_held = (0..state.writers.len()).any(|writer| {
        let holds = matches!(state.writers[writer].step, Step::Allocated { .. });
        holds && planned(scope, state, writer).is_some_and(|(held, _)| held == topic)
    });
    !is_barred && !is_held
}

fn early(scope: &Scope, state: &mut State, writer: usize) {
    let seen = state.primary().greatest();
    let mut id = 0;
    if scope.fault == Some(Fault::IdBeforeTheLock) {
        state.sequence += 1;
        id = state.sequence;
    }
    let snapshot = state.log.len();
    state.writers[writer].step = Step::Early { snapshot, id, seen };
}

fn allocate(scope: &Scope, state: &mut State, writer: usize) {
    let Some((topic, bytes)) = planned(scope, state, writer) else {
        return;
    };
    let (mut snapshot, mut seen) = (state.log.len(), state.primary().greatest());
    let mut early_id = 0;
    if let Step::Early {
        snapshot: before,
        id,
        seen: then,
    } = state.writers[writer].step
    {
        (early_id, seen) = (id, then);
        if scope.fault == Some(Fault::SnapshotBeforeTheLock) {
            snapshot = before;
        }
    }
    let is_repeated = |row: Row| (row.topic, row.bytes) == (topic, bytes);
    if Snapshot(&state.log[..snapshot]).stored().any(is_repeated) {
        finish(state, writer);
        return;
    }
    let id = match early_id {
        0 => {
            state.sequence += 1;
            state.sequence
        }
        id => id,
    };
    state.writers[writer].step = Step::Allocated { id, seen };
}

fn finish(state: &mut State, writer: usize) {
    state.writers[writer].next += 1;
    state.writers[writer].step = Step::Idle;
}

/// It is asked to close a gap that the tailer has and the boundary does not cover.
fn boundary_may_go_on(scope: &Scope, state: &State) -> bool {
    let has_shared_lock = scope.fault != Some(Fault::NoSharedLock);
    let writers = &state.writers;
    let is_shared = has_shared_lock
        && writers
            .iter()
            .any(|writer| matches!(writer.step, Step::Allocated { .. }));
    match state.boundary {
        Boundary::Idle if state.tailer.gaps.greatest() <= state.primary().boundary() => false,
        Boundary::Idle => scope.fault == Some(Fault::BoundaryReadBeforeTheLock) || !is_shared,
        Boundary::Read(_) => !is_shared,
        Boundary::Held(_) | Boundary::Released => true,
    }
}

fn boundary(scope: &Scope, state: &mut State) {
    let close = |state: &mut State, id: Id| {
        let id = id.max(state.primary().boundary());
        state.log.push(Commit::Boundary(id));
        Boundary::Idle
    };
    state.boundary = match (state.boundary, scope.fault) {
        (Boundary::Idle, Some(Fault::BoundaryReadBeforeTheLock)) => Boundary::Read(state.sequence),
        (Boundary::Idle, _) => Boundary::Held(None),
        (Boundary::Read(id), _) => Boundary::Held(Some(id)),
        (Boundary::Held(_), Some(Fault::BoundaryReadOutsideTheLock)) => Boundary::Released,
        (Boundary::Held(early), _) => {
            let id = early.unwrap_or(state.sequence);
            close(state, id)
        }
        (Boundary::Released, _) => {
            let id = state.sequence;
            close(state, id)
        }
    };
}
