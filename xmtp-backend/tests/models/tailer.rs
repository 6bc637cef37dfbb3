//! The tailer: one snapshot for each poll, gaps before new rows, a page of one row.

use crate::scope::{Fault, Scope};
use crate::session;
use crate::state::{Batch, Id, Ids, Row, Snapshot, State};

/// A step of the tailer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TailerStep {
    Poll,
    /// The first half of a poll that is torn in two; `Poll` is then the second.
    HalfPoll,
    Dispatch,
}

pub(crate) fn steps(scope: &Scope, state: &State, steps: &mut Vec<TailerStep>) {
    let tailer = &state.tailer;
    if tailer.batch.is_some() {
        steps.push(TailerStep::Dispatch);
        return;
    }
    let is_torn = scope.fault == Some(Fault::TwoSnapshots);
    if is_torn && tailer.half.is_none() {
        if finds_something(scope, state) || state.replica < state.log.len() {
            steps.push(TailerStep::HalfPoll);
        }
    } else if is_torn || finds_something(scope, state) {
        steps.push(TailerStep::Poll);
    }
}

pub(crate) fn take(scope: &Scope, state: &mut State, step: TailerStep) {
    match step {
        TailerStep::HalfPoll => state.tailer.half = Some(state.replica),
        TailerStep::Poll => poll(scope, state),
        TailerStep::Dispatch => {
            let batch = state.tailer.batch.take().unwrap_or_default();
            // A row that was pruned since is still told; whoever fetches it finds nothing.
            let stored: Vec<Row> = state.primary().stored().collect();
            for id in batch.probed.iter().chain([batch.forward]) {
                if let Some(row) = stored.iter().find(|row| row.id == id) {
                    session::notice(scope, state, *row);
                }
            }
        }
    }
}

/// Polling without effect is left out, so that a run that is done stands still.
fn finds_something(scope: &Scope, state: &State) -> bool {
    let (tailer, snapshot) = (&state.tailer, state.seen_by_replica());
    let boundary = boundary(scope, snapshot);
    let rows = snapshot.rows();
    let is_new = |row: &Row| row.id > tailer.cursor || tailer.gaps.contains(row.id);
    rows.iter().any(is_new) || tailer.gaps.iter().any(|gap| gap <= boundary)
}

fn boundary(scope: &Scope, snapshot: Snapshot<'_>) -> Id {
    match scope.fault {
        Some(Fault::BoundaryFromTheReplica) => snapshot.greatest(),
        _ => snapshot.boundary(),
    }
}

fn poll(scope: &Scope, state: &mut State) {
    let first = state.tailer.half.take().unwrap_or(state.replica);
    let first = Snapshot(&state.log[..first]);
    let boundary = boundary(scope, first);
    let mut probed = Ids::default();
    let late = first.rows();
    for row in late.iter().filter(|row| state.tailer.gaps.contains(row.id)) {
        probed.insert(row.id);
    }
    let mut tailer = state.tailer.clone();
    for id in probed.iter() {
        tailer.gaps.remove(id);
    }
    let cursor = tailer.cursor;
    let rows = state.seen_by_replica().rows();
    let forward = rows.iter().map(|row| row.id).find(|id| *id > cursor);
    if let Some(forward) = forward {
        if scope.fault != Some(Fault::NoGaps) {
            (cursor + 1..forward).for_each(|gap| tailer.gaps.insert(gap));
        }
        tailer.cursor = forward;
    }
    for gap in tailer.gaps.iter().filter(|gap| *gap <= boundary) {
        tailer.gaps.remove(gap);
        tailer.retired.insert(gap);
    }
    if forward.is_some() || !probed.is_empty() {
        let forward = forward.unwrap_or(0);
        tailer.batch = Some(Batch { probed, forward });
    }
    state.tailer = tailer;
}
