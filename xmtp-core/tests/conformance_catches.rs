//! The suite can fail: each wrong engine below breaks one promise of the trait and nothing else,
//! and the named case has to tell it from a right one.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use xmtp_core::storage::{
    Capability, Change, Durability, KeyRange, OpenError, Order, Page, Rows, Snapshot, Storage,
    StorageError, TableId, TableInfo, WriteBatch, Writer,
};
use xmtp_core::testing::conformance::{CASES, Engine};
use xmtp_core::testing::memory::{MemoryDisk, MemoryStorage};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    CommitsTableByTable,
    FixesSnapshotsAtTheFirstRead,
    SaysMoreWhenAPageIsFull,
    IgnoresDescending,
    TreatsNewAsPut,
    KeepsWhatCameBeforeAnError,
    KeepsTheWriterWhenItIsDropped,
    NeverMovesTheVersion,
    ClearsAfterTheRows,
    IgnoresTheByteBound,
    EmptiesAPageThatDoesNotFit,
    SortsGetMany,
    IncludesTheEndOfARange,
    AnswersAfterClose,
    ForgetsDeletes,
    IgnoresPatience,
    DropsEmptyValues,
    CutsLargeValues,
}

/// Each fault with a case that has to catch it.
const CAUGHT: &[(Fault, &str)] = &[
    (Fault::CommitsTableByTable, "a_commit_is_atomic"),
    (
        Fault::CommitsTableByTable,
        "new_over_a_present_row_answers_exists_and_commits_nothing",
    ),
    (
        Fault::FixesSnapshotsAtTheFirstRead,
        "a_snapshot_is_fixed_when_it_is_created_not_at_the_first_read",
    ),
    (
        Fault::SaysMoreWhenAPageIsFull,
        "more_is_true_only_when_a_further_row_exists_in_the_range",
    ),
    (
        Fault::IgnoresDescending,
        "walks_by_pages_meet_every_row_once_in_both_directions",
    ),
    (
        Fault::IgnoresDescending,
        "a_transaction_reads_its_own_changes_in_descending_scans",
    ),
    (
        Fault::TreatsNewAsPut,
        "new_over_a_present_row_answers_exists_and_commits_nothing",
    ),
    (
        Fault::KeepsWhatCameBeforeAnError,
        "new_over_a_present_row_answers_exists_and_commits_nothing",
    ),
    (
        Fault::KeepsTheWriterWhenItIsDropped,
        "an_error_of_the_closure_rolls_back",
    ),
    (
        Fault::NeverMovesTheVersion,
        "the_version_moves_on_each_own_commit",
    ),
    (
        Fault::NeverMovesTheVersion,
        "the_version_moves_on_another_threads_commit",
    ),
    (
        Fault::ClearsAfterTheRows,
        "ranges_of_cleared_are_deleted_first_then_rows_are_changed",
    ),
    (
        Fault::IgnoresTheByteBound,
        "a_page_ends_before_the_row_that_would_pass_its_bytes",
    ),
    (
        Fault::EmptiesAPageThatDoesNotFit,
        "a_page_holds_at_least_one_row_when_there_is_one",
    ),
    (
        Fault::SortsGetMany,
        "get_many_answers_in_the_order_of_keys_with_duplicates_and_missing",
    ),
    (Fault::IncludesTheEndOfARange, "a_range_is_half_open"),
    (
        Fault::AnswersAfterClose,
        "after_close_every_call_answers_closed",
    ),
    (
        Fault::ForgetsDeletes,
        "put_inserts_or_replaces_and_delete_removes_if_present",
    ),
    (
        Fault::ForgetsDeletes,
        "300_random_batches_equal_an_ordered_map",
    ),
    (
        Fault::IgnoresPatience,
        "a_writer_answers_busy_once_patience_has_passed",
    ),
    (
        Fault::DropsEmptyValues,
        "empty_keys_and_empty_values_are_rows",
    ),
    (
        Fault::CutsLargeValues,
        "values_of_many_sizes_come_back_byte_for_byte",
    ),
];

#[test]
fn every_wrong_engine_is_caught() {
    for (fault, name) in CAUGHT {
        let case = CASES.iter().find(|case| case.name == *name);
        let case = case.expect("a case of the list");
        let right = case.check(&Wrong::engine(Fault::None));
        assert!(right.is_ok(), "{name} fails a right engine: {right:?}");
        let loud = panic::take_hook();
        panic::set_hook(Box::new(|_| {}));
        let wrong = case.check(&Wrong::engine(*fault));
        panic::set_hook(loud);
        assert!(wrong.is_err(), "{name} lets {fault:?} pass");
    }
}

struct Wrong {
    fault: Fault,
    disks: Mutex<HashMap<PathBuf, MemoryDisk>>,
}

impl Wrong {
    fn engine(fault: Fault) -> Self {
        let disks = Mutex::default();
        Self { fault, disks }
    }
}

impl Engine for Wrong {
    fn name(&self) -> &'static str {
        "wrong"
    }

    fn open(&self, dir: &Path) -> Result<Arc<dyn Storage>, OpenError> {
        let mut disks = self.disks.lock().expect("lock");
        let disk = disks.entry(dir.to_owned()).or_default();
        Ok(Arc::new(WrongStorage {
            fault: self.fault,
            right: disk.open(),
            is_closed: AtomicBool::new(false),
        }))
    }
}

#[derive(Debug)]
struct WrongStorage {
    fault: Fault,
    right: Arc<MemoryStorage>,
    is_closed: AtomicBool,
}

impl Storage for WrongStorage {
    fn capability(&self) -> Capability {
        self.right.capability()
    }

    fn open_tables(&self, tables: &[TableInfo]) -> Result<(), StorageError> {
        self.right.open_tables(tables)
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, StorageError> {
        let view = OnceCell::new();
        if self.fault != Fault::FixesSnapshotsAtTheFirstRead {
            let _ = view.set(self.right.snapshot()?);
        }
        Ok(Box::new(WrongSnapshot {
            storage: self,
            view,
        }))
    }

    fn writer(
        &self,
        patience: Duration,
        durability: Durability,
    ) -> Result<Box<dyn Writer + '_>, StorageError> {
        let patience = match self.fault {
            Fault::IgnoresPatience => Duration::ZERO,
            Fault::KeepsTheWriterWhenItIsDropped => patience.min(Duration::from_millis(50)),
            _ => patience,
        };
        Ok(Box::new(WrongWriter {
            storage: self,
            durability,
            right: Some(self.right.writer(patience, durability)?),
        }))
    }

    fn version(&self) -> Result<u64, StorageError> {
        if self.fault == Fault::NeverMovesTheVersion {
            return self.right.version().map(|_| 1);
        }
        if self.fault == Fault::AnswersAfterClose && self.is_closed.load(Ordering::SeqCst) {
            return Ok(1);
        }
        self.right.version()
    }

    fn close(&self) -> Result<(), StorageError> {
        self.is_closed.store(true, Ordering::SeqCst);
        self.right.close()
    }
}

impl WrongStorage {
    fn get_many(
        &self,
        right: &dyn Snapshot,
        table: TableId,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
        let mut keys = keys.to_vec();
        if self.fault == Fault::SortsGetMany {
            keys.sort_unstable();
        }
        right.get_many(table, &keys)
    }

    fn scan(
        &self,
        right: &dyn Snapshot,
        table: TableId,
        range: KeyRange<'_>,
        mut page: Page,
    ) -> Result<Rows, StorageError> {
        let mut longer = range.end.map(<[u8]>::to_vec);
        match self.fault {
            Fault::IgnoresDescending => page.order = Order::Ascending,
            Fault::IgnoresTheByteBound => page.bytes = u32::MAX,
            Fault::IncludesTheEndOfARange => longer.iter_mut().for_each(|end| end.push(0)),
            _ => {}
        }
        let range = KeyRange {
            start: range.start,
            end: longer.as_deref(),
        };
        let mut rows = right.scan(table, range, page)?;
        match self.fault {
            Fault::SaysMoreWhenAPageIsFull if rows.len() == page.rows as usize => rows.more = true,
            Fault::EmptiesAPageThatDoesNotFit if rows.bytes() > page.bytes as usize => {
                rows = Rows::new();
            }
            _ => {}
        }
        Ok(rows)
    }

    /// Changes a batch as the fault has it.
    fn spoil(&self, batch: &WriteBatch) -> WriteBatch {
        let mut batch = batch.clone();
        for changes in batch.tables.values_mut() {
            let cleared = changes.cleared.clone();
            changes
                .rows
                .retain(|key, change| match (self.fault, &mut *change) {
                    (Fault::TreatsNewAsPut, Change::New(value)) => {
                        *change = Change::Put(std::mem::take(value));
                        true
                    }
                    (Fault::ForgetsDeletes, Change::Delete) => false,
                    (Fault::DropsEmptyValues, Change::Put(value)) => !value.is_empty(),
                    (Fault::CutsLargeValues, Change::Put(value)) => {
                        value.truncate(65_535);
                        true
                    }
                    (Fault::ClearsAfterTheRows, _) => !cleared.iter().any(|(start, end)| {
                        start <= key && end.as_ref().is_none_or(|end| key < end)
                    }),
                    _ => true,
                });
        }
        batch
    }
}

struct WrongSnapshot<'s> {
    storage: &'s WrongStorage,
    view: OnceCell<Box<dyn Snapshot + 's>>,
}

impl WrongSnapshot<'_> {
    fn view(&self) -> &dyn Snapshot {
        let late = || self.storage.right.snapshot().expect("snapshot");
        &**self.view.get_or_init(late)
    }
}

impl Snapshot for WrongSnapshot<'_> {
    fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.view().get(table, key)
    }

    fn get_many(
        &self,
        table: TableId,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
        self.storage.get_many(self.view(), table, keys)
    }

    fn scan(&self, table: TableId, range: KeyRange<'_>, page: Page) -> Result<Rows, StorageError> {
        self.storage.scan(self.view(), table, range, page)
    }
}

struct WrongWriter<'s> {
    storage: &'s WrongStorage,
    durability: Durability,
    right: Option<Box<dyn Writer + 's>>,
}

impl WrongWriter<'_> {
    fn right(&self) -> &dyn Writer {
        &**self.right.as_ref().expect("the writer is not committed")
    }

    /// Commits one table after the other, and takes its time between them.
    fn commit_by_table(&mut self, batch: &WriteBatch) -> Result<(), StorageError> {
        let mut right = self.right.take();
        for (table, changes) in &batch.tables {
            let part = WriteBatch {
                tables: [(*table, changes.clone())].into(),
            };
            let writer = match right.take() {
                Some(writer) => writer,
                None => self.storage.right.writer(Duration::MAX, self.durability)?,
            };
            writer.commit(&part)?;
            let start = Instant::now();
            while start.elapsed() < Duration::from_micros(200) {
                std::hint::spin_loop();
            }
        }
        Ok(())
    }

    /// Commits all but the rows that are refused, and refuses nevertheless.
    fn commit_what_can_be(&mut self, batch: &WriteBatch) -> Result<(), StorageError> {
        let right = self.right.take().expect("the writer is not committed");
        let refused = right.commit(batch);
        if matches!(refused, Err(StorageError::Exists { .. })) {
            let mut rest = batch.clone();
            for changes in rest.tables.values_mut() {
                let is_new = |change: &Change| matches!(change, Change::New(_));
                changes.rows.retain(|_, change| !is_new(change));
            }
            let again = self.storage.right.writer(Duration::MAX, self.durability)?;
            again.commit(&rest)?;
        }
        refused
    }
}

impl Drop for WrongWriter<'_> {
    fn drop(&mut self) {
        if let Some(right) = self.right.take()
            && self.storage.fault == Fault::KeepsTheWriterWhenItIsDropped
        {
            std::mem::forget(right);
        }
    }
}

impl Snapshot for WrongWriter<'_> {
    fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.right().get(table, key)
    }

    fn get_many(
        &self,
        table: TableId,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
        self.storage.get_many(self.right(), table, keys)
    }

    fn scan(&self, table: TableId, range: KeyRange<'_>, page: Page) -> Result<Rows, StorageError> {
        self.storage.scan(self.right(), table, range, page)
    }
}

impl Writer for WrongWriter<'_> {
    fn commit(mut self: Box<Self>, batch: &WriteBatch) -> Result<(), StorageError> {
        let batch = self.storage.spoil(batch);
        match self.storage.fault {
            Fault::CommitsTableByTable => self.commit_by_table(&batch),
            Fault::KeepsWhatCameBeforeAnError => self.commit_what_can_be(&batch),
            _ => {
                let right = self.right.take().expect("the writer is not committed");
                right.commit(&batch)
            }
        }
    }
}
