//! Every run of the model ends. What is said to hold "eventually" is looked at where a run ends, so a
//! run that went in a circle would never be judged.

use std::collections::HashMap;

use stateright::Model;

use crate::delivery::{Delivery, changes, gaps, pruning, retry, two_topics};
use crate::scope::Scope;

/// Takes away states to which no other leads any more; in a circle each leads to the next.
fn ends(model: &Delivery) -> bool {
    let mut arrows = HashMap::new();
    let mut found = model.init_states();
    let mut open = found.clone();
    arrows.extend(open.iter().map(|state| (state.clone(), 0)));
    while let Some(state) = open.pop() {
        for next in model.next_states(&state) {
            let known = arrows.len();
            *arrows.entry(next.clone()).or_insert(0) += 1;
            if arrows.len() > known {
                open.push(next);
            }
        }
    }
    let mut taken = 0;
    while let Some(state) = found.pop() {
        taken += 1;
        for next in model.next_states(&state) {
            if let Some(left) = arrows.get_mut(&next) {
                *left -= 1;
                if *left == 0 {
                    found.push(next);
                }
            }
        }
    }
    taken == arrows.len()
}

#[test]
fn every_run_ends() {
    for scope in [gaps(), retry(), changes(), pruning(), two_topics()] {
        assert!(ends(&Delivery(scope)));
    }
}

/// A poll that is torn in two may find nothing, again and again.
#[test]
fn a_run_that_goes_in_a_circle_is_found() {
    let fault = Some(crate::scope::Fault::TwoSnapshots);
    assert!(!ends(&Delivery(Scope { fault, ..gaps() })));
}
