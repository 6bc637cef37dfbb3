//! The overlay of a transaction against a plain map: whatever happens in it, reads agree.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use xmtp_core::runtime::SimulatedRuntime;
use xmtp_core::storage::{
    Database, Domain, Durability, Key, KeyRange, Layout, Order, Page, Raw, Read, Snapshot, Storage,
    StorageError, Table, WriteTxn,
};
use xmtp_core::testing::memory::MemoryStorage;

const ROWS: Table<(u8, u8), Raw> = Table::new(900, "rows", Layout::Small, Domain::Mls);

type Model = BTreeMap<Vec<u8>, Vec<u8>>;
type Expected<'a> = Vec<(&'a Vec<u8>, &'a Vec<u8>)>;

fn config() -> ProptestConfig {
    let rounds = std::env::var("XMTP_ROUNDS").ok();
    let rounds: u32 = rounds.and_then(|text| text.parse().ok()).unwrap_or(1);
    ProptestConfig {
        cases: 256 * rounds,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

#[derive(Clone, Debug)]
enum Op {
    Put((u8, u8), u8),
    PutNew((u8, u8), u8),
    Delete((u8, u8)),
    Clear(u8),
    Scan(Scan),
    Savepoint { ops: Vec<Op>, is_kept: bool },
}

#[derive(Clone, Debug)]
struct Scan {
    start: Vec<u8>,
    end: Option<Vec<u8>>,
    page: Page,
}

fn key() -> impl Strategy<Value = (u8, u8)> {
    (0..5u8, 0..5u8)
}

fn scan() -> impl Strategy<Value = Scan> {
    let bound = || vec(0..6u8, 0..3);
    let bounds = (bound(), proptest::option::of(bound()));
    let page = (1..7u32, 0..40u32, any::<bool>());
    (bounds, page).prop_map(|((start, end), (rows, bytes, is_ascending))| Scan {
        start,
        end,
        page: Page {
            rows,
            bytes,
            order: if is_ascending {
                Order::Ascending
            } else {
                Order::Descending
            },
        },
    })
}

fn op() -> impl Strategy<Value = Op> {
    let leaf = prop_oneof![
        4 => (key(), 0..12u8).prop_map(|(key, len)| Op::Put(key, len)),
        4 => (key(), 0..12u8).prop_map(|(key, len)| Op::PutNew(key, len)),
        4 => key().prop_map(Op::Delete),
        1 => (0..6u8).prop_map(Op::Clear),
        4 => scan().prop_map(Op::Scan),
    ];
    leaf.prop_recursive(3, 40, 8, |inner| {
        let ops = vec(inner, 0..8);
        (ops, any::<bool>()).prop_map(|(ops, is_kept)| Op::Savepoint { ops, is_kept })
    })
}

fn run(txn: &mut WriteTxn<'_>, model: &mut Model, ops: &[Op]) -> Result<(), StorageError> {
    for op in ops {
        match op {
            Op::Put(key, len) => {
                let value = vec![*len; usize::from(*len)];
                txn.put(ROWS, key, &Raw(value.clone()))?;
                model.insert(key.to_bytes(), value);
            }
            Op::PutNew(key, len) if !model.contains_key(&key.to_bytes()) => {
                let value = vec![*len; usize::from(*len)];
                txn.put_new(ROWS, key, &Raw(value.clone()))?;
                model.insert(key.to_bytes(), value);
            }
            Op::PutNew(key, _) | Op::Delete(key) => {
                txn.delete(ROWS, key)?;
                model.remove(&key.to_bytes());
            }
            Op::Clear(prefix) => {
                txn.clear(ROWS, prefix)?;
                model.retain(|key, _| key[0] != *prefix);
            }
            Op::Scan(scan) => check_scan(txn, model, scan),
            Op::Savepoint { ops, is_kept } => {
                let before = model.clone();
                let outcome = txn.savepoint(|txn| {
                    run(txn, model, ops)?;
                    is_kept.then_some(()).ok_or(StorageError::Full)
                });
                match (outcome, is_kept) {
                    (Ok(()), true) => {}
                    (Err(StorageError::Full), false) => *model = before,
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    check_points(txn, model);
    Ok(())
}

fn check_points(snapshot: &dyn Snapshot, model: &Model) {
    let keys: Vec<(u8, u8)> = (0..25).map(|at| (at / 5, at % 5)).collect();
    let expected: Vec<Option<Raw>> = keys
        .iter()
        .map(|key| model.get(&key.to_bytes()).cloned().map(Raw))
        .collect();
    assert_eq!(snapshot.rows(ROWS, &keys).expect("rows"), expected);
    for (key, expected) in keys.iter().zip(expected) {
        assert_eq!(snapshot.row(ROWS, key).expect("row"), expected);
    }
}

/// Walks a range page by page, and each page is exactly what its bounds allow.
fn check_scan(snapshot: &dyn Snapshot, model: &Model, scan: &Scan) {
    let mut expected: Expected<'_> = match &scan.end {
        Some(end) if *end <= scan.start => Vec::new(),
        end => {
            let end = end.clone().map_or(Bound::Unbounded, Bound::Excluded);
            let found = model.range((Bound::Included(scan.start.clone()), end));
            found.collect()
        }
    };
    if scan.page.order == Order::Descending {
        expected.reverse();
    }
    let (mut start, mut end) = (scan.start.clone(), scan.end.clone());
    let mut rest = expected.as_slice();
    loop {
        let range = KeyRange {
            start: &start,
            end: end.as_deref(),
        };
        let rows = snapshot.scan(ROWS.info.id, range, scan.page).expect("scan");
        let (page, later) = rest.split_at(fitting(rest, scan.page));
        let found: Vec<(&[u8], &[u8])> = rows.iter().collect();
        let page: Vec<(&[u8], &[u8])> = page
            .iter()
            .map(|(key, value)| (key.as_slice(), value.as_slice()))
            .collect();
        assert_eq!(found, page, "{scan:?}");
        assert_eq!(rows.more, !later.is_empty(), "{scan:?}");
        let Some((last, _)) = page.last().filter(|_| rows.more) else {
            return;
        };
        match scan.page.order {
            Order::Ascending => start = [last, &[0][..]].concat(),
            Order::Descending => end = Some(last.to_vec()),
        }
        rest = later;
    }
}

/// How many of the next rows one page holds.
fn fitting(rest: &[(&Vec<u8>, &Vec<u8>)], page: Page) -> usize {
    let mut bytes = 0;
    let mut rows = 0;
    for (key, value) in rest.iter().take(page.rows as usize) {
        bytes += key.len() + value.len();
        if rows > 0 && bytes > page.bytes as usize {
            break;
        }
        rows += 1;
    }
    rows
}

fn open() -> Database {
    let storage = MemoryStorage::new();
    storage.open_tables(&[ROWS.info]).expect("tables");
    let runtime = Arc::new(SimulatedRuntime::new(1));
    Database::open(storage, runtime).expect("open")
}

proptest! {
    #![proptest_config(config())]

    /// Reads inside a transaction, after its savepoints and after its end agree with a map; a
    /// failed transaction leaves nothing (STR-077).
    ///
    /// covers: STR-077
    #[test]
    fn agrees_with_a_map(
        txns in vec((vec(op(), 0..25), any::<bool>()), 1..4),
        scans in vec(scan(), 4),
    ) {
        let database = open();
        let mut committed = Model::new();
        for (ops, is_kept) in txns {
            let mut model = committed.clone();
            let outcome = database.write(Durability::Ordered, |txn| {
                run(txn, &mut model, &ops)?;
                for scan in &scans {
                    check_scan(txn, &model, scan);
                }
                is_kept.then_some(()).ok_or(StorageError::Full)
            });
            prop_assert_eq!(outcome.is_ok(), is_kept);
            if is_kept {
                committed = model;
            }
            let checked = database.read::<_, StorageError>(|snapshot| {
                check_points(snapshot, &committed);
                scans.iter().for_each(|scan| check_scan(snapshot, &committed, scan));
                Ok(())
            });
            prop_assert_eq!(checked, Ok(()));
        }
    }
}
