//! Transactions of [`Database`] over the engine: what a transaction reads of its own changes,
//! and what is left of them when it ends otherwise than by commit.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use super::Engine;
use super::fixture::{ALL, Fixture, LARGE, NUMBERED, Row, SMALL, dump, from, page, range, walk};
use crate::runtime::SimulatedRuntime;
use crate::storage::{
    All, Database, Domain, Durability, Layout, MAX_VALUE_BYTES, MAX_WRITE_SET_BYTES, Order, Raw,
    Read, Snapshot, StorageError, Table, WriteTxn,
};

/// Pairs of bytes as keys, so that a prefix is one byte.
pub(super) const PAIRS: Table<(u8, u8), Raw> =
    Table::new(SMALL.0, "suite_small", Layout::Small, Domain::Messages);
/// The same with larger rows.
pub(super) const LARGE_PAIRS: Table<(u8, u8), Raw> =
    Table::new(LARGE.0, "suite_large", Layout::Large, Domain::Groups);
/// Numbers as keys.
pub(super) const NUMBERS: Table<u64, Raw> = Table::new(
    NUMBERED.0,
    "suite_numbered",
    Layout::Numbered,
    Domain::Messages,
);

type Outcome = Result<(), StorageError>;

/// Opens the facade over a fixture's engine.
pub(super) fn facade(fixture: &Fixture<'_>) -> Database {
    let runtime = Arc::new(SimulatedRuntime::new(7));
    Database::open(fixture.storage().clone(), runtime).expect("open the facade")
}

fn write(database: &Database, f: impl FnOnce(&mut WriteTxn<'_>) -> Outcome) {
    database.write(Durability::Ordered, f).expect("write");
}

fn raw(text: &str) -> Raw {
    Raw(text.as_bytes().to_vec())
}

/// Fills the pairs (1..=3, 0..=4).
fn filled(database: &Database) {
    write(database, |txn| {
        for prefix in 1..=3 {
            for last in 0..=4 {
                txn.put_new(PAIRS, &(prefix, last), &raw("below"))?;
                txn.put_new(LARGE_PAIRS, &(prefix, last), &raw("below"))?;
            }
        }
        Ok(())
    });
}

/// Changes that meet the rows below in every way: over, between, before, after, gone, cleared.
fn mixed(txn: &mut WriteTxn<'_>) -> Result<Vec<Row>, StorageError> {
    for table in [PAIRS, LARGE_PAIRS] {
        txn.delete(table, &(1, 0))?;
        txn.put(table, &(1, 2), &raw("over"))?;
        txn.put_new(table, &(1, 9), &raw("between"))?;
        txn.put_new(table, &(0, 7), &raw("before"))?;
        txn.clear(table, &2u8)?;
        txn.put(table, &(2, 3), &raw("after the clear"))?;
        txn.put(table, &(2, 9), &raw("after the clear"))?;
        txn.delete(table, &(2, 9))?;
        txn.delete(table, &(3, 4))?;
        txn.put_new(table, &(9, 9), &raw("last"))?;
    }
    let expected = [
        ([0, 7], "before"),
        ([1, 1], "below"),
        ([1, 2], "over"),
        ([1, 3], "below"),
        ([1, 4], "below"),
        ([1, 9], "between"),
        ([2, 3], "after the clear"),
        ([3, 0], "below"),
        ([3, 1], "below"),
        ([3, 2], "below"),
        ([3, 3], "below"),
        ([9, 9], "last"),
    ];
    let rows = expected.map(|(key, value)| (key.to_vec(), value.as_bytes().to_vec()));
    Ok(rows.to_vec())
}

fn scans(engine: &dyn Engine, order: Order) {
    let fixture = Fixture::new(engine);
    let database = facade(&fixture);
    filled(&database);
    write(&database, |txn| {
        let mut expected = mixed(txn)?;
        let middle: Vec<Row> = expected[2..7].to_vec();
        if order == Order::Descending {
            expected.reverse();
        }
        for table in [SMALL, LARGE] {
            for limit in 1..=13 {
                let found = walk(txn, table, from(b""), page(limit, 1 << 20, order));
                assert_eq!(found, expected, "pages of {limit} rows");
                let found = walk(txn, table, from(b""), page(100, limit * 8, order));
                assert_eq!(found, expected, "pages of {} bytes", limit * 8);
                let by = page(limit, 1 << 20, order);
                let mut found = walk(txn, table, range(&[1, 2], &[3, 0]), by);
                if order == Order::Descending {
                    found.reverse();
                }
                assert_eq!(found, middle, "a range by pages of {limit} rows");
            }
        }
        Ok(())
    });
    let committed = dump(&*fixture.storage().snapshot().expect("snapshot"), SMALL);
    assert_eq!(committed.len(), 12, "the commit holds what the scans saw");
    let keys = [(1, 2), (2, 0), (9, 9)];
    let read = database.read(|snapshot| snapshot.rows(LARGE_PAIRS, &keys));
    let expected = [Some(raw("over")), None, Some(raw("last"))];
    assert_eq!(read, Ok(expected.to_vec()));
}

/// Ascending scans see puts, deletes and cleared ranges of the transaction.
pub(super) fn ascending(engine: &dyn Engine) {
    scans(engine, Order::Ascending);
}

/// Descending scans see the same.
pub(super) fn descending(engine: &dyn Engine) {
    scans(engine, Order::Descending);
}

/// Start, end and rows of a page, and what it holds and says.
type Edge = (&'static [u8], &'static [u8], u32, usize, bool);

/// A page that ends exactly at a deleted row or cleared range is exact about `more`.
pub(super) fn page_edges(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let database = facade(&fixture);
    filled(&database);
    write(&database, |txn| {
        // Left of prefix 1: (1, 0) and (1, 1); nothing of 2; all of 3 but its ends.
        for last in 2..=4 {
            txn.delete(PAIRS, &(1, last))?;
        }
        txn.clear(PAIRS, &2u8)?;
        txn.delete(PAIRS, &(3, 0))?;
        txn.delete(PAIRS, &(3, 4))?;
        let checks: [Edge; 8] = [
            (&[1], &[2], 2, 2, false),
            (&[1], &[3], 2, 2, false),
            (&[1], &[3, 1], 2, 2, false),
            (&[1], &[3, 2], 2, 2, true),
            (&[1, 2], &[3, 1], 1, 0, false),
            (&[2], &[3], 1, 0, false),
            (&[2], &[4], 3, 3, false),
            (&[2], &[4], 2, 2, true),
        ];
        for (start, end, limit, len, more) in checks {
            for order in [Order::Ascending, Order::Descending] {
                let by = page(limit, 1 << 20, order);
                let found = txn.scan(SMALL, range(start, end), by)?;
                let told = (found.len(), found.more);
                assert_eq!(told, (len, more), "{start:?}..{end:?} {order:?}");
            }
        }
        txn.clear(PAIRS, &All)?;
        for order in [Order::Ascending, Order::Descending] {
            let found = txn.scan(SMALL, from(b""), page(1, 1, order))?;
            assert_eq!((found.len(), found.more), (0, false));
        }
        Ok(())
    });
}

/// A row put as new and deleted again is gone, and may be put as new again.
pub(super) fn new_and_delete(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let database = facade(&fixture);
    write(&database, |txn| {
        for number in 1..=3 {
            txn.put_new(NUMBERS, &number, &raw("new"))?;
            txn.delete(NUMBERS, &number)?;
            assert_eq!(txn.row(NUMBERS, &number)?, None);
        }
        txn.put_new(NUMBERS, &2, &raw("again"))
    });
    let snapshot = fixture.storage().snapshot().expect("snapshot");
    let expected = (2u64.to_be_bytes().to_vec(), b"again".to_vec());
    assert_eq!(dump(&*snapshot, NUMBERED), [expected]);
}

/// Savepoints nest: an inner one is kept or undone, and an outer one undoes both.
pub(super) fn nested_savepoints(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let database = facade(&fixture);
    filled(&database);
    write(&database, |txn| {
        txn.put(PAIRS, &(1, 0), &raw("outside"))?;
        let undone: Outcome = txn.savepoint(|txn| {
            txn.clear(PAIRS, &All)?;
            txn.put(PAIRS, &(5, 5), &raw("undone"))?;
            let kept: Outcome = txn.savepoint(|txn| txn.put(PAIRS, &(6, 6), &raw("undone too")));
            kept?;
            let found = txn.scan(SMALL, from(b""), ALL)?;
            assert_eq!(found.len(), 2);
            Err(StorageError::HeldBack)
        });
        assert_eq!(undone, Err(StorageError::HeldBack));
        txn.savepoint(|txn| {
            txn.put(PAIRS, &(7, 7), &raw("kept"))?;
            let undone: Outcome = txn.savepoint(|txn| {
                txn.put(PAIRS, &(7, 7), &raw("undone"))?;
                txn.clear(PAIRS, &1u8)?;
                Err(StorageError::HeldBack)
            });
            assert!(undone.is_err());
            assert_eq!(txn.row(PAIRS, &(7, 7))?, Some(raw("kept")));
            Ok::<_, StorageError>(())
        })
    });
    let keys = [(1, 0), (1, 1), (5, 5), (6, 6), (7, 7)];
    let read = database.read(|snapshot| snapshot.rows(PAIRS, &keys));
    let expected = [
        Some(raw("outside")),
        Some(raw("below")),
        None,
        None,
        Some(raw("kept")),
    ];
    assert_eq!(read, Ok(expected.to_vec()));
}

/// A panic caught above a savepoint undoes the savepoint alone.
pub(super) fn panic_in_savepoint(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let database = facade(&fixture);
    write(&database, |txn| {
        txn.put(NUMBERS, &1, &raw("kept"))?;
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            txn.savepoint(|txn| -> Outcome {
                txn.put(NUMBERS, &1, &raw("undone"))?;
                txn.put(NUMBERS, &2, &raw("undone"))?;
                resume_unwind(Box::new("on purpose"))
            })
        }));
        assert!(panicked.is_err());
        assert_eq!(txn.row(NUMBERS, &1)?, Some(raw("kept")));
        txn.put(NUMBERS, &3, &raw("kept"))
    });
    let read = database.read(|snapshot| snapshot.rows(NUMBERS, &[1, 2, 3]));
    assert_eq!(read, Ok(vec![Some(raw("kept")), None, Some(raw("kept"))]));
}

/// A panic in the closure of a write commits nothing, and the next write works.
pub(super) fn panic_in_closure(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let database = facade(&fixture);
    for round in 0..3u64 {
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            database.write(Durability::Flushed, |txn| -> Outcome {
                txn.put(NUMBERS, &100, &raw("undone"))?;
                resume_unwind(Box::new("on purpose"))
            })
        }));
        assert!(panicked.is_err());
        write(&database, |txn| txn.put_new(NUMBERS, &round, &raw("kept")));
    }
    let read = database.read(|snapshot| snapshot.rows(NUMBERS, &[0, 2, 100]));
    assert_eq!(read, Ok(vec![Some(raw("kept")), Some(raw("kept")), None]));
}

/// An error of the closure, or a write held back, commits nothing.
pub(super) fn error_in_closure(engine: &dyn Engine) {
    let mut fixture = Fixture::new(engine);
    let database = facade(&fixture);
    write(&database, |txn| txn.put(NUMBERS, &1, &raw("kept")));
    let failed = database.write(Durability::Ordered, |txn| -> Outcome {
        txn.clear(NUMBERS, &All)?;
        Err(StorageError::UnknownOutcome)
    });
    assert_eq!(failed, Err(StorageError::UnknownOutcome));
    let failed = database.write(Durability::Ordered, |txn| -> Outcome {
        txn.hold_back();
        txn.put(NUMBERS, &2, &raw("undone"))
    });
    assert_eq!(failed, Err(StorageError::HeldBack));
    drop(database);
    fixture.reopen();
    let snapshot = fixture.storage().snapshot().expect("snapshot");
    let expected = (1u64.to_be_bytes().to_vec(), b"kept".to_vec());
    assert_eq!(dump(&*snapshot, NUMBERED), [expected]);
}

/// A value or write set over its bound is refused, and what was there before stays usable.
pub(super) fn bounds(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let database = facade(&fixture);
    let most = database.capability().max_value_bytes.min(MAX_VALUE_BYTES);
    let too_large = |outcome: &Outcome| matches!(outcome, Err(StorageError::TooLarge { .. }));
    let over = Raw(vec![0; most + 1]);
    write(&database, |txn| {
        assert!(too_large(&txn.put(LARGE_PAIRS, &(0, 0), &over)));
        txn.put(LARGE_PAIRS, &(1, 1), &raw("kept"))
    });
    let chunk = Raw(vec![0; most.min(MAX_WRITE_SET_BYTES / 4)]);
    let refused = database.write(Durability::Ordered, |txn| -> Outcome {
        for number in 0..=(MAX_WRITE_SET_BYTES / chunk.0.len()) as u64 {
            txn.put(NUMBERS, &number, &chunk)?;
        }
        Ok(())
    });
    assert!(too_large(&refused), "a write set over its bound");
    let read = database.read(|snapshot| {
        assert!(dump(snapshot, NUMBERED).is_empty());
        snapshot.row(LARGE_PAIRS, &(1, 1))
    });
    assert_eq!(read, Ok(Some(raw("kept"))));
}
