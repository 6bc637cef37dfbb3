//! The one list of cases.

use super::Engine;
use super::case::{Case, Needs};
use super::{
    commits, databases, keys, lifecycle, model, overlay, pages, processes, shared, snapshots,
    writers,
};

/// Every case, in the order in which a reader of the trait meets its promises.
#[rustfmt::skip] // one case a line
pub const CASES: &[Case] = &[
    // Commits.
    case("a_commit_is_atomic", &["STR-077"], commits::atomic),
    case("ranges_of_cleared_are_deleted_first_then_rows_are_changed", &[], commits::cleared_first),
    case("a_cleared_range_without_end_stops_at_the_end_of_its_table", &[], commits::cleared_to_the_end),
    case("several_cleared_ranges_leave_what_lies_between", &[], commits::cleared_apart),
    case("new_over_a_present_row_answers_exists_and_commits_nothing", &["STR-077"], commits::new_over_present),
    case("new_over_an_absent_row_inserts", &[], commits::new_over_absent),
    case("put_inserts_or_replaces_and_delete_removes_if_present", &[], commits::put_and_delete),
    case("tables_are_independent", &[], commits::tables_are_independent),
    case("an_empty_batch_commits_and_releases_the_writer", &[], commits::empty_batch),
    case("the_largest_value_of_the_capability_is_kept", &["EXT-004"], commits::largest_value),
    case("both_durabilities_are_seen_by_the_next_reader", &[], commits::both_durabilities),
    // Snapshots.
    case("a_long_scan_sees_exactly_one_version_during_1000_commits", &["STR-070"], snapshots::one_version),
    case("a_snapshot_is_fixed_when_it_is_created_not_at_the_first_read", &["STR-070"], snapshots::fixed_at_creation),
    case("a_snapshot_is_of_the_last_committed_version", &["STR-078"], snapshots::sees_the_last_commit),
    case("a_snapshot_never_waits_for_a_writer_that_is_computing", &["STR-101"], snapshots::never_waits_for_a_computing_writer),
    case("several_snapshots_stand_side_by_side", &[], snapshots::several_side_by_side),
    // Pages.
    case("a_page_has_at_most_its_rows", &["STR-101"], pages::row_bound),
    case("a_page_ends_before_the_row_that_would_pass_its_bytes", &["STR-101"], pages::byte_bound),
    case("a_page_holds_at_least_one_row_when_there_is_one", &["STR-101"], pages::one_larger_row),
    case("more_is_true_only_when_a_further_row_exists_in_the_range", &[], pages::more_is_exact),
    case("a_range_is_half_open", &[], pages::half_open),
    case("an_empty_table_answers_an_empty_page", &[], pages::empty_table),
    case("walks_by_pages_meet_every_row_once_in_both_directions", &[], pages::walks_meet_every_row),
    case("get_many_answers_in_the_order_of_keys_with_duplicates_and_missing", &[], pages::get_many_in_order),
    case("a_writer_reads_pages_as_a_snapshot_does", &[], pages::the_writer_reads_pages),
    // Keys and values.
    case("empty_keys_and_empty_values_are_rows", &[], keys::empty),
    case("keys_that_begin_other_keys_stay_apart_and_in_order", &[], keys::prefixes),
    case("keys_sort_as_unsigned_bytes_from_00_to_ff", &[], keys::unsigned_bytes),
    case("values_of_many_sizes_come_back_byte_for_byte", &[], keys::values_of_many_sizes),
    case("keys_of_a_kilobyte_work", &[], keys::long_keys),
    case("numbered_keys_work_from_0_to_the_largest", &["STR-090"], keys::numbers),
    case("numbered_ranges_take_ends_of_any_length", &[], keys::number_ranges),
    case("numbered_cleared_ranges_take_ends_of_any_length", &[], keys::number_clears),
    case("one_batch_changes_thousands_of_rows", &["STR-066"], keys::many_rows_in_one_batch),
    // Writers.
    case("at_most_one_writer_exists_over_all_threads", &["STR-070"], writers::at_most_one),
    case("a_writer_answers_busy_once_patience_has_passed", &["STR-070"], writers::busy_after_patience),
    case("a_waiting_writer_is_served_when_the_writer_is_released", &["STR-070"], writers::a_waiting_writer_is_served),
    case("dropping_the_writer_without_commit_rolls_back", &["STR-077"], writers::drop_rolls_back),
    case("a_panic_releases_the_writer", &["STR-077"], writers::a_panic_releases_the_writer),
    case("the_writer_reads_the_newest_committed_version", &["STR-070"], writers::reads_the_newest_version),
    case("waiting_writers_are_served_fairly_across_threads", &["STR-070", "STR-072"], writers::fair_over_threads),
    // Opening and closing.
    case("reopening_keeps_what_was_committed", &["STR-063"], lifecycle::reopen_keeps),
    case("close_releases_the_files_before_it_returns", &["STR-063"], lifecycle::close_releases),
    case("a_dropped_database_opens_again", &["STR-063"], lifecycle::dropped_opens_again),
    case("after_close_every_call_answers_closed", &[], lifecycle::closed_answers_closed),
    case("close_is_idempotent", &[], lifecycle::close_is_idempotent),
    case("close_ends_the_wait_for_a_writer", &[], lifecycle::close_ends_a_wait),
    case("open_tables_is_idempotent_and_adds_missing_tables", &[], lifecycle::open_tables_adds_missing),
    case("the_version_moves_on_each_own_commit", &["STR-078"], lifecycle::version_moves_on_own_commit),
    case("the_version_moves_on_another_threads_commit", &["STR-078"], lifecycle::version_moves_on_another_threads),
    case("the_capability_is_constant", &["EXT-004"], lifecycle::capability_is_constant),
    case("two_databases_are_apart", &[], lifecycle::databases_are_apart),
    // Models.
    case("300_random_batches_equal_an_ordered_map", &[], model::batches),
    case("300_random_transactions_equal_an_ordered_map", &["STR-071"], model::transactions),
    // Transactions of `Database` over the engine.
    case("a_transaction_reads_its_own_changes_in_ascending_scans", &["STR-071"], overlay::ascending),
    case("a_transaction_reads_its_own_changes_in_descending_scans", &["STR-071"], overlay::descending),
    case("deletes_and_delete_ranges_at_page_edges_are_seen_by_scans", &["STR-071"], overlay::page_edges),
    case("put_new_and_delete_leave_no_trace", &[], overlay::new_and_delete),
    case("nested_savepoints_keep_and_undo", &["STR-071"], overlay::nested_savepoints),
    case("a_panic_in_a_savepoint_undoes_the_savepoint_alone", &["STR-077"], overlay::panic_in_savepoint),
    case("a_panic_in_the_closure_rolls_back", &["STR-077"], overlay::panic_in_closure),
    case("an_error_of_the_closure_rolls_back", &["STR-077"], overlay::error_in_closure),
    case("a_value_or_write_set_over_its_bound_is_refused", &["STR-066"], overlay::bounds),
    case("counters_never_give_a_number_twice", &["STR-090"], databases::counters),
    case("two_facades_serialize_their_writes", &["STR-070"], databases::two_facades),
    case("a_database_keeps_its_identity_and_revision", &["STR-064"], databases::identity),
    // Second handles and processes.
    with(Needs::Handles, "a_second_handle_sees_commits_and_moves_the_version", &["STR-070", "STR-078"], shared::second_handle),
    with(Needs::Handles, "at_most_one_writer_exists_over_handles", &["STR-070"], shared::exclusion_over_handles),
    with(Needs::Shared, "at_most_one_writer_exists_over_all_processes", &["STR-070"], shared::exclusion_over_processes),
    with(Needs::Shared, "waiting_writers_are_served_fairly_across_processes", &["STR-070", "STR-072"], shared::fair_over_processes),
    with(Needs::Shared, "the_version_moves_on_another_processes_commit", &["STR-078"], shared::version_moves),
    with(Needs::Shared, "the_writer_reads_what_another_process_committed", &["STR-070"], shared::reads_the_newest_version),
    with(Needs::Shared, "a_killed_process_leaves_no_writer_behind", &["STR-077", "STR-096"], shared::killed_holder),
    with(Needs::Shared, "two_processes_create_one_database_at_once", &["STR-070"], shared::created_at_once),
    with(Needs::Exclusive, "a_second_open_is_refused_as_in_use", &["EXT-003"], processes::second_open_is_refused),
    with(Needs::Child, "flushed_commits_survive_a_killed_process", &["STR-063", "STR-077"], processes::flushed_survive),
    with(Needs::Child, "ordered_commits_survive_a_killed_process_as_a_prefix", &["STR-077"], processes::ordered_survive),
    with(Needs::Child, "a_database_opens_at_once_after_its_process_was_killed", &["STR-077"], processes::opens_after_kill),
];

const fn case(name: &'static str, covers: &'static [&'static str], run: fn(&dyn Engine)) -> Case {
    with(Needs::Nothing, name, covers, run)
}

const fn with(
    needs: Needs,
    name: &'static str,
    covers: &'static [&'static str],
    run: fn(&dyn Engine),
) -> Case {
    Case {
        name,
        covers,
        needs,
        run,
    }
}
