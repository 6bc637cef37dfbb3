//! Each rule of the design, left out: the property that fails without it.

use crate::delivery::{
    ALL_DELIVERED, Delivery, NOTHING_SKIPPED, NOTHING_STRAY, ONE_ID, RETIRED_IS_CLOSED,
    TARGETS_REACHED, TOPIC_RISES, changes, gaps, pruning, retry, two_gaps, two_topics,
};
use crate::scope::{Fault, Scope};

fn without(fault: Fault, scope: Scope) -> Delivery {
    Delivery(Scope {
        fault: Some(fault),
        ..scope
    })
}

#[test]
fn publishers_hold_the_shared_lock() {
    without(Fault::NoSharedLock, gaps()).check_fails(RETIRED_IS_CLOSED);
}

#[test]
fn the_boundary_is_read_under_the_exclusive_lock() {
    let fault = Fault::BoundaryReadOutsideTheLock;
    without(fault, two_gaps()).check_fails(RETIRED_IS_CLOSED);
}

/// A boundary that was read before the lock is lower than it could be, and true: whoever had an id at
/// or below it held the shared lock then and has let go since.
#[test]
fn a_boundary_read_before_the_lock_is_only_low() {
    without(Fault::BoundaryReadBeforeTheLock, gaps()).check();
}

#[test]
fn duplicates_are_looked_for_after_the_lock() {
    without(Fault::SnapshotBeforeTheLock, retry()).check_fails(ONE_ID);
}

#[test]
fn gaps_and_new_rows_are_read_in_one_snapshot() {
    without(Fault::TwoSnapshots, gaps()).check_fails(NOTHING_SKIPPED);
}

#[test]
fn a_topic_is_registered_before_its_head_is_read() {
    without(Fault::HeadBeforeRegistration, changes()).check_fails(ALL_DELIVERED);
}

#[test]
fn what_belongs_to_an_earlier_registration_is_dropped() {
    without(Fault::NoGenerationCheck, changes()).check_fails(NOTHING_STRAY);
}

#[test]
fn the_tailer_keeps_gaps() {
    without(Fault::NoGaps, two_topics()).check_fails(ALL_DELIVERED);
}

#[test]
fn the_boundary_is_not_derived_on_a_replica() {
    without(Fault::BoundaryFromTheReplica, gaps()).check_fails(RETIRED_IS_CLOSED);
}

#[test]
fn only_a_scan_that_ended_moves_the_floor_beyond_its_rows() {
    without(Fault::FloorAfterACutScan, changes()).check_fails(NOTHING_SKIPPED);
}

#[test]
fn the_newest_row_of_a_topic_is_kept() {
    without(Fault::PrunedHead, pruning()).check_fails(TARGETS_REACHED);
}

#[test]
fn ids_are_allocated_under_the_lock() {
    without(Fault::IdBeforeTheLock, retry()).check_fails(TOPIC_RISES);
}

#[test]
fn heads_and_tail_are_of_one_replica() {
    without(Fault::TwoReplicas, changes()).check_fails(ALL_DELIVERED);
}

#[test]
fn a_notice_that_does_not_fit_leaves_its_position() {
    without(Fault::DroppedNotice, changes()).check_fails(ALL_DELIVERED);
}
